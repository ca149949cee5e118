"""Which tokens may come next, whatever the model thinks of them."""

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sightline.config import SearchConfig
from sightline.errors import InputError
from sightline.search.hypothesis import Wish
from sightline.search.required import Required
from sightline.search.scorer import Scores
from sightline.search.state import State
from sightline.special import END, PAD, START, UNKNOWN

__all__ = ["NEVER", "Forced", "Rules", "bounds"]

NEVER = [PAD, START, UNKNOWN]
"""These are no words."""


def bounds(length: int, config: SearchConfig, wish: Wish, room: int) -> tuple[int, int]:
    """Tokens of the longest answer, its end among them, and of the shortest, without the end, to a source of so many
    tokens, its end among them; `room`: what the model can write at most."""
    missing = 0
    if wish.within:
        required = Required(wish.within)
        missing = required.missing(required.after(required.start, wish.prefix))
    needed = len(wish.prefix) + missing
    if needed >= room:
        what = "what must occur, with the prefix," if missing else "a prefix"
        raise InputError(f"{what} of {needed} tokens is too long: the model writes at most {room}.")
    limit = min(max(int(config.max_ratio * length) + config.max_extra, needed + 1), room)
    return limit, min(math.ceil(config.min_ratio * (length - 1)), limit - 1)


class Forced(NamedTuple):
    """The one token that may come in a row: its prefix goes on, or there is room for the end only."""

    token: Int[Tensor, "rows 1"]
    """-1 where others may come."""
    value: Float[Tensor, "rows 1"]

    def alone(self, values: Float[Tensor, "rows vocab"]) -> None:
        """Put -inf everywhere else, in place."""
        values.masked_fill_(self.token >= 0, -math.inf)
        values.scatter_(1, self.token.clamp(min=0), torch.where(self.token >= 0, self.value, values[:, :1]))

    def among(
        self, value: Float[Tensor, "rows best"], token: Int[Tensor, "rows best"]
    ) -> tuple[Float[Tensor, "rows best"], Int[Tensor, "rows best"]]:
        """The best tokens of each row; where one is forced, it is the only one."""
        free = self.token < 0
        first = torch.arange(value.shape[1], device=value.device) == 0
        only = torch.where(first, self.value, -math.inf)
        return torch.where(free, value, only), torch.where(free | ~first, token, self.token)


class Rules(State):
    """The limits of each sentence, and what is wished of it. A sentence has `beams` neighbouring rows."""

    blank: ClassVar[dict[str, float]] = {"limits": 1, "least": 0, "prefix": -1}
    along: ClassVar[set[str]] = {"prefix"}

    def __init__(
        self, lengths: Sequence[int], config: SearchConfig, wishes: Sequence[Wish], room: int, device: torch.device
    ) -> None:
        """`lengths`: tokens of each source, its end among them. `room`: tokens that a model can write at most."""
        pairs = zip(lengths, wishes, strict=True)
        limits, least = zip(*(bounds(length, config, wish, room) for length, wish in pairs), strict=True)
        self.beams, self.sentences, self.longest = config.beams, len(lengths), max(limits)
        self.limits: Int[Tensor, " sentences"] = torch.tensor(limits, device=device)
        """Tokens of the longest answer, its end among them."""
        self.least: Int[Tensor, " sentences"] = torch.tensor(least, device=device)
        self.prefix: Int[Tensor, "sentences longest"] = torch.full((len(wishes), self.longest), -1, device=device)
        for i, wish in enumerate(wishes):
            if wish.prefix:
                self.prefix[i, : len(wish.prefix)] = torch.tensor(wish.prefix, device=device)
        self.without = [[torch.tensor(ids, device=device) for ids in wish.without if ids] for wish in wishes]
        self.never = torch.tensor(NEVER, device=device)
        self.has_least = config.min_ratio > 0

    def apply(self, scores: Scores, tokens: Int[Tensor, "rows longest"], length: Int[Tensor, ""]) -> Forced:
        """Put -inf where a token may not come, in place. `length`: of the answer with the token that comes now, whose
        place in `tokens` this is too, as they begin with START. A prefix comes first, whatever else is asked."""
        prefix = self.prefix.index_select(1, length.view(1) - 1)[:, 0]
        forced = torch.where(self.limits <= length, END, prefix).repeat_interleave(self.beams)[:, None]
        value = scores.values.gather(1, forced.clamp(min=0)).float()
        scores.values.index_fill_(1, self.never, -math.inf)
        if self.has_least:
            early = (self.least >= length).repeat_interleave(self.beams)
            scores.values[:, END] = scores.values[:, END].masked_fill(early, -math.inf)
        if any(self.without):
            self._ban(scores.values, tokens, int(length))
        scores.look_again()
        return Forced(forced, value)

    def _ban(self, values: Tensor, tokens: Tensor, length: int) -> None:
        for i, banned in enumerate(self.without):
            mine = slice(i * self.beams, (i + 1) * self.beams)
            for ids in banned:
                if len(ids) <= length:
                    again = (tokens[mine, length - len(ids) + 1 : length] == ids[:-1]).all(1)
                    values[mine, ids[-1]] = values[mine, ids[-1]].masked_fill(again, -math.inf)

    def keep(self, sentences: Int[Tensor, " kept"]) -> None:
        """Go on with these sentences alone."""
        super().keep(sentences)
        self.without = [self.without[i] for i in sentences.tolist()] if any(self.without) else []
