"""How much of what must occur an answer already has.

Each sequence is followed by itself, token by token, as in Knuth, Morris and Pratt's search for a string. One that must
occur twice must do so at two places apart; two different ones may share tokens.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["Progress", "Required"]


class Progress(NamedTuple):
    """What is so of a sequence, after some tokens."""

    left: int
    """How often it must still occur."""
    place: int
    """How many of its tokens stand at the end, where it may go on."""


class Required:
    """Sequences of ids that must occur in an answer."""

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        """One that is there twice must occur twice."""
        times = Counter(tuple(ids) for ids in sequences if ids)
        self.sequences = list(times)
        self.tokens = sorted({token for ids in self.sequences for token in ids})
        """Any other token is in none of them."""
        self.start = [Progress(left, 0) for left in times.values()]
        """Before the first token."""

    def after(self, progress: list[Progress], tokens: Iterable[int]) -> list[Progress]:
        """The same with these tokens behind."""
        for token in tokens:
            pairs = zip(self.sequences, progress, strict=True)
            progress = [_step(ids, one, token) if one.left else one for ids, one in pairs]
        return progress

    def missing(self, progress: list[Progress]) -> int:
        """So many tokens are enough to say all that is missing, one sequence after another. There is always a token
        that makes it fewer."""
        return self.whole(progress) - max((one.place for one in progress), default=0)

    def whole(self, progress: list[Progress]) -> int:
        """The same where the next token is in no sequence, and what was begun must begin again."""
        return sum(one.left * len(ids) for ids, one in zip(self.sequences, progress, strict=True))

    def next(self, progress: list[Progress]) -> list[int]:
        """The tokens by which a sequence goes on or begins."""
        return [ids[one.place] for ids, one in zip(self.sequences, progress, strict=True) if one.left]


def _step(ids: tuple[int, ...], progress: Progress, token: int) -> Progress:
    said = (*ids[: progress.place], token)
    place = next(n for n in range(len(said), -1, -1) if ids[:n] == said[len(said) - n :])
    return Progress(progress.left - 1, 0) if place == len(ids) else Progress(progress.left, place)
