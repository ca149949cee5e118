"""What a search knows of its sentences: tensors with so many rows for each, at fixed places once they are made."""

import copy
from typing import ClassVar, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

__all__ = ["State", "spread"]

S = TypeVar("S", bound="State")


class State:
    """Tensors by name, each with a number of neighbouring rows for every sentence."""

    blank: ClassVar[dict[str, float]]
    """Their names, and what stands in them where there is no sentence."""
    along: ClassVar[set[str]]
    """Those whose last axis runs along the answer."""
    sentences: int

    def keep(self, sentences: Int[Tensor, " kept"]) -> None:
        """Go on with these sentences alone."""
        for name in self.blank:
            mine = getattr(self, name)
            setattr(self, name, mine[spread(sentences, len(mine) // self.sentences)])
        self.sentences = len(sentences)

    def roomy(self: S, sentences: int, more: int) -> S:
        """The same with room for so many sentences, and so many more tokens of each answer; blank."""
        other = copy.copy(self)
        for name, value in self.blank.items():
            mine = getattr(self, name)
            shape = [sentences * (len(mine) // self.sentences), *mine.shape[1:]]
            shape[-1] += more if name in self.along else 0
            setattr(other, name, torch.full(shape, value, dtype=mine.dtype, device=mine.device))
        other.sentences = sentences
        return other

    def enter(self: S, other: S) -> None:
        """Take over the sentences of another, which are not more than there is room for."""
        for name, value in self.blank.items():
            mine, theirs = getattr(self, name), getattr(other, name)
            mine.fill_(value)
            mine[tuple(slice(size) for size in theirs.shape)] = theirs

    def first(self: S, sentences: int) -> S:
        """A view of the first few sentences."""
        other = copy.copy(self)
        for name in self.blank:
            mine = getattr(self, name)
            setattr(other, name, mine[: len(mine) // self.sentences * sentences])
        other.sentences = sentences
        return other


def spread(numbers: Int[Tensor, " n"], times: int) -> Int[Tensor, " m"]:
    """The numbers of the rows, where each sentence has so many."""
    return (numbers[:, None] * times + torch.arange(times, device=numbers.device)).flatten()
