"""What a search is asked for beside its options, and what it finds."""

from typing import NamedTuple

__all__ = ["Hypothesis", "Wish"]


class Wish(NamedTuple):
    """What is wanted of the answer to one source, as ids."""

    prefix: list[int] = []  # noqa: RUF012 - never changed
    """It begins with these. They count in its score like all others."""
    without: list[list[int]] = []  # noqa: RUF012
    """None of these sequences is in it."""
    within: list[list[int]] = []  # noqa: RUF012
    """All of these sequences are in it; one that is named twice is there twice."""


class Hypothesis(NamedTuple):
    """One finished answer."""

    ids: list[int]
    """Without start and end."""
    score: float
    """log P(y|x) / |y|^α; see `SearchConfig`."""
    log_probs: list[float]
    """Of each token, and of the end after the last one."""
