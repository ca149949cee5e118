"""What the ways of search have in common: answers that grow token by token, under rules."""

from typing import TypeVar

from jaxtyping import Int
from torch import Tensor

from sightline.config import SearchConfig
from sightline.search.rules import Rules
from sightline.search.state import State

__all__ = ["Growing"]

G = TypeVar("G", bound="Growing")


class Growing(State):
    """The answers of a batch of sentences, `beams` neighbouring rows for each."""

    rules: Rules
    config: SearchConfig
    length: Int[Tensor, ""]
    """Of the answers, with the token that comes next."""
    tokens: Int[Tensor, "rows longest+1"]
    """START, and what was said so far."""

    def last(self) -> Int[Tensor, "rows 1"]:
        """The token that came last in each row."""
        return self.tokens.index_select(1, self.length.view(1) - 1)

    def keep(self, sentences: Int[Tensor, " kept"]) -> None:
        super().keep(sentences)
        self.rules.keep(sentences)

    def roomy(self: G, sentences: int, more: int) -> G:
        other = super().roomy(sentences, more)
        other.rules, other.length = self.rules.roomy(sentences, more), self.length.clone()
        return other

    def enter(self: G, other: G) -> None:
        super().enter(other)
        self.rules.enter(other.rules)
        self.length.copy_(other.length)

    def first(self: G, sentences: int) -> G:
        other = super().first(sentences)
        other.rules, other.length = self.rules.first(sentences), self.length.clone()
        return other
