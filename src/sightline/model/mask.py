"""Which cells of a batch are tokens, and who may look at whom.

One rule everywhere: a mask is boolean, and True means "may look". A batch is either padded (rows of unequal sentences,
filled up) or packed (many sentences end to end in one row, nothing wasted). Both give the same result for each token.
"""

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from sightline.errors import InputError
from sightline.model.stepwise import Reading

__all__ = ["Layout", "Mask", "Packing", "SharedRows", "SourceLayout", "attend_packed", "longest_row"]


class Packing(NamedTuple):
    """Sentences laid end to end in a single row, with no padding between them."""

    starts: Int[Tensor, " sentences_and_one"]  # sentence i is row[starts[i] : starts[i + 1]]; 32-bit, for the kernel
    longest: int
    sentence: Int[Tensor, " total"]  # of each token: which sentence it belongs to,
    position: Int[Tensor, " total"]  # and where in that sentence it stands

    @classmethod
    def of(cls, lengths: list[int], device: torch.device | str | None = None) -> "Packing":
        if not lengths or min(lengths) < 0:
            raise InputError("a packed row needs at least one sentence, and none of them can have a negative length.")
        counts = torch.tensor(lengths, device=device)
        starts = F.pad(counts.cumsum(0), (1, 0))
        sentence = torch.repeat_interleave(torch.arange(len(lengths), device=device), counts)
        position = torch.arange(len(sentence), device=device) - starts[sentence]
        return cls(starts.int(), max(lengths), sentence, position)

    def to(self, device: torch.device | str) -> "Packing":
        """The same on a device, without waiting for it."""
        starts, sentence, position = (x.to(device, non_blocking=True) for x in (self.starts, *self[2:]))
        return Packing(starts, self.longest, sentence, position)

    @property
    def tokens(self) -> Bool[Tensor, "sentences longest"]:
        """Which cells are tokens once the sentences are laid out in rows of their own."""
        return torch.arange(self.longest, device=self.starts.device) < self.starts.diff()[:, None]

    def unpack(self, packed: Shaped[Tensor, "total *rest"]) -> Shaped[Tensor, "sentences longest *rest"]:
        """Lay the sentences out in rows of their own, filled up with zeros."""
        rows = packed.new_zeros(len(self.starts) - 1, self.longest, *packed.shape[1:])
        return rows.index_put((self.sentence, self.position), packed)


class SharedRows(NamedTuple):
    """Rows of one length that several short sentences share, one behind the other. What is left at the end of a row is
    blank: in a source it belongs to no sentence (-1), in a target to the row's first one, which no token of it sees,
    the blank being later than all of them. So every cell sees something, and no token sees a blank."""

    sentence: Int[Tensor, "batch length"]  # of each cell: which sentence it belongs to,
    position: Int[Tensor, "batch length"]  # and where in that sentence it stands


Layout = Bool[Tensor, "batch length"] | Packing | SharedRows | None
SourceLayout = Bool[Tensor, "batch source"] | Packing | SharedRows | None
"""Which cells of the rows are tokens: all (None), the True ones (False is padding, on the right), or those of several
sentences, packed into one row or sharing many."""


def longest_row(ids: Int[Tensor, "batch length"], layout: Layout, limit: int) -> int:
    """The tokens of the longest sentence, once the layout is known to fit the ids. (Shapes in signatures are checked
    only in our tests; a layout that does not fit would give wrong numbers in silence.)"""
    longest, shape = ids.shape[1], tuple(ids.shape)
    if isinstance(layout, Packing):
        longest = layout.longest
        if shape != (1, len(layout.sentence)):
            raise InputError(f"a packing of {len(layout.sentence)} tokens does not fit ids of shape {shape}.")
    elif isinstance(layout, SharedRows):
        if layout.sentence.shape != shape:
            raise InputError(f"shared rows of shape {tuple(layout.sentence.shape)} do not fit ids of shape {shape}.")
    elif layout is not None and (layout.dtype != torch.bool or layout.shape != shape):
        kind = f"{layout.dtype} of shape {tuple(layout.shape)}"
        raise InputError(f"a layout is boolean (True = token) and of the ids' shape {shape}, not {kind}.")
    if longest > limit:
        raise InputError(f"{longest} tokens are more than model.positions.max_length = {limit} allows.")
    return longest


