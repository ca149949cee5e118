"""Models and training states on disk. Nothing in them can run code when they are loaded.

A model is a folder with `config.json`, `model.safetensors` and, once there is a vocabulary, `tokenizer.model` (and
`source-tokenizer.model`, where sources are cut by other rules). A training state is a folder `step-<number>` with
`state.safetensors` (of a sharded run, a part of each process) and `state.json`, there whole or not at all.
"""

import contextlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from sightline.config import ModelConfig
from sightline.errors import CheckpointError, ConfigError
from sightline.files import read_json_object, sync_folder, write_files
from sightline.model.transformer import Model, build
from sightline.text.tokenizer import FILE, SOURCE_FILE, Tokenizer

__all__ = [
    "FORMAT",
    "begin_state",
    "count_parameters",
    "fill",
    "finish_state",
    "last_state",
    "load_model",
    "load_state",
    "load_tokenizer",
    "read_config",
    "save_model",
    "save_state",
    "writing_state",
]

FORMAT = 1
"""The version of the folder's layout. It changes only when older folders could no longer be read."""


def save_model(model: Model, folder: Path | str, tokenizer: Tokenizer | None = None) -> None:
    """Write a model. Whenever the machine stops, the folder has the old model or the new one, and never half of one."""
    with torch.device("meta"):
        named = dict(build(model.config).named_parameters(remove_duplicate=False))
    first: dict[Tensor, str] = {}
    weights = dict(model.named_parameters(remove_duplicate=False))
    for name, weight in named.items():
        if weight not in first:
            first[weight] = name
        elif not torch.equal(weights[name], weights[first[weight]]):  # an engine on a CPU parts what is tied
            raise CheckpointError(f"{name}: the configuration ties it to {first[weight]!r}, and its numbers differ.")
    save_weights({name: weights[name].detach() for name in first.values()}, model.config, folder, tokenizer)


def save_weights(
    weights: Mapping[str, Tensor], config: ModelConfig, folder: Path | str, tokenizer: Tokenizer | None = None
) -> None:
    """The same, where the weights are not in a model."""
    about = {"format": FORMAT, "model": config.model_dump()}  # all of it: defaults may change one day
    files = {
        "model.safetensors": save({name: weight.contiguous().cpu() for name, weight in weights.items()}),
        "config.json": json.dumps(about, indent=2).encode() + b"\n",
    }
    if tokenizer is not None:
        files |= tokenizer.files
    write_files(folder, files)


def load_tokenizer(folder: Path | str) -> Tokenizer:
    """The vocabulary of a model."""
    path, source = Path(folder) / FILE, Path(folder) / SOURCE_FILE
    if not path.exists():
        read_config(folder)  # where there is no model at all, that is told
        raise CheckpointError(f"{folder}: there is no {FILE} beside the model.")
    found = Tokenizer.load(path)
    return Tokenizer(found.model, str(path), Tokenizer.load(source)) if source.exists() else found


