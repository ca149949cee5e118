"""Where the heads of encoder-decoder attention look while a model writes given answers: one pass over each, as in
training."""

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sightline.model.transformer import EncoderDecoder
from sightline.text.tokenizer import END, PAD, START

__all__ = ["Head", "look"]

Head = tuple[int, int]
"""A layer of the decoder, and a head in it."""


@torch.no_grad()
def look(
    model: EncoderDecoder,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    heads: Sequence[Head],
    *,
    budget: int = 8192,
) -> Iterator[tuple[int, Float[Tensor, "heads steps source"]]]:
    """For each pair its number and what these heads look at, in no order. Step 0 reads the start and predicts the first
    token of the target, step i reads the i-th; the last column is the end of the source. `budget`: tokens of a
    batch."""
    size = [len(source) + len(target) + 2 for source, target in zip(sources, targets, strict=True)]
    order = sorted(range(len(sources)), key=lambda i: -size[i])
    device = model.classifier.weight.device
    while order:
        batch = order[: max(1, budget // size[order[0]])]
        order = order[len(batch) :]
        source = pad_sequence([torch.tensor([*sources[i], END]) for i in batch], True, PAD).to(device)
        target = pad_sequence([torch.tensor([START, *targets[i]]) for i in batch], True, PAD).to(device)
        layout = source != PAD
        with _watching(model, heads) as seen:
            model.decode(target, model.encoder(source, layout), layout)
        looks = torch.stack([seen[head] for head in heads], 1).cpu()
        for i, rows in zip(batch, looks, strict=True):
            yield i, rows[:, : len(targets[i]) + 1, : len(sources[i]) + 1]


@contextmanager
def _watching(model: EncoderDecoder, heads: Sequence[Head]) -> Iterator[dict[Head, Float[Tensor, "batch step source"]]]:
    """What each of these heads looks at in a pass of this thread. Of all others nothing is computed."""
    seen: dict[Head, Tensor] = {}
    thread = threading.get_ident()

    def watch(layer: int) -> Any:
        some = sorted({head for other, head in heads if other == layer})

        def hook(_: Any, given: tuple[Any, ...]) -> None:
            if threading.get_ident() != thread:
                return
            q, k, _, mask = given
            scores = (q[:, some].float() @ k[:, some].float().mT) * q.shape[-1] ** -0.5
            seen.update(
                ((layer, head), rows)
                for head, rows in zip(some, scores.masked_fill(~mask.allowed, -math.inf).softmax(-1).unbind(1), strict=True)
            )

        return hook

    handles = [
        model.decoder.layers[layer].cross_attention.attend.register_forward_pre_hook(watch(layer))
        for layer in sorted({layer for layer, _ in heads})
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
