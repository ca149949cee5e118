"""The norm of a residual, x + dropout(y), as one kernel forward and one backward, written by hand in Triton.

What the compiler makes of it takes 6.8 ms of a 32 ms step of the base model on an H200; reading and writing each vector
once would take 1.3 ms. The kernels are bound by memory, and all that shapes them follows from it: each vector is read
once and written once, a row stays in registers from its sum to its norm, the next rows are on their way while one is
computed, and which cells are dropped is never stored: it is hashed again on the way back (`keep` in kernels.py).

None of this needs reading to understand the model. Where it does not fit (`fits`), the plain code computes the same.
"""
# What a kernel's arguments are is Triton's to say, and Triton is not always there.
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-untyped-call"

from typing import Any, no_type_check

import torch
from jaxtyping import Float, Int
from torch import Tensor

try:  # comes with torch for GPUs, and only with that
    import triton
    import triton.language as tl
except ImportError:
    triton = None

__all__ = ["WIDEST", "fits", "residual_norm"]

WIDEST = 8192
"""A row is in the registers of one program: 16 warps at most, and so many cells."""

CELLS = 512
"""Cells of a tensor in one warp: 16 a thread, which are two loads of 16 bytes in bfloat16."""

STAGES = 3
"""Rows of a warp under way: one is computed, the others are being loaded."""

FORWARD, BACKWARD = 16, 8
"""Warps at work on each multiprocessor. Some 30 KiB under way keep its memory busy; a warp has two rows of two tensors,
4 KiB. Backward, every program is one more term of the weights' gradients to write and to add up."""


def fits(x: Tensor, y: Tensor) -> bool:
    """Whether the kernels can take these two; where not, the plain code does."""
    alike = x.shape == y.shape and x.dtype == y.dtype and x.device == y.device
    narrow = x.shape[-1] <= WIDEST and x.dtype in (torch.bfloat16, torch.float16, torch.float32)
    return triton is not None and x.is_cuda and alike and narrow and x.is_contiguous() and y.is_contiguous()


def residual_norm(
    x: Float[Tensor, "*batch d"],
    y: Float[Tensor, "*batch d"],
    weight: Float[Tensor, " d"],
    bias: Float[Tensor, " d"],
    epsilon: float,
    p: float,
    key: Int[Tensor, ""] | None,
) -> Float[Tensor, "*batch d"]:
    """LayerNorm(x + dropout(y)): sum and norm in float32, the result in the dtype of x. No dropout without a key.

    The cells that `keep` drops for this key are dropped. The key is read again on the way back: draw a new one only
    after that.
    """
    return torch.ops.sightline.residual_norm(x, y, weight, bias, epsilon, p, key if p else None)[0]


# --- Kernels. A program has ROWS rows of D cells at a time, in a block of BLOCK columns, and goes on by all programs'
# rows. Rows and columns are 2-D everywhere, (ROWS, 1) and (1, BLOCK). `no_type_check` also keeps away the tests' shape
# checks, which would put a function of their own before Triton. What does not make a kernel better (where a key lies,
# how many rows there are) is not specialised on, or a new batch would compile a new kernel.

