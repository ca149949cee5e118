"""`sightline models`, `config` and `doctor`: list models, options and the packages of this machine."""

import platform
from typing import Annotated

from typer import Option, echo

from sightline.cli.parameters import Config, Set

PACKAGES = {
    "torch": "",
    "ctranslate2": "fast translation on a CPU (in the clone: pip install -e '.[fast]')",
    "fastapi": "sightline serve (pip install -e '.[serve]')",
    "onnxruntime": "export to ONNX (pip install -e '.[export]')",
    "transformers": "export to Hugging Face (pip install -e '.[export]')",
}
"""Packages to report, and the use of the optional ones."""


def models() -> None:
    """List the models that come with Sightline. Every command accepts these names in place of a folder."""
    from sightline.model_folder import ModelFolder, bundled_models

    for name in bundled_models():
        folder = ModelFolder(name)
        count = folder.count_parameters()
        about = (folder.path / "README.md").read_text("utf-8").partition("\n")[0].partition(": ")[2]
        echo(f"{name:8} {count / 1e6:4.1f} M parameters  {about}")
        echo(f"         {folder.path / 'README.md'}")
        if states := folder.states:
            echo(f"         earlier states: {name}/states/{states[0].name} to {states[-1].name}")


def explain(
    preset: Annotated[str | None, Option(help="Preset to start from.")] = None,
    config: Config = None,
    set: Set = None,
) -> None:
    """Print every option with its value and meaning, as TOML for `--config`."""
    from sightline.config import load
    from sightline.options import as_toml

    echo(as_toml(load(preset, config, set or [])))


def presets() -> None:
    """List the presets, with the number of parameters for a vocabulary of 37,000."""
    from sightline.config import load
    from sightline.model_folder import count_parameters
    from sightline.options import presets

    for name in presets():
        model = load(name).model
        stacks = " + ".join(str(stack.layers) for stack in model.stacks.values())
        count = count_parameters(model) / 1e6
        shape = f"{stacks:>6} layers  d_model {model.d_model:<5} {count:6.1f} M parameters"
        echo(f"{name:11} {model.architecture:16} {shape}")


def doctor() -> None:
    """Report Python, packages and devices, and run a small model on each device."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    from sightline import __version__
    from sightline.config import ModelConfig
    from sightline.model.transformer import build

    echo(f"sightline     {__version__}")
    echo(f"python        {platform.python_version()}")
    for package, use in PACKAGES.items():
        try:
            echo(f"{package:13} {version(package)}")
        except PackageNotFoundError:
            echo(f"{package:13} not installed; used for {use}")
    small = ModelConfig(vocab_size=64, d_model=64, encoder={"layers": 1}, decoder={"layers": 1})
    ids = torch.arange(16)[None]
    torch.manual_seed(0)
    model = build(small).eval()
    devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    with torch.no_grad():
        expected = model(ids, ids)
        for device in devices:
            logits = model.to(device)(ids.to(device), ids.to(device)).cpu()
            difference = (logits - expected).abs().max().item()
            name = f" ({torch.cuda.get_device_name(device)})" if device.startswith("cuda") else ""
            accuracy = "" if device == "cpu" else f"; logits differ from the CPU by {difference:.1e}"
            echo(f"{device:13} model runs{name}{accuracy}")