class Mask(NamedTuple):
    """Who may look at whom. True = may look. A key is seen where all three conditions allow it."""

    allowed: Bool[Tensor, "#batch #heads #query key"] | None = None
    causal: bool = False  # the look-ahead mask: no position sees a later one (§3.2.3)
    packed: tuple[Packing, Packing] | None = None  # of queries and keys: each sentence looks only at its own
    sighted: bool = False  # every query is known to see something
    reading: Reading | None = None  # instead of the others: one query a row, and what it reads (stepwise.py)

    @classmethod
    def of(cls, keys: SourceLayout, queries: Layout = None, *, causal: bool = False) -> "Mask":
        """The mask that the layouts of keys and queries ask for."""
        if isinstance(keys, Packing) and isinstance(queries, Packing):
            if len(keys.starts) != len(queries.starts):
                raise InputError("the packed rows of source and target must have as many sentences.")
            return cls(None, causal, (queries, keys))
        if isinstance(keys, SharedRows) and isinstance(queries, SharedRows):
            return cls((queries.sentence[:, :, None] == keys.sentence[:, None])[:, None], causal, sighted=True)
        if isinstance(keys, Packing | SharedRows) or isinstance(queries, Packing | SharedRows):
            raise InputError("source and target are both packed, both sharing rows or both padded, not one of each.")
        return cls(None if keys is None else keys[:, None, None, :], causal)

    def dense(self, queries: int, keys: int, device: torch.device) -> Bool[Tensor, "batch heads query key"]:
        """The same as one boolean matrix for each sentence and head (axes of size 1 where all share it)."""
        row, column = torch.arange(queries, device=device), torch.arange(keys, device=device)
        seen = row[:, None] >= column if self.causal else torch.ones(queries, keys, dtype=torch.bool, device=device)
        if self.packed is not None:
            seen = seen & (self.packed[0].sentence[:, None] == self.packed[1].sentence)
        return seen[None, None] if self.allowed is None else seen & self.allowed

    def for_kernel(
        self, queries: int, keys: int, device: torch.device
    ) -> tuple[Bool[Tensor, "batch heads #query key"] | None, Bool[Tensor, "batch heads #query 1"] | None]:
        """What torch's attention kernels take, and which queries are blind. Kernels do not agree on what a query gets
        that may look nowhere (cuDNN's does not give it zeros): let it look everywhere, then blank it."""
        if self.allowed is None:
            return None, None
        allowed = self.dense(queries, keys, device) if self.causal else self.allowed
        if self.sighted or device.type == "cpu":  # the kernels for CPUs give zeros
            return allowed, None
        blind = ~allowed.any(-1, keepdim=True)
        return allowed | blind, blind


def attend_packed(
    q: Float[Tensor, "1 heads query d_k"],
    k: Float[Tensor, "1 heads key d_k"],
    v: Float[Tensor, "1 heads key d_k"],
    packed: tuple[Packing, Packing],
    causal: bool,
    dropout: float,
) -> Float[Tensor, "1 heads query d_k"]:
    """Attention inside each sentence of a packed row: by torch's variable-length kernel where there is one, else by
    laying the sentences out in padded rows and back."""
    queries, keys = packed
    fits = q.shape[-1] % 8 == 0 and q.shape[-1] <= 256 and q.dtype in (torch.bfloat16, torch.float16) and q.numel() > 0
    if q.is_cuda and fits and not dropout and torch.cuda.get_device_capability(q.device) >= (8, 0):
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - it takes a second to import

        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
        ahead = 0 if causal else -1  # how far a query sees: no limit backwards, none or all of it ahead
        sizes = (queries.starts, keys.starts, queries.longest, keys.longest)
        z = cast(Tensor, varlen_attn(q, k, v, *sizes, window_size=(-1, ahead)))
        return z.transpose(0, 1)[None]

    q, k, v = (p.unpack(x[0].transpose(0, 1)).transpose(1, 2) for p, x in ((queries, q), (keys, k), (keys, v)))
    allowed, blind = Mask.of(keys.tokens, causal=causal).for_kernel(queries.longest, keys.longest, q.device)
    z = F.scaled_dot_product_attention(q, k, v, allowed, dropout)
    z = z if blind is None else z.masked_fill(blind, 0)
    return z.transpose(1, 2)[queries.sentence, queries.position].transpose(0, 1)[None]
