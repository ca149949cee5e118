"""Beam search for an answer that contains required token sequences: dynamic beam allocation (Post and Vilar, 2018,
arXiv:1804.06609).

By itself, a search would fill its beams with hypotheses that put off a required sequence, because it is rarely the
likeliest text. So the hypotheses that lack the same number of tokens are a bank, and the beams are shared out among the
banks. In addition to the best continuations of all, there are candidates that would not be among them: of each
hypothesis, its missing tokens and its best one.

No hypothesis ends before it is complete, and none takes a token after which the rest would not fit.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sightline.config import SearchConfig
from sightline.errors import ConfigError, InputError
from sightline.search.beam import NEVER, Beams, Chosen, Forced
from sightline.search.scoring import Scores, highest
from sightline.search.types import Constraints, Hypothesis, Request
from sightline.special import END

# --- How much of the required sequences an answer has


class Progress(NamedTuple):
    """The state of one required sequence after some tokens."""

    left: int
    """How often it must still occur."""
    position: int
    """How many of its tokens are at the end of the text, where it may continue."""


class Required:
    """Sequences that an answer must contain. Each is followed token by token, as in the search of Knuth, Morris and
    Pratt for a string. The occurrences of one sequence do not overlap; different sequences may share tokens."""

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        """A sequence that is listed twice must occur twice."""
        times = Counter(tuple(ids) for ids in sequences if ids)
        self.sequences = list(times)
        self.tokens = sorted({token for ids in self.sequences for token in ids})
        self.start = [Progress(left, 0) for left in times.values()]
        """The progress before the first token."""

    def after(self, progress: list[Progress], tokens: Iterable[int]) -> list[Progress]:
        """Return the progress after these tokens."""
        for token in tokens:
            pairs = zip(self.sequences, progress, strict=True)
            progress = [_step(ids, one, token) if one.left else one for ids, one in pairs]
        return progress

    def missing(self, progress: list[Progress]) -> int:
        """Return a number of tokens that completes all sequences, one after another. Some next token reduces it."""
        return self.whole(progress) - max((one.position for one in progress), default=0)

    def whole(self, progress: list[Progress]) -> int:
        """Return the same number if the next token is in no sequence, so that each must start again."""
        return sum(one.left * len(ids) for ids, one in zip(self.sequences, progress, strict=True))

    def next(self, progress: list[Progress]) -> list[int]:
        """Return the tokens that start or continue a sequence."""
        return [ids[one.position] for ids, one in zip(self.sequences, progress, strict=True) if one.left]


def _step(ids: tuple[int, ...], progress: Progress, token: int) -> Progress:
    text = (*ids[: progress.position], token)
    position = next(n for n in range(len(text), -1, -1) if ids[:n] == text[len(text) - n :])
    return Progress(progress.left - 1, 0) if position == len(ids) else Progress(progress.left, position)


def least_tokens(constraints: Constraints) -> int:
    """Return the number of tokens that the prefix and the required sequences take."""
    required = Required(constraints.require)
    return len(constraints.prefix) + required.missing(required.after(required.start, constraints.prefix))


# --- The search


class Candidate(NamedTuple):
    """A hypothesis with one more token."""

    total: float
    """Log-probability of the whole hypothesis."""
    row: int
    token: int
    missing: int
    """Its bank: the number of required tokens that it lacks."""


class ConstrainedBeams(Beams):
    """The hypotheses of one request, which is searched alone."""

    def __init__(self, requests: Sequence[Request], options: SearchConfig, device: torch.device) -> None:
        constraints = requests[0].constraints
        _check(options, constraints)
        super().__init__(requests, options, device)
        self.forced = len(constraints.prefix)
        self.required = Required(constraints.require)
        self.progress = {0: self.required.start}
        """Of the rows that grow."""

    def grow(self, scores: Scores) -> Int[Tensor, " rows"]:
        """Add one token to every hypothesis; the banks decide which hypotheses continue."""
        rows = super().grow(scores)
        last = enumerate(zip(rows.tolist(), self.last()[:, 0].tolist(), self.alive[0].tolist(), strict=True))
        self.progress = {
            new: self.required.after(self.progress[old], [token])
            for new, (old, token, total) in last
            if total > -math.inf
        }
        return rows

    def _choose(self, scores: Scores, forced: Forced) -> Chosen:
        """Choose hypotheses that end here, as far as the banks have places for them; then those that continue."""
        values, norm = scores.values, scores.norm
        forced.mask(values)
        self._reserve(values)
        candidates = self._candidates(values, norm)
        ends = [one for one in _shared(candidates, self.width) if one.token == END]
        going = _shared([one for one in candidates if one.token != END], self.width)
        none = Candidate(-math.inf, 0, END, 0)
        chosen = [*ends, *going, *[none] * (2 * self.width - len(ends) - len(going))]
        total = torch.tensor([[one.total for one in chosen]], device=values.device)
        row, token = torch.tensor([[[one.row, one.token] for one in chosen]], device=values.device).unbind(2)
        return Chosen(total, values[row, token] - norm[row], token, row)

    def _reserve(self, values: Float[Tensor, "rows vocab"]) -> None:
        """Set the end and tokens after which the missing ones would not fit to -inf, in place. A prefix comes first."""
        length = int(self.length)
        if length <= self.forced:
            return
        room = int(self.limits[0]) - (not self.cut[0]) - length
        for row, progress in self.progress.items():
            if not self.required.missing(progress):
                continue
            values[row, END] = -math.inf
            if self.required.whole(progress) > room:
                fits = [token for token in self.required.tokens if self._missing(row, token) <= room]
                kept = values[row, fits]
                values[row] = -math.inf
                values[row, fits] = kept

    def _candidates(self, values: Float[Tensor, "rows vocab"], norm: Float[Tensor, " rows"]) -> list[Candidate]:
        """Return the candidates, best first. Twice as many as beams are the best of all, because some may end."""
        before = self.alive.view(-1, 1) - norm[:, None]
        value, token = highest(values, 2 * self.width)
        each = token.shape[1]
        best = (value + before).flatten().topk(min(2 * self.width, token.numel())).indices
        pairs = set(zip((best // each).tolist(), token.flatten()[best].tolist(), strict=True))
        for row, progress in self.progress.items():
            pairs.update((row, wanted) for wanted in [int(token[row, 0]), *self.required.next(progress)])
        rows, tokens = torch.tensor(sorted(pairs), device=values.device).T
        totals = (values[rows, tokens] + before[rows, 0]).tolist()
        found = zip(totals, rows.tolist(), tokens.tolist(), strict=True)
        candidates = [Candidate(*one, self._missing(*one[1:])) for one in found if one[0] > -math.inf]
        return sorted(candidates, key=lambda one: -one.total)

    def _missing(self, row: int, token: int) -> int:
        return self.required.missing(self.required.after(self.progress[row], [token]))

    def _note_ties(self, best: Chosen, ends: Tensor) -> None:
        """A sentence that is searched alone has no neighbours that could decide a tie."""

    def answers(self) -> list[tuple[list[Hypothesis], float]]:
        if not bool((self.finished > -math.inf).any()):
            raise InputError.of(
                "require", None, "and `forbid`: no answer satisfies both. Raise `max_extra` or `beams`."
            )
        return super().answers()


def _check(options: SearchConfig, constraints: Constraints) -> None:
    """Raise an error if the required sequences cannot be searched for."""
    if options.sample:
        raise ConfigError.of("require", None, "needs a beam search, and `sample` is true. Leave one out.")
    if options.groups > 1:
        raise ConfigError(f"`require` needs `groups` = 1, got {options.groups}.", option="groups", value=options.groups)
    for ids in constraints.require:
        if not {END, *NEVER}.isdisjoint(ids):
            raise InputError.of(
                "require", ids, "contains a character that is not in the vocabulary, or a special token."
            )
        if any(ids[i : i + len(banned)] == banned for banned in constraints.forbid for i in range(len(ids))):
            raise InputError.of("require", ids, "contains a sequence of `forbid`. Leave one out.")


def _shared(candidates: Sequence[Candidate], places: int) -> list[Candidate]:
    """Share out the places among the banks in turn, each to the best candidate left. The bank that lacks least is
    first.

    Banks without candidates get no place. (Post and Vilar share among all possible banks and give the rest to the last
    one; with few beams this brings the required words too early.)
    """
    banks: dict[int, list[Candidate]] = {}
    for one in candidates:
        banks.setdefault(one.missing, []).append(one)
    rounds = zip_longest(*(banks[missing] for missing in sorted(banks)))
    return [one for turn in rounds for one in turn if one is not None][:places]
