"""What the decoder has computed already: keys and values, kept by the caller and never computed again.

The model holds no state of a request. Whoever generates text makes a cache (`model.new_cache`), hands it to every step,
and owns it. It is allocated once at its full capacity, so a step allocates nothing that grows.

Rows are hypotheses: `beams` neighbouring rows for each sentence. Self-attention has keys and values of its own for each
row. Those of encoder-decoder attention depend on the source alone, so they are held once for each sentence, however
many beams look at them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sightline.config import ModelConfig
from sightline.errors import InputError
from sightline.model.mask import Layout, Mask, PackedRows, longest_row
from sightline.model.stepwise import Reading

__all__ = ["Cache", "LayerCache", "Memory"]


class Memory(NamedTuple):
    """What one decoder layer sees of the source: its keys and values of the encoder's output, and who sees them."""

    keys: Float[Tensor, "sentences heads source d_k"]
    values: Float[Tensor, "sentences heads source d_k"]
    mask: Mask


class Cache:
    """Keys and values of all decoder layers, for a number of rows that grow at their own pace."""

    def __init__(
        self,
        config: ModelConfig,
        rows: int,
        capacity: int,
        *,
        like: Tensor,
        static: bool = False,
        memory: Sequence[Memory] = (),
        room: Float[Tensor, " n"] | None = None,
    ) -> None:
        """Empty, of the device and precision of `like`. A static cache looks at its whole capacity at every step: one
        shape for all steps, as the compiler needs it. `room`: where in memory it lies; such a cache takes one token a
        step, in the same place as all caches of its shape, and nothing in it moves when rows go on from others."""
        longest = config.positions.max_length
        if not 0 < capacity <= longest:
            raise InputError(f"a cache of {capacity} positions: model.positions.max_length allows 1 to {longest}.")
        if memory and rows < len(memory[0].keys):
            raise InputError("a cache needs at least one row (beam) for each sentence.")
        heads = config.decoder.heads
        shape = (config.decoder.layers, rows, heads, capacity, config.d_model // heads)
        both = like.new_zeros(2, *shape) if room is None else room.view(2, *shape)
        self.keys: Float[Tensor, "layers rows heads capacity d_k"] = both[0]
        self.values: Float[Tensor, "layers rows heads capacity d_k"] = both[1]
        self.memory = [Memory(keys.contiguous(), values.contiguous(), mask) for keys, values, mask in memory]
        self.holders: Int[Tensor, "rows capacity"] | None = None
        """The row that holds what each row has at a position, where rows read each other's."""
        self.numbers: Int[Tensor, " rows"] = torch.arange(rows, device=like.device)
        self.lengths: Int[Tensor, " rows"] = torch.zeros(rows, dtype=torch.long, device=like.device)
        self.capacity = capacity
        self.static = static
        self.used = 0  # positions of the longest row
        self.reach = capacity if static else 0  # keys from this column on are not looked at
        self.even = not static  # all rows are known to be of one length
        if room is not None:
            self.holders = self.numbers[:, None].repeat(1, capacity)

    def make_room(self, ids: Int[Tensor, "rows new"], layout: Layout = None) -> Int[Tensor, "rows new"]:
        """The positions that the next tokens of each row will take."""
        if isinstance(layout, PackedRows):
            raise InputError("a cache has a row for each text and cannot take a packed row; pad the texts instead.")
        if len(ids) != len(self.lengths):
            raise InputError(f"the cache has {len(self.lengths)} rows, and ids of {len(ids)} rows do not fit it.")
        needed = self.used + longest_row(ids, layout, self.capacity)
        if needed > self.capacity and not torch.compiler.is_compiling():
            raise InputError(f"the cache holds {self.capacity} positions a row and cannot take {needed}; ask for more.")
        if not self.static:
            self.reach = needed
        return self.lengths[:, None] + torch.arange(ids.shape[1], device=self.lengths.device)

    def mask(self, positions: Int[Tensor, "rows new"]) -> Mask:
        """Each new position may look at itself and at what came before it in its row."""
        if self.holders is not None:
            self.holders.scatter_(1, positions, self.numbers[:, None])
            return Mask(reading=Reading(positions[:, 0] + 1, self.holders))
        if self.even and positions.shape[1] == 1:
            return Mask(sighted=True)
        return Mask(torch.arange(self.reach, device=positions.device) <= positions[:, None, :, None], sighted=True)

    def advance(self, ids: Int[Tensor, "rows new"], layout: Layout = None) -> None:
        """Count what was added: all of it, or only the True cells of a layout (prompts of unequal length, padded on the
        right; the next token of a row takes the place of its padding)."""
        self.lengths += ids.shape[1] if not isinstance(layout, Tensor) else layout.sum(1)
        self.even = self.even and layout is None
        if self.static and torch.compiler.is_compiling():
            return  # one graph for every step: nothing in it may depend on a number that grows
        self.used = self.used + ids.shape[1] if layout is None else int(self.lengths.max())

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Let row i go on from what row `rows[i]` holds, among the beams of its own sentence. What the sentences'
        memories hold stays where it is."""
        if rows.shape != self.lengths.shape:
            raise InputError(f"the cache has {len(self.lengths)} rows, and an order of {len(rows)} does not fit it.")
        if self.holders is not None:
            self.holders.copy_(self.holders[rows])
        else:
            for kept in (self.keys, self.values):
                kept[:, :, :, : self.reach] = kept[:, rows, :, : self.reach]
        self.lengths.copy_(self.lengths[rows])

    def keep(self, sentences: Int[Tensor, " kept"]) -> None:
        """Go on with these sentences alone, each with its beams."""
        beams = len(self.lengths) // len(self.memory[0].keys)
        rows = (sentences[:, None] * beams + torch.arange(beams, device=sentences.device)).flatten()
        self.keys, self.values, self.lengths = self.keys[:, rows], self.values[:, rows], self.lengths[rows]
        self.numbers = self.numbers[: len(rows)]
        for i, (keys, values, mask) in enumerate(self.memory):
            allowed = None if mask.allowed is None else mask.allowed[sentences]
            self.memory[i] = Memory(keys[sentences], values[sentences], mask._replace(allowed=allowed))


class LayerCache(NamedTuple):
    """One decoder layer's part of the cache, and where in it this step writes."""

    cache: Cache
    layer: int
    positions: Int[Tensor, "rows new"]

    def append(
        self, k: Float[Tensor, "rows heads new d_k"], v: Float[Tensor, "rows heads new d_k"]
    ) -> tuple[Float[Tensor, "rows heads reach d_k"], Float[Tensor, "rows heads reach d_k"]]:
        """Write the new keys and values; return all that may be looked at. No gradient flows through a cache."""
        keys, values = self.cache.keys[self.layer], self.cache.values[self.layer]
        if self.cache.even:
            new = slice(self.cache.used, self.cache.used + k.shape[2])
            keys[:, :, new], values[:, :, new] = k.detach(), v.detach()
        else:
            rows = self.cache.numbers[:, None]
            keys[rows, :, self.positions] = k.detach().transpose(1, 2).to(keys.dtype)
            values[rows, :, self.positions] = v.detach().transpose(1, 2).to(values.dtype)
        keys, values = (kept[:, :, : self.cache.reach].to(k.dtype) for kept in (keys, values))
        # What autograd keeps for later must not be written over by the next step.
        return (keys.clone(), values.clone()) if torch.is_grad_enabled() else (keys, values)
