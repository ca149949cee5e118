"""A key/value cache with the same shapes and addresses at every step, for `torch.compile` and CUDA graphs.

It takes one token per step and attends through a `DecodeWindow`. Reordering its rows copies no keys: it changes
`row_index`, the row that stores each key.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sightline.config import ModelConfig
from sightline.errors import InputError
from sightline.model.cache import Cache, CrossKV
from sightline.model.kernels.decode import DecodeWindow
from sightline.model.mask import Layout, Mask


class StaticCache(Cache):
    """Keys and values of all decoder layers, at fixed addresses.

    A recorded graph of `step` and `reorder` works on the tensors of this cache, so record it once and replay it with
    any content: fill the cache with `copy_from`, and take sentences out with `extract`. No method waits for the device.
    """

    def __init__(
        self,
        config: ModelConfig,
        sentences: int,
        beams: int,
        capacity: int,
        *,
        like: Tensor,
        cross: Sequence[CrossKV] = (),
        source: int = 0,
        storage: Float[Tensor, " n"] | None = None,
    ) -> None:
        """Create an empty cache. `source`: columns for the keys and values of encoder-decoder attention, if `copy_from`
        fills them (instead of `cross`). `storage`: a vector of `storage_size` numbers or more for all keys and values,
        for caches that take turns in the same memory."""
        super().__init__(config, sentences, beams, capacity, like=like, cross=cross, storage=storage)
        if source:
            size = self.storage_size(config, sentences, 0, 0, source)
            storage = like.new_zeros(size) if storage is None else storage[2 * self.keys.numel() :][:size]
            mask = Mask(window=DecodeWindow(torch.zeros_like(self.row_ids[:sentences])))
            stored = storage.view(config.decoder.layers, 2, sentences, config.decoder.heads, source, -1)
            self.cross = [CrossKV(keys, values, mask) for keys, values in stored]
        self.row_index: Int[Tensor, "rows capacity"] = self.row_ids[:, None].repeat(1, capacity)
        self.visible, self.uniform_length = capacity, False

    @staticmethod
    def storage_size(config: ModelConfig, sentences: int, beams: int, capacity: int, source: int = 0) -> int:
        """Return how many numbers the storage of a cache needs."""
        return 2 * config.decoder.layers * config.d_model * sentences * (beams * capacity + source)

    def next_positions(self, ids: Int[Tensor, "rows new"], layout: Layout = None) -> Int[Tensor, "rows new"]:
        if ids.shape[1] != 1 or layout is not None:
            raise InputError("A static cache takes one token of each row per step.")
        positions = super().next_positions(ids)
        self.visible = self.capacity
        return positions

    def mask(self, positions: Int[Tensor, "rows new"]) -> Mask:
        self.row_index.scatter_(1, positions, self.row_ids[:, None])
        return Mask(window=DecodeWindow(positions[:, 0] + 1, self.row_index))

    def advance(self, ids: Int[Tensor, "rows new"], layout: Layout = None) -> None:
        """Count the new tokens. A compiled or recorded step does not change `used`: it must not depend on a number that
        grows, and its replays do not run this code."""
        used = self.used
        super().advance(ids, layout)
        if torch.compiler.is_compiling() or (ids.is_cuda and torch.cuda.is_current_stream_capturing()):
            self.used = used

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        if rows.shape != self.row_ids.shape:
            raise InputError(f"The cache has {len(self.row_ids)} rows, but the new order has {len(rows)}.")
        self.row_index.copy_(self.row_index[rows])
        self.lengths.copy_(self.lengths[rows])

    def select(self, sentences: Int[Tensor, " kept"]) -> None:
        """Keep these sentences only, each with its beams. This moves the cache to other addresses and out of its
        storage; `extract` does not."""
        rows = self.rows_of(sentences)
        super().select(sentences)
        first_rows = self.row_ids // self.beams * self.beams  # the rows that store keys move with their sentence
        self.row_index = self.row_index[rows] % self.beams + first_rows[:, None]

    def extract(self, sentences: Int[Tensor, " some"], columns: int) -> Cache:
        """Return a growing cache with copies of these sentences. `columns`: how many columns of their rows to copy, at
        least the longest length (the caller counts the steps, since replays cannot)."""
        rows, positions = self.rows_of(sentences), torch.arange(columns, device=sentences.device)
        cross = [layer.select(sentences) for layer in self.cross]
        taken = Cache(self.config, len(sentences), self.beams, columns, like=self.keys, cross=cross)
        stored = self.row_index[rows, :columns]
        for mine, theirs in ((taken.keys, self.keys), (taken.values, self.values)):
            mine.copy_(theirs[:, stored, :, positions].permute(2, 0, 3, 1, 4))
        taken.lengths, taken.used, taken.uniform_length = self.lengths[rows], columns, False
        return taken

    def copy_from(self, other: Cache) -> None:
        """Continue the sentences of a growing cache: copy them to the first rows, their keys and values to the first
        columns, and those of their sources, if this cache was created with `source` columns. The other cache has the
        same number of beams, or one, which is copied to all beams."""
        super().copy_from(other)
        self.row_index.copy_(self.row_ids[:, None].expand_as(self.row_index))
        self.uniform_length = False
        for mine, theirs in zip(self.cross, other.cross, strict=False):
            _copy_cross(mine, theirs)


def _copy_cross(mine: CrossKV, theirs: CrossKV) -> None:
    (sentences, _, columns, _), window = theirs.keys.shape, mine.mask.window
    if window is None:
        raise InputError("Only a cache with `source` columns copies the keys and values of a source.")
    mine.keys[:sentences, :, :columns], mine.values[:sentences, :, :columns] = theirs.keys, theirs.values
    allowed, lengths = theirs.mask.allowed, theirs.mask.window
    window.lengths.fill_(1)  # of blank sentences: an empty row would give NaN
    if lengths is not None:
        window.lengths[:sentences] = lengths.lengths
    else:
        window.lengths[:sentences] = columns if allowed is None else allowed[:, 0, 0].sum(1)
