"""Requests to a search, and its results, as ids."""

from typing import NamedTuple

from sightline.special import START

__all__ = ["Constraints", "Hypothesis", "Limits", "Request", "StepUpdate"]


class Limits(NamedTuple):
    """Least and most new tokens of an answer. The end counts as one of the most, not of the least."""

    most: int
    least: int = 0


class Constraints(NamedTuple):
    """Token sequences that an answer must or must not contain."""

    prefix: list[int] = []  # noqa: RUF012 - never changed
    """The answer begins with these tokens. They are scored and returned."""
    require: list[list[int]] = []  # noqa: RUF012
    """The answer contains each of these sequences; one that is listed twice, twice."""
    forbid: list[list[int]] = []  # noqa: RUF012
    """The answer contains none of these sequences."""


class Request(NamedTuple):
    """One row of work."""

    source: list[int]
    """The encoder's input, with its end; empty without an encoder."""
    limits: Limits
    given: list[int] = [START]  # noqa: RUF012
    """The tokens that the decoder reads before it writes, at least one. They are neither scored nor returned."""
    constraints: Constraints = Constraints()

    @property
    def size(self) -> int:
        """Positions that the request takes in a batch: those of its source; without one, those of the whole text."""
        return len(self.source) or len(self.given) - 1 + self.limits.most


class Hypothesis(NamedTuple):
    """A finished answer."""

    ids: list[int]
    """Its tokens, without the end."""
    score: float
    """log P(y|x) / |y|^α; see `SearchConfig.length_penalty`."""
    log_probs: list[float]
    """Of each token; if the answer ended by itself, of the end too."""


class StepUpdate(NamedTuple):
    """The results of one step of a search, by the number of the request."""

    tokens: dict[int, int]
    """The new token of each streamed answer."""
    answers: dict[int, list[Hypothesis]]
    """The best answers to the requests that are done, best first."""
