"""Scaled dot-product attention by the kernel that suits the device, the mask and the number of keys."""

import contextlib

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from sightline.model.kernels.compiled import attention_by_products
from sightline.model.kernels.decode import attend_rows
from sightline.model.mask import Mask

BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
MAX_PRODUCT_KEYS = 64
"""Up to this number of keys, plain matrix products are faster than the fused kernels, if they are compiled
(docs/decisions/0007)."""


def attend(
    q: Float[Tensor, "rows heads query d_k"],
    k: Float[Tensor, "key_rows heads key d_k"],
    v: Float[Tensor, "key_rows heads key d_k"],
    mask: Mask,
    dropout: float,
) -> Float[Tensor, "rows heads query d_k"]:
    """Compute softmax(q·kᵀ / √d_k)·v over the keys that the mask allows. Fully masked rows return zeros."""
    if mask.window is not None:
        return attend_rows(q, k, v, mask.window)
    allowed, empty_rows = mask.for_kernel(q.shape[2], k.shape[2], q.device)
    z = attention(q, k, v, allowed, dropout, mask.causal and allowed is None)
    return z if empty_rows is None else z.masked_fill(empty_rows, 0)


def attention(
    q: Float[Tensor, "batch heads query d_k"],
    k: Float[Tensor, "batch heads key d_k"],
    v: Float[Tensor, "batch heads key d_k"],
    allowed: Bool[Tensor, "#batch #heads #query key"] | None,
    dropout: float,
    causal: bool,
) -> Float[Tensor, "batch heads query d_k"]:
    """Compute attention with a boolean mask, or with the look-ahead mask (`causal`, which needs `allowed=None`)."""
    if not (q.is_cuda and torch.compiler.is_compiling() and k.shape[2] <= MAX_PRODUCT_KEYS):
        # cuDNN, torch's first choice on recent GPUs, returns NaN once in some thousand masked steps.
        with contextlib.nullcontext() if allowed is None or not q.is_cuda else sdpa_kernel(BACKENDS):
            return F.scaled_dot_product_attention(q, k, v, allowed, dropout, is_causal=causal)
    return attention_by_products(q, k, v, allowed, dropout, causal)
