"""Backends: the libraries that compute a search."""

from typing import TYPE_CHECKING

from sightline.lazy import lazy_exports

if TYPE_CHECKING:
    from sightline.backends.base import Backend

__all__ = ["Backend"]
__getattr__, __dir__ = lazy_exports(__name__)