def save_state(folder: Path, step: int, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> Path:
    """Keep the state of a training run, in place of older ones. Until it is whole on the disk, the older ones stay."""
    with writing_state(folder):
        draft = begin_state(folder, step)
        write_files(draft, {"state.safetensors": save({n: v.detach().contiguous().cpu() for n, v in tensors.items()})})
        return finish_state(folder, step, about)


@contextlib.contextmanager
def writing_state(folder: Path) -> Iterator[None]:
    """What fails in the block leaves nothing half-written, and is told in a sentence."""
    try:
        yield
    except (OSError, CheckpointError) as error:
        for draft in folder.glob(".step-*.partial"):
            shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{folder}: cannot be written: {error.strerror}.", value=folder) from None


def begin_state(folder: Path, step: int) -> Path:
    """A new folder to write a state into."""
    draft = _draft(folder, step)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    return draft


def finish_state(folder: Path, step: int, about: Mapping[str, Any]) -> Path:
    """Once all tensors are written: make it the state of the run."""
    draft, kept = _draft(folder, step), folder / f"step-{step:08}"
    write_files(draft, {"state.json": json.dumps({"format": FORMAT, **about}, indent=2).encode() + b"\n"})
    for path in draft.iterdir():
        sync_folder(path)
    shutil.rmtree(kept, ignore_errors=True)  # the same step, once more: nothing new would be lost
    draft.replace(kept)
    sync_folder(folder)
    for old in _states(folder):
        if old != kept:
            shutil.rmtree(old, ignore_errors=True)
    return kept


def _draft(folder: Path, step: int) -> Path:
    return folder / f".step-{step:08}.partial"


def last_state(folder: Path) -> Path | None:
    """The newest training state in a folder, if there is one."""
    return max(_states(folder), default=None)


def load_state(
    folder: Path, like: Callable[[str], Tensor | None] = lambda _: None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_state` kept. Where processes wrote the state in parts, each reads its own parts of a tensor for which
    `like` has one that lies in parts, and other tensors whole."""
    try:
        about = read_json_object(folder / "state.json")
        if (folder / "state.safetensors").exists():
            return load_file(folder / "state.safetensors"), about
        return _load_parts(folder, like), about
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: the state of the run cannot be read: {error}.") from None


def _load_parts(folder: Path, like: Callable[[str], Tensor | None]) -> dict[str, Tensor]:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader  # noqa: PLC0415 - slow to import
    from torch.distributed.checkpoint.state_dict_loader import load  # noqa: PLC0415

    reader = HuggingFaceStorageReader(str(folder))
    found: dict[str, Any] = {}
    for name, kept in reader.read_metadata().state_dict_metadata.items():
        model, size = like(name), kept.size  # type: ignore[union-attr]
        found[name] = torch.zeros(size) if model is None or model.shape != size else torch.zeros_like(model)
    if not found:
        raise ValueError("it has no tensors")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process may read what several wrote
        load(found, storage_reader=reader, no_dist=not torch.distributed.is_initialized())
    return found


def _states(folder: Path) -> Iterable[Path]:
    return folder.glob("step-*") if folder.is_dir() else ()


def load_model(folder: Path | str, device: torch.device | str = "cpu") -> Model:
    """Read a model, ready for use (`eval`), in float32."""
    folder = Path(folder)
    with torch.random.fork_rng(devices=[]):  # weights are drawn here that nobody needs: let nobody notice
        model = build(read_config(folder))
    path = folder / "model.safetensors"
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: the weights cannot be read: {error}.") from None
    fill(model, weights, str(path))
    return model.to(device).eval()


@torch.no_grad()
def fill(model: Model, weights: Mapping[str, Tensor], where: str) -> None:
    """Put weights into a model; every parameter must be there, and nothing else."""
    parameters = dict(model.named_parameters())
    missing, unknown = sorted(parameters.keys() - weights.keys()), sorted(weights.keys() - parameters.keys())
    if missing or unknown:
        which = f"lack {missing[0]!r}" if missing else f"have an unknown {unknown[0]!r}"
        raise CheckpointError(f"{where}: the weights {which} and do not fit the model's configuration.")
    for name, parameter in parameters.items():
        if parameter.shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)} where the configuration asks for {tuple(parameter.shape)}"
            raise CheckpointError(f"{where}: {name!r} has the shape {shapes}.")
        parameter.copy_(weights[name])


def read_config(folder: Path | str) -> ModelConfig:
    """The options of a model, without its weights."""
    path = Path(folder) / "config.json"
    try:
        stored = json.loads(path.read_text("utf-8"))
        version, options = stored["format"], dict(stored["model"])
    except OSError:
        raise CheckpointError(
            f"{path.parent}: there is no model here; a model folder has a config.json. "
            "Models that come with Sightline have names: sightline models."
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(f"{path}: this is not a model's configuration.") from None
    if version != FORMAT:
        raise CheckpointError(f"{path}: the folder has format {version}, and this version of Sightline reads {FORMAT}.")
    try:
        return ModelConfig(**options)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from None


def count_parameters(config: ModelConfig) -> int:
    """How many numbers such a model learns; one that is used at several places counts once."""
    with torch.device("meta"):  # shapes without weights
        return sum(parameter.numel() for parameter in build(config).parameters())
