"""Which sentences train together, and the tensors they become.

A plan is a pure function of lengths, budget, seed and epoch. There are two ways to waste little on padding. Sentences
of like length, each in a row of its own (`plan`): good where shapes may differ from batch to batch. Or rows of one
length that several sentences share (`plan_shared`): all batches of a length have one shape, as compiled code and
recorded CUDA graphs want it, and the sentences of a batch are mixed by chance. Who meets whom, and the order of the
batches, are drawn anew in every epoch.
"""

from collections.abc import Callable, Sequence
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

__all__ = ["Batch", "Shared", "collate", "collate_shared", "mask_words", "plan", "plan_shared"]

WINDOW = 100_000
"""Sentences are sorted by length within windows of so many, in an order that is shuffled first."""
ROW = 64
"""Cells of a shared row; sentences that are longer share rows twice as long, or four times, ..."""

Ints = NDArray[np.int64]
Lengths = NDArray[np.int32]


# --- Plans


def plan(
    source: Lengths, target: Lengths, budget: int, seed: int, epoch: int, pairs: Ints | None = None
) -> list[NDArray[np.int64]]:
    """The batches of an epoch, as indices of pairs: all of them, or those given, in which one may stand several times.
    In each, rows times the longest row is at most `budget` tokens, on either side (one token more a sentence for its
    start or end)."""
    longest = int(max(source.max(initial=0), target.max(initial=0))) + 1
    if longest > budget:
        raise InputError(f"a budget of {budget} tokens a batch is less than the longest sentence, which has {longest}.")
    chance = np.random.default_rng([seed, epoch])
    order = chance.permutation(np.arange(len(source)) if pairs is None else pairs)
    batches: list[Ints] = []
    for first in range(0, len(order), WINDOW):
        window = order[first : first + WINDOW]
        window = window[np.lexsort((source[window], target[window]))]
        batches += _cut(window, np.maximum(source[window], target[window]) + 1, budget)
    return [batches[i] for i in chance.permutation(len(batches))]


def _cut(window: Ints, lengths: Lengths, budget: int) -> list[Ints]:
    batches, start, longest = [], 0, 0
    for end, length in enumerate(lengths.tolist()):
        longest = max(longest, length)
        if longest * (end - start + 1) > budget:
            batches.append(window[start:end])
            start, longest = end, length
    batches.append(window[start:])
    return batches


class Shared(NamedTuple):
    """A batch of shared rows: which pair goes into which row. Within a row they stand in this order."""

    pairs: Ints
    row: Ints
    rows: int
    length: int


