"""The progress of a run, and training states on disk: folders `step-<number>`, each complete or absent.

A state has `state.json` and `state.safetensors`; the state of a sharded run has one file of tensors per process.
"""

import contextlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from sightline.data.feed import Place
from sightline.errors import CheckpointError
from sightline.files import draft_folder, not_written, read_json_object, sync_folder, write_files

FORMAT = 2
"""The version of a state's layout; Sightline 0.1 wrote version 1."""


@dataclass
class RunState:
    """Progress of a run: its state outside of weights and optimizer."""

    step: int = 0
    place: Place = field(default_factory=Place)
    epoch: float = 0.0
    tokens: int = 0
    best: float | None = None
    """Best validation result; higher is better."""
    validations_without_gain: int = 0
    """Validations since the best one."""
    averaged: list[tuple[float, int]] = field(default_factory=list)
    """Result and step of each state in `states/`."""
    losses: list[float] = field(default_factory=list)
    """Reported losses, to warn when they do not fall."""
    validation_due: bool = False
    """Whether the run stopped before a validation that was due; resuming starts with it."""
    stopped: int = 0
    """The signal that stopped the run, or 0."""


@contextlib.contextmanager
def new_state(folder: Path, about: Mapping[str, Any]) -> Iterator[Path]:
    """Yield an empty folder for the tensors of a state. After the block it becomes the state `folder`, and older states
    are removed."""
    try:
        with draft_folder(folder) as draft:
            yield draft
            write_files(draft, {"state.json": json.dumps({"format": FORMAT, **about}, indent=2).encode() + b"\n"})
            for path in draft.iterdir():
                sync_folder(path)
            shutil.rmtree(folder, ignore_errors=True)  # an equal state of the same step
    except OSError as error:
        raise not_written(folder, error) from None
    sync_folder(folder.parent)
    for old in _states(folder.parent):
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)


def last_state(folder: Path) -> Path | None:
    """Return the newest state in a folder, or None."""
    return max(_states(folder), default=None)


def load_state(
    folder: Path, like: Callable[[str], Tensor | None] = lambda _: None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load a state: tensors by name, and the contents of state.json.

    If a sharded run wrote it, each process reads its own part of a tensor for which `like` returns a sharded tensor,
    and other tensors completely.
    """
    about = read_json_object(folder / "state.json")
    if about.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder}: the run was started by another version of Sightline, which this one cannot resume. "
            "Start a new run from its model.",
            value=folder,
        )
    try:
        if (folder / "state.safetensors").exists():
            return load_file(folder / "state.safetensors"), about
        return _load_parts(folder, like), about
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: the state cannot be read: {error}.", value=folder) from None


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
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process may read all parts
        load(found, storage_reader=reader, no_dist=not torch.distributed.is_initialized())
    return found


def _states(folder: Path) -> Iterable[Path]:
    return folder.glob("step-*") if folder.is_dir() else ()
