"""Sampling: each token is drawn by its probability, instead of searching for the best.

The draws depend on the seed and on the ids of the request alone: one number between 0 and 1 for each new token, made
from these, is its place in the cumulative distribution. So neighbours in a batch never matter.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from sightline.config import SearchConfig
from sightline.search.beam import HypothesisState
from sightline.search.scoring import Scores, highest
from sightline.search.types import Hypothesis, Request
from sightline.special import END

LEAST = 1e-30
"""The smallest temperature and probability: only the likeliest token is left, and float32 can represent it."""
UNLIKELY = 2e-4
"""The probability of a token up to which it does not matter whether it is among the tokens to draw from."""


class Samples(HypothesisState):
    """The samples of a batch of requests, `beams` neighbouring rows for each, all independent."""

    along: ClassVar[set[str]] = {*HypothesisState.along, "draws"}
    shared: ClassVar[set[str]] = {*HypothesisState.shared, "temperature", "top_k", "top_p", "min_p"}

    def __init__(self, requests: Sequence[Request], options: SearchConfig, device: torch.device) -> None:
        super().__init__(requests, options, device)
        rows, shape = len(requests) * self.beams, (self.longest, self.beams)  # a longer limit only adds numbers
        seeds = [[*(one.seed or [options.seed]), *one.source, *one.given] for one in requests]
        draws = np.concatenate([np.random.default_rng(seed).random(shape).T for seed in seeds])
        self.draws: Float[Tensor, "rows longest"] = torch.from_numpy(draws).float().to(device)
        self.is_done = torch.zeros(rows, dtype=torch.bool, device=device)
        self.decision_margin = torch.full((rows,), math.inf, device=device)
        self.temperature = torch.tensor(max(options.temperature, LEAST), device=device)
        self.top_k = torch.tensor(options.top_k or 2**62, device=device)
        self.top_p = torch.tensor(max(options.top_p, LEAST), device=device)
        self.min_p = torch.tensor(options.min_p, device=device)

    def grow(self, scores: Scores) -> None:
        """Draw one token for every sample."""
        forced, ruled = self.apply_rules(scores)
        position, vocab = self.length.view(1) - 1, scores.values.shape[1]
        value, token = forced.replace(*highest(ruled.values, top_k_bucket(self.options.top_k) or vocab, ruled.maxima))
        rank = torch.arange(value.shape[1], device=value.device)
        p = ((value - value[:, :1]) / self.temperature).masked_fill(rank >= self.top_k, -math.inf).softmax(-1)
        before = p.cumsum(1) - p  # the probability of the likelier tokens together
        kept = (before < self.top_p) & (p >= self.min_p * p[:, :1]) & (rank < self.top_k)
        # The draw is a place in the distribution in the order of the ids: two tokens that are equally likely would have
        # no order that every batch agrees on.
        reached = torch.zeros(len(p), vocab, device=p.device).scatter_add_(1, token, p * kept).cumsum(1)
        draw, total = self.draws.index_select(1, position), reached[:, -1:]
        chosen = torch.minimum((reached <= draw * total).sum(1), (reached < total).sum(1))[:, None]
        if scores.values.dtype == torch.float32:  # with coarser numbers, ties are not searched again
            gap = torch.minimum((reached / total - draw).abs().amin(1), self._edge(value, p, before))
            self.decision_margin.copy_(torch.minimum(self.decision_margin, gap.masked_fill(self.is_done, math.inf)))
        drawn = chosen.masked_fill(self.is_done[:, None], END)
        values = torch.where(forced.token >= 0, forced.value, scores.values.gather(1, chosen).float())
        log_prob = (values - scores.norm[:, None]).masked_fill(self.is_done[:, None], 0.0)
        self.tokens.index_copy_(1, self.length.view(1), drawn)
        self.log_probs.index_copy_(1, position, log_prob)
        self.is_done |= (drawn[:, 0] == END) | self.at_limit().repeat_interleave(self.beams)
        self.length += 1

    def _edge(
        self, value: Float[Tensor, "rows best"], p: Float[Tensor, "rows best"], before: Float[Tensor, "rows best"]
    ) -> Float[Tensor, " rows"]:
        """Return how close a likely token is to the limit of top-k, top-p or min-p. The others hardly change a draw."""
        top_k = self.top_k.clamp(max=value.shape[1] - 1).view(1)
        last = value.index_select(1, top_k - 1) - value.index_select(1, top_k)
        last = last.masked_fill(self.top_k >= value.shape[1], math.inf)
        close = torch.minimum((before - self.top_p).abs(), (1 - self.min_p * p[:, :1] / p.clamp(min=LEAST)).abs())
        likely = p.index_select(1, top_k - 1) > UNLIKELY
        return torch.minimum(
            close.masked_fill(p <= UNLIKELY, math.inf).amin(1), torch.where(likely, last, math.inf)[:, 0]
        )

    def answers(self) -> list[tuple[list[Hypothesis], float]]:
        found = []
        margins = self.decision_margin.view(-1, self.beams).amin(1).tolist()
        top = self.top()
        limits, tokens, log_probs = self.limits.tolist(), self.tokens[:, 1:].tolist(), self.log_probs.tolist()
        for i, (limit, margin) in enumerate(zip(limits, margins, strict=True)):
            mine = []
            for row in range(i * self.beams, (i + 1) * self.beams):
                ids = tokens[row][:limit]
                ids = ids[: ids.index(END)] if END in ids else ids
                logs = log_probs[row][: min(len(ids) + 1, limit)]
                mine.append(
                    Hypothesis(ids, sum(logs) / len(logs) ** self.options.length_penalty, logs, top[row][: len(logs)])
                )
            mine.sort(key=lambda one: -one.score)
            found.append((mine[: self.options.nbest], margin))
        return found


def top_k_bucket(top_k: int) -> int:
    """Return the number of tokens to sort for `top_k`: the next power of two, so that few steps are recorded."""
    return 1 << (top_k - 1).bit_length() if top_k else 0
