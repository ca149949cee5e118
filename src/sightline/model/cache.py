"""The decoder's key/value cache, which the caller creates (`model.start`) and owns; the model keeps no state.

Rows are hypotheses: `beams` neighbouring rows for each sentence. Self-attention has keys and values for each row. The
keys and values of encoder-decoder attention depend on the source alone, so they are stored once per sentence.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sightline.config import ModelConfig
from sightline.errors import InputError
from sightline.model.mask import Layout, Mask, PackedRows, longest_row


class CrossKV(NamedTuple):
    """The keys and values that one decoder layer computes from the encoder's output, with their mask."""

    keys: Float[Tensor, "sentences heads source d_k"]
    values: Float[Tensor, "sentences heads source d_k"]
    mask: Mask

    def select(self, sentences: Int[Tensor, " kept"]) -> "CrossKV":
        """Return copies for these sentences."""
        return CrossKV(self.keys[sentences], self.values[sentences], self.mask.select(sentences))


class Cache:
    """Keys and values of all decoder layers, for rows of independent lengths."""

    def __init__(
        self,
        config: ModelConfig,
        sentences: int,
        beams: int,
        capacity: int,
        *,
        like: Tensor,
        cross: Sequence[CrossKV] = (),
        storage: Float[Tensor, " n"] | None = None,
    ) -> None:
        """Create an empty cache with the device and precision of `like`. `capacity`: positions of the longest row.
        `storage`: the memory for keys and values, if they need a certain address."""
        most = config.positions.max_length
        if not 0 < capacity <= most:
            raise InputError.of("capacity", capacity, f"must be from 1 to {most}, got {capacity}.")
        if beams < 1:
            raise InputError.of("beams", beams, f"must be at least 1, got {beams}.")
        self.config, self.beams, self.capacity = config, beams, capacity
        layers, rows, heads = config.decoder.layers, sentences * beams, config.decoder.heads
        shape = torch.Size((2, layers, rows, heads, capacity, config.d_model // heads))
        both = like.new_zeros(shape) if storage is None else storage[: shape.numel()].view(shape)
        self.keys: Float[Tensor, "layers rows heads capacity d_k"] = both[0]
        self.values: Float[Tensor, "layers rows heads capacity d_k"] = both[1]
        self.cross = [CrossKV(keys.contiguous(), values.contiguous(), mask) for keys, values, mask in cross]
        self.row_ids: Int[Tensor, " rows"] = torch.arange(rows, device=like.device)
        self.lengths: Int[Tensor, " rows"] = torch.zeros_like(self.row_ids)
        self.used = 0  # upper bound of the lengths, counted in Python: reading them would wait for the device
        self.visible = 0  # columns that attention reads
        self.uniform_length = True  # all rows are known to have `used` positions

    @property
    def sentences(self) -> int:
        return len(self.row_ids) // self.beams

    def next_positions(self, ids: Int[Tensor, "rows new"], layout: Layout = None) -> Int[Tensor, "rows new"]:
        """Return the positions of the next tokens of each row, after checking that they fit."""
        if isinstance(layout, PackedRows):
            raise InputError("A cache has one text per row and does not support `PackedRows`. Pad the texts instead.")
        if len(ids) != len(self.row_ids):
            raise InputError(f"The cache has {len(self.row_ids)} rows, but the ids have {len(ids)}.")
        needed = self.used + longest_row(ids, layout, self.config.positions.max_length)
        if needed > self.capacity and not torch.compiler.is_compiling():
            raise InputError.of("capacity", self.capacity, f"= {self.capacity} is too small for {needed} positions.")
        self.visible = needed
        return self.lengths[:, None] + torch.arange(ids.shape[1], device=ids.device)

    def mask(self, positions: Int[Tensor, "rows new"]) -> Mask:
        """Return the mask of new positions: each attends to itself and to the earlier ones of its row."""
        if self.uniform_length and positions.shape[1] == 1:
            return Mask(no_empty_rows=True)
        columns = torch.arange(self.visible, device=positions.device)
        return Mask(columns <= positions[:, None, :, None], no_empty_rows=True)

    def advance(self, ids: Int[Tensor, "rows new"], layout: Layout = None) -> None:
        """Count the new tokens: all, or the True cells of a layout. Padding is on the right; the next token of a row
        overwrites it."""
        self.lengths += layout.sum(1) if isinstance(layout, Tensor) else ids.shape[1]
        self.uniform_length = self.uniform_length and layout is None
        self.used += ids.shape[1]

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Let row i continue row `rows[i]`, one of the same sentence."""
        if rows.shape != self.row_ids.shape:
            raise InputError(f"The cache has {len(self.row_ids)} rows, but the new order has {len(rows)}.")
        for x in (self.keys, self.values):
            x[:, :, :, : self.used] = x[:, rows, :, : self.used]
        self.lengths.copy_(self.lengths[rows])

    def select(self, sentences: Int[Tensor, " kept"]) -> None:
        """Keep these sentences only, each with its beams."""
        rows = rows_of(sentences, self.beams)
        self.keys, self.values, self.lengths = self.keys[:, rows], self.values[:, rows], self.lengths[rows]
        self.row_ids = self.row_ids[: len(rows)]
        self.cross = [layer.select(sentences) for layer in self.cross]

    def copy_from(self, other: "Cache") -> None:
        """Continue the sentences of another cache: copy them to the first rows, their keys and values to the first
        columns. The other one has the same number of beams, or one, which is copied to all beams."""
        rows, columns, repeats = other.sentences * self.beams, other.used, self.beams // other.beams
        if columns > self.capacity:
            raise InputError.of("capacity", self.capacity, f"= {self.capacity} is too small for {columns} positions.")
        if other.sentences > self.sentences or other.beams not in (1, self.beams):
            raise InputError("A cache copies from one with no more sentences, and with 1 or the same number of beams.")
        for mine, theirs in ((self.keys, other.keys), (self.values, other.values)):
            mine[:, :rows, :, :columns] = theirs[:, :, :, :columns].repeat_interleave(repeats, 1)
        self.lengths.zero_()
        self.lengths[:rows] = other.lengths.repeat_interleave(repeats)
        self.used, self.uniform_length = columns, other.uniform_length and other.sentences == self.sentences


class LayerCache(NamedTuple):
    """One decoder layer's part of the cache, and the positions that this step writes."""

    cache: Cache
    layer: int
    positions: Int[Tensor, "rows new"]

    def append(
        self, k: Float[Tensor, "rows heads new d_k"], v: Float[Tensor, "rows heads new d_k"]
    ) -> tuple[Float[Tensor, "rows heads visible d_k"], Float[Tensor, "rows heads visible d_k"]]:
        """Write the new keys and values; return all that attention reads. No gradient flows through a cache."""
        keys, values = self.cache.keys[self.layer], self.cache.values[self.layer]
        if self.cache.uniform_length:
            new = slice(self.cache.used, self.cache.used + k.shape[2])
            keys[:, :, new], values[:, :, new] = k.detach(), v.detach()
        else:
            rows = self.cache.row_ids[:, None]
            keys[rows, :, self.positions] = k.detach().transpose(1, 2).to(keys.dtype)
            values[rows, :, self.positions] = v.detach().transpose(1, 2).to(values.dtype)
        keys, values = (x[:, :, : self.cache.visible].to(k.dtype) for x in (keys, values))
        # The next step must not overwrite what autograd keeps.
        return (keys.clone(), values.clone()) if torch.is_grad_enabled() else (keys, values)


def rows_of(sentences: Int[Tensor, " n"], times: int) -> Int[Tensor, " m"]:
    """Return the rows of these sentences, each of which has this many."""
    return (sentences[:, None] * times + torch.arange(times, device=sentences.device)).flatten()
