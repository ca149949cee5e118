"""Label-smoothed cross-entropy (§5.4), fused with the classifier.

The logits are the largest tensor of a batch: tokens × vocabulary, 3.4 GB in float32 for 25,600 tokens and 32,768 words.
The fused loss computes logits and gradients in chunks of tokens, so the whole tensor never exists and nothing of it is
stored for the backward pass.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from sightline.special import PAD

GPU_CHUNK = 4096
"""Tokens per chunk on a GPU."""
CPU_LOGITS = 8_000_000
"""Logits per chunk on a CPU: few enough to stay in its cache."""


class Loss(NamedTuple):
    """Sums over the tokens that are not padding. Divide by the number of tokens for a mean."""

    smoothed: Float[Tensor, ""]
    """The training objective."""
    nll: Float[Tensor, ""]
    """Negative log-likelihood without smoothing; its mean is the logarithm of the perplexity. It has no gradient."""


def linear_cross_entropy(
    passes: Sequence[Tensor], classifier: nn.Linear, targets: Tensor, smoothing: float, alpha: float
) -> Loss:
    """Return the loss of decoder outputs, of one pass or of two (R-Drop).

    With smoothing ε, the target distribution has 1 - ε on the target and shares ε among all words; 0 is the plain
    one-hot loss. Two passes under different dropout give the mean of their losses plus α / 2 times the distance of
    their distributions p and q, (KL(p‖q) + KL(q‖p)) / 2. This is half the sum of Liang et al. (2021, arXiv:2106.14448),
    so that it has the weight of one pass.
    """
    flat, wanted = [hidden.flatten(0, -2) for hidden in passes], targets.flatten()
    if wanted.device.type == "cpu" and not torch.compiler.is_compiling():
        kept = (wanted != PAD).nonzero()[:, 0]  # on a GPU, their number would need a synchronisation
        if len(kept) < len(wanted):
            flat, wanted = [hidden[kept] for hidden in flat], wanted[kept]
    smoothed, nll = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call, unused-ignore]  # typed from torch 2.15 on
        classifier.weight, classifier.bias, wanted, smoothing, alpha, *flat
    )
    return Loss(smoothed, nll)


class _LinearCrossEntropy(torch.autograd.Function):
    """Compute logits, loss and gradients chunk by chunk, for one pass or for two."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, alpha: float, *passes: Tensor
    ) -> tuple[Tensor, Tensor]:
        device, words = weight.device, len(weight)
        autocast = torch.is_autocast_enabled(device.type)
        dtype = torch.get_autocast_dtype(device.type) if autocast else passes[0].dtype
        matrix, offset = weight.to(dtype), None if bias is None else bias.to(dtype)
        mean, mean_offset = weight.float().mean(0), 0.0 if bias is None else bias.float().mean()
        needs_gradient = any(ctx.needs_input_grad)
        smoothed, nll = (torch.zeros((), device=device) for _ in range(2))
        to_hidden: list[list[Tensor]] = [[] for _ in passes]
        to_weight, to_bias = torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias)
        size = GPU_CHUNK if device.type != "cpu" else max(32, CPU_LOGITS // words)
        chunks = [torch.split(hidden.to(dtype), size) for hidden in passes]
        for target, *xs in zip(torch.split(targets, size), *chunks, strict=True):
            with torch.autocast(device.type, enabled=False):
                share = (target != PAD).float() / len(xs)
                distributions = []
                for x in xs:
                    logits = F.linear(x, matrix, offset).float()
                    log_probs = logits.log_softmax(-1)
                    norm = logits[:, 0] - log_probs[:, 0]
                    one = log_probs.gather(1, target[:, None])[:, 0] @ share
                    # The mean of the log-probabilities over all words, from the mean row of the classifier.
                    every = (x.float() @ mean + mean_offset - norm) @ share
                    nll = nll - one
                    smoothed = smoothed - (1 - smoothing) * one - smoothing * every
                    distributions.append(log_probs)
                distance_gradients: list[Tensor] = []
                if len(xs) == 1:
                    probabilities = [log_probs.exp() if torch.compiler.is_compiling() else log_probs.exp_()]
                else:
                    distance, probabilities, distance_gradients = _symmetric_kl(*distributions)
                    smoothed = smoothed + alpha / 2 * distance @ share
                if not needs_gradient:
                    continue
                for i, x in enumerate(xs):
                    # The gradient of the logits without the constant part of smoothing, which is added below.
                    gradient = probabilities[i]
                    if distance_gradients:
                        gradient = torch.add(gradient, distance_gradients[i], alpha=alpha / 2)
                    gradient = _subtract_at_target(gradient, target, 1 - smoothing).to(dtype)
                    to_hidden[i].append(((gradient @ matrix - smoothing * mean) * share[:, None]).to(passes[i].dtype))
                    weighted = x * share[:, None].to(dtype)
                    to_weight = to_weight + gradient.T @ weighted - smoothing / words * weighted.float().sum(0)
                    if to_bias is not None:
                        to_bias = to_bias + share @ gradient.float() - smoothing / words * share.sum()
        ctx.save_for_backward(to_weight, to_bias, *(torch.cat(chunks) for chunks in to_hidden if chunks))
        ctx.mark_non_differentiable(nll)
        return smoothed, nll

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        to_weight, to_bias, *to_hidden = ctx.saved_tensors
        to_bias = None if to_bias is None else upstream * to_bias
        return upstream * to_weight, to_bias, None, None, None, *(upstream * gradient for gradient in to_hidden)


def _subtract_at_target(values: Tensor, target: Tensor, amount: float) -> Tensor:
    """Subtract an amount from the value at each row's target; in place when eager. When compiled, the comparison fuses
    into one pass, and torch 2.11's compiler loses in-place writes inside an autograd function."""
    if torch.compiler.is_compiling():
        word = torch.arange(values.shape[1], device=target.device)
        return values - amount * (word == target[:, None])
    return values.scatter_add_(1, target[:, None], values.new_full((len(target), 1), -amount))


def _symmetric_kl(p: Tensor, q: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Return KL(p‖q) + KL(q‖p) for each row of log-probabilities, both as probabilities, and the gradients of the sum
    with respect to both logits."""
    a, b, ratio = p.exp(), q.exp(), p - q
    one, other = (a * ratio).sum(-1, keepdim=True), -(b * ratio).sum(-1, keepdim=True)
    return (one + other)[:, 0], [a, b], [a * (ratio + (1 - one)) - b, b * ((1 - other) - ratio) - a]
