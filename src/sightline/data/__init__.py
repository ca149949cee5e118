"""Training text: files, the built-in corpus, tokenised stores and batches."""

from typing import TYPE_CHECKING

from sightline.lazy import lazy_exports

if TYPE_CHECKING:
    from sightline.data.builtin import generate, riddle
    from sightline.data.corpus import Dialogue, Parallel, Table, Text, read_pairs

__all__ = ["Dialogue", "Parallel", "Table", "Text", "generate", "read_pairs", "riddle"]
__getattr__, __dir__ = lazy_exports(__name__)
