"""Which cells of a batch are tokens, and who may look at whom.

One rule everywhere: a mask is boolean, and True means "may look". A batch is either padded (rows of unequal sentences,
filled up) or packed (many sentences end to end in one row, nothing wasted). Both give the same result for each token.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from sightline.errors import InputError
from sightline.model.stepwise import Reading

__all__ = ["Layout", "Mask", "PackedRows", "SourceLayout", "longest_row"]


class PackedRows(NamedTuple):
    """Rows of one length that several short sentences share, one behind the other. What is left at the end of a row is
    blank: in a source it belongs to no sentence (-1), in a target to the row's first one, which no token of it sees,
    the blank being later than all of them. So every cell sees something, and no token sees a blank."""

    sentence: Int[Tensor, "batch length"]  # of each cell: which sentence it belongs to,
    position: Int[Tensor, "batch length"]  # and where in that sentence it stands


Layout = Bool[Tensor, "batch length"] | PackedRows | None
SourceLayout = Bool[Tensor, "batch source"] | PackedRows | None
"""Which cells of the rows are tokens: all (None), the True ones (False is padding, on the right), or those of several
sentences, packed into one row or sharing many."""


def longest_row(ids: Int[Tensor, "batch length"], layout: Layout, limit: int) -> int:
    """The tokens of the longest sentence, once the layout is known to fit the ids. (Shapes in signatures are checked
    only in our tests; a layout that does not fit would give wrong numbers in silence.)"""
    longest, shape = ids.shape[1], tuple(ids.shape)
    if isinstance(layout, PackedRows):
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
    sighted: bool = False  # every query is known to see something
    reading: Reading | None = None  # instead of the others: one query a row, and what it reads (stepwise.py)

    @classmethod
    def of(cls, keys: SourceLayout, queries: Layout = None, *, causal: bool = False) -> "Mask":
        """The mask that the layouts of keys and queries ask for."""
        if isinstance(keys, PackedRows) and isinstance(queries, PackedRows):
            return cls((queries.sentence[:, :, None] == keys.sentence[:, None])[:, None], causal, sighted=True)
        if isinstance(keys, PackedRows) or isinstance(queries, PackedRows):
            raise InputError("The layouts of source and target differ: both must be `PackedRows`, or neither.")
        return cls(None if keys is None else keys[:, None, None, :], causal)

    def dense(self, queries: int, keys: int, device: torch.device) -> Bool[Tensor, "batch heads query key"]:
        """The same as one boolean matrix for each sentence and head (axes of size 1 where all share it)."""
        row, column = torch.arange(queries, device=device), torch.arange(keys, device=device)
        seen = row[:, None] >= column if self.causal else torch.ones(queries, keys, dtype=torch.bool, device=device)
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
