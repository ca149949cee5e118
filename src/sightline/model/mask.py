"""Layouts (the cells of a batch that are tokens) and masks (the keys that a query attends to).

A mask is boolean everywhere, and True means "attends to". A batch is padded (one sentence per row, filled up on the
right) or packed (several sentences per row). Both give the same result for each token.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from sightline.errors import InputError
from sightline.model.kernels.decode import DecodeWindow


class PackedRows(NamedTuple):
    """Rows of a fixed length with several sentences each, one after another. Unused cells at the end of a row belong to
    no sentence (-1) in a source. In a target they belong to the row's first sentence, whose tokens do not attend to
    them because they come later. So every cell attends to something, and no token attends to an unused cell."""

    sentence: Int[Tensor, "batch length"]  # the number of the sentence that each cell belongs to
    position: Int[Tensor, "batch length"]  # the position of the cell in that sentence


Layout = Bool[Tensor, "batch length"] | PackedRows | None
SourceLayout = Bool[Tensor, "batch source"] | PackedRows | None
"""The cells that are tokens: all (None), the True ones (False is padding, on the right), or those of packed rows."""


def longest_row(ids: Int[Tensor, "batch length"], layout: Layout, limit: int) -> int:
    """Return the number of columns, after checking that the layout fits the ids. (Only the tests check the shapes in
    signatures; a layout of the wrong shape would give wrong results without an error.)"""
    longest, shape = ids.shape[1], tuple(ids.shape)
    if isinstance(layout, PackedRows):
        if layout.sentence.shape != shape:
            raise InputError(f"The layout must have the shape of the ids, {shape}, got {tuple(layout.sentence.shape)}.")
    elif layout is not None and (layout.dtype != torch.bool or layout.shape != shape):
        got = f"{layout.dtype} of shape {tuple(layout.shape)}"
        raise InputError(f"The layout must be boolean (True: token) and have the shape of the ids, {shape}, got {got}.")
    if longest > limit:
        option = "model.positions.max_length"
        raise InputError(f"{longest} tokens exceed `{option}` = {limit}.", option=option, value=limit)
    return longest


class Mask(NamedTuple):
    """The keys that each query attends to: those that both `allowed` and `causal` permit, or those of `window`."""

    allowed: Bool[Tensor, "#batch #heads #query key"] | None = None
    causal: bool = False  # the look-ahead mask: no position attends to later ones (§3.2.3)
    no_empty_rows: bool = False  # every query is known to attend to at least one key
    window: DecodeWindow | None = None  # for one query per row in a static cache; replaces the others

    @classmethod
    def of(cls, keys: SourceLayout, queries: Layout = None, *, causal: bool = False) -> "Mask":
        """Return the mask for the layouts of keys and queries."""
        if isinstance(keys, PackedRows) and isinstance(queries, PackedRows):
            return cls((queries.sentence[:, :, None] == keys.sentence[:, None])[:, None], causal, no_empty_rows=True)
        if isinstance(keys, PackedRows) or isinstance(queries, PackedRows):
            raise InputError("The layouts of source and target differ: both must be `PackedRows`, or neither.")
        return cls(None if keys is None else keys[:, None, None, :], causal)

    def select(self, sentences: Int[Tensor, " kept"]) -> "Mask":
        """Return the mask of these sentences."""
        allowed = None if self.allowed is None else self.allowed[sentences]
        window = None if self.window is None else DecodeWindow(self.window.lengths[sentences])
        return self._replace(allowed=allowed, window=window)

    def dense(self, queries: int, keys: int, device: torch.device) -> Bool[Tensor, "batch heads query key"]:
        """Return the mask as one boolean matrix per sentence and head (size 1 for axes that share it)."""
        row, column = torch.arange(queries, device=device), torch.arange(keys, device=device)
        seen = row[:, None] >= column if self.causal else torch.ones(queries, keys, dtype=torch.bool, device=device)
        return seen[None, None] if self.allowed is None else seen & self.allowed

    def for_kernel(
        self, queries: int, keys: int, device: torch.device
    ) -> tuple[Bool[Tensor, "batch heads #query key"] | None, Bool[Tensor, "batch heads #query 1"] | None]:
        """Return the mask for torch's attention kernels, and the queries without keys. Kernels return different
        results for those (cuDNN's are not zeros), so they attend to all keys here and are set to zero later."""
        if self.allowed is None:
            return None, None
        allowed = self.dense(queries, keys, device) if self.causal else self.allowed
        if self.no_empty_rows or device.type == "cpu":  # the CPU kernels return zeros
            return allowed, None
        empty_rows = ~allowed.any(-1, keepdim=True)
        return allowed | empty_rows, empty_rows
