"""Two Triton kernels for decoding one token per row on a GPU, each with the same computation in plain torch.

With one query per row, both are limited by memory bandwidth, so each number is read once. `attend_rows` reads the
number of keys from a tensor, so that one recorded graph serves every length, and reads each key from the row that
`row_index` names, so that reordering beams copies no keys. `summary` reads the score of every token of the vocabulary
and returns what a search needs to find the best ones.
"""
# Triton defines the types of a kernel's arguments, and Triton is not always installed.
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-untyped-call"

import math
from typing import NamedTuple, no_type_check

import torch
from jaxtyping import Float, Int
from torch import Tensor

try:  # installed with torch for GPUs only
    import triton
    import triton.language as tl
except ImportError:
    triton = None

CHUNK = 64
"""Number of neighbouring tokens of the vocabulary for which `summary` returns the highest score."""
KEYS, SUMMARY = (16, 32), (64, 8)
"""Keys of a source and of an answer that a program of one warp reads at once; chunks of scores, and its warps."""
LOWEST = -1e30
"""Lower than all finite scores. Replaces -inf, because -inf - (-inf) is NaN."""


class DecodeWindow(NamedTuple):
    """The keys that each row attends to with its one query: the first `lengths`, in the rows that `row_index` names."""

    lengths: Int[Tensor, " groups"]
    """Number of keys. Neighbouring rows may share one number (the beams of a sentence, for the keys of its source)."""
    row_index: Int[Tensor, "rows capacity"] | None = None
    """The row that stores each key; without it, the row of the group."""


