"""Beam search, greedy search and sampling: from requests to answers, as token ids."""

from typing import TYPE_CHECKING

from sightline.lazy import lazy_exports

if TYPE_CHECKING:
    from sightline.search.align import read_pharaoh, write_pharaoh
    from sightline.search.tree import Tree
    from sightline.search.types import Constraints, Hypothesis, Limits, Request, StepUpdate

__all__ = [
    "Constraints",
    "Hypothesis",
    "Limits",
    "Request",
    "StepUpdate",
    "Tree",
    "read_pharaoh",
    "write_pharaoh",
]
__getattr__, __dir__ = lazy_exports(__name__)
