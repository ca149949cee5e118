"""Batches: which sentences train together, and their tensors.

A plan is a pure function of lengths, batch size, seed and epoch. Two layouts avoid padding. `plan` puts sentences of
similar length into a batch, one per row; shapes differ between batches. `plan_shared` packs several sentences into each
row of a fixed length, so that batches have few shapes, as compiled code and CUDA graphs need. The composition and the
order of batches change in every epoch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.data.store import Side, Store
from sightline.errors import InputError
from sightline.model.mask import PackedRows
from sightline.model.protocol import Inputs
from sightline.special import END, PAD, START, UNKNOWN

WINDOW = 100_000
"""Sentences of a window, within which shuffled sentences are sorted by length."""
ROW = 64
"""Length of a packed row; longer sentences are packed into rows of twice, four times, ... this length."""

Ints = NDArray[np.int64]
Lengths = NDArray[np.int32]


# --- Plans


def plan(
    source: Lengths, target: Lengths, batch_tokens: int, seed: int, epoch: int, pairs: Ints | None = None
) -> list[NDArray[np.int64]]:
    """Return the batches of an epoch as indices of pairs: of all pairs, or of `pairs`, which may have repetitions.

    In each batch, rows × length is at most `batch_tokens` on both sides, including START or END of each sentence.
    """
    longest = int(max(source.max(initial=0), target.max(initial=0))) + 1
    if longest > batch_tokens:
        raise InputError.of("batch_tokens", batch_tokens, f"must be at least {longest}, got {batch_tokens}.")
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(np.arange(len(source)) if pairs is None else pairs)
    batches: list[Ints] = []
    for first in range(0, len(order), WINDOW):
        window = order[first : first + WINDOW]
        window = window[np.lexsort((source[window], target[window]))]
        batches += _cut(window, np.maximum(source[window], target[window]) + 1, batch_tokens)
    return [batches[i] for i in generator.permutation(len(batches))]


def _cut(window: Ints, lengths: Lengths, batch_tokens: int) -> list[Ints]:
    batches, start, longest = [], 0, 0
    for end, length in enumerate(lengths.tolist()):
        longest = max(longest, length)
        if longest * (end - start + 1) > batch_tokens:
            batches.append(window[start:end])
            start, longest = end, length
    batches.append(window[start:])
    return batches


class Shared(NamedTuple):
    """A batch of packed rows: the row of each pair. Pairs keep this order within their row."""

    pairs: Ints
    row: Ints
    rows: int
    length: int


def plan_shared(
    source: Lengths, target: Lengths, batch_tokens: int, seed: int, epoch: int, pairs: Ints | None = None
) -> list[Shared]:
    """Return the batches of an epoch in packed rows.

    Each batch has `batch_tokens` cells on both sides. The length of its rows (64, 128, 256, ...) fits its longest
    sentences; short sentences fill the rest.
    """
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(np.arange(len(source)) if pairs is None else pairs)
    sizes = np.stack([source, target]) + 1  # with START or END
    longest = sizes.max(0)[order]
    queues: list[_Queue] = []
    length = ROW
    while len(order):
        if length > batch_tokens:
            raise InputError.of(
                "batch_tokens",
                batch_tokens,
                f"must be at least {length}, a row for the longest sentence ({longest.max()} tokens), "
                f"got {batch_tokens}.",
            )
        fits = longest <= length
        queues.append(_Queue(order[fits], sizes))
        order, longest, length = order[~fits], longest[~fits], 2 * length
    batches: list[Shared] = []
    for queue in reversed(queues):
        length //= 2
        while queue:
            batches.append(
                _fill([queue] if queue is queues[0] else [queue, queues[0]], sizes, batch_tokens // length, length)
            )
    return [batches[i] for i in generator.permutation(len(batches))]


class _Queue:
    """Sentences that wait for a batch. Those that did not fit into one batch are first in the next."""

    def __init__(self, order: Ints, sizes: NDArray[np.int32]) -> None:
        self.order, self.sizes, self.taken, self.back = order, sizes, 0, order[:0]

    def __len__(self) -> int:
        return len(self.back) + len(self.order) - self.taken

    def take(self, cells: Ints) -> Ints:
        """Remove and return the next sentences, as many as fit into this many cells on both sides."""
        near = np.concatenate([self.back, self.order[self.taken : self.taken + int(cells.max())]])
        ends = self.sizes[:, near].cumsum(1)
        count = min(int(np.searchsorted(end, most, side="right")) for end, most in zip(ends, cells, strict=True))
        self.taken += max(0, count - len(self.back))
        self.back = self.back[count:]
        return near[:count]


def _fill(queues: list[_Queue], sizes: NDArray[np.int32], rows: int, length: int) -> Shared:
    """Return a batch with as many sentences as fit, from each queue in turn."""
    free = np.full((2, rows), length)
    placed: list[tuple[Ints, Ints]] = []
    for queue in queues:
        waiting = queue.take(free.sum(1) * 5 // 4)  # more than fit in total: some may fill gaps
        waiting = waiting[np.argsort(-sizes[:, waiting].max(0), kind="stable")]
        rest = [queue.back]
        # In each round, each row gets one sentence; the longest goes to the row with most free cells.
        while len(waiting):
            now, waiting = waiting[:rows], waiting[rows:]
            into = np.argsort(-free.min(0), kind="stable")[: len(now)]
            fits = (sizes[:, now] <= free[:, into]).all(0)
            free[:, into[fits]] -= sizes[:, now[fits]]
            placed.append((now[fits], into[fits]))
            rest.append(now[~fits])
        queue.back = np.concatenate(rest)
    pairs, row = (np.concatenate(part) for part in zip(*placed, strict=True))
    return Shared(pairs, row, rows, length)


# --- Tensors


class Batch(NamedTuple):
    """Sentences that train together."""

    inputs: Inputs
    """The input of the model."""
    targets: Tensor
    """The token to predict at each position of the output; PAD at the positions outside of the loss."""
    tokens: int
    """Number of tokens in the loss."""

    def to(self, device: torch.device | str) -> "Batch":
        """Copy the batch to a device asynchronously."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> "Batch":
        """Copy the batch to pinned memory."""
        return self._map(Tensor.pin_memory)

    def twice(self) -> "Batch":
        """Repeat all rows, for R-Drop."""
        return self._map(lambda tensor: torch.cat([tensor, tensor]))._replace(tokens=2 * self.tokens)

    def tensors(self) -> list[Tensor]:
        """Return all tensors, in a fixed order."""
        values = (*self.inputs, self.targets)
        parts = [part for value in values for part in (value if isinstance(value, PackedRows) else [value])]
        return [part for part in parts if isinstance(part, Tensor)]

    def _map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        def apply(value: Any) -> Any:
            if isinstance(value, PackedRows | Inputs):
                return type(value)(*map(apply, value))
            return function(value) if isinstance(value, Tensor) else value

        return Batch(*map(apply, self))


