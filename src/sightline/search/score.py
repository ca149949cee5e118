"""Log-probabilities of given answers, and of the tokens that can follow a text: one pass over each, as in training."""

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.model.protocol import Inputs, Model
from sightline.search.beam import NEVER
from sightline.search.driver import BATCH_TOKENS, by_size, padded
from sightline.search.types import Request
from sightline.special import END, START

ROWS = 512
"""Positions whose scores for the whole vocabulary are computed at once."""


@torch.no_grad()
def score(models: Sequence[Model], requests: Sequence[Request], answers: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return the log-probability of each token of each answer and of the end after it; of several models, by the mean
    of their probabilities."""
    found: list[list[float]] = [[] for _ in requests]
    texts = [[*request.given, *answer, END] for request, answer in zip(requests, answers, strict=True)]
    sizes = {i: len(request.source) + len(text) for i, (request, text) in enumerate(zip(requests, texts, strict=True))}
    for batch in by_size(sizes, BATCH_TOKENS):
        target, _ = padded([texts[i] for i in batch], models[0].classifier.weight.device)
        log_probs = _log_probs(models, [requests[i] for i in batch], [texts[i][:-1] for i in batch])
        rows = log_probs.gather(2, target[:, 1:, None])[:, :, 0].tolist()
        for i, row in zip(batch, rows, strict=True):
            found[i] = row[len(requests[i].given) - 1 : len(texts[i]) - 1]
    return found


@torch.no_grad()
def score_windows(
    model: Model, ids: Sequence[int], context: int, stride: int, top: int = 0
) -> Iterator[tuple[float, list[tuple[int, float]]]]:
    """Yield the log-probability of each token of a text, and the `top` likeliest tokens at its position.

    A text with more than `context` tokens is read in windows of `context` tokens, each `stride` after the last and each
    after a start, as in training. A window gives the tokens that no window before it has given.
    """
    device, given = model.classifier.weight.device, 0
    for begin in range(0, max(len(ids) - context, 0) + stride, stride):
        window = ids[begin : begin + context]
        new = begin + len(window) - given
        if not new:
            return
        target = torch.tensor([[START, *window[:-1]]], device=device)
        for rows in torch.split(model.hidden(Inputs(target=target))[0, -new:], ROWS):
            scores = model.classifier(rows).float()
            log_probs = scores.log_softmax(-1)
            wanted = torch.tensor(ids[given : given + len(rows)], device=device)
            found = log_probs.gather(1, wanted[:, None])[:, 0].tolist()
            log_probs[:, NEVER] = -math.inf
            best = log_probs.topk(min(top, log_probs.shape[1] - len(NEVER)))
            likely = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            yield from zip(found, (list(zip(*one, strict=True)) for one in likely), strict=True)
            given += len(rows)


@torch.no_grad()
def next_tokens(models: Sequence[Model], request: Request, begun: Sequence[int], count: int) -> list[tuple[int, float]]:
    """Return the likeliest tokens after the beginning of an answer, the end included, with their log-probabilities."""
    log_probs = _log_probs(models, [request], [[*request.given, *begun]])[0, -1]
    log_probs[NEVER] = -math.inf
    best = log_probs.topk(min(count, len(log_probs) - len(NEVER)))
    return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def _log_probs(
    models: Sequence[Model], requests: Sequence[Request], targets: Sequence[Sequence[int]]
) -> Float[Tensor, "rows target vocab"]:
    device = models[0].classifier.weight.device
    source, source_layout = padded([request.source for request in requests], device)
    target, _ = padded(targets, device)  # no token sees the padding to its right
    inputs = Inputs(source if source.shape[1] else None, target, source_layout)
    all_log_probs = [model.classifier(model.hidden(inputs)).float().log_softmax(-1) for model in models]
    if len(models) == 1:
        return all_log_probs[0]
    return torch.stack(all_log_probs).logsumexp(0) - math.log(len(models))
