"""Decoding token by token, with a key/value cache that the caller creates (`model.start`) and owns; the model keeps no
state.

Rows are hypotheses: `beams` neighbouring rows for each sentence. Self-attention has keys and values for each row. The
keys and values of encoder-decoder attention depend on the source alone, so they are stored once per sentence.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sightline.config import ModelConfig
from sightline.errors import InputError
from sightline.model.kernels.decode import DecodeWindow
from sightline.model.mask import Layout, Mask, PackedRows, longest_row
from sightline.model.protocol import Inputs


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


class StaticCache(Cache):
    """A cache with the same shapes and addresses at every step, for `torch.compile` and CUDA graphs.

    It takes one token per step and attends through a `DecodeWindow`. Reordering its rows copies no keys: it changes
    `row_index`, the row that stores each key. A recorded graph of `step` and `reorder` works on the tensors of this
    cache, so record it once and replay it with any content: fill the cache with `copy_from`, and take sentences out
    with `extract`. No method waits for the device.
    """

    def __init__(
        self,
        config: ModelConfig,
        sentences: int,
        beams: int,
        capacity: int,
        source: int,
        storage: Float[Tensor, " n"],
    ) -> None:
        """Create an empty cache. `source`: columns for the keys and values of encoder-decoder attention, if any.
        `storage`: a vector of `storage_size` numbers or more for all keys and values. Caches may take turns in it."""
        super().__init__(config, sentences, beams, capacity, like=storage, storage=storage)
        self.source_lengths: Int[Tensor, " sentences"] = torch.ones_like(self.row_ids[:sentences])
        mask, stack = Mask(window=DecodeWindow(self.source_lengths)), config.decoder
        if source:
            cross = storage[2 * self.keys.numel() : self.storage_size(config, sentences, beams, capacity, source)]
            stored = cross.view(stack.layers, 2, sentences, stack.heads, source, -1)
            self.cross = [CrossKV(keys, values, mask) for keys, values in stored]
        self.row_index: Int[Tensor, "rows capacity"] = self.row_ids[:, None].repeat(1, capacity)

    @staticmethod
    def storage_size(config: ModelConfig, sentences: int, beams: int, capacity: int, source: int) -> int:
        """Return how many numbers the storage of a cache needs."""
        return 2 * config.decoder.layers * config.d_model * sentences * (beams * capacity + source)

    def next_positions(self, ids: Int[Tensor, "rows new"], layout: Layout = None) -> Int[Tensor, "rows new"]:
        if ids.shape[1] != 1 or layout is not None:
            raise InputError("A static cache takes one token of each row per step.")
        positions = super().next_positions(ids)
        self.visible, self.uniform_length = self.capacity, False
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
        self.row_index.copy_(self.row_index[rows])
        self.lengths.copy_(self.lengths[rows])

    def extract(self, sentences: Int[Tensor, " some"], columns: int) -> Cache:
        """Return a growing cache with copies of these sentences. `columns`: how many columns of their rows to copy, at
        least the longest length (the caller counts the steps, since replays cannot)."""
        rows, positions = rows_of(sentences, self.beams), torch.arange(columns, device=sentences.device)
        cross = [layer.select(sentences) for layer in self.cross]
        taken = Cache(self.config, len(sentences), self.beams, columns, like=self.keys, cross=cross)
        stored = self.row_index[rows, :columns]
        for mine, theirs in ((taken.keys, self.keys), (taken.values, self.values)):
            mine.copy_(theirs[:, stored, :, positions].permute(2, 0, 3, 1, 4))
        taken.lengths, taken.used, taken.uniform_length = self.lengths[rows], columns, False
        return taken

    def copy_from(self, other: Cache) -> None:
        """Continue the sentences of a growing cache: copy them to the first rows, their keys and values and those of
        their sources to the first columns. The other cache has the same number of beams, or one, which is copied to all
        beams."""
        super().copy_from(other)
        self.row_index.copy_(self.row_ids[:, None].expand_as(self.row_index))
        self.source_lengths.fill_(1)  # of blank sentences: an empty row would give NaN
        for mine, (keys, values, mask) in zip(self.cross, other.cross, strict=True):
            sentences, _, columns, _ = keys.shape
            mine.keys[:sentences, :, :columns], mine.values[:sentences, :, :columns] = keys, values
            if mask.window is not None:
                self.source_lengths[:sentences] = mask.window.lengths
            else:
                self.source_lengths[:sentences] = columns if mask.allowed is None else mask.allowed[:, 0, 0].sum(1)


def rows_of(sentences: Int[Tensor, " n"], times: int) -> Int[Tensor, " m"]:
    """Return the rows of these sentences, each of which has this many."""
    return (sentences[:, None] * times + torch.arange(times, device=sentences.device)).flatten()


class Decoding:
    """Base of the models with a decoder: how they write token by token."""

    config: ModelConfig
    decoder: Any
    classifier: nn.Linear

    def project_source(self, inputs: Inputs) -> list[CrossKV]:  # noqa: ARG002
        """Return each decoder layer's keys and values of the encoder's output; none without an encoder."""
        return []

    def start(self, inputs: Inputs, *, beams: int = 1, capacity: int) -> Cache:
        """Read the source, if any, and the target so far; return the cache after them, with `beams` equal rows for each
        sentence. The target is read once per sentence. It is padded on the right, and may be empty."""
        cross, target = self.project_source(inputs), inputs.target
        sentences = len(cross[0].keys) if cross else len(inputs.require("target"))
        like = cross[0].keys if cross else self.classifier.weight
        cache = Cache(self.config, sentences, beams, capacity, like=like, cross=cross)
        limit = self.config.positions.max_length
        if target is not None and (columns := longest_row(target, inputs.target_layout, limit)):
            prefix = Cache(self.config, sentences, 1, columns, like=like)
            self.decoder(target, inputs.target_layout, cross, prefix)
            cache.copy_from(prefix)
        return cache

    def step(self, tokens: Int[Tensor, "rows 1"], state: Cache) -> Float[Tensor, "rows vocab"]:
        """Read the next token of each row; return a score for every token that could follow it."""
        scores: Tensor = self.classifier(self.decoder(tokens, None, state.cross, state))
        return scores[:, -1]
