"""Evaluation: scores of translations, comparison of systems, alignment error rate."""

from typing import TYPE_CHECKING

from sightline.lazy import lazy_exports

if TYPE_CHECKING:
    from sightline.evaluate.align import agreement
    from sightline.evaluate.compare import Comparison, Estimate, compare_systems, estimate
    from sightline.evaluate.scores import Score, corpus_scores, values

__all__ = [
    "Comparison",
    "Estimate",
    "Score",
    "agreement",
    "compare_systems",
    "corpus_scores",
    "estimate",
    "values",
]
__getattr__, __dir__ = lazy_exports(__name__)
