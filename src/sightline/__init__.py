"""Sightline: the Transformer of "Attention Is All You Need" as real software.

Train it on your own text, use it at speed, and see every number inside it. Importing this package does not import
torch; the first use of one of its names does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sightline.config import ModelConfig, SearchConfig
    from sightline.engine import (
        Chat,
        Completion,
        Filled,
        LoadOptions,
        Reader,
        Reply,
        Translation,
        Translator,
        Writer,
        load,
    )
    from sightline.errors import SightlineError
    from sightline.model.mask import PackedRows
    from sightline.model.transformer import build
    from sightline.model_folder import load_model, save_model
    from sightline.trace.watch import tracing
    from sightline.trace.what_if import what_if

    __version__: str

__all__ = [
    "Chat",
    "Completion",
    "Filled",
    "LoadOptions",
    "ModelConfig",
    "PackedRows",
    "Reader",
    "Reply",
    "SearchConfig",
    "SightlineError",
    "Translation",
    "Translator",
    "Writer",
    "build",
    "load",
    "load_model",
    "save_model",
    "tracing",
    "what_if",
]

_HOME = {
    **dict.fromkeys(("ModelConfig", "SearchConfig"), "sightline.config"),
    **dict.fromkeys(
        (
            *("Chat", "Completion", "Filled", "LoadOptions", "Reader", "Reply"),
            *("Translation", "Translator", "Writer", "load"),
        ),
        "sightline.engine",
    ),
    **dict.fromkeys(("load_model", "save_model"), "sightline.model_folder"),
    "PackedRows": "sightline.model.mask",
    "SightlineError": "sightline.errors",
    "build": "sightline.model.transformer",
    "tracing": "sightline.trace.watch",
    "what_if": "sightline.trace.what_if",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("sightline")
    if name not in _HOME:
        raise AttributeError(f"module 'sightline' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
