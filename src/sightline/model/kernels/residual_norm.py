"""LayerNorm(x + dropout(y)) as one Triton kernel forward and one backward.

The compiler's kernels take 6.8 ms of a 32 ms step of the base model on an H200; reading and writing each vector once
would take 1.3 ms. Memory bandwidth is the limit, which explains the design: each vector is read once and written once,
a row stays in registers from its sum to its norm, the next rows are loaded while one is computed, and the dropped cells
are hashed again in the backward pass instead of stored (`dropout_mask`).

If the kernels do not support the inputs (`fits`), `residual_norm` computes the same in plain torch.
"""
# Triton defines the types of a kernel's arguments, and Triton is not always installed.
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-untyped-call"

from typing import Any, no_type_check

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sightline.model.kernels.compiled import to_autocast
from sightline.model.kernels.dropout import Dropout

try:  # installed with torch for GPUs only
    import triton
    import triton.language as tl
except ImportError:
    triton = None

MAX_WIDTH = 8192
"""Cells of the widest row: it must fit in the registers of one program, which has at most 16 warps."""

CELLS = 512
"""Cells of a tensor per warp: 16 per thread, which are two loads of 16 bytes in bfloat16."""

STAGES = 3
"""Rows in the pipeline of a warp: one is computed, the others are loaded."""

FORWARD, BACKWARD = 16, 8
"""Warps per multiprocessor. About 30 KiB in flight saturate its memory; a warp has two rows of two tensors, 4 KiB. In
the backward pass, every program adds one partial sum to the weights' gradients."""


def fits(x: Tensor, y: Tensor) -> bool:
    """Return whether the kernels support these inputs."""
    alike = x.shape == y.shape and x.dtype == y.dtype and x.device == y.device
    supported = x.shape[-1] <= MAX_WIDTH and x.dtype in (torch.bfloat16, torch.float16, torch.float32)
    return triton is not None and x.is_cuda and alike and supported and x.is_contiguous() and y.is_contiguous()


def residual_norm(x: Tensor, y: Tensor, dropout: Dropout, norm: nn.LayerNorm) -> Tensor:
    """Compute LayerNorm(x + dropout(y)): in training on a GPU with dropout seeds, by the fused kernel."""
    if dropout.training and dropout.seed is not None and fits(x, y):
        return fused_residual_norm(x, y, norm.weight, norm.bias, norm.eps, dropout.p, dropout.seed)
    return to_autocast(norm(x + dropout(y)))


def fused_residual_norm(
    x: Float[Tensor, "*batch d"],
    y: Float[Tensor, "*batch d"],
    weight: Float[Tensor, " d"],
    bias: Float[Tensor, " d"],
    epsilon: float,
    p: float,
    seed: Int[Tensor, ""] | None,
) -> Float[Tensor, "*batch d"]:
    """Compute LayerNorm(x + dropout(y)) with sum and norm in float32, in the dtype of x. Without a seed, no dropout.

    Drops the cells that `dropout_mask` drops for this seed. The backward pass reads the seed again, so draw a new one
    only after it.
    """
    return torch.ops.sightline.residual_norm(x, y, weight, bias, epsilon, p, seed if p else None)[0]


# --- Kernels. A program computes ROWS rows of D cells at once, in a block of BLOCK columns, then advances by the rows
# of all programs. Rows and columns are 2-D everywhere, (ROWS, 1) and (1, BLOCK). `no_type_check` also disables the
# shape checks of the tests, which would wrap the functions that Triton compiles. Kernels are not specialised on the
# address of the seed or the number of rows, or a new batch would compile a new kernel.

