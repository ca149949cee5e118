"""Beam search for an answer in which given sequences of tokens occur: dynamic beam allocation (Post and Vilar, 2018,
arXiv:1804.06609).

Left alone, the beams would go to hypotheses that put off what they must say, which is rarely the likeliest. So those
that lack the same number of tokens are a bank, and the beams are shared out among the banks. Beside the best
continuations of all there are candidates that would not be among them: of each hypothesis the tokens that it must still
say, and its best one.

No hypothesis ends before it has everything, and none takes a token after which there would be no room for the rest.
"""

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sightline.config import SearchConfig
from sightline.errors import InputError
from sightline.search.beam import Beams, Chosen
from sightline.search.hypothesis import Hypothesis, Wish
from sightline.search.required import Required
from sightline.search.rules import NEVER, Forced, Rules
from sightline.search.scorer import Scores, highest
from sightline.special import END

__all__ = ["ConstrainedBeams"]


class Candidate(NamedTuple):
    """A hypothesis with one more token."""

    total: float
    """Log-probability of the whole."""
    row: int
    token: int
    missing: int
    """Its bank: tokens that it must still say."""


class ConstrainedBeams(Beams):
    """The hypotheses of one sentence, which is searched by itself."""

    def __init__(self, rules: Rules, config: SearchConfig, source: Bool[Tensor, "1 source"], wish: Wish) -> None:
        """`source`: where it has tokens."""
        _refuse(config, wish)
        super().__init__(rules, config, source)
        self.forced = len(wish.prefix)
        self.required = Required(wish.within)
        self.progress = {0: self.required.start}
        """Of the rows that live."""

    def grow(self, scores: Scores) -> Int[Tensor, " rows"]:
        """Add one token to every hypothesis, as `Beams` do; which ones go on, the banks decide."""
        rows = super().grow(scores)
        last = enumerate(zip(rows.tolist(), self.last()[:, 0].tolist(), self.living[0].tolist(), strict=True))
        self.progress = {
            new: self.required.after(self.progress[old], [token])
            for new, (old, token, total) in last
            if total > -math.inf
        }
        return rows

    def _choose(self, scores: Scores, forced: Forced) -> Chosen:
        """First those that end here, as far as the banks have a place for them; then those that go on."""
        values, norm = scores.values, scores.norm
        forced.alone(values)
        self._keep_room(values)
        candidates = self._candidates(values, norm)
        ends = [one for one in _shared(candidates, self.width) if one.token == END]
        going = _shared([one for one in candidates if one.token != END], self.width)
        none = Candidate(-math.inf, 0, END, 0)
        chosen = [*ends, *going, *[none] * (2 * self.width - len(ends) - len(going))]
        total = torch.tensor([[one.total for one in chosen]], device=values.device)
        row, token = torch.tensor([[[one.row, one.token] for one in chosen]], device=values.device).unbind(2)
        return Chosen(total, values[row, token] - norm[row], token, row)

    def _keep_room(self, values: Float[Tensor, "rows vocab"]) -> None:
        """Put -inf where a token may not come; in place. What a prefix says, it says."""
        length = int(self.length)
        if length <= self.forced:
            return
        room = int(self.rules.limits[0]) - 1 - length
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
        """Best first. There are twice as many as beams among the best of all, since some may end."""
        before = self.living.view(-1, 1) - norm[:, None]
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
        """It has no neighbours that could decide a tie."""

    def answers(self) -> list[tuple[list[Hypothesis], float]]:
        """The best finished hypotheses."""
        if not bool((self.finished > -math.inf).any()):
            raise InputError(
                "nothing was found with all words that must occur and none that must not; more room (max_extra) or "
                "more beams may help."
            )
        return super().answers()


def _refuse(config: SearchConfig, wish: Wish) -> None:
    """An InputError where what must occur cannot be searched for."""
    if config.sample:
        raise InputError("words that must occur are searched for; they cannot be had with samples.")
    if config.groups > 1:
        raise InputError(f"words that must occur cannot be had with groups = {config.groups} of beams; ask for one.")
    for ids in wish.within:
        if not {END, *NEVER}.isdisjoint(ids):
            raise InputError("what must occur has a token in it that no answer has: the vocabulary does not know it.")
        if any(banned and _is_in(banned, ids) for banned in wish.without):
            raise InputError("a word that must occur is one that must not, or has it in it; ask for one or the other.")


def _shared(candidates: Sequence[Candidate], places: int) -> list[Candidate]:
    """Place after place goes round the banks, to the best that is left in each; the bank that lacks least comes first.

    Banks without candidates get none. (Post and Vilar share among all that could be, and the rest goes to the last one;
    with few beams that hurries the words.)
    """
    banks: dict[int, list[Candidate]] = {}
    for one in candidates:
        banks.setdefault(one.missing, []).append(one)
    rounds = zip_longest(*(banks[missing] for missing in sorted(banks)))
    return [one for turn in rounds for one in turn if one is not None][:places]


def _is_in(part: list[int], ids: list[int]) -> bool:
    return any(ids[i : i + len(part)] == part for i in range(len(ids)))