def attend_rows(
    q: Float[Tensor, "rows heads 1 d_k"],
    k: Float[Tensor, "key_rows heads capacity d_k"],
    v: Float[Tensor, "key_rows heads capacity d_k"],
    window: DecodeWindow,
) -> Float[Tensor, "rows heads 1 d_k"]:
    """Compute softmax(q·kᵀ / √d_k)·v over the keys of each row, in float32. Rows without keys return zeros."""
    fits = triton is not None and q.is_cuda and not torch.compiler.is_compiling()
    if fits and q.stride(3) == k.stride(3) == v.stride(3) == 1:
        return _attend_by_kernel(q, k, v, window)
    rows, capacity, groups = len(q), k.shape[2], len(window.lengths)
    lengths = window.lengths.repeat_interleave(rows // groups)
    if window.row_index is None:
        k, v = (x.repeat_interleave(rows // groups, 0) for x in (k, v))
    else:
        index = window.row_index[:, None, :, None].long().expand(-1, k.shape[1], -1, k.shape[3])
        k, v = k.gather(0, index), v.gather(0, index)
    scores = (q.float() @ k.float().mT) * q.shape[3] ** -0.5
    seen = torch.arange(capacity, device=q.device) < lengths[:, None, None, None]
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1).masked_fill(~seen, 0)
    return (weights @ v.float()).to(q.dtype)


def summary(
    scores: Float[Tensor, "rows vocab"],
) -> tuple[Float[Tensor, " rows"], Float[Tensor, "rows chunks"]]:
    """Return log Σ exp of each row and the highest score of each chunk, in float32."""
    if triton is not None and scores.is_cuda and scores.is_contiguous():
        return _summary_by_kernel(scores)
    rows, n = scores.shape
    chunks = torch.nn.functional.pad(scores.float(), (0, -n % CHUNK), value=-math.inf).view(rows, -1, CHUNK)
    return scores.float().logsumexp(-1), chunks.amax(2)


# --- Kernels. `no_type_check` also disables the shape checks of the tests, which would wrap the functions that Triton
# compiles. Keys and values have the same strides.

if triton is not None:

    @triton.jit(do_not_specialize=["row_step", "index_step", "group"])
    @no_type_check
    def attend_kernel(
        q, k, v, lengths, row_index, out, scale, q_row, q_head, row_step, head_step, key_step, index_step, group,
        HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, INDEXED: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        """Compute the attention of one query, block by block of keys."""
        row, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
        column = tl.arange(0, WIDTH)
        wide = column < D
        query = tl.load(q + row.to(tl.int64) * q_row + head * q_head + column, wide, 0.0).to(tl.float32) * scale
        length = tl.load(lengths + row // group)
        highest = float("-inf")
        total = 0.0  # stays 0 without keys, else at least 1
        mean = tl.zeros([WIDTH], tl.float32)
        for start in range(0, length, BLOCK):
            key = start + tl.arange(0, BLOCK)
            inside = key < length
            if INDEXED:
                source = tl.load(row_index + row.to(tl.int64) * index_step + key, inside, 0).to(tl.int64)
            else:
                source = (row // group).to(tl.int64) + tl.zeros([BLOCK], tl.int64)
            at = (source * row_step + head * head_step + key * key_step)[:, None] + column[None, :]
            seen = inside[:, None] & wide[None, :]
            keys = tl.load(k + at, seen, 0.0).to(tl.float32)
            values = tl.load(v + at, seen, 0.0).to(tl.float32)
            score = tl.where(inside, tl.sum(keys * query[None, :], 1), float("-inf"))
            higher = tl.maximum(highest, tl.max(score, 0))
            fade = tl.exp(highest - higher)
            weight = tl.exp(score - higher)
            mean = mean * fade + tl.sum(weight[:, None] * values, 0)
            total = total * fade + tl.sum(weight, 0)
            highest = higher
        tl.store(out + tl.program_id(0).to(tl.int64) * D + column, mean / tl.maximum(total, 1.0), wide)

    @triton.jit(do_not_specialize=["n", "chunks"])
    @no_type_check
    def summary_kernel(
        scores, norm, maxima, n, chunks,
        BLOCK: tl.constexpr, CHUNK: tl.constexpr, LOWEST: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        """Compute the norm and the chunk maxima of one row of scores."""
        row = tl.program_id(0).to(tl.int64)
        offset = tl.arange(0, CHUNK)[None, :]
        highest = tl.full([BLOCK], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(0, chunks, BLOCK):  # one column of chunks per thread: no reduction
            chunk = start + tl.arange(0, BLOCK)
            token = chunk[:, None] * CHUNK + offset
            score = tl.load(scores + row * n + token, token < n, float("-inf")).to(tl.float32)
            top = tl.max(score, 1)
            tl.store(maxima + row * chunks + chunk, top, chunk < chunks)
            higher = tl.maximum(tl.maximum(highest, top), LOWEST)
            total = total * tl.exp(highest - higher) + tl.sum(tl.exp(score - higher[:, None]), 1)
            highest = higher
        peak = tl.max(highest, 0)
        tl.store(norm + row, peak + tl.log(tl.sum(total * tl.exp(highest - peak), 0)))


def _attend_by_kernel(q: Tensor, k: Tensor, v: Tensor, window: DecodeWindow) -> Tensor:
    (rows, heads, _, d), index = q.shape, window.row_index
    if k.stride() != v.stride():
        k, v = k.contiguous(), v.contiguous()
    out = q.new_empty(rows, 1, heads, d)
    with torch.cuda.device_of(q):
        attend_kernel[(rows * heads,)](
            q, k, v, window.lengths, q if index is None else index, out, d**-0.5, q.stride(0), q.stride(1),
            *k.stride()[:3], 0 if index is None else index.stride(0), rows // len(window.lengths), HEADS=heads,
            D=d, BLOCK=KEYS[index is not None], WIDTH=max(16, triton.next_power_of_2(d)), INDEXED=index is not None,
            num_warps=1,
        )  # fmt: skip
    return out.transpose(1, 2)


def _summary_by_kernel(scores: Tensor) -> tuple[Tensor, Tensor]:
    rows, n = scores.shape
    norm = torch.empty(rows, device=scores.device)
    maxima = torch.empty(rows, -(-n // CHUNK), device=scores.device)
    with torch.cuda.device_of(scores):
        summary_kernel[(rows,)](
            scores, norm, maxima, n, maxima.shape[1], SUMMARY[0], CHUNK, LOWEST, num_warps=SUMMARY[1]
        )
    return norm, maxima
