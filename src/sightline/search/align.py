"""Which word of the source a word of the answer comes from, by where the model looks while it writes the answer.

One pass over each pair, as in training. What encoder-decoder attention looks at when the first token of a target word
is predicted is summed over the tokens of each source word; then words are linked, the strongest link first. What was
measured, and how far such links can be trusted: docs/decisions/0013.
"""

import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sightline.errors import InputError
from sightline.model.protocol import Inputs
from sightline.model.transformer import EncoderDecoder
from sightline.special import PAD, START
from sightline.text.tokenizer import with_end

__all__ = [
    "Alignment",
    "Head",
    "Heads",
    "Words",
    "align",
    "every_head",
    "link",
    "read_pharaoh",
    "weigh",
    "write_pharaoh",
]

Alignment = list[tuple[int, int]]
"""Pairs of a source word and a target word that belong together, counted from 0, in order."""
Head = tuple[int, int]
"""A layer of the decoder, and a head in it, counted from 0."""
Step = Literal["predicts", "reads"]
LINK = re.compile(r"(\d+)-(\d+)")


class Heads(NamedTuple):
    """Whose attention counts."""

    heads: list[Head]
    """Their mean is taken."""
    step: Step = "predicts"
    """When it counts: at the step that predicts the first token of a word, or at the next one, which reads it."""


class Words(NamedTuple):
    """A text as tokens, and the word that each token belongs to."""

    ids: list[int]
    words: list[int]


def every_head(model: EncoderDecoder) -> list[Head]:
    """All heads of encoder-decoder attention."""
    stack = model.config.decoder
    return [(layer, head) for layer in range(stack.layers) for head in range(stack.heads)]


def align(
    model: EncoderDecoder, sources: Sequence[Words], targets: Sequence[Words], chosen: Heads | None = None
) -> list[Alignment]:
    """The alignment of each pair, by these heads; by all of them, if none are chosen."""
    chosen = chosen or Heads(every_head(model))
    found: list[Alignment] = [[] for _ in sources]
    for i, (weights,) in weigh(model, sources, targets, [chosen.heads], chosen.step):
        found[i] = link(weights, sources[i], targets[i])
    return found


def weigh(
    model: EncoderDecoder,
    sources: Sequence[Words],
    targets: Sequence[Words],
    groups: Sequence[Sequence[Head]],
    step: Step,
) -> Iterator[tuple[int, Float[Tensor, "groups target source"]]]:
    """For each pair that has words on both sides its number and, for each group of heads, how much each of its target
    words looks at each of its source words, in the order of the words; pairs in no order."""
    some = [i for i, (source, target) in enumerate(zip(sources, targets, strict=True)) if source.ids and target.ids]
    given, wanted = [sources[i].ids for i in some], [targets[i].ids for i in some]
    for place, looks in _look(model, given, wanted, groups):
        i = some[place]
        first = [targets[i].words.index(word) + (step == "reads") for word in sorted(set(targets[i].words))]
        yield i, looks[:, first] @ _members(sources[i].words)


def link(weights: Float[Tensor, "target source"], source: Words, target: Words) -> Alignment:
    """The strongest link first, and each word in one link only; then a target word that is left over is linked to where
    it looks most."""
    found: dict[int, int] = {}
    taken: set[int] = set()
    for place in weights.flatten().argsort(descending=True, stable=True).tolist():
        row, column = divmod(place, weights.shape[1])
        if row not in found and column not in taken:
            found[row] = column
            taken.add(column)
    for row in range(len(weights)):
        if row not in found:
            found[row] = int(weights[row].argmax())
    rows, columns = sorted(set(target.words)), sorted(set(source.words))
    return sorted((columns[column], rows[row]) for row, column in found.items())


def write_pharaoh(links: Alignment) -> str:
    """As 0-0 1-2 2-1: source word, target word."""
    return " ".join(f"{source}-{target}" for source, target in links)


def read_pharaoh(line: str, where: str) -> Alignment:
    """The links that `write_pharaoh` writes."""
    found = [LINK.fullmatch(word) for word in line.split()]
    if not all(found):
        raise InputError(f"{where}: links are written as 0-0 1-2, source word and target word counted from 0.")
    return sorted({(int(one[1]), int(one[2])) for one in found if one})


def _members(words: Sequence[int]) -> Float[Tensor, "tokens words"]:
    """1 where a token is part of a word."""
    return (torch.tensor(words)[:, None] == torch.tensor(sorted(set(words)))).float()


@torch.no_grad()
def _look(
    model: EncoderDecoder,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    groups: Sequence[Sequence[Head]],
    *,
    budget: int = 8192,
) -> Iterator[tuple[int, Float[Tensor, "groups step source"]]]:
    """For each pair its number and what each group of heads looks at, on average, in no order. Step 0 reads the start
    and predicts the first token of the target, step i reads the i-th; the end of the source has no column.
    `budget`: tokens of a batch."""
    size = [len(source) + len(target) + 2 for source, target in zip(sources, targets, strict=True)]
    order = sorted(range(len(sources)), key=lambda i: -size[i])
    device, end = model.classifier.weight.device, model.config.source_end
    while order:
        batch = order[: max(1, budget // size[order[0]])]
        order = order[len(batch) :]
        source = pad_sequence([torch.tensor(with_end(sources[i], end)) for i in batch], True, PAD).to(device)
        target = pad_sequence([torch.tensor([START, *targets[i]]) for i in batch], True, PAD).to(device)
        layout = source != PAD
        sums = torch.zeros(len(batch), len(groups), target.shape[1], source.shape[1], device=device)
        with _watching(model, groups, sums):
            model.hidden(Inputs(source, target, layout))
        counts = torch.tensor([len(heads) for heads in groups], device=device)[:, None, None]
        for i, looks in zip(batch, (sums / counts).cpu(), strict=True):
            yield i, looks[:, : len(targets[i]) + 1, : len(sources[i])]


@contextmanager
def _watching(
    model: EncoderDecoder, groups: Sequence[Sequence[Head]], sums: Float[Tensor, "batch groups step source"]
) -> Iterator[None]:
    """Add up what the heads of each group look at in a pass of this thread. Of other heads nothing is computed."""
    thread = threading.get_ident()

    def watch(layer: int) -> Callable[..., None]:
        some = sorted({head for heads in groups for other, head in heads if other == layer})

        def look(_: Any, given: tuple[Any, ...]) -> None:
            if threading.get_ident() == thread:
                q, k, _, mask = given
                scores = (q[:, some].float() @ k[:, some].float().mT) * q.shape[-1] ** -0.5
                looks = scores.masked_fill(~mask.allowed, -math.inf).softmax(-1)
                for number, heads in enumerate(groups):
                    own = [some.index(head) for other, head in heads if other == layer]
                    sums[:, number] += looks[:, own].sum(1)

        return look

    layers = sorted({layer for heads in groups for layer, _ in heads})
    handles = [
        model.decoder.layers[layer].cross_attention.attend.register_forward_pre_hook(watch(layer)) for layer in layers
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
