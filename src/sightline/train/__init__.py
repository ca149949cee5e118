"""Training: from files of text to a model."""

from typing import TYPE_CHECKING

from sightline.lazy import lazy_exports

if TYPE_CHECKING:
    from sightline.train.run import RunOptions, TextFiles, train_files

__all__ = ["RunOptions", "TextFiles", "train_files"]
__getattr__, __dir__ = lazy_exports(__name__)
