"""Attention step by step, in float32: the numbers between the inputs and the output of a fused kernel.

A trace shows these steps after comparing their result with the kernel's output; a what-if changes them.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sightline.errors import InputError
from sightline.model.mask import Mask
from sightline.model.transformer import attention_weights

Matrix = Float[Tensor, "batch heads query key"]


@dataclass(frozen=True)
class AttentionEdit:
    """The changes to one attention module."""

    unscaled: bool = False
    """Do not divide by √d_k."""
    look_ahead: bool = False
    """Let positions attend to later ones."""
    average: frozenset[int] = frozenset()
    """Heads that attend equally to all allowed keys."""
    cells: dict[tuple[int, int], dict[int, float]] = field(default_factory=dict)
    """Probabilities by (head, query position) and key position. The other cells of the row are rescaled to sum to 1."""
    factors: dict[int, float] = field(default_factory=dict)
    """Factors of heads, before W^O; 0 removes a head."""

    @property
    def changes_probabilities(self) -> bool:
        """Whether more than the factors differ from the model."""
        return bool(self.unscaled or self.look_ahead or self.average or self.cells)

    def apply_factors(self, z: Float[Tensor, "batch heads query d_k"]) -> Float[Tensor, "batch heads query d_k"]:
        """Multiply each head's output by its factor."""
        if not self.factors:
            return z
        return z * z.new_tensor([self.factors.get(head, 1.0) for head in range(z.shape[1])])[:, None, None]


class AttentionSteps(NamedTuple):
    """The numbers of equation 1, in order."""

    scores: Matrix  # q·k
    scaled: Matrix  # divided by √d_k
    masked: Matrix  # -inf for keys that the mask excludes
    probabilities: Matrix  # softmax over the keys
    z: Float[Tensor, "batch heads query d_k"]  # the sum of the values, weighted by the probabilities


def spell_out(
    q: Float[Tensor, "batch heads query d_k"],
    k: Float[Tensor, "batch heads key d_k"],
    v: Float[Tensor, "batch heads key d_k"],
    mask: Mask,
    edit: AttentionEdit | None = None,
    positions: Int[Tensor, "batch query"] | None = None,
) -> AttentionSteps:
    """Compute every step in float32. `positions`: of the queries in their sentences, for the cells of an edit."""
    edit = edit or AttentionEdit()
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = q.float(), k.float(), v.float()
        scores = q @ k.mT
        scaled = scores if edit.unscaled else scores / math.sqrt(q.shape[3])
        allowed = _mask(mask, edit).dense(q.shape[2], k.shape[2], q.device)
        probabilities = _probabilities(q, k, mask, edit, positions)
        masked = scaled.masked_fill(~allowed, -torch.inf)
        return AttentionSteps(scores, scaled, masked, probabilities, edit.apply_factors(probabilities @ v))


def attend_edited(
    q: Float[Tensor, "batch heads query d_k"],
    k: Float[Tensor, "batch heads key d_k"],
    v: Float[Tensor, "batch heads key d_k"],
    mask: Mask,
    edit: AttentionEdit,
    positions: Int[Tensor, "batch query"] | None = None,
) -> Float[Tensor, "batch heads query d_k"]:
    """Return the last step of `spell_out`, without those that it does not need."""
    with torch.autocast(q.device.type, enabled=False):
        return edit.apply_factors(_probabilities(q.float(), k.float(), mask, edit, positions) @ v.float())


def _mask(mask: Mask, edit: AttentionEdit) -> Mask:
    return mask._replace(causal=False) if edit.look_ahead else mask


def _probabilities(
    q: Float[Tensor, "batch heads query d_k"],
    k: Float[Tensor, "batch heads key d_k"],
    mask: Mask,
    edit: AttentionEdit,
    positions: Int[Tensor, "batch query"] | None,
) -> Matrix:
    """Return the attention weights (equation 1), with averaged heads and set cells."""
    mask = _mask(mask, edit)
    probabilities = attention_weights(q * math.sqrt(q.shape[3]) if edit.unscaled else q, k, mask)
    if edit.average or edit.cells:
        seen = mask.dense(q.shape[2], k.shape[2], q.device)
        for head in edit.average:
            probabilities[:, head] = (seen / seen.sum(-1, keepdim=True).clamp(min=1))[:, 0]
        for (head, query), cells in edit.cells.items():
            row = set_cells(probabilities[:, head].clone(), seen[:, 0], query, cells, positions)
            probabilities[:, head] = row
    return probabilities


def set_cells(
    matrix: Float[Tensor, "batch query key"],
    seen: Bool[Tensor, "#batch query key"],
    query: int,
    cells: dict[int, float],
    positions: Int[Tensor, "batch query"] | None = None,
) -> Float[Tensor, "batch query key"]:
    """Set some cells of one head's matrix, and rescale the other cells of their row so that it sums to 1."""
    rows = torch.arange(matrix.shape[1], device=matrix.device)[None] if positions is None else positions
    columns = torch.arange(matrix.shape[2], device=matrix.device)
    here = (rows == query)[:, :, None]
    values, fixed = torch.zeros_like(matrix), torch.zeros_like(matrix, dtype=torch.bool)
    for key, value in cells.items():
        cell = here & (columns == key) & seen
        if here.any() and not cell.any():
            message = f"`set_attention`: position {query} does not attend to a position {key}."
            raise InputError(message, option="set_attention", value=(query, key))
        values, fixed = torch.where(cell, value, values), fixed | cell
    wanted = 1 - values.sum(-1, keepdim=True)  # the sum of the other cells afterwards,
    shared = matrix.masked_fill(fixed, 0).sum(-1, keepdim=True)  # and before
    changed = fixed.any(-1, keepdim=True)
    if (changed & (shared == 0) & (wanted > 1e-6)).any():
        message = f"`set_attention`: position {query} attends to no other position, so the row cannot sum to 1."
        raise InputError(message, option="set_attention", value=query)
    rest = matrix * (wanted / shared.clamp(min=torch.finfo(matrix.dtype).tiny))
    return torch.where(fixed, values, torch.where(changed, rest, matrix))
