"""Label-smoothed cross-entropy (§5.4), fused with the classifier before it.

The logits of a batch are its largest tensor by far: tokens × vocabulary, 3.4 GB in float32 for 25,600 tokens and 32,768
words. Here they are made and used up in pieces, and the gradient is computed on the way, so they are never there all at
once and never kept for the backward pass.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from sightline.special import PAD

__all__ = ["Loss", "linear_cross_entropy"]

PIECE = 4096
"""Tokens whose logits are there at a time, on a GPU."""
CACHED = 8_000_000
"""Logits that are there at a time on a CPU: fewer tokens, so that they stay in its cache."""


class Loss(NamedTuple):
    """Sums over the tokens that are not padding; who reports them divides by their number."""

    smoothed: Float[Tensor, ""]
    """What is minimised."""
    nll: Float[Tensor, ""]
    """Negative log-likelihood, without smoothing: its mean is the logarithm of the perplexity. Has no gradient."""


def linear_cross_entropy(
    passes: Sequence[Tensor], classifier: nn.Linear, targets: Tensor, smoothing: float, alpha: float
) -> Loss:
    """Either loss, of one pass or of two."""
    flat, wanted = [hidden.flatten(0, -2) for hidden in passes], targets.flatten()
    if wanted.device.type == "cpu" and not torch.compiler.is_compiling():
        there = (wanted != PAD).nonzero()[:, 0]  # a GPU would have to wait to hear how many these are
        if len(there) < len(wanted):
            flat, wanted = [hidden[there] for hidden in flat], wanted[there]
    smoothed, nll = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        classifier.weight, classifier.bias, wanted, smoothing, alpha, *flat
    )
    return Loss(smoothed, nll)


class _LinearCrossEntropy(torch.autograd.Function):
    """Logits, loss and gradients, piece by piece, of one pass or of two."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, alpha: float, *passes: Tensor
    ) -> tuple[Tensor, Tensor]:
        device, words = weight.device, len(weight)
        autocast = torch.is_autocast_enabled(device.type)
        dtype = torch.get_autocast_dtype(device.type) if autocast else passes[0].dtype
        matrix, offset = weight.to(dtype), None if bias is None else bias.to(dtype)
        mean, mean_offset = weight.float().mean(0), 0.0 if bias is None else bias.float().mean()
        wanted = any(ctx.needs_input_grad)
        smoothed, nll = (torch.zeros((), device=device) for _ in range(2))
        to_hidden: list[list[Tensor]] = [[] for _ in passes]
        to_weight, to_bias = torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias)
        size = PIECE if device.type != "cpu" else max(32, CACHED // words)
        pieces = [torch.split(hidden.to(dtype), size) for hidden in passes]
        for target, *xs in zip(torch.split(targets, size), *pieces, strict=True):
            with torch.autocast(device.type, enabled=False):
                share = (target != PAD).float() / len(xs)
                answers = []
                for x in xs:
                    logits = F.linear(x, matrix, offset).float()
                    log_probs = logits.log_softmax(-1)
                    norm = logits[:, 0] - log_probs[:, 0]
                    one = log_probs.gather(1, target[:, None])[:, 0] @ share
                    # The mean over all words of the log-probabilities, without looking at each.
                    every = (x.float() @ mean + mean_offset - norm) @ share
                    nll = nll - one
                    smoothed = smoothed - (1 - smoothing) * one - smoothing * every
                    answers.append(log_probs)
                pulls: list[Tensor] = []
                if len(xs) == 1:
                    probabilities = [log_probs.exp() if torch.compiler.is_compiling() else log_probs.exp_()]
                else:
                    apart, probabilities, pulls = _apart(*answers)
                    smoothed = smoothed + alpha / 2 * apart @ share
                if not wanted:
                    continue
                for i, x in enumerate(xs):
                    # What the logits get, but for the share of smoothing, which is the same for all words.
                    gradient = torch.add(probabilities[i], pulls[i], alpha=alpha / 2) if pulls else probabilities[i]
                    gradient = _less(gradient, target, 1 - smoothing).to(dtype)
                    to_hidden[i].append(((gradient @ matrix - smoothing * mean) * share[:, None]).to(passes[i].dtype))
                    counted = x * share[:, None].to(dtype)
                    to_weight = to_weight + gradient.T @ counted - smoothing / words * counted.float().sum(0)
                    if to_bias is not None:
                        to_bias = to_bias + share @ gradient.float() - smoothing / words * share.sum()
        ctx.save_for_backward(to_weight, to_bias, *(torch.cat(found) for found in to_hidden if found))
        ctx.mark_non_differentiable(nll)
        return smoothed, nll

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        to_weight, to_bias, *to_hidden = ctx.saved_tensors
        to_bias = None if to_bias is None else upstream * to_bias
        return upstream * to_weight, to_bias, None, None, None, *(upstream * found for found in to_hidden)


def _less(values: Tensor, target: Tensor, amount: float) -> Tensor:
    """These values, those of the targets less by an amount. Eager, in place. Compiled, it is one pass without that; and
    torch 2.11's compiler would lose what is written in place inside an autograd function."""
    if torch.compiler.is_compiling():
        word = torch.arange(values.shape[1], device=target.device)
        return values - amount * (word == target[:, None])
    return values.scatter_add_(1, target[:, None], values.new_full((len(target), 1), -amount))


def _apart(p: Tensor, q: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """KL(p‖q) + KL(q‖p) of each row of log-probabilities; both as probabilities; and the gradients of the sum with
    respect to the logits of both."""
    a, b, ratio = p.exp(), q.exp(), p - q
    one, other = (a * ratio).sum(-1, keepdim=True), -(b * ratio).sum(-1, keepdim=True)
    return (one + other)[:, 0], [a, b], [a * (ratio + (1 - one)) - b, b * ((1 - other) - ratio) - a]
