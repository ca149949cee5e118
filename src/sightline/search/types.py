"""The requests, answers and updates of a search: token ids only."""

from typing import NamedTuple

from sightline.special import START


class Limits(NamedTuple):
    """Bounds on the number of new tokens of an answer."""

    most: int
    """New tokens, the end included."""
    least: int = 0
    """New tokens before the end may come."""
    cut: bool = False
    """An answer that reaches `most` stops as it is; otherwise its last token is the end."""


class Constraints(NamedTuple):
    """Token sequences that an answer must or must not contain."""

    prefix: list[int] = []  # noqa: RUF012 - never changed
    """The answer begins with these tokens. They are scored and returned."""
    require: list[list[int]] = []  # noqa: RUF012
    """The answer contains each of these sequences; one that is listed twice, twice."""
    forbid: list[list[int]] = []  # noqa: RUF012
    """The answer contains none of these sequences."""
    bias: list[tuple[int, float]] = []  # noqa: RUF012
    """Added to the scores of these tokens at every step."""


NO_CONSTRAINTS = Constraints()


class Request(NamedTuple):
    """One row of work."""

    source: list[int]
    """The encoder's input, with its end; empty without an encoder."""
    limits: Limits
    given: list[int] = [START]  # noqa: RUF012
    """The tokens that the decoder reads before it writes, at least one. They are neither scored nor returned."""
    constraints: Constraints = NO_CONSTRAINTS
    seed: tuple[int, ...] = ()
    """Seeds of its samples, in the place of `SearchConfig.seed`: requests with other seeds share a batch."""
    top: int = 0
    """Report this many of the likeliest tokens at each position, with their log-probabilities."""
    stop: tuple[str, ...] = ()
    """Texts at which the answer ends early. An engine watches for them (`Engine.steps`); a search knows ids only."""

    @property
    def size(self) -> int:
        """Positions that the request takes in a batch: its source or, without one, the longest possible text."""
        return len(self.source) or len(self.given) + self.limits.most


class Hypothesis(NamedTuple):
    """A finished answer."""

    ids: list[int]
    """Its tokens, without the end."""
    score: float
    """log P(y|x) / |y|^α; see `SearchConfig.length_penalty`."""
    log_probs: list[float]
    """Of each token and of the end, unless the answer was cut at its limit."""
    top: list[list[tuple[int, float]]] = []  # noqa: RUF012 - never changed
    """For each log-probability: the likeliest tokens at its position, if `Request.top` asks for them."""


class NewToken(NamedTuple):
    """A token of a streamed answer."""

    id: int
    log_prob: float
    top: list[tuple[int, float]]
    """See `Hypothesis.top`."""


class StepUpdate(NamedTuple):
    """The results of one step of a search, by the number of the request."""

    tokens: dict[int, NewToken]
    """The new token of each streamed answer."""
    answers: dict[int, list[Hypothesis]]
    """The best answers to the requests that are done, best first."""
