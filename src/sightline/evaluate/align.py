"""How good word alignments are against gold ones, and which heads give the best."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from sightline.data.builtin import Pair
from sightline.engine import Engine
from sightline.errors import InputError
from sightline.files import write_files
from sightline.model_folder import ALIGNMENT
from sightline.search.align import Alignment, Head, Heads, Step, align, every_head, link, weigh

__all__ = ["MOST", "Agreement", "Choice", "agreement", "choose_heads", "gold_of", "save_choice"]

MOST = 4
"""Heads that are chosen at most."""
GAIN = 0.001
"""What a further head must lower the error rate by."""


class Agreement(NamedTuple):
    """How far found links A are the gold links G, over all pairs together."""

    error: float
    """Alignment error rate, 1 - 2 |A ∩ G| / (|A| + |G|) (Och and Ney, 2003, where all gold links are sure)."""
    precision: float
    """|A ∩ G| / |A|"""
    recall: float
    """|A ∩ G| / |G|"""


class Choice(NamedTuple):
    """Heads that were chosen, and how good they are on the pairs they were chosen by."""

    heads: Heads
    error: float
    pairs: int


def agreement(found: Sequence[Alignment], gold: Sequence[Alignment]) -> Agreement:
    """The error rate, precision and recall of alignments."""
    if len(found) != len(gold):
        raise InputError(f"there are {len(found)} alignments and {len(gold)} gold ones; they come in pairs.")
    both = sum(len({*right} & {*links}) for links, right in zip(found, gold, strict=True))
    here, there = sum(len({*links}) for links in found), sum(len({*right}) for right in gold)
    return Agreement(
        1 - 2 * both / (here + there) if here + there else 0.0,
        both / here if here else 1.0,
        both / there if there else 1.0,
    )


def choose_heads(engine: Engine, sources: Sequence[str], targets: Sequence[str], gold: Sequence[Alignment]) -> Choice:
    """The heads whose mean has the lowest error rate on these pairs: first the best one of all, then, as long as it
    helps, the one that is best beside those that are chosen; for both steps. Where that is no better than all heads
    together, all of them."""
    given, wanted = engine.words(sources, targets)
    if len(given) != len(gold):
        raise InputError(f"there are {len(given)} pairs and gold links for {len(gold)}; each pair needs its own.")
    if not any(gold):
        raise InputError("heads are chosen by pairs with gold links, and there are none.")
    every = every_head(engine.model)
    best = Choice(Heads(every), agreement(align(engine.model, given, wanted), gold).error, len(gold))
    steps: tuple[Step, ...] = ("predicts", "reads")
    for step in steps:
        weights = dict(weigh(engine.model, given, wanted, [[head] for head in every], step))

        def error(heads: Sequence[Head], weights: dict[int, Tensor] = weights) -> float:
            places = [every.index(head) for head in heads]
            found: list[Alignment] = [[] for _ in gold]
            for i, each in weights.items():
                found[i] = link(each[places].mean(0), given[i], wanted[i])
            return agreement(found, gold).error

        chosen: list[Head] = []
        last = 1.0
        while len(chosen) < MOST:
            lowest, head = min((error([*chosen, head]), head) for head in every if head not in chosen)
            if lowest > last - GAIN:
                break
            chosen, last = [*chosen, head], lowest
        if last < best.error:
            best = Choice(Heads(chosen, step), last, len(gold))
    return best


def save_choice(folder: Path | str, choice: Choice) -> None:
    """Keep it beside the model, where `load` finds it."""
    about = {
        "heads": choice.heads.heads,
        "step": choice.heads.step,
        "error": round(choice.error, 4),
        "pairs": choice.pairs,
    }
    write_files(folder, {ALIGNMENT: json.dumps(about, indent=2).encode() + b"\n"})


def gold_of(pair: Pair) -> Alignment:
    """The gold links of a pair of the built-in corpus between the words that white space separates. A mark belongs to
    the word before it, and its own link does not count."""
    source, target = _with_marks(pair.source_words), _with_marks(pair.target_words)
    return sorted((source[i], target[j]) for i, j in pair.alignment if pair.source_words[i] != ".")


def _with_marks(words: Sequence[str]) -> list[int]:
    numbers, number = [], -1
    for word in words:
        number += word not in (",", ".")
        numbers.append(number)
    return numbers
