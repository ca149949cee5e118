"""`sightline doctor`: report versions, optional packages and devices."""

import platform

import typer

PACKAGES = {
    "torch": "",
    "ctranslate2": "fast translation on a CPU (in the clone: pip install -e '.[fast]')",
    "fastapi": "sightline serve (pip install -e '.[serve]')",
    "onnxruntime": "export to ONNX (pip install -e '.[export]')",
    "transformers": "export to Hugging Face (pip install -e '.[export]')",
}
"""Packages to report, and the use of the optional ones."""


def doctor() -> None:
    """Report Python, packages and devices, and run a small model on each device."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    from sightline import __version__
    from sightline.config import ModelConfig
    from sightline.model.transformer import build

    typer.echo(f"sightline     {__version__}")
    typer.echo(f"python        {platform.python_version()}")
    for package, use in PACKAGES.items():
        try:
            typer.echo(f"{package:13} {version(package)}")
        except PackageNotFoundError:
            typer.echo(f"{package:13} not installed; used for {use}")
    small = ModelConfig(vocab_size=64, d_model=64, encoder={"layers": 1}, decoder={"layers": 1})
    ids = torch.arange(16)[None]
    torch.manual_seed(0)
    model = build(small).eval()
    devices = ["cpu"]
    devices += [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    with torch.no_grad():
        expected = model(ids, ids)
        for device in devices:
            logits = model.to(device)(ids.to(device), ids.to(device)).cpu()
            difference = (logits - expected).abs().max().item()
            name = f" ({torch.cuda.get_device_name(device)})" if device.startswith("cuda") else ""
            accuracy = "" if device == "cpu" else f"; logits differ from the CPU by {difference:.1e}"
            typer.echo(f"{device:13} model runs{name}{accuracy}")
