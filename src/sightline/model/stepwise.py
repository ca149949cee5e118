"""Two kernels for generating on a GPU, one token at a time, written by hand in Triton; beside each, the same in plain
torch.

With one query a row there is nothing to multiply twice: both are bound by how fast they read, so each number is read
once. `attend_rows` reads as many keys as there are at the time, so that one recording of it serves every length; and it
finds them in whichever rows hold them, so that beams which go on from one another copy nothing. `summary` reads a score
for every token of the vocabulary, and leaves what a search needs to find the best of them.
"""
# What a kernel's arguments are is Triton's to say, and Triton is not always there.
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-untyped-call"

import math
from typing import NamedTuple, no_type_check

import torch
from jaxtyping import Float, Int
from torch import Tensor

try:  # comes with torch for GPUs, and only with that
    import triton
    import triton.language as tl
except ImportError:
    triton = None

__all__ = ["CHUNK", "Reading", "attend_rows", "summary"]

CHUNK = 64
"""Neighbouring tokens of the vocabulary of which `summary` tells the highest score."""
KEYS, SUMMARY = (16, 32), (64, 8)
"""Keys of a source and of an answer that a program, of one warp, reads at a time; chunks of scores, and the warps."""
LOWEST = -1e30
"""Below all scores but -inf, from which nothing can be subtracted."""


class Reading(NamedTuple):
    """What a row, with one query, reads: the first so many keys, each in the row that holds it."""

    lengths: Int[Tensor, " groups"]
    """Keys to read. Neighbouring rows may share a number (the beams of a sentence, of its source)."""
    holders: Int[Tensor, "rows capacity"] | None = None
    """The row that holds each key; without it, that of the group."""


def attend_rows(
    q: Float[Tensor, "rows heads 1 d_k"],
    k: Float[Tensor, "holders heads capacity d_k"],
    v: Float[Tensor, "holders heads capacity d_k"],
    reading: Reading,
) -> Float[Tensor, "rows heads 1 d_k"]:
    """softmax(q·kᵀ / √d_k)·v over what each row reads, which is at least one key; in float32."""
    if triton is not None and q.is_cuda and q.stride(3) == k.stride(3) == v.stride(3) == 1:
        return _attend_by_kernel(q, k, v, reading)
    rows, capacity, groups = len(q), k.shape[2], len(reading.lengths)
    lengths = reading.lengths.repeat_interleave(rows // groups)
    if reading.holders is None:
        k, v = (x.repeat_interleave(rows // groups, 0) for x in (k, v))
    else:
        where = reading.holders[:, None, :, None].long().expand(-1, k.shape[1], -1, k.shape[3])
        k, v = k.gather(0, where), v.gather(0, where)
    scores = (q.float() @ k.float().mT) * q.shape[3] ** -0.5
    seen = torch.arange(capacity, device=q.device) < lengths[:, None, None, None]
    return (scores.masked_fill(~seen, -math.inf).softmax(-1) @ v.float()).to(q.dtype)


def summary(
    scores: Float[Tensor, "rows vocab"],
) -> tuple[Float[Tensor, " rows"], Float[Tensor, "rows chunks"]]:
    """log Σ exp of each row, and the highest score of each chunk; in float32."""
    if triton is not None and scores.is_cuda and scores.is_contiguous():
        return _summary_by_kernel(scores)
    rows, n = scores.shape
    chunks = torch.nn.functional.pad(scores.float(), (0, -n % CHUNK), value=-math.inf).view(rows, -1, CHUNK)
    return scores.float().logsumexp(-1), chunks.amax(2)


# --- Kernels. `no_type_check` also keeps away the tests' shape checks, which would put a function of their own before
# Triton. Strides of the keys are those of the values.

if triton is not None:

    @triton.jit(do_not_specialize=["row_step", "holder_step", "each"])
    @no_type_check
    def attend_kernel(
        q, k, v, lengths, holders, out, scale, q_row, q_head, row_step, head_step, place_step, holder_step, each,
        HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, HELD: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        row, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
        column = tl.arange(0, WIDTH)
        wide = column < D
        query = tl.load(q + row.to(tl.int64) * q_row + head * q_head + column, wide, 0.0).to(tl.float32) * scale
        length = tl.load(lengths + row // each)
        highest = float("-inf")
        total = 0.0
        found = tl.zeros([WIDTH], tl.float32)
        for start in range(0, length, BLOCK):
            place = start + tl.arange(0, BLOCK)
            there = place < length
            if HELD:
                holder = tl.load(holders + row.to(tl.int64) * holder_step + place, there, 0).to(tl.int64)
            else:
                holder = (row // each).to(tl.int64) + tl.zeros([BLOCK], tl.int64)
            at = (holder * row_step + head * head_step + place * place_step)[:, None] + column[None, :]
            seen = there[:, None] & wide[None, :]
            keys = tl.load(k + at, seen, 0.0).to(tl.float32)
            values = tl.load(v + at, seen, 0.0).to(tl.float32)
            score = tl.where(there, tl.sum(keys * query[None, :], 1), float("-inf"))
            higher = tl.maximum(highest, tl.max(score, 0))
            fade = tl.exp(highest - higher)
            weight = tl.exp(score - higher)
            found = found * fade + tl.sum(weight[:, None] * values, 0)
            total = total * fade + tl.sum(weight, 0)
            highest = higher
        tl.store(out + tl.program_id(0).to(tl.int64) * D + column, found / total, wide)

    @triton.jit(do_not_specialize=["n", "chunks"])
    @no_type_check
    def summary_kernel(
        scores, norm, maxima, n, chunks,
        BLOCK: tl.constexpr, CHUNK: tl.constexpr, LOWEST: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        place = tl.arange(0, CHUNK)[None, :]
        highest = tl.full([BLOCK], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(0, chunks, BLOCK):  # each column of chunks for itself, so that no two threads must meet
            chunk = start + tl.arange(0, BLOCK)
            token = chunk[:, None] * CHUNK + place
            score = tl.load(scores + row * n + token, token < n, float("-inf")).to(tl.float32)
            top = tl.max(score, 1)
            tl.store(maxima + row * chunks + chunk, top, chunk < chunks)
            higher = tl.maximum(tl.maximum(highest, top), LOWEST)
            total = total * tl.exp(highest - higher) + tl.sum(tl.exp(score - higher[:, None]), 1)
            highest = higher
        peak = tl.max(highest, 0)
        tl.store(norm + row, peak + tl.log(tl.sum(total * tl.exp(highest - peak), 0)))


def _attend_by_kernel(q: Tensor, k: Tensor, v: Tensor, reading: Reading) -> Tensor:
    (rows, heads, _, d), holders = q.shape, reading.holders
    if k.stride() != v.stride():
        k, v = k.contiguous(), v.contiguous()
    out = q.new_empty(rows, 1, heads, d)
    with torch.cuda.device_of(q):
        attend_kernel[(rows * heads,)](
            q, k, v, reading.lengths, q if holders is None else holders, out, d**-0.5, q.stride(0), q.stride(1),
            *k.stride()[:3], 0 if holders is None else holders.stride(0), rows // len(reading.lengths), HEADS=heads,
            D=d, BLOCK=KEYS[holders is not None], WIDTH=max(16, triton.next_power_of_2(d)), HELD=holders is not None,
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
