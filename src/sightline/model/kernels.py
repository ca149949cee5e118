"""What makes a pass fast and changes nothing in it: the same operations, computed in the way that suits the device.

None of this needs reading to understand the model. `attend` is equation 1, `Dropout` is dropout, and `narrow` says
in which precision vectors travel between the layers.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sightline.model.fused import fits, residual_norm
from sightline.model.mask import Mask
from sightline.model.stepwise import attend_rows

__all__ = ["SHORT", "Dropout", "activated", "add_and_norm", "attend", "for_few_rows", "narrow", "share_keys"]

KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
SHORT = 64
"""Keys up to which plain matrix products beat the fused attention kernels, once the compiler has fused what is between
them (docs/decisions/0007)."""


def attend(
    q: Float[Tensor, "batch heads query d_k"],
    k: Float[Tensor, "holders heads key d_k"],
    v: Float[Tensor, "holders heads key d_k"],
    mask: Mask,
    dropout: float,
) -> Float[Tensor, "batch heads query d_k"]:
    """softmax(q·kᵀ / √d_k)·v where the mask allows it, by the kernel that suits it. A query that may look nowhere gets
    zeros."""
    if mask.reading is not None:
        return attend_rows(q, k, v, mask.reading)
    allowed, blind = mask.for_kernel(q.shape[2], k.shape[2], q.device)
    z = attention(q, k, v, allowed, dropout, mask.causal and allowed is None)
    return z if blind is None else z.masked_fill(blind, 0)


def attention(
    q: Float[Tensor, "batch heads query d_k"],
    k: Float[Tensor, "batch heads key d_k"],
    v: Float[Tensor, "batch heads key d_k"],
    allowed: Bool[Tensor, "#batch #heads #query key"] | None,
    dropout: float,
    causal: bool,
) -> Float[Tensor, "batch heads query d_k"]:
    """softmax(q·kᵀ / √d_k)·v where `allowed`, or where no key is later than its query (`causal`, without `allowed`)."""
    if not (q.is_cuda and torch.compiler.is_compiling() and k.shape[2] <= SHORT):
        # cuDNN's kernel, torch's first choice on new GPUs, gives NaN once in some thousand steps where there is a mask.
        with contextlib.nullcontext() if allowed is None or not q.is_cuda else sdpa_kernel(KERNELS):
            return F.scaled_dot_product_attention(q, k, v, allowed, dropout, is_causal=causal)
    return spelled_out(q, k, v, allowed, dropout, causal)


def spelled_out(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, dropout: float, causal: bool
) -> Float[Tensor, "batch heads query d_k"]:
    """The same by plain products, scores in float32. A query that may look nowhere looks everywhere."""
    scores = (q @ k.mT).float() * q.shape[-1] ** -0.5
    if causal:
        allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    if allowed is not None:
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    return F.dropout(scores.softmax(-1), dropout).to(v.dtype) @ v


def add_and_norm(x: Tensor, y: Tensor, dropout: "Dropout", norm: nn.LayerNorm) -> Tensor:
    """LayerNorm(x + dropout(y)). While training on a GPU with keys, by one hand-written kernel (fused.py)."""
    if dropout.training and dropout.key is not None and fits(x, y):
        return residual_norm(x, y, norm.weight, norm.bias, norm.eps, dropout.p, dropout.key)
    return narrow(norm(x + dropout(y)))


def activated(x: Tensor, linear: nn.Linear, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """activation(linear(x)). Compiled for a GPU, the product with a matrix does ReLU itself, before it writes."""
    if activation is F.relu and x.is_cuda and torch.compiler.is_compiling() and torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        weights = (weight.to(dtype) for weight in (linear.weight, linear.bias))
        return torch.ops.sightline.linear_relu(x.to(dtype).flatten(0, -2), *weights).unflatten(0, x.shape[:-1])
    return activation(linear(x))


@torch.library.custom_op("sightline::linear_relu", mutates_args=())
def _linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch._addmm_activation(bias, x, weight.T)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2], output)


def _differentiate(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, weight, y = ctx.saved_tensors
    upstream = upstream * (y > 0)
    return upstream @ weight, upstream.T @ x, upstream.sum(0)


torch.library.register_fake("sightline::linear_relu", lambda x, weight, _: x.new_empty(len(x), len(weight)))
torch.library.register_autograd("sightline::linear_relu", _differentiate, setup_context=_save)


def for_few_rows(model: nn.Module) -> None:
    """Lay every matrix out in memory so that a CPU multiplies a few rows by it fast, as generating text does: column by
    column. At 16 or 32 rows that takes half the time. The numbers stay as they are; a classifier that shares them with
    an embedding, which reads rows, gets its own. Not for training."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(module.weight.detach().T.contiguous().T, requires_grad=False)


def narrow(x: Tensor) -> Tensor:
    """Under autocast, vectors travel between the layers in its precision; sums and norms are still in float32."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


class Dropout(nn.Dropout):
    """Dropout whose random numbers cost little.

    On a GPU the usual generator (Philox) mixes each number in ten rounds: 4 ms of a 34 ms step of the base model. Given
    a key (`share_keys`), which cells of a compiled model are dropped is a short hash of the key and the cell's number
    instead. Whoever gives keys draws new ones before every pass. On a CPU torch's generator takes a fifth of a step
    of the tiny model; `drawn` has a faster one. Anywhere else this is torch's own dropout.
    """

    key: Int[Tensor, ""] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        if not 0 < self.p < 1:
            return super().forward(x)
        if torch.compiler.is_compiling():
            if self.key is None:
                return super().forward(x)
            return x * (keep(self.key, x.shape, self.p, x.device).to(x.dtype) / (1 - self.p))
        return super().forward(x) if x.device.type != "cpu" else x * drawn(x.shape, self.p).to(x.dtype).div_(1 - self.p)


def drawn(shape: torch.Size, p: float) -> Tensor:
    """Which cells stay, on a CPU. torch's generator gives the seed for a faster one (SFC64), and each of its numbers of
    64 bits serves four cells."""
    seed = int(torch.randint(2**63 - 1, ()))
    numbers = torch.from_numpy(np.random.SFC64(seed).random_raw(-(-shape.numel() // 4)).view(np.int16))
    return numbers[: shape.numel()].view(shape) >= round(p * 2**16) - 2**15


def keep(key: Int[Tensor, ""], shape: torch.Size, p: float, device: torch.device) -> Tensor:
    """Which cells stay: the finaliser of MurmurHash3 (Appleby, 2008) over cell number and key, in 32 bits."""
    cell = torch.arange(shape.numel(), dtype=torch.int32, device=device).view(shape)
    h = cell ^ key
    h = (h ^ ((h >> 16) & 0xFFFF)) * -2048144789
    h = (h ^ ((h >> 13) & 0x7FFFF)) * -1028477387 + key
    return ((h ^ ((h >> 16) & 0xFFFF)) & 0x7FFFFFFF) >= int(p * 2**31)


def share_keys(model: nn.Module, device: torch.device | str) -> Int[Tensor, " dropouts"]:
    """Give every dropout a key of its own. `keys.random_()` draws all of them anew."""
    found = [module for module in model.modules() if isinstance(module, Dropout)]
    keys = torch.zeros(len(found), dtype=torch.int32, device=device)
    for module, key in zip(found, keys.unbind(), strict=True):
        module.key = key
    return keys
