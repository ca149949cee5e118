"""Sampling: every token is drawn by its probability, instead of searching for the best.

What is drawn for a sentence depends on the seed, on the sentence and on nothing else: one number between 0 and 1 for
each token, made from these two, says where in the cumulative distribution the token is.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sightline.config import SearchConfig
from sightline.search.growing import Growing
from sightline.search.hypothesis import Hypothesis
from sightline.search.rules import Rules
from sightline.search.scorer import Scores, highest
from sightline.special import END, PAD, START

__all__ = ["Samples"]

LEAST = 1e-30
"""A temperature, and a probability, that leave nothing but the likeliest token, and that float32 can tell from zero."""


class Samples(Growing):
    """The samples of a batch of sentences, `beams` neighbouring rows for each, none of which knows of another."""

    blank: ClassVar[dict[str, float]] = {
        "tokens": PAD,
        "log_probs": 0.0,
        "ended": True,
        "margin": math.inf,
        "numbers": 0.0,
    }
    along: ClassVar[set[str]] = {"tokens", "log_probs", "numbers"}

    def __init__(self, rules: Rules, config: SearchConfig, sources: Sequence[Sequence[int]]) -> None:
        self.rules, self.config, self.sentences, device = rules, config, len(sources), rules.limits.device
        rows = len(sources) * config.beams
        shape = (rules.longest, config.beams)  # in this order: a longer neighbour asks for more, but not for others
        drawn = [np.random.default_rng([config.seed, *ids]).random(shape).T for ids in sources]
        self.numbers: Float[Tensor, "rows longest"] = torch.from_numpy(np.concatenate(drawn)).float().to(device)
        self.length = torch.ones((), dtype=torch.long, device=device)
        self.tokens = torch.full((rows, rules.longest + 1), PAD, device=device)
        self.tokens[:, 0] = START
        self.log_probs: Float[Tensor, "rows longest"] = torch.zeros(rows, rules.longest, device=device)
        self.ended: Bool[Tensor, " rows"] = torch.zeros(rows, dtype=torch.bool, device=device)
        self.margin: Float[Tensor, " rows"] = torch.full((rows,), math.inf, device=device)

    def grow(self, scores: Scores) -> None:
        """Draw one token for every sample."""
        forced = self.rules.apply(scores, self.tokens, self.length)
        config, place = self.config, self.length.view(1) - 1
        value, token = forced.among(*highest(scores.values, config.top_k or scores.values.shape[1], scores.maxima))
        p = ((value - value[:, :1]) / max(config.temperature, LEAST)).softmax(-1)
        before = p.cumsum(1) - p  # what likelier tokens have together
        kept = (before < max(config.top_p, LEAST)) & (p >= config.min_p * p[:, :1])
        p = p * kept
        reached = p.cumsum(1) / p.sum(1, keepdim=True)
        number = self.numbers.index_select(1, place)
        chosen = (reached <= number).sum(1, keepdim=True).clamp(max=p.shape[1] - 1)
        chosen = torch.minimum(chosen, kept.sum(1, keepdim=True) - 1)
        gap = (reached - number).abs().masked_fill(self.ended[:, None], math.inf).amin(1)
        self.margin.copy_(torch.minimum(self.margin, gap))
        drawn = token.gather(1, chosen).masked_fill(self.ended[:, None], END)
        log_prob = (value.gather(1, chosen) - scores.norm[:, None]).masked_fill(self.ended[:, None], 0.0)
        self.tokens.index_copy_(1, self.length.view(1), drawn)
        self.log_probs.index_copy_(1, place, log_prob)
        self.ended |= drawn[:, 0] == END
        self.length += 1

    def done(self) -> Bool[Tensor, " sentences"]:
        """Which sentences are over."""
        return self.ended.view(-1, self.config.beams).all(1)

    def answers(self) -> list[tuple[list[Hypothesis], float]]:
        """The samples of each sentence that score best, and how near it was that others had been drawn."""
        beams, found = self.config.beams, []
        rows = [
            (row[1 : row.index(END) if END in row else None], log_probs)
            for row, log_probs in zip(self.tokens.tolist(), self.log_probs.tolist(), strict=True)
        ]
        margin = self.margin.view(-1, beams).amin(1).tolist()
        for i in range(0, len(rows), beams):
            mine = []
            for ids, log_probs in rows[i : i + beams]:
                length = len(ids) + 1
                score = sum(log_probs[:length]) / length**self.config.length_penalty
                mine.append(Hypothesis(ids, score, log_probs[:length]))
            mine.sort(key=lambda one: -one.score)
            found.append((mine[: self.config.nbest], margin[i // beams]))
        return found
