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

__all__ = ["Loss", "cross_entropy", "r_drop"]

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
    return _fused([hidden], classifier, targets, smoothing, 0.0)


def r_drop(
    one: Float[Tensor, "*batch d_model"],
    other: Float[Tensor, "*batch d_model"],
    classifier: nn.Linear,
    targets: Int[Tensor, "*batch"],
    smoothing: float,
    alpha: float,
) -> Loss:
    """The mean loss of two passes under different dropout, and α / 2 times how far their answers p and q are apart,
    (KL(p‖q) + KL(q‖p)) / 2. It is the sum of Liang et al. (2021, arXiv:2106.14448), halved: it weighs as one pass."""
    return _fused([one, other], classifier, targets, smoothing, alpha)


def _fused(passes: list[Tensor], classifier: nn.Linear, targets: Tensor, smoothing: float, alpha: float) -> Loss:
    flat = [hidden.flatten(0, -2) for hidden in passes]
    smoothed, nll = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        classifier.weight, classifier.bias, targets.flatten(), smoothing, alpha, *flat
    )
    return Loss(smoothed, nll)


class _LinearCrossEntropy(torch.autograd.Function):
    """Logits, loss and gradients, piece by piece, of one pass or of two."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, alpha: float, *passes: Tensor
    ) -> tuple[Tensor, Tensor]:
        device = weight.device
        autocast = torch.is_autocast_enabled(device.type)
        dtype = torch.get_autocast_dtype(device.type) if autocast else passes[0].dtype
        matrix, offset = weight.to(dtype), None if bias is None else bias.to(dtype)
        wanted = any(ctx.needs_input_grad)
        smoothed, nll = (torch.zeros((), device=device) for _ in range(2))
        to_hidden: list[list[Tensor]] = [[] for _ in passes]
        to_weight, to_bias = torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias)
        pieces = [torch.split(hidden.to(dtype), PIECE) for hidden in passes]
        # Nothing is changed in place: torch 2.11's compiler loses such changes inside an autograd function.
        for target, *xs in zip(torch.split(targets, PIECE), *pieces, strict=True):
            with torch.autocast(device.type, enabled=False):
                there = target != PAD
                answers = [F.linear(x, matrix, offset).float().log_softmax(-1) for x in xs]
                for log_probs in answers:
                    one = (log_probs.gather(1, target[:, None])[:, 0] * there).sum() / len(xs)
                    every = (log_probs.mean(-1) * there).sum() / len(xs)
                    nll = nll - one
                    smoothed = smoothed - (1 - smoothing) * one - smoothing * every
                if len(xs) == 2:
                    smoothed = smoothed + alpha / 4 * (_apart(*answers) * there).sum()
                if not wanted:
                    continue
                at_target = answers[0].new_full((len(target), 1), smoothing - 1)
                for i, x in enumerate(xs):
                    p = answers[i].exp()
                    gradient = (p - smoothing / len(weight)).scatter_add(1, target[:, None], at_target) / len(xs)
                    if len(xs) == 2:
                        gradient = gradient + alpha / 4 * _towards(answers[i], answers[1 - i])
                    gradient = gradient * there[:, None]
                    if to_bias is not None:
                        to_bias = to_bias + gradient.sum(0)
                    gradient = gradient.to(dtype)
                    to_hidden[i].append((gradient @ matrix).to(passes[i].dtype))
                    to_weight = to_weight + gradient.T @ x
        ctx.save_for_backward(to_weight, to_bias, *(torch.cat(found) for found in to_hidden if found))
        ctx.mark_non_differentiable(nll)
        return smoothed, nll

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        to_weight, to_bias, *to_hidden = ctx.saved_tensors
        to_bias = None if to_bias is None else upstream * to_bias
        return upstream * to_weight, to_bias, None, None, None, *(upstream * found for found in to_hidden)


def _apart(p: Tensor, q: Tensor) -> Tensor:
    """KL(p‖q) + KL(q‖p) of each row of log-probabilities."""
    return ((p.exp() - q.exp()) * (p - q)).sum(-1)


def _towards(p: Tensor, q: Tensor) -> Tensor:
    """The gradient of that with respect to the logits of p."""
    probability, ratio = p.exp(), p - q
    divergence = (probability * ratio).sum(-1, keepdim=True)
    return probability * (ratio - divergence) + probability - q.exp()
