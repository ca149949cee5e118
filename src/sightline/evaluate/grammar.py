"""Accuracy of a model on the built-in corpus, in which each sentence has one correct translation."""

from typing import NamedTuple

from sightline.data.builtin import Pair, Split, generate
from sightline.engine import Translator


class Grammar(NamedTuple):
    """Accuracy of translations."""

    exact: float
    """Share of sentences that equal the reference."""
    pronouns: float
    """Share of the sentences with "it" that have the correct pronoun: er, sie or es."""


def grammar(translator: Translator, split: Split = "test", count: int = 1000) -> Grammar:
    """Translate sentences of a split by greedy search, and return the accuracy."""
    pairs = list(generate(split, count))
    texts = [one.text for one in translator.translate([pair.source for pair in pairs], beams=1)]
    exact = [text == pair.target for text, pair in zip(texts, pairs, strict=True)]
    pronouns = [_pronoun(text) == _expected(pair) for text, pair in zip(texts, pairs, strict=True) if _expected(pair)]
    return Grammar(sum(exact) / len(exact), sum(pronouns) / max(len(pronouns), 1))


def _expected(pair: Pair) -> str | None:
    index = pair.target_pronoun
    return None if index is None else pair.target_words[index]


def _pronoun(text: str) -> str | None:
    """Return the word after "weil", the position of the pronoun in this grammar."""
    words = text.replace(",", " ").replace(".", " ").split()
    return words[words.index("weil") + 1] if "weil" in words[:-1] else None
