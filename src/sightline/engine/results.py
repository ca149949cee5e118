"""The results of an engine, and the plan of a call."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, NamedTuple, TypeVar

from sightline.config import SearchConfig
from sightline.search.align import Alignment
from sightline.search.types import Hypothesis, Request
from sightline.text.split import Piece
from sightline.text.tokenizer import Tokenizer

R_co = TypeVar("R_co", covariant=True)
SHOWN = 60
"""Characters of a text that a repr shows."""


def shown(text: str) -> str:
    """Return the beginning of a text for a repr."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


@dataclass(frozen=True)
class Segment:
    """A part of a text that the model read and answered in one pass: mostly a sentence."""

    source_ids: list[int]
    """The ids that the model read: of a source with its end, or of a prompt with its start."""
    ids: list[int]
    """The ids that it wrote, without the end."""
    log_probs: list[float]
    """Of each token and of the end, unless the answer was cut; empty if they were not requested."""
    score: float
    """log P(y|x) / |y|^α; see `SearchConfig.length_penalty`."""
    tokenizer: Tokenizer = field(repr=False, compare=False)
    top: list[list[tuple[int, float]]] = field(default_factory=list, repr=False)
    """For each log-probability: the likeliest ids at its position with theirs, if requested."""

    @property
    def tokens(self) -> list[str]:
        """Return the written ids as sub-words."""
        return self.tokenizer.pieces(self.ids)


class LikelyToken(NamedTuple):
    """One of the likeliest tokens at a position."""

    token: str
    """As the vocabulary writes it; the end is one too."""
    id: int
    log_prob: float


@dataclass(frozen=True)
class Result:
    """An answer to one text."""

    text: str
    score: float
    """The mean score of the segments."""
    segments: list[Segment]

    @property
    def ids(self) -> list[int]:
        return [id for segment in self.segments for id in segment.ids]  # noqa: A001

    @property
    def tokens(self) -> list[str]:
        return [token for segment in self.segments for token in segment.tokens]

    @property
    def log_probs(self) -> list[float]:
        return [log_prob for segment in self.segments for log_prob in segment.log_probs]

    def __repr__(self) -> str:
        parts = f", {len(self.segments)} segments" if len(self.segments) > 1 else ""
        about = f"score={self.score:.3f}, {len(self.ids)} tokens{parts}{self._more()}"
        return f"{type(self).__name__}({shown(self.text)!r}, {about})"

    def _more(self) -> str:
        return ""


@dataclass(frozen=True, repr=False)
class Translation(Result):
    """A translation of one text."""

    alternatives: tuple["Translation", ...] = ()
    """With `nbest`: the next best translations."""
    alignment: Alignment | None = None
    """With `align`: pairs of a source word and a word of this text. Words are separated by white space and counted
    from 0."""

    def _more(self) -> str:
        return f", {len(self.alternatives)} alternatives" if self.alternatives else ""


@dataclass(frozen=True, repr=False)
class Completion(Result):
    """A continuation of one text."""

    finish_reason: Literal["stop", "length"] = "stop"
    """stop: the model wrote the end or a stop string; length: the continuation reached `max_tokens`."""

    @property
    def top(self) -> list[list[LikelyToken]]:
        """Return the likeliest tokens at the position of each log-probability, if `top` was given."""
        found = []
        for segment in self.segments:
            for position in segment.top:
                pieces = segment.tokenizer.pieces(id for id, _ in position)  # noqa: A001
                found.append([LikelyToken(piece, *one) for piece, one in zip(pieces, position, strict=True)])
        return found

    def _more(self) -> str:
        return f", finish_reason={self.finish_reason!r}"


@dataclass(frozen=True, repr=False)
class Reply(Completion):
    """A reply in a dialogue: the text of one turn."""


class Candidate(NamedTuple):
    """A token that could be in the place of a mask."""

    token: str
    """As the vocabulary writes it."""
    id: int
    probability: float


@dataclass(frozen=True)
class MaskedWord:
    """A mask of a text."""

    position: int
    """The index of the mask in the ids."""
    candidates: list[Candidate]
    """The likeliest tokens, the likeliest first."""


@dataclass(frozen=True, repr=False)
class Filled:
    """A text with its masks filled in."""

    text: str
    """The text with the likeliest token in the place of each mask."""
    ids: list[int]
    """The ids that the model read: the text with its masks, its start and its end."""
    masks: list[MaskedWord]
    """In the order of the text. Each mask is predicted on its own, while the others are masks."""
    tokenizer: Tokenizer = field(compare=False)

    @property
    def tokens(self) -> list[str]:
        """Return the ids as sub-words."""
        return self.tokenizer.pieces(self.ids)

    def __repr__(self) -> str:
        best = ", ".join(f"{one.token!r} {one.probability:.3f}" for one, *_ in (mask.candidates for mask in self.masks))
        return f"{type(self).__name__}({shown(self.text)!r}, {best})"


class Scored(NamedTuple):
    """The probability of a given answer."""

    log_prob: float
    tokens: list[str]
    log_probs: list[float]
    """Of each token and of the end."""


@dataclass(frozen=True)
class ScoredText:
    """The probability of a given text."""

    text: str = field(repr=False)
    ids: list[int] = field(repr=False)
    """Its tokens, without the start."""
    log_probs: list[float] = field(repr=False)
    """Of each token, after the tokens before it."""
    tokenizer: Tokenizer = field(repr=False, compare=False)
    top: list[list[tuple[int, float]]] = field(default_factory=list, repr=False)
    """For each token: the likeliest ids at its position with their log-probabilities, if requested."""

    @property
    def tokens(self) -> list[str]:
        """Return the ids as sub-words."""
        return self.tokenizer.pieces(self.ids)

    @property
    def log_prob(self) -> float:
        """Return the log-probability of the whole text."""
        return math.fsum(self.log_probs)

    @property
    def perplexity(self) -> float:
        """Return the perplexity per token."""
        return _perplexity(self.log_prob, len(self.ids))

    @property
    def word_perplexity(self) -> float:
        """Return the perplexity per word; white space separates words."""
        return _perplexity(self.log_prob, len(self.text.split()))

    @property
    def bits_per_byte(self) -> float:
        """Return the mean number of bits for each byte of the text in UTF-8."""
        return -self.log_prob / math.log(2) / max(1, len(self.text.encode()))


def _perplexity(log_prob: float, count: int) -> float:
    try:
        return math.exp(-log_prob / max(1, count))
    except OverflowError:
        return math.inf


class Alternative(NamedTuple):
    """A token that could come at a position of a translation."""

    token: str
    """As the vocabulary writes it; the end is one too."""
    log_prob: float
    """Of the token alone, after the tokens before it."""
    text: str
    """The whole translation with this token."""


@dataclass(frozen=True)
class Plan(Generic[R_co]):
    """A call made ready: the requests to search for, and the way from their answers to results."""

    requests: Sequence[Request]
    options: SearchConfig
    assemble: Callable[[Sequence[list[Hypothesis]]], R_co]
    """Takes the answers to the requests, in order."""
    pieces: Sequence[Piece] = ()
    """Of a single text: its parts. Those with text have a request each; the others stand between them."""
    log_probs: bool = True
    """Whether the results need log-probabilities."""
