"""Which sentences train together: a pure function of lengths, budget, seed and epoch.

Sentences of like length share a batch, so that little or nothing is padding; a batch holds as many as the token budget
allows; and both who meets whom and the order of the batches are drawn anew in every epoch.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.data.store import Store
from sightline.errors import InputError
from sightline.model.mask import Packing
from sightline.text.tokenizer import END, PAD, START

__all__ = ["Batch", "collate", "collate_packed", "plan"]

WINDOW = 100_000
"""Sentences are sorted by length within windows of so many, in an order that is shuffled first."""


def plan(
    source: NDArray[np.int32], target: NDArray[np.int32], budget: int, seed: int, epoch: int
) -> list[NDArray[np.int64]]:
    """The batches of an epoch, as indices of pairs. In each, rows times the longest row is at most `budget` tokens, on
    either side (one token more a sentence for its start or end)."""
    longest = int(max(source.max(initial=0), target.max(initial=0))) + 1
    if longest > budget:
        raise InputError(f"a budget of {budget} tokens a batch is less than the longest sentence, which has {longest}.")
    chance = np.random.default_rng([seed, epoch])
    order = chance.permutation(len(source))
    batches: list[NDArray[np.int64]] = []
    for first in range(0, len(order), WINDOW):
        window = order[first : first + WINDOW]
        window = window[np.lexsort((source[window], target[window]))]
        batches += _cut(window, np.maximum(source[window], target[window]) + 1, budget)
    return [batches[i] for i in chance.permutation(len(batches))]


def _cut(window: NDArray[np.int64], lengths: NDArray[np.int32], budget: int) -> list[NDArray[np.int64]]:
    batches, start, longest = [], 0, 0
    for end, length in enumerate(lengths.tolist()):
        longest = max(longest, length)
        if longest * (end - start + 1) > budget:
            batches.append(window[start:end])
            start, longest = end, length
    batches.append(window[start:])
    return batches


class Batch(NamedTuple):
    """Sentences that train together. The decoder is given `target_in` and is to answer `target_out`."""

    source: Tensor
    source_layout: Tensor | Packing
    target_in: Tensor
    target_out: Tensor
    target_layout: Packing | None
    tokens: int
    """Target tokens that count in the loss: all but padding."""

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on a device, without waiting for it."""

        def move(value: Tensor | Packing | int | None) -> Any:
            if isinstance(value, Tensor):
                return value.to(device, non_blocking=True)
            return value.to(device) if isinstance(value, Packing) else value

        return Batch(*map(move, self))


def collate(store: Store, indices: Sequence[int] | NDArray[np.int64]) -> Batch:
    """Rows of one length, filled up with padding. Sources end in END; targets are shifted by one behind START."""
    sources = [store.source[int(i)] for i in indices]
    targets = [store.target[int(i)] for i in indices]
    source = _rows([np.append(ids, END) for ids in sources])
    return Batch(
        source=source,
        source_layout=source != PAD,
        target_in=_rows([np.insert(ids, 0, START) for ids in targets]),
        target_out=_rows([np.append(ids, END) for ids in targets]),
        target_layout=None,
        tokens=sum(len(ids) + 1 for ids in targets),
    )


def collate_packed(store: Store, indices: Sequence[int] | NDArray[np.int64]) -> Batch:
    """All sentences end to end in one row, no padding."""
    sources = [np.append(store.source[int(i)], END) for i in indices]
    targets = [store.target[int(i)] for i in indices]
    lengths = [len(ids) + 1 for ids in targets]
    return Batch(
        source=_row(sources),
        source_layout=Packing.of([len(ids) for ids in sources]),
        target_in=_row([np.insert(ids, 0, START) for ids in targets]),
        target_out=_row([np.append(ids, END) for ids in targets]),
        target_layout=Packing.of(lengths),
        tokens=sum(lengths),
    )


def _rows(sentences: list[NDArray[np.int64]]) -> Tensor:
    rows = np.full((len(sentences), max(map(len, sentences))), PAD, np.int64)
    for row, sentence in zip(rows, sentences, strict=True):
        row[: len(sentence)] = sentence
    return torch.from_numpy(rows)


def _row(sentences: list[NDArray[np.int64]]) -> Tensor:
    return torch.from_numpy(np.concatenate(sentences).astype(np.int64))[None]