if triton is not None:

    @triton.jit
    @no_type_check
    def fetch(tensor, row, column, rows, D: tl.constexpr):  # noqa: N803
        return tl.load(tensor + row.to(tl.int64) * D + column, (row < rows) & (column < D), 0.0)

    @triton.jit
    @no_type_check
    def put(tensor, value, row, column, rows, D: tl.constexpr):  # noqa: N803
        tl.store(tensor + row.to(tl.int64) * D + column, value, (row < rows) & (column < D))

    @triton.jit
    @no_type_check
    def kept(row, column, key, threshold, D: tl.constexpr):  # noqa: N803
        """`keep` of kernels.py, bit for bit: int32 that wraps around, and shifts without the sign."""
        h = (row * D + column) ^ key
        h = (h ^ ((h >> 16) & 0xFFFF)) * -2048144789
        h = (h ^ ((h >> 13) & 0x7FFFF)) * -1028477387 + key
        return ((h ^ ((h >> 16) & 0xFFFF)) & 0x7FFFFFFF) >= threshold

    @triton.jit(do_not_specialize=["key", "rows", "threshold"])
    @no_type_check
    def forward_kernel(
        x, y, weight, bias, out, z, mean, rstd, epsilon, rows, key, threshold, scale,
        D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr, DROP: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        first, step = tl.program_id(0) * ROWS, tl.num_programs(0) * ROWS
        column = tl.arange(0, BLOCK)[None, :]
        w = tl.load(weight + column, column < D, 0.0).to(tl.float32)
        b = tl.load(bias + column, column < D, 0.0).to(tl.float32)
        if DROP:
            seed = tl.load(key)
        for start in tl.range(first, rows, step, num_stages=STAGES):
            row = start + tl.arange(0, ROWS)[:, None]
            total = fetch(x, row, column, rows, D).to(tl.float32)
            added = fetch(y, row, column, rows, D).to(tl.float32)
            if DROP:
                added = tl.where(kept(row, column, seed, threshold, D), added * scale, 0.0)
            total += added
            put(z, total, row, column, rows, D)
            middle = tl.sum(total, 1, keep_dims=True) / D
            centred = tl.where(column < D, total - middle, 0.0)
            inverse = tl.rsqrt(tl.sum(centred * centred, 1, keep_dims=True) / D + epsilon)
            put(out, centred * inverse * w + b, row, column, rows, D)
            tl.store(mean + row, middle, row < rows)
            tl.store(rstd + row, inverse, row < rows)

    @triton.jit(do_not_specialize=["key", "rows", "threshold"])
    @no_type_check
    def backward_kernel(
        dout, z, mean, rstd, weight, dx, dy, partial, rows, key, threshold, scale,
        D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr, DROP: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        first, step = tl.program_id(0) * ROWS, tl.num_programs(0) * ROWS
        column = tl.arange(0, BLOCK)[None, :]
        w = tl.load(weight + column, column < D, 0.0).to(tl.float32)
        dweight = tl.zeros([ROWS, BLOCK], tl.float32)
        dbias = tl.zeros([ROWS, BLOCK], tl.float32)
        if DROP:
            seed = tl.load(key)
        for start in tl.range(first, rows, step, num_stages=STAGES):
            row = start + tl.arange(0, ROWS)[:, None]
            given = fetch(dout, row, column, rows, D).to(tl.float32)
            middle, inverse = tl.load(mean + row, row < rows, 0.0), tl.load(rstd + row, row < rows, 0.0)
            normed = (fetch(z, row, column, rows, D).to(tl.float32) - middle) * inverse
            dweight += given * normed  # beyond the last row and column `given` is 0
            dbias += given
            given *= w
            along = tl.sum(given * normed, 1, keep_dims=True) / D
            dz = (given - tl.sum(given, 1, keep_dims=True) / D - normed * along) * inverse
            put(dx, dz, row, column, rows, D)
            if DROP:
                dz = tl.where(kept(row, column, seed, threshold, D), dz * scale, 0.0)
                put(dy, dz, row, column, rows, D)
        mine = partial + tl.program_id(0) * D + column
        tl.store(mine, tl.sum(dweight, 0, keep_dims=True), column < D)
        tl.store(mine + tl.num_programs(0) * D, tl.sum(dbias, 0, keep_dims=True), column < D)


# --- Operators: what autograd, the compiler and CUDA graphs see of the kernels


def plan(x: Tensor, warps: int, p: float, key: Tensor | None) -> tuple[int, dict[str, Any]]:
    """How many programs, given the warps for each multiprocessor, and what all of them are told.

    A program is one warp, which never waits for another, or more where a row is too wide for one.
    """
    d, rows = x.shape[-1], x.shape[:-1].numel()
    block = max(16, 1 << (d - 1).bit_length())
    each = max(1, block // CELLS)
    at_a_time = each * CELLS // block
    stages = STAGES if block * x.element_size() <= 8192 else 1  # shared memory is small
    # A CPU runs the kernels in Triton's interpreter, for the tests: few programs, so that each meets several rows.
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1
    programs = max(1, min(processors * max(1, warps // each), -(-rows // at_a_time)))
    told = {"rows": rows, "D": d, "BLOCK": block, "ROWS": at_a_time, "STAGES": stages, "num_warps": each}
    if key is None:
        return programs, {**told, "DROP": False, "key": x, "threshold": 0, "scale": 1.0}  # the last three unread
    return programs, {**told, "DROP": True, "key": key, "threshold": int(p * 2**31), "scale": 1 / (1 - p)}


def outputs(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Room for what `forward` gives."""
    mean, rstd = (x.new_empty(x.shape[:-1], dtype=torch.float32) for _ in range(2))
    return x.new_empty(x.shape), x.new_empty(x.shape), mean, rstd


def gradients(dout: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Room for what `backward` gives."""
    dropped = others[-1] is not None
    d_both = dout.new_empty(2, dout.shape[-1], dtype=torch.float32)
    return dout.new_empty(dout.shape), dout.new_empty(dout.shape if dropped else 0), d_both


@torch.library.custom_op("sightline::residual_norm", mutates_args=(), device_types=("cuda", "cpu"))
def forward(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, epsilon: float, p: float, key: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The norm; and for the way back the sum that it is of, and in every row the mean of that and 1 / its deviation."""
    x, y, weight, bias = x.contiguous(), y.contiguous(), weight.contiguous(), bias.contiguous()
    results = outputs(x)
    programs, common = plan(x, FORWARD, p, key)
    with torch.cuda.device_of(x):
        forward_kernel[(programs,)](x, y, weight, bias, *results, epsilon, **common)
    return results


@torch.library.custom_op("sightline::residual_norm_backward", mutates_args=(), device_types=("cuda", "cpu"))
def backward(
    dout: Tensor, z: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, p: float, key: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, of y (empty without dropout: it is that of x), and of weight and bias, one above the other.

    The last two are sums over all rows. Each program adds up its own rows and writes to a place of its own, so that
    every run gives the same.
    """
    dout, z, weight = dout.contiguous(), z.contiguous(), weight.contiguous()
    dx, dy, _ = gradients(dout, key)
    programs, common = plan(dout, BACKWARD, p, key)
    partial = dout.new_empty(2, programs, dout.shape[-1], dtype=torch.float32)
    with torch.cuda.device_of(dout):
        backward_kernel[(programs,)](dout, z, mean, rstd, weight, dx, dy, partial, **common)
    return dx, dy, partial.sum(1)


def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """What the way back needs: the sum but neither of its parts, and the key but not what it drops."""
    _, _, weight, bias, _, ctx.p, key = inputs
    ctx.bias_dtype = bias.dtype
    ctx.save_for_backward(*output[1:], weight, key)
    ctx.set_materialize_grads(False)  # what is saved has no gradient of its own, and needs no zeros for it


def differentiate(ctx: Any, dout: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    """From the gradient of the norm to those of its arguments."""
    z, mean, rstd, weight, key = ctx.saved_tensors
    dx, dy, both = torch.ops.sightline.residual_norm_backward(dout, z, mean, rstd, weight, ctx.p, key)
    dweight, dbias = both.unbind()
    return dx, dx if key is None else dy, dweight.to(weight.dtype), dbias.to(ctx.bias_dtype), None, None, None


torch.library.register_fake("sightline::residual_norm", outputs)
torch.library.register_fake("sightline::residual_norm_backward", gradients)
torch.library.register_autograd("sightline::residual_norm", differentiate, setup_context=save)
