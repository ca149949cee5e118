"""Models on disk: a folder with `config.json` and `model.safetensors`. Nothing in it can run code when it is loaded."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from sightline.config import ModelConfig
from sightline.errors import CheckpointError, ConfigError
from sightline.model.transformer import Model, build

__all__ = ["FORMAT", "fill", "load_model", "save_model"]

FORMAT = 1
"""The version of the folder's layout. It changes only when older folders could no longer be read."""


def save_model(model: Model, folder: Path | str) -> None:
    """Write a model. Whenever the machine stops, the folder has the old model or the new one, and never half of one."""
    folder = Path(folder)
    weights = {name: weight.detach().contiguous().cpu() for name, weight in model.named_parameters()}
    config = {"format": FORMAT, "model": model.config.model_dump()}  # all of it: defaults may change one day
    files = {"model.safetensors": save(weights), "config.json": json.dumps(config, indent=2).encode() + b"\n"}
    beside = {name: folder / f".{name}.partial" for name in files}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            with beside[name].open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for name, path in beside.items():
            path.replace(folder / name)
    except OSError as error:
        for path in beside.values():
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        raise CheckpointError(f"{folder}: the model cannot be written: {error.strerror}.") from None


def load_model(folder: Path | str, device: torch.device | str = "cpu") -> Model:
    """Read a model, ready for use (`eval`), in float32."""
    folder = Path(folder)
    with torch.random.fork_rng(devices=[]):  # weights are drawn here that nobody needs: let nobody notice
        model = build(_read_config(folder / "config.json"))
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


def _read_config(path: Path) -> ModelConfig:
    try:
        stored = json.loads(path.read_text("utf-8"))
        version, options = stored["format"], dict(stored["model"])
    except OSError:
        raise CheckpointError(f"{path.parent}: there is no model here; a model folder has a config.json.") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(f"{path}: this is not a model's configuration.") from None
    if version != FORMAT:
        raise CheckpointError(f"{path}: the folder has format {version}, and this version of Sightline reads {FORMAT}.")
    try:
        return ModelConfig(**options)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from None
