"""Sightline: the Transformer of "Attention Is All You Need" as real software.

Train it on your own text, use it at speed, and see every number inside it. Importing this package does not import
torch; the first use of one of its names does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sightline.lazy import lazy_exports

if TYPE_CHECKING:
    from sightline.config import LoadOptions, ModelConfig, SearchConfig
    from sightline.engine import Chat, Completion, Filled, Reader, Reply, Translation, Translator, Writer, load
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

_get, __dir__ = lazy_exports(__name__)


def __getattr__(name: str) -> Any:
    return import_module("importlib.metadata").version("sightline") if name == "__version__" else _get(name)
