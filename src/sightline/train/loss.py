"""Label-smoothed cross-entropy (§5.4), fused with the classifier before it.

The logits of a batch are its largest tensor by far: tokens × vocabulary, 3.4 GB in float32 for 25,600 tokens and 32,768
words. Here they are made and used up in pieces, and the gradient is computed on the way, so they are never there all at
once and never kept for the backward pass.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from sightline.text.tokenizer import PAD

__all__ = ["Loss", "cross_entropy"]

PIECE = 4096
"""Tokens whose logits are there at a time."""


class Loss(NamedTuple):
    """Sums over the tokens that are not padding; who reports them divides by their number."""

    smoothed: Float[Tensor, ""]
    """What is minimised."""
    nll: Float[Tensor, ""]
    """Negative log-likelihood, without smoothing: its mean is the logarithm of the perplexity. Has no gradient."""


def cross_entropy(
    hidden: Float[Tensor, "*batch d_model"], classifier: nn.Linear, targets: Int[Tensor, "*batch"], smoothing: float
) -> Loss:
    """The loss of vectors that the classifier is to turn into these targets. With smoothing ε, the wanted distribution
    gives 1 - ε to the target and shares ε among all words; 0 is the plain one-hot loss."""
    smoothed, nll = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden.flatten(0, -2), classifier.weight, classifier.bias, targets.flatten(), smoothing
    )
    return Loss(smoothed, nll)


class _LinearCrossEntropy(torch.autograd.Function):
    """Logits, loss and gradients, piece by piece."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        dtype = (
            torch.get_autocast_dtype(hidden.device.type)
            if torch.is_autocast_enabled(hidden.device.type)
            else hidden.dtype
        )
        matrix = weight.to(dtype)
        wanted = any(ctx.needs_input_grad)
        smoothed, nll = (torch.zeros((), device=hidden.device) for _ in range(2))
        to_hidden: list[Tensor] = []
        to_weight, to_bias = torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias)
        # Nothing is changed in place: torch 2.11's compiler loses such changes inside an autograd function.
        for x, target in zip(torch.split(hidden.to(dtype), PIECE), torch.split(targets, PIECE), strict=True):
            with torch.autocast(hidden.device.type, enabled=False):
                log_probs = F.linear(x, matrix, None if bias is None else bias.to(dtype)).float().log_softmax(-1)
                there = target != PAD
                one = (log_probs.gather(1, target[:, None])[:, 0] * there).sum()
                every = (log_probs.mean(-1) * there).sum()
                nll = nll - one
                smoothed = smoothed - (1 - smoothing) * one - smoothing * every
                if not wanted:
                    continue
                at_target = log_probs.new_full((len(target), 1), smoothing - 1)
                gradient = (log_probs.exp() - smoothing / len(weight)).scatter_add(1, target[:, None], at_target)
                gradient = gradient * there[:, None]
                if to_bias is not None:
                    to_bias = to_bias + gradient.sum(0)
                gradient = gradient.to(dtype)
                to_hidden.append((gradient @ matrix).to(hidden.dtype))
                to_weight = to_weight + gradient.T @ x
        ctx.save_for_backward(torch.cat(to_hidden) if wanted else None, to_weight, to_bias)
        ctx.mark_non_differentiable(nll)
        return smoothed, nll

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        to_hidden, to_weight, to_bias = ctx.saved_tensors
        return upstream * to_hidden, upstream * to_weight, None if to_bias is None else upstream * to_bias, None, None
