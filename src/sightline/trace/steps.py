"""Attention spelled out, step by step: what the fused kernel does in one go.

Used to show the steps (and each time checked against what the kernel returned), and to compute what would have come out
if a step had been different.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sightline.errors import InputError
from sightline.model.mask import Mask

__all__ = ["AttentionEdit", "AttentionSteps", "spell_out"]

Matrix = Float[Tensor, "batch heads query key"]


@dataclass(frozen=True)
class AttentionEdit:
    """What is to be different in one attention module."""

    unscaled: bool = False
    """Do not divide by √d_k."""
    look_ahead: bool = False
    """Let positions see later ones."""
    average: frozenset[int] = frozenset()
    """Heads that look equally at all they may see."""
    cells: dict[tuple[int, int, int], float] = field(default_factory=dict)
    """Probabilities by (head, query position, key position); the rest of the row shares what is left."""
    factors: dict[int, float] = field(default_factory=dict)
    """Heads whose output is multiplied, before W^O; 0 removes one."""

    @property
    def changes_probabilities(self) -> bool:
        return bool(self.unscaled or self.look_ahead or self.average or self.cells)

    def apply_factors(self, z: Float[Tensor, "batch heads query d_k"]) -> Float[Tensor, "batch heads query d_k"]:
        factors = z.new_ones(z.shape[1])
        for head, factor in self.factors.items():
            factors[head] = factor
        return z * factors[:, None, None]


class AttentionSteps(NamedTuple):
    """The numbers of equation 1, in order."""

    scores: Matrix  # q·k
    scaled: Matrix  # divided by √d_k
    masked: Matrix  # -inf where a query may not look
    probabilities: Matrix  # softmax over the keys
    z: Float[Tensor, "batch heads query d_k"]  # the sum of the values, weighted so


def spell_out(
    q: Float[Tensor, "batch heads query d_k"],
    k: Float[Tensor, "batch heads key d_k"],
    v: Float[Tensor, "batch heads key d_k"],
    mask: Mask,
    edit: AttentionEdit | None = None,
    positions: Int[Tensor, "batch query"] | None = None,
) -> AttentionSteps:
    """Every step, in float32. `positions` says where in their sentences the queries stand, for the cells of an edit."""
    edit = edit or AttentionEdit()
    with torch.autocast(q.device.type, enabled=False):
        return _spell_out(q.float(), k.float(), v.float(), mask, edit, positions)


def _spell_out(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, edit: AttentionEdit, positions: Tensor | None
) -> AttentionSteps:
    if edit.look_ahead:
        mask = mask._replace(causal=False)
    seen = mask.dense(q.shape[2], k.shape[2], q.device)
    scores = q @ k.mT
    scaled = scores if edit.unscaled else scores / math.sqrt(q.shape[3])
    masked = scaled.masked_fill(~seen, -torch.inf)
    somewhere = seen.any(-1, keepdim=True)  # a query that may look nowhere gets zeros
    probabilities = masked.masked_fill(~somewhere, 0).softmax(-1) * somewhere
    for head in edit.average:
        even = (seen / seen.sum(-1, keepdim=True).clamp(min=1)).expand_as(probabilities)
        probabilities = probabilities.index_copy(1, torch.tensor([head], device=q.device), even[:, head : head + 1])
    for (head, query), cells in _rows(edit.cells).items():
        row = _set_cells(probabilities[:, head], seen[:, 0], query, cells, positions)
        probabilities = probabilities.index_copy(1, torch.tensor([head], device=q.device), row[:, None])
    return AttentionSteps(scores, scaled, masked, probabilities, edit.apply_factors(probabilities @ v))


def _rows(cells: dict[tuple[int, int, int], float]) -> dict[tuple[int, int], dict[int, float]]:
    """Cells by head and query."""
    rows: dict[tuple[int, int], dict[int, float]] = {}
    for (head, query, key), value in cells.items():
        rows.setdefault((head, query), {})[key] = value
    return rows


def _set_cells(
    matrix: Float[Tensor, "batch query key"],
    seen: Bool[Tensor, "#batch query key"],
    query: int,
    cells: dict[int, float],
    positions: Int[Tensor, "batch query"] | None,
) -> Float[Tensor, "batch query key"]:
    """One head's matrix with some cells of a row set; the other cells of the row share what is left, as they did."""
    rows = torch.arange(matrix.shape[1], device=matrix.device)[None] if positions is None else positions
    columns = torch.arange(matrix.shape[2], device=matrix.device)
    here = (rows == query)[:, :, None]
    values, fixed = torch.zeros_like(matrix), torch.zeros_like(matrix, dtype=torch.bool)
    for key, value in cells.items():
        cell = here & (columns == key) & seen
        if here.any() and not cell.any():
            raise InputError(f"position {query} does not see a position {key}, so its attention there cannot be set.")
        values, fixed = torch.where(cell, value, values), fixed | cell
    wanted = 1 - values.sum(-1, keepdim=True)  # what is left to share,
    shared = matrix.masked_fill(fixed, 0).sum(-1, keepdim=True)  # and what those that share it had
    changed = fixed.any(-1, keepdim=True)
    if (changed & (shared == 0) & (wanted > 1e-6)).any():
        raise InputError(f"position {query} sees nothing else, so there is no one to share the rest of its attention.")
    rest = matrix * (wanted / shared.clamp(min=torch.finfo(matrix.dtype).tiny))
    return torch.where(fixed, values, torch.where(changed, rest, matrix))
