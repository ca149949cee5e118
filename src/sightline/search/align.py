"""Word alignment by attention: the source word that each word of an answer comes from.

The model makes one pass over each pair, as in training. The encoder-decoder attention that predicts the first token of
a target word is summed over the tokens of each source word; then words are linked, the strongest link first.
docs/decisions/0013 has the measurements, and how far such links can be trusted.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.errors import InputError
from sightline.model.hooks import Before, hooks
from sightline.model.protocol import Inputs
from sightline.model.transformer import EncoderDecoder, attention_weights
from sightline.search.driver import BATCH_TOKENS, by_size, padded
from sightline.special import START
from sightline.text.tokenizer import with_end

Alignment = list[tuple[int, int]]
"""Pairs of a source word and a target word, counted from 0, in order."""
Head = tuple[int, int]
"""A layer of the decoder and one of its heads, counted from 0."""
Step = Literal["predicts", "reads"]
LINK = re.compile(r"(\d+)-(\d+)")


class Heads(NamedTuple):
    """The heads whose mean attention aligns words."""

    heads: list[Head]
    step: Step = "predicts"
    """The step that counts: the one that predicts the first token of a word, or the next one, which reads it."""


class Words(NamedTuple):
    """The tokens of a text, and the number of the word that each belongs to."""

    ids: list[int]
    words: list[int]


def every_head(model: EncoderDecoder) -> list[Head]:
    """Return all heads of encoder-decoder attention."""
    stack = model.config.decoder
    return [(layer, head) for layer in range(stack.layers) for head in range(stack.heads)]


def align(
    model: EncoderDecoder, sources: Sequence[Words], targets: Sequence[Words], chosen: Heads | None = None
) -> list[Alignment]:
    """Return the alignment of each pair, by these heads or by all of them."""
    chosen = chosen or Heads(every_head(model))
    found: list[Alignment] = [[] for _ in sources]
    for i, (weights,) in weigh(model, sources, targets, [chosen.heads], chosen.step):
        found[i] = link(weights, sources[i], targets[i])
    return found


@torch.no_grad()
def weigh(
    model: EncoderDecoder,
    sources: Sequence[Words],
    targets: Sequence[Words],
    groups: Sequence[Sequence[Head]],
    step: Step,
) -> Iterator[tuple[int, Float[Tensor, "groups target source"]]]:
    """Yield, for each pair with words on both sides, its number and the attention of each target word to each source
    word, for each group of heads: the mean of the heads. The order of the pairs is undefined."""
    pairs = enumerate(zip(sources, targets, strict=True))
    sizes = {i: len(source.ids) + len(target.ids) + 2 for i, (source, target) in pairs if source.ids and target.ids}
    counts = torch.tensor([len(heads) for heads in groups], device=model.device)[:, None, None]
    layers = sorted({layer for heads in groups for layer, _ in heads})
    modules = [model.decoder.layers[layer].cross_attention.attend for layer in layers]
    for batch in by_size(sizes, BATCH_TOKENS):
        source, layout = padded([with_end(sources[i].ids, model.config.source_end) for i in batch], model.device)
        target, _ = padded([[START, *targets[i].ids] for i in batch], model.device)
        sums = torch.zeros(len(batch), len(groups), target.shape[1], source.shape[1], device=model.device)
        with hooks(zip(modules, (_adder(layer, groups, sums) for layer in layers), strict=True)):
            model.hidden(Inputs(source, target, layout))
        for i, weights in zip(batch, (sums / counts).cpu(), strict=True):
            # Position 0 reads the start and predicts the first token, position n reads the n-th.
            first = [targets[i].words.index(word) + (step == "reads") for word in sorted(set(targets[i].words))]
            yield i, weights[:, first, : len(sources[i].ids)] @ _members(sources[i].words)


def link(weights: Float[Tensor, "target source"], source: Words, target: Words) -> Alignment:
    """Link words, the strongest link first, each word once; then link each target word that is left to the source word
    with its highest weight."""
    found: dict[int, int] = {}
    taken: set[int] = set()
    for cell in weights.flatten().argsort(descending=True, stable=True).tolist():
        row, column = divmod(cell, weights.shape[1])
        if row not in found and column not in taken:
            found[row] = column
            taken.add(column)
    for row in range(len(weights)):
        if row not in found:
            found[row] = int(weights[row].argmax())
    rows, columns = sorted(set(target.words)), sorted(set(source.words))
    return sorted((columns[column], rows[row]) for row, column in found.items())


def write_pharaoh(links: Alignment) -> str:
    """Return links as 0-0 1-2 2-1: source word, target word."""
    return " ".join(f"{source}-{target}" for source, target in links)


def read_pharaoh(line: str, where: str) -> Alignment:
    """Return the links of a line that `write_pharaoh` wrote. `where`: the file and line, for errors."""
    found = [LINK.fullmatch(word) for word in line.split()]
    if not all(found):
        raise InputError(
            f"{where}: invalid links: {line!r}. Write them as 0-0 1-2: source word, target word.", value=line
        )
    return sorted({(int(one[1]), int(one[2])) for one in found if one})


def _members(words: Sequence[int]) -> Float[Tensor, "tokens words"]:
    """Return 1 for each token that is part of a word, 0 for the others."""
    return (torch.tensor(words)[:, None] == torch.tensor(sorted(set(words)))).float()


def _adder(layer: int, groups: Sequence[Sequence[Head]], sums: Float[Tensor, "batch groups step source"]) -> Before:
    """Return a hook that adds up the attention of the heads in each group; it computes that of no other head."""
    some = sorted({head for heads in groups for other, head in heads if other == layer})

    def add(args: Sequence[Any]) -> None:
        q, k, _, mask = args
        weights = attention_weights(q[:, some], k[:, some], mask)
        for number, heads in enumerate(groups):
            own = [some.index(head) for other, head in heads if other == layer]
            sums[:, number] += weights[:, own].sum(1)

    return add