if triton is not None:

    @triton.jit
    @no_type_check
    def fetch(tensor, row, column, rows, D: tl.constexpr):  # noqa: N803
        """Load a part of some rows."""
        return tl.load(tensor + row.to(tl.int64) * D + column, (row < rows) & (column < D), 0.0)

    @triton.jit
    @no_type_check
    def store(tensor, value, row, column, rows, D: tl.constexpr):  # noqa: N803
        """Store a part of some rows."""
        tl.store(tensor + row.to(tl.int64) * D + column, value, (row < rows) & (column < D))

    @triton.jit
    @no_type_check
    def kept(row, column, seed, threshold, D: tl.constexpr):  # noqa: N803
        """`dropout_mask`, bit for bit: int32 with wrap-around, and shifts without the sign."""
        h = (row * D + column) ^ seed
        h = (h ^ ((h >> 16) & 0xFFFF)) * -2048144789
        h = (h ^ ((h >> 13) & 0x7FFFF)) * -1028477387 + seed
        return ((h ^ ((h >> 16) & 0xFFFF)) & 0x7FFFFFFF) >= threshold

    @triton.jit(do_not_specialize=["seed", "rows", "threshold"])
    @no_type_check
    def forward_kernel(
        x, y, weight, bias, out, z, mean, rstd, epsilon, rows, seed, threshold, scale,
        D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr, DROP: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        """Compute a few rows of the sum and of its norm."""
        first, step = tl.program_id(0) * ROWS, tl.num_programs(0) * ROWS
        column = tl.arange(0, BLOCK)[None, :]
        w = tl.load(weight + column, column < D, 0.0).to(tl.float32)
        b = tl.load(bias + column, column < D, 0.0).to(tl.float32)
        if DROP:
            drawn = tl.load(seed)
        for start in tl.range(first, rows, step, num_stages=STAGES):
            row = start + tl.arange(0, ROWS)[:, None]
            total = fetch(x, row, column, rows, D).to(tl.float32)
            added = fetch(y, row, column, rows, D).to(tl.float32)
            if DROP:
                added = tl.where(kept(row, column, drawn, threshold, D), added * scale, 0.0)
            total += added
            store(z, total, row, column, rows, D)
            middle = tl.sum(total, 1, keep_dims=True) / D
            centred = tl.where(column < D, total - middle, 0.0)
            inverse = tl.rsqrt(tl.sum(centred * centred, 1, keep_dims=True) / D + epsilon)
            store(out, centred * inverse * w + b, row, column, rows, D)
            tl.store(mean + row, middle, row < rows)
            tl.store(rstd + row, inverse, row < rows)

    @triton.jit(do_not_specialize=["seed", "rows", "threshold"])
    @no_type_check
    def backward_kernel(
        dout, z, mean, rstd, weight, dx, dy, partial, rows, seed, threshold, scale,
        D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr, DROP: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        """Compute the gradients of a few rows."""
        first, step = tl.program_id(0) * ROWS, tl.num_programs(0) * ROWS
        column = tl.arange(0, BLOCK)[None, :]
        w = tl.load(weight + column, column < D, 0.0).to(tl.float32)
        dweight = tl.zeros([ROWS, BLOCK], tl.float32)
        dbias = tl.zeros([ROWS, BLOCK], tl.float32)
        if DROP:
            drawn = tl.load(seed)
        for start in tl.range(first, rows, step, num_stages=STAGES):
            row = start + tl.arange(0, ROWS)[:, None]
            upstream = fetch(dout, row, column, rows, D).to(tl.float32)
            middle, inverse = tl.load(mean + row, row < rows, 0.0), tl.load(rstd + row, row < rows, 0.0)
            normed = (fetch(z, row, column, rows, D).to(tl.float32) - middle) * inverse
            dweight += upstream * normed  # beyond the last row and column `upstream` is 0
            dbias += upstream
            upstream *= w
            along = tl.sum(upstream * normed, 1, keep_dims=True) / D
            dz = (upstream - tl.sum(upstream, 1, keep_dims=True) / D - normed * along) * inverse
            store(dx, dz, row, column, rows, D)
            if DROP:
                dz = tl.where(kept(row, column, drawn, threshold, D), dz * scale, 0.0)
                store(dy, dz, row, column, rows, D)
        own = partial + tl.program_id(0) * D + column
        tl.store(own, tl.sum(dweight, 0, keep_dims=True), column < D)
        tl.store(own + tl.num_programs(0) * D, tl.sum(dbias, 0, keep_dims=True), column < D)


# --- Operators, for autograd, the compiler and CUDA graphs


def launch(x: Tensor, warps: int, p: float, seed: Tensor | None) -> tuple[int, dict[str, Any]]:
    """Return the number of programs, for this many warps per multiprocessor, and their common arguments.

    A program is one warp, which never waits for another, or several if a row is too wide for one.
    """
    d, rows = x.shape[-1], x.shape[:-1].numel()
    block = max(16, 1 << (d - 1).bit_length())
    each = max(1, block // CELLS)
    at_a_time = each * CELLS // block
    stages = STAGES if block * x.element_size() <= 8192 else 1  # shared memory is small
    # On a CPU (tests, Triton's interpreter) one processor, so that each program computes several rows.
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1
    programs = max(1, min(processors * max(1, warps // each), -(-rows // at_a_time)))
    common = {"rows": rows, "D": d, "BLOCK": block, "ROWS": at_a_time, "STAGES": stages, "num_warps": each}
    if seed is None:
        return programs, {**common, "DROP": False, "seed": x, "threshold": 0, "scale": 1.0}  # the last three are unused
    return programs, {**common, "DROP": True, "seed": seed, "threshold": int(p * 2**31), "scale": 1 / (1 - p)}


def outputs(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Allocate the results of `forward`."""
    mean, rstd = (x.new_empty(x.shape[:-1], dtype=torch.float32) for _ in range(2))
    return x.new_empty(x.shape), x.new_empty(x.shape), mean, rstd


def gradients(dout: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Allocate the results of `backward`."""
    dropped = others[-1] is not None
    d_both = dout.new_empty(2, dout.shape[-1], dtype=torch.float32)
    return dout.new_empty(dout.shape), dout.new_empty(dout.shape if dropped else 0), d_both


@torch.library.custom_op("sightline::residual_norm", mutates_args=(), device_types=("cuda", "cpu"))
def forward(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, epsilon: float, p: float, seed: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the norm and, for the backward pass, the sum x + dropout(y), its mean and 1 / its standard deviation."""
    x, y, weight, bias = x.contiguous(), y.contiguous(), weight.contiguous(), bias.contiguous()
    results = outputs(x)
    programs, common = launch(x, FORWARD, p, seed)
    with torch.cuda.device_of(x):
        forward_kernel[(programs,)](x, y, weight, bias, *results, epsilon, **common)
    return results


@torch.library.custom_op("sightline::residual_norm_backward", mutates_args=(), device_types=("cuda", "cpu"))
def backward(
    dout: Tensor, z: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, p: float, seed: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, of y (empty without dropout: the same as of x), and of weight and bias, stacked.

    The last two are sums over all rows. Each program writes the sum of its rows to its own cell, so that the result
    does not depend on the order of the programs.
    """
    dout, z, weight = dout.contiguous(), z.contiguous(), weight.contiguous()
    dx, dy, _ = gradients(dout, seed)
    programs, common = launch(dout, BACKWARD, p, seed)
    partial = dout.new_empty(2, programs, dout.shape[-1], dtype=torch.float32)
    with torch.cuda.device_of(dout):
        backward_kernel[(programs,)](dout, z, mean, rstd, weight, dx, dy, partial, **common)
    return dx, dy, partial.sum(1)


def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save the inputs of the backward pass: the sum but not its parts, the seed but not the dropped cells."""
    _, _, weight, bias, _, ctx.p, seed = inputs
    ctx.bias_dtype = bias.dtype
    ctx.save_for_backward(*output[1:], weight, seed)
    ctx.set_materialize_grads(False)  # the saved tensors have no gradients, so no zeros


def differentiate(ctx: Any, dout: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    """Return the gradients of the arguments from that of the norm."""
    z, mean, rstd, weight, seed = ctx.saved_tensors
    dx, dy, both = torch.ops.sightline.residual_norm_backward(dout, z, mean, rstd, weight, ctx.p, seed)
    dweight, dbias = both.unbind()
    return dx, dx if seed is None else dy, dweight.to(weight.dtype), dbias.to(ctx.bias_dtype), None, None, None


torch.library.register_fake("sightline::residual_norm", outputs)
torch.library.register_fake("sightline::residual_norm_backward", gradients)
torch.library.register_autograd("sightline::residual_norm", differentiate, setup_context=save)
