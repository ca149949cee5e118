"""Figures: the curves of a run."""

from typing import TYPE_CHECKING

from sightline.lazy import lazy_exports

if TYPE_CHECKING:
    from sightline.figures.curves import plot

__all__ = ["plot"]
__getattr__, __dir__ = lazy_exports(__name__)
