"""Which tokens may come next, whatever the model thinks of them."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sightline.config import SearchConfig
from sightline.errors import InputError
from sightline.search.hypothesis import Wish
from sightline.search.required import Required
from sightline.text.tokenizer import END, PAD, START, UNKNOWN

__all__ = ["NEVER", "Rules", "bounds"]

NEVER = [PAD, START, UNKNOWN]
"""These are no words."""


def bounds(length: int, config: SearchConfig, wish: Wish, room: int) -> tuple[int, int]:
    """Tokens of the longest answer, its end among them, and of the shortest, without the end, to a source of so many
    tokens, its end among them; `room`: what the model can write at most."""
    required = Required(wish.within)
    missing = required.missing(required.after(required.start, wish.prefix))
    needed = len(wish.prefix) + missing
    if needed >= room:
        what = "what must occur, with the prefix," if missing else "a prefix"
        raise InputError(f"{what} of {needed} tokens is too long: the model writes at most {room}.")
    limit = min(max(int(config.max_ratio * length) + config.max_extra, needed + 1), room)
    return limit, min(math.ceil(config.min_ratio * (length - 1)), limit - 1)


class Rules:
    """The limits of each sentence, and what is wished of it. A sentence has `beams` neighbouring rows."""

    def __init__(
        self, lengths: Sequence[int], config: SearchConfig, wishes: Sequence[Wish], room: int, device: torch.device
    ) -> None:
        """`lengths`: tokens of each source, its end among them. `room`: tokens that a model can write at most."""
        pairs = zip(lengths, wishes, strict=True)
        limits, least = zip(*(bounds(length, config, wish, room) for length, wish in pairs), strict=True)
        self.beams = config.beams
        self.limits: Int[Tensor, " sentences"] = torch.tensor(limits, device=device)
        """Tokens of the longest answer, its end among them."""
        self.least: Int[Tensor, " sentences"] = torch.tensor(least, device=device)
        self.longest = max(limits)
        self.shortest = max(least)
        self.first_limit = min(limits)
        forced = max(len(wish.prefix) for wish in wishes)
        rows = [[*wish.prefix, *[-1] * (forced - len(wish.prefix))] for wish in wishes]
        self.prefix: Int[Tensor, "sentences forced"] = torch.tensor(rows, dtype=torch.long, device=device)
        self.without = [[torch.tensor(ids, device=device) for ids in wish.without if ids] for wish in wishes]
        self.never = torch.tensor(NEVER, device=device)

    def apply(self, scores: Float[Tensor, "rows vocab"], tokens: Int[Tensor, "rows length"]) -> None:
        """Put -inf where a token may not come, after `tokens` (which begin with START); in place. A prefix comes first,
        whatever else is asked."""
        length = tokens.shape[1]  # of the answer with the token that comes now
        forced = self.prefix[:, length - 1 : length].repeat_interleave(self.beams, 0)
        wanted = scores.gather(1, forced.clamp(min=0))
        scores.index_fill_(1, self.never, -math.inf)
        if self.shortest >= length:
            early = (self.least >= length).repeat_interleave(self.beams)
            scores[:, END] = scores[:, END].masked_fill(early, -math.inf)
        for i, banned in enumerate(self.without):
            mine = slice(i * self.beams, (i + 1) * self.beams)
            for ids in banned:
                if len(ids) <= length:
                    again = (tokens[mine, length - len(ids) + 1 :] == ids[:-1]).all(1)
                    scores[mine, ids[-1]] = scores[mine, ids[-1]].masked_fill(again, -math.inf)
        if self.first_limit <= length:  # there is room for the end only
            full = (self.limits <= length).repeat_interleave(self.beams)
            end = scores[:, END].clone()
            scores.masked_fill_(full[:, None], -math.inf)
            scores[:, END] = end
        if forced.shape[1]:
            scores.masked_fill_(forced >= 0, -math.inf)
            scores.scatter_(1, forced.clamp(min=0), torch.where(forced >= 0, wanted, scores[:, :1]))

    def keep(self, sentences: Int[Tensor, " kept"]) -> None:
        """Go on with these sentences alone."""
        self.limits, self.least, self.prefix = self.limits[sentences], self.least[sentences], self.prefix[sentences]
        self.without = [self.without[i] for i in sentences.tolist()]
