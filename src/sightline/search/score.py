"""How probable given answers are, and what could follow their beginnings: one pass over each, as in training."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sightline.model.transformer import EncoderDecoder
from sightline.search.rules import NEVER
from sightline.special import END, PAD, START
from sightline.text.tokenizer import with_end

__all__ = ["following", "force"]


@torch.no_grad()
def force(
    models: Sequence[EncoderDecoder],
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    budget: int = 8192,
) -> list[list[float]]:
    """The log-probability of each token of each target, and of the end after it; of several models, by the mean of
    their probabilities. `budget`: tokens of a batch."""
    found: list[list[float]] = [[] for _ in sources]
    size = [len(source) + len(target) + 2 for source, target in zip(sources, targets, strict=True)]
    order = sorted(range(len(sources)), key=lambda i: -size[i])
    device, end = models[0].classifier.weight.device, models[0].config.source_end
    while order:
        batch = order[: max(1, budget // size[order[0]])]
        order = order[len(batch) :]
        source = pad_sequence([torch.tensor(with_end(sources[i], end)) for i in batch], True, PAD).to(device)
        target = pad_sequence([torch.tensor([START, *targets[i], END]) for i in batch], True, PAD).to(device)
        log_probs = _log_probs(models, source, target[:, :-1])
        rows = log_probs.gather(2, target[:, 1:, None])[:, :, 0].tolist()
        for i, row in zip(batch, rows, strict=True):
            found[i] = row[: len(targets[i]) + 1]
    return found


@torch.no_grad()
def following(
    models: Sequence[EncoderDecoder], source: Sequence[int], begun: Sequence[int], count: int
) -> list[tuple[int, float]]:
    """The tokens that are likeliest to come after the beginning of an answer, the end among them, each with its
    log-probability."""
    device = models[0].classifier.weight.device
    rows = with_end(source, models[0].config.source_end), [START, *begun]
    ids, target = (torch.tensor([row], device=device) for row in rows)
    log_probs = _log_probs(models, ids, target)[0, -1]
    log_probs[NEVER] = -math.inf
    best = log_probs.topk(min(count, len(log_probs) - len(NEVER)))
    return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def _log_probs(
    models: Sequence[EncoderDecoder], source: Int[Tensor, "sentences source"], target: Int[Tensor, "sentences target"]
) -> Float[Tensor, "sentences target vocab"]:
    votes = [model(source, target, source != PAD).float().log_softmax(-1) for model in models]
    return torch.stack(votes).logsumexp(0) - math.log(len(votes)) if len(votes) > 1 else votes[0]