MakeBatch = Callable[[Store, Shared | Ints, Sequence[int]], Batch]
"""Makes the batch of some examples of a store. The last argument is a seed."""


def collate(store: Store, chosen: Shared | Sequence[int] | Ints, _: Sequence[int] = ()) -> Batch:
    """Return a batch of packed rows, or of padded rows, one per sentence. Sources end in END; target inputs begin with
    START."""
    if not isinstance(chosen, Shared):
        pairs = np.asarray(chosen, np.int64)
        chosen = Shared(pairs, np.arange(len(pairs)), len(pairs), length=0)
    source = None if store.source is None else _Cells(store.source, chosen)
    target = _Cells(store.target, chosen)
    targets, tokens = target.rows(target.ids, last=END), int(target.sizes.sum())
    if source is None:  # the END after a piece of text, which does not end there, is not in the loss
        targets.view(-1)[target.start + target.sizes - 1] = PAD
    if store.loss_mask is not None:
        targets[target.rows(store.loss_mask.take(chosen.pairs)[0], last=1) == 0] = PAD
    if source is None or store.loss_mask is not None:
        tokens = int((targets != PAD).sum())
    inputs = Inputs(
        source=None if source is None else source.rows(source.ids, last=END),
        target=target.rows(target.ids, first=START),
        source_layout=None if source is None else source.layout(),
        target_layout=target.layout(unused_in_first=source is not None) if chosen.length or source is None else None,
    )
    return Batch(inputs, targets, tokens)


