"""How well a model translates the built-in corpus, where one knows exactly what is right."""

from typing import NamedTuple

from sightline.config import SearchConfig
from sightline.data.builtin import Pair, Split, generate
from sightline.model.transformer import EncoderDecoder
from sightline.search.find import find
from sightline.text.tokenizer import Tokenizer

__all__ = ["Grammar", "grammar", "translations"]


class Grammar(NamedTuple):
    """Shares of what is right."""

    exact: float
    """Sentences that are right to the letter."""
    pronouns: float
    """Sentences with "it" in which it is the right one of er, sie and es."""


def grammar(model: EncoderDecoder, tokenizer: Tokenizer, split: Split = "test", count: int = 1000) -> Grammar:
    """Translate sentences of a split that were never trained on, and count."""
    pairs = list(generate(split, count))
    texts = translations(model, tokenizer, [pair.source for pair in pairs])
    exact = [text == pair.target for text, pair in zip(texts, pairs, strict=True)]
    pronouns = [_pronoun(text) == _wanted(pair) for text, pair in zip(texts, pairs, strict=True) if _wanted(pair)]
    return Grammar(sum(exact) / len(exact), sum(pronouns) / max(len(pronouns), 1))


def translations(model: EncoderDecoder, tokenizer: Tokenizer, sources: list[str]) -> list[str]:
    """What the model says, token by token the best."""
    found = find(model, tokenizer.source.encode(sources), SearchConfig(beams=1))
    return [tokenizer.decode(best.ids) for (best, *_) in found]


def _wanted(pair: Pair) -> str | None:
    place = pair.target_pronoun
    return None if place is None else pair.target_words[place]


def _pronoun(text: str) -> str | None:
    """The word behind "weil", which is where the grammar has it."""
    words = text.replace(",", " ").replace(".", " ").split()
    return words[words.index("weil") + 1] if "weil" in words[:-1] else None
