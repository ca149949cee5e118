"""Alignment error rate, and the choice of the attention heads with the lowest."""

import json
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, get_args

from torch import Tensor

from sightline.data.builtin import Pair
from sightline.engine import Translator
from sightline.errors import InputError
from sightline.files import write_files
from sightline.model_folder import ALIGNMENT
from sightline.search.align import Alignment, Head, Heads, Step, align, every_head, link, weigh

MAX_HEADS = 4
"""Largest number of heads to choose."""
MIN_GAIN = 0.001
"""Smallest reduction of the error rate that justifies another head."""


class Agreement(NamedTuple):
    """Agreement of predicted links A with gold links G, over all pairs."""

    error: float
    """Alignment error rate, 1 - 2 |A ∩ G| / (|A| + |G|) (Och and Ney, 2003, with sure links only)."""
    precision: float
    """|A ∩ G| / |A|"""
    recall: float
    """|A ∩ G| / |G|"""


class Choice(NamedTuple):
    """Chosen heads, and their error rate on the pairs they were chosen by."""

    heads: Heads
    error: float
    pairs: int


def agreement(predicted: Sequence[Alignment], gold: Sequence[Alignment]) -> Agreement:
    """Return error rate, precision and recall of alignments."""
    _check(gold, len(predicted))
    both = sum(len({*right} & {*links}) for links, right in zip(predicted, gold, strict=True))
    in_predicted, in_gold = sum(len({*links}) for links in predicted), sum(len({*right}) for right in gold)
    return Agreement(
        1 - 2 * both / (in_predicted + in_gold) if in_predicted + in_gold else 0.0,
        both / in_predicted if in_predicted else 1.0,
        both / in_gold if in_gold else 1.0,
    )


def choose_heads(
    engine: Translator, sources: Sequence[str], targets: Sequence[str], gold: Sequence[Alignment]
) -> Choice:
    """Choose the heads whose mean attention has the lowest error rate on these pairs, for both steps.

    The search is greedy: it adds the best further head as long as the error rate falls. Return all heads if no choice
    is better.
    """
    given, wanted = engine.words(sources, targets)
    _check(gold, len(given))
    if not any(gold):
        raise InputError.of("gold", None, "has no links to choose heads by.")
    every = every_head(engine.model)
    best = Choice(Heads(every), agreement(align(engine.model, given, wanted), gold).error, len(gold))
    for step in get_args(Step):
        weights = dict(weigh(engine.model, given, wanted, [[head] for head in every], step))

        def error(heads: Sequence[Head], weights: dict[int, Tensor] = weights) -> float:
            indices = [every.index(head) for head in heads]
            predicted: list[Alignment] = [[] for _ in gold]
            for i, each in weights.items():
                predicted[i] = link(each[indices].mean(0), given[i], wanted[i])
            return agreement(predicted, gold).error

        chosen: list[Head] = []
        last = 1.0
        while len(chosen) < MAX_HEADS:
            lowest, head = min((error([*chosen, head]), head) for head in every if head not in chosen)
            if lowest > last - MIN_GAIN:
                break
            chosen, last = [*chosen, head], lowest
        if last < best.error:
            best = Choice(Heads(chosen, step), last, len(gold))
    return best


def _check(gold: Sequence[Alignment], pairs: int) -> None:
    if len(gold) != pairs:
        problem = f"must have one alignment for each of {pairs} pairs, got {len(gold)}."
        raise InputError.of("gold", len(gold), problem)


def save_choice(folder: Path | str, choice: Choice) -> None:
    """Write the choice next to the model, where `load` finds it."""
    about = {**choice.heads._asdict(), "error": round(choice.error, 4), "pairs": choice.pairs}
    write_files(folder, {ALIGNMENT: json.dumps(about, indent=2).encode() + b"\n"})


def gold_of(pair: Pair) -> Alignment:
    """Return the gold links of a built-in pair between words separated by white space. A punctuation mark belongs to
    the word before it, and its own link does not count."""
    source, target = _with_marks(pair.source_words), _with_marks(pair.target_words)
    return sorted((source[i], target[j]) for i, j in pair.alignment if pair.source_words[i] != ".")


def _with_marks(words: Sequence[str]) -> list[int]:
    """Return the index of the word that each word or punctuation mark belongs to."""
    return [count - 1 for count in accumulate(word not in (",", ".") for word in words)]