class _Cells:
    """Positions of the tokens of one side in the rows of a batch."""

    def __init__(self, side: Side, chosen: Shared) -> None:
        self.ids, lengths = side.take(chosen.pairs)
        self.sizes, self.row, self.packed = lengths + 1, chosen.row, chosen.length > 0
        order = np.argsort(self.row, kind="stable")
        filled = np.bincount(self.row, self.sizes, chosen.rows).astype(np.int64)  # used cells of each row
        self.shape = (chosen.rows, chosen.length or int(filled.max()))
        ends = self.sizes[order].cumsum()
        begins_of_rows = np.repeat(filled.cumsum() - filled, np.bincount(self.row, minlength=chosen.rows))
        self.offset = np.empty_like(self.sizes)  # of each sentence in its row
        self.offset[order] = ends - self.sizes[order] - begins_of_rows
        self.start = self.row * self.shape[1] + self.offset
        self.sentence = np.repeat(np.arange(len(self.sizes)), self.sizes)
        self.position = np.arange(len(self.sentence)) - np.repeat(self.sizes.cumsum() - self.sizes, self.sizes)
        self.cells = np.repeat(self.start, self.sizes) + self.position

    def rows(self, values: NDArray[Any], first: int = PAD, last: int = PAD) -> Tensor:
        """Return rows with the values of the tokens, after `first` or before `last`; PAD elsewhere."""
        cells = np.full(self.shape[0] * self.shape[1], PAD)
        edge = self.position == (np.repeat(self.sizes, self.sizes) - 1 if last else 0)
        cells[self.cells[~edge]] = values
        cells[self.cells[edge]] = first or last
        return torch.from_numpy(cells.reshape(self.shape))

    def layout(self, *, unused_in_first: bool = False) -> Tensor | PackedRows:
        """Return the cells that are tokens: a mask of padded rows, or the sentences and positions of packed rows.

        Unused cells of a packed row belong to no sentence, or to the row's first one, whose causal mask hides them.
        """
        if not self.packed:
            return torch.from_numpy(np.arange(self.shape[1]) < self.sizes[:, None])
        blank = np.full(self.shape[0], -1)
        if unused_in_first:
            first = self.offset == 0
            blank[self.row[first]] = first.nonzero()[0]
        sentence, position = np.repeat(blank, self.shape[1]), np.zeros(self.shape[0] * self.shape[1], np.int64)
        sentence[self.cells], position[self.cells] = self.sentence, self.position
        return PackedRows(*(torch.from_numpy(x.reshape(self.shape)) for x in (sentence, position)))


@dataclass(frozen=True)
class MaskedBatches:
    """Makes batches for masked language modelling (BERT, §3.1).

    15 % of the tokens are predicted: 80 % of them are replaced by the mask, 10 % by a random token, and 10 % are
    unchanged.
    """

    mask: int
    """The id of the mask."""
    vocab_size: int

    def __call__(self, store: Store, chosen: Shared | Sequence[int] | Ints, seed: Sequence[int]) -> Batch:
        """Return a batch of text; the seed chooses its masks."""
        generator = np.random.default_rng(list(seed))
        inputs = collate(store, chosen).inputs
        text = inputs.require("target")
        draw, other = generator.random(text.shape), generator.integers(UNKNOWN + 1, self.vocab_size, text.shape)
        predicted = torch.from_numpy(draw < 0.15) & (text > UNKNOWN)
        if not predicted.any():  # a very small batch
            predicted = text > UNKNOWN
        replacement = torch.where(torch.from_numpy(draw < 0.12), self.mask, torch.from_numpy(other))
        masked = torch.where(predicted & torch.from_numpy(draw < 0.135), replacement, text)
        targets = torch.where(predicted, text, PAD)
        return Batch(Inputs(source=masked, source_layout=inputs.target_layout), targets, tokens=int(predicted.sum()))
