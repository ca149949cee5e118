"""Sampling: every token is drawn by its probability, instead of searching for the best.

What is drawn for a sentence depends on the seed, on the sentence and on nothing else: one number between 0 and 1 for
each token, made from these two, says where in the cumulative distribution the token is.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sightline.config import SearchConfig
from sightline.search.hypothesis import Hypothesis
from sightline.search.rules import Rules
from sightline.search.scorer import highest
from sightline.text.tokenizer import END, START

__all__ = ["Samples"]


class Samples:
    """The samples of a batch of sentences, `beams` neighbouring rows for each, none of which knows of another."""

    def __init__(self, rules: Rules, config: SearchConfig, sources: Sequence[Sequence[int]]) -> None:
        self.rules, self.config, device = rules, config, rules.limits.device
        rows = len(sources) * config.beams
        shape = (rules.longest, config.beams)  # in this order: a longer neighbour asks for more, but not for others
        drawn = [np.random.default_rng([config.seed, *ids]).random(shape).T for ids in sources]
        self.numbers = torch.from_numpy(np.concatenate(drawn)).float().to(device)
        self.tokens: Int[Tensor, "rows length"] = torch.full((rows, 1), START, device=device)
        self.log_probs: Float[Tensor, "rows length"] = torch.zeros(rows, 0, device=device)
        self.ended: Bool[Tensor, " rows"] = torch.zeros(rows, dtype=torch.bool, device=device)
        self.margin: Float[Tensor, " rows"] = torch.full((rows,), math.inf, device=device)

    def grow(
        self,
        scores: Float[Tensor, "rows vocab"],
        norm: Float[Tensor, " rows"],
        attention: Tensor | None = None,  # noqa: ARG002 - as beams do
    ) -> None:
        """Draw one token for every sample."""
        self.rules.apply(scores, self.tokens)
        config, length = self.config, self.tokens.shape[1]
        value, token = highest(scores, config.top_k or scores.shape[1])
        p = (value / config.temperature).softmax(-1)
        before = p.cumsum(1) - p  # what likelier tokens have together
        kept = (before < config.top_p) & (p >= config.min_p * p[:, :1])
        p = p * kept
        reached = p.cumsum(1) / p.sum(1, keepdim=True)
        number = self.numbers[:, length - 1 : length]
        place = (reached <= number).sum(1, keepdim=True).clamp(max=p.shape[1] - 1)
        place = torch.minimum(place, kept.sum(1, keepdim=True) - 1)
        gap = (reached - number).abs().masked_fill(self.ended[:, None], math.inf).amin(1)
        self.margin = torch.minimum(self.margin, gap)
        chosen = token.gather(1, place).masked_fill(self.ended[:, None], END)
        log_prob = (value.gather(1, place) - norm[:, None]).masked_fill(self.ended[:, None], 0.0)
        self.tokens = torch.cat([self.tokens, chosen], 1)
        self.log_probs = torch.cat([self.log_probs, log_prob], 1)
        self.ended = self.ended | (chosen[:, 0] == END)

    def done(self) -> Bool[Tensor, " sentences"]:
        """Which sentences are over."""
        return self.ended.view(-1, self.config.beams).all(1)

    def keep(self, sentences: Int[Tensor, " kept"]) -> None:
        """Go on with these sentences alone."""
        beams = self.config.beams
        rows = (sentences[:, None] * beams + torch.arange(beams, device=sentences.device)).flatten()
        self.tokens, self.log_probs, self.numbers = self.tokens[rows], self.log_probs[rows], self.numbers[rows]
        self.ended, self.margin = self.ended[rows], self.margin[rows]
        self.rules.keep(sentences)

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