def plan_shared(
    source: Lengths, target: Lengths, budget: int, seed: int, epoch: int, pairs: Ints | None = None
) -> list[Shared]:
    """The batches of an epoch in shared rows. Each batch has `budget` cells on either side, in rows just long enough
    (64, 128, 256, ...) for its longest sentences; short ones fill the room that these leave."""
    chance = np.random.default_rng([seed, epoch])
    order = chance.permutation(np.arange(len(source)) if pairs is None else pairs)
    sizes = np.stack([source, target]) + 1  # with its start or end
    longest = sizes.max(0)[order]
    piles: list[_Pile] = []
    length = ROW
    while len(order):
        if length > budget:
            longest_of_all = int(longest.max())
            raise InputError(
                f"a budget of {budget} tokens a batch is less than the row of {length} cells that the longest "
                f"sentence, which has {longest_of_all} tokens, needs."
            )
        fits = longest <= length
        piles.append(_Pile(order[fits], sizes))
        order, longest, length = order[~fits], longest[~fits], 2 * length
    batches: list[Shared] = []
    for pile in reversed(piles):
        length //= 2
        while pile:
            batches.append(_fill([pile] if pile is piles[0] else [pile, piles[0]], sizes, budget // length, length))
    return [batches[i] for i in chance.permutation(len(batches))]


class _Pile:
    """Sentences that wait for their batch, in their order; those that found no place in one come first in the next."""

    def __init__(self, order: Ints, sizes: NDArray[np.int32]) -> None:
        self.order, self.sizes, self.taken, self.back = order, sizes, 0, order[:0]

    def __len__(self) -> int:
        return len(self.back) + len(self.order) - self.taken

    def take(self, room: Ints) -> Ints:
        """The next ones, as many as have so many cells on either side."""
        near = np.concatenate([self.back, self.order[self.taken : self.taken + int(room.max())]])
        ends = self.sizes[:, near].cumsum(1)
        count = min(int(np.searchsorted(end, most, side="right")) for end, most in zip(ends, room, strict=True))
        self.taken += max(0, count - len(self.back))
        self.back = self.back[count:]
        return near[:count]


def _fill(piles: list[_Pile], sizes: NDArray[np.int32], rows: int, length: int) -> Shared:
    """One batch: from each pile in turn as many sentences as find a place."""
    room = np.full((2, rows), length)
    placed: list[tuple[Ints, Ints]] = []
    for pile in piles:
        waiting = pile.take(room.sum(1) * 5 // 4)  # some more than there is room for: one of them may fit a gap
        waiting = waiting[np.argsort(-sizes[:, waiting].max(0), kind="stable")]
        rest = [pile.back]
        # Round by round each row gets one sentence: the longest that waits goes where most room is left.
        while len(waiting):
            now, waiting = waiting[:rows], waiting[rows:]
            into = np.argsort(-room.min(0), kind="stable")[: len(now)]
            fits = (sizes[:, now] <= room[:, into]).all(0)
            room[:, into[fits]] -= sizes[:, now[fits]]
            placed.append((now[fits], into[fits]))
            rest.append(now[~fits])
        pile.back = np.concatenate(rest)
    pairs, row = (np.concatenate(part) for part in zip(*placed, strict=True))
    return Shared(pairs, row, rows, length)


# --- Tensors


class Batch(NamedTuple):
    """Sentences that train together. An encoder reads `source`, a decoder `target_in`; `target_out` has the tokens to
    predict."""

    source: Tensor | None
    source_layout: Tensor | PackedRows | None
    target_in: Tensor
    target_out: Tensor
    target_layout: Tensor | PackedRows | None
    tokens: int
    """Target tokens that count in the loss: all but padding."""

    @property
    def inputs(self) -> Inputs:
        """The inputs of the model."""
        return Inputs(self.source, self.target_in, self.source_layout, self.target_layout)

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on a device, without waiting for it."""

        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> "Batch":
        """The same in memory from which a GPU can fetch it by itself."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        def changed(value: Any) -> Any:
            if isinstance(value, PackedRows):
                return type(value)(*map(changed, value))
            return change(value) if isinstance(value, Tensor) else value

        return Batch(*map(changed, self))

    def twice(self) -> "Batch":
        """All rows two times, for two passes in one."""
        return self._each(lambda tensor: torch.cat([tensor, tensor]))._replace(tokens=2 * self.tokens)

    def tensors(self) -> list[Tensor]:
        """All tensors in it, in a fixed order."""
        parts = [part for value in self for part in (value if isinstance(value, PackedRows) else [value])]
        return [part for part in parts if isinstance(part, Tensor)]


def collate(store: Store, indices: Sequence[int] | Ints) -> Batch:
    """Rows of one length, filled up with padding. Sources end in END; targets are shifted by one behind START."""
    pairs = np.asarray(indices, np.int64)
    into = np.arange(len(pairs))
    source = None if store.source is None else _Cells(*store.source.take(pairs), into, len(pairs))
    target = _Cells(*store.target.take(pairs), into, len(pairs))
    source_ids = None if source is None else source.rows(source.ids, last=END)
    target_out = target.rows(target.ids, last=END)
    return _count(
        store,
        target,
        pairs,
        Batch(
            source=source_ids,
            source_layout=None if source_ids is None else source_ids != PAD,
            target_in=target.rows(target.ids, first=START),
            target_out=target_out,
            target_layout=target_out != PAD if source is None else None,
            tokens=int(target.sizes.sum()),
        ),
    )


def collate_shared(store: Store, shared: Shared) -> Batch:
    """Rows of one length that sentences share."""
    pairs, row, rows, length = shared
    source = None if store.source is None else _Cells(*store.source.take(pairs), row, rows, length)
    target = _Cells(*store.target.take(pairs), row, rows, length)
    nobody = np.full(rows, -1)
    return _count(
        store,
        target,
        pairs,
        Batch(
            source=None if source is None else source.rows(source.ids, last=END),
            source_layout=None if source is None else source.layout(blank=nobody),
            target_in=target.rows(target.ids, first=START),
            target_out=target.rows(target.ids, last=END),
            # Beside a source, blanks must find something to look at; a reader looks ahead, and must not see them.
            target_layout=target.layout(blank=nobody if source is None else target.first_of_row()),
            tokens=int(target.sizes.sum()),
        ),
    )


class _Cells:
    """Where in the rows of a batch each token of its sentences goes."""

    def __init__(self, ids: NDArray[Any], lengths: Ints, row: Ints, rows: int, length: int | None = None) -> None:
        self.ids, self.sizes, self.row = ids, lengths + 1, row
        order = np.argsort(row, kind="stable")
        filled = np.bincount(row, self.sizes, rows).astype(np.int64)  # cells of each row that are taken
        self.length = length or int(filled.max())
        ends = self.sizes[order].cumsum()
        begins_of_rows = np.repeat(filled.cumsum() - filled, np.bincount(row, minlength=rows))
        self.offset = np.empty_like(self.sizes)  # of each sentence, in its row
        self.offset[order] = ends - self.sizes[order] - begins_of_rows
        self.shape = (rows, self.length)
        self.start = row * self.length + self.offset
        self.sentence, self.position = _spread(self.sizes)
        self.cells = np.repeat(self.start, self.sizes) + self.position

    def rows(self, values: NDArray[Any], first: int = PAD, last: int = PAD) -> Tensor:
        """The values of the tokens in their cells, behind `first` or before `last`; PAD elsewhere."""
        cells = np.full(self.shape[0] * self.shape[1], PAD, np.int64)
        edge = self.position == (np.repeat(self.sizes, self.sizes) - 1 if last else 0)
        cells[self.cells[~edge]] = values
        cells[self.cells[edge]] = first or last
        return torch.from_numpy(cells.reshape(self.shape))

    def layout(self, blank: Ints) -> PackedRows:
        """Which sentence each cell belongs to; those that are left over belong to `blank`, for each row."""
        sentence, position = np.repeat(blank, self.length), np.zeros(self.shape[0] * self.shape[1], np.int64)
        sentence[self.cells], position[self.cells] = self.sentence, self.position
        return PackedRows(*(torch.from_numpy(x.reshape(self.shape)) for x in (sentence, position)))

    def first_of_row(self) -> Ints:
        """The sentence that begins each row; -1 where a row has none."""
        first = np.full(self.shape[0], -1)
        begins = self.offset == 0
        first[self.row[begins]] = begins.nonzero()[0]
        return first


def _spread(sizes: Ints) -> tuple[Ints, Ints]:
    """For every token of sentences of these sizes: which sentence it is in, and where."""
    sentence = np.repeat(np.arange(len(sizes)), sizes)
    return sentence, np.arange(len(sentence)) - np.repeat(sizes.cumsum() - sizes, sizes)


def _count(store: Store, target: _Cells, pairs: Ints, batch: Batch) -> Batch:
    """Which tokens are asked for. A text has its ENDs in it, and a piece that is cut out of it does not end there: what
    would follow its last token is not asked. Of a conversation only the replies are."""
    if store.source is not None:
        return batch
    wanted = batch.target_out.clone()
    wanted.view(-1)[target.start + target.sizes - 1] = PAD
    if store.counted is not None:
        wanted = wanted.where(target.rows(store.counted.take(pairs)[0], last=1) != 0, torch.tensor(PAD))
    return batch._replace(target_out=wanted, tokens=int((wanted != PAD).sum()))


def mask_words(batch: Batch, vocab_size: int, seed: Sequence[int]) -> Batch:
    """The same text as an exercise for a reader (BERT, §3.1): of every seventh token, on average, 8 in 10 are hidden
    (UNKNOWN stands for it: with bytes to fall back on, no text has it), 1 in 10 is another word, and the model is to
    say what was there."""
    chance = np.random.default_rng(list(seed))
    text = batch.target_in
    luck, other = chance.random(text.shape), chance.integers(UNKNOWN + 1, vocab_size, text.shape)
    asked = torch.from_numpy(luck < 0.15) & (text > UNKNOWN)
    if not asked.any():  # a batch of one word
        asked = text > UNKNOWN
    shown = torch.where(torch.from_numpy(luck < 0.12), UNKNOWN, torch.from_numpy(other))
    given = torch.where(asked & torch.from_numpy(luck < 0.135), shown, text)
    wanted = torch.where(asked, text, PAD)
    return Batch(given, batch.target_layout, given, wanted, batch.target_layout, tokens=int(asked.sum()))


def lengths_of(side: Side | None, like: Lengths) -> Lengths:
    """Of each sentence; of a side that is not there, those of the other."""
    return like if side is None else side.lengths
