"""Beam search: the best few hypotheses of every sentence grow side by side, one token at a time. One beam is greedy
search.

The score of a finished hypothesis y is log P(y|x) / |y|^α, where |y| counts the end and α is the length penalty: 0 is
the plain log-probability, which likes short sentences; 1 is the mean over tokens.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sightline.model.cache import Cache
from sightline.model.transformer import EncoderDecoder
from sightline.text.tokenizer import END, PAD, START, UNKNOWN

__all__ = ["Hypothesis", "search", "search_all"]


class Hypothesis(NamedTuple):
    """One finished answer."""

    ids: list[int]
    """Without start and end."""
    score: float


def search_all(
    model: EncoderDecoder,
    sources: Sequence[Sequence[int]],
    *,
    beams: int = 1,
    length_penalty: float = 1.0,
    budget: int = 16_384,
) -> list[Hypothesis]:
    """The best answer for every source (ids without END), in their order. Sources of like length are searched together,
    at most `budget` tokens of hypotheses at a time."""
    found: list[Hypothesis | None] = [None] * len(sources)
    for batch in _by_length(sources, budget // beams):
        ids = torch.full((len(batch), len(sources[batch[0]]) + 1), PAD)
        for row, i in zip(ids, batch, strict=True):
            row[: len(sources[i]) + 1] = torch.tensor([*sources[i], END])
        ids = ids.to(model.classifier.weight.device)
        for i, best in zip(batch, search(model, ids, beams=beams, length_penalty=length_penalty), strict=True):
            found[i] = best
    return [best for best in found if best is not None]


def _by_length(sources: Sequence[Sequence[int]], budget: int) -> Iterator[list[int]]:
    order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))  # the longest of a batch comes first
    while order:
        count = max(1, budget // (len(sources[order[0]]) + 1))
        yield order[:count]
        order = order[count:]


@torch.no_grad()
def search(
    model: EncoderDecoder, source: Int[Tensor, "batch source"], *, beams: int, length_penalty: float
) -> list[Hypothesis]:
    """The best answer for each row of sources, padded on the right, each ending in END."""
    layout = source != PAD
    limits = (2 * layout.sum(1) + 10).clamp(max=model.config.positions.max_length)
    longest = min(2 * source.shape[1] + 10, model.config.positions.max_length)
    cache = model.new_cache(model.encoder(source, layout), layout, capacity=longest, beams=beams)
    state = _State(limits, beams, longest, length_penalty)
    for length in range(1, longest + 1):
        log_probs = model.step(state.tokens[:, length - 1 : length], cache)[:, -1].float().log_softmax(-1)
        state.grow(log_probs, length, cache)
        if length % 4 == 0 and state.done():  # asking the device costs a wait
            break
    return state.answers()


class _State:
    """The living hypotheses of a batch, and the best finished ones. Rows are beams, neighbours in a sentence."""

    def __init__(self, limits: Int[Tensor, " sentences"], beams: int, longest: int, length_penalty: float) -> None:
        self.limits, self.beams, self.penalty = limits, beams, length_penalty
        sentences, device = len(limits), limits.device
        shape = (sentences, beams)
        self.tokens: Int[Tensor, "rows length"] = torch.full((sentences * beams, longest + 1), START, device=device)
        self.living: Float[Tensor, "sentences beams"] = torch.full(shape, -math.inf, device=device)
        self.living[:, 0] = 0.0  # all beams begin alike: only one of them counts
        self.finished: Float[Tensor, "sentences beams"] = torch.full(shape, -math.inf, device=device)
        self.endings: Int[Tensor, "sentences beams length"] = torch.full((*shape, longest), PAD, device=device)

    def grow(self, log_probs: Float[Tensor, "rows vocab"], length: int, cache: Cache) -> None:
        """Add one token to every hypothesis: its own best ones compete with those of the other beams."""
        sentences, vocab = len(self.living), log_probs.shape[1]
        log_probs[:, PAD] = log_probs[:, START] = log_probs[:, UNKNOWN] = -math.inf  # these are no words
        full = (self.limits <= length).repeat_interleave(self.beams)[:, None]  # there is room for the end only
        log_probs = log_probs.masked_fill(full & (torch.arange(vocab, device=full.device) != END), -math.inf)
        totals = self.living[:, :, None] + log_probs.view(sentences, self.beams, vocab)
        # Twice as many as there are beams: however many of them end, enough go on.
        best, where = totals.flatten(1).topk(min(2 * self.beams, self.beams * vocab), dim=1)
        beam, token = where // vocab, where % vocab
        rows = beam + torch.arange(0, sentences * self.beams, self.beams, device=beam.device)[:, None]

        ends = token == END
        score = torch.where(ends, best / length**self.penalty, -math.inf)
        self._finish(score[:, : self.beams], rows[:, : self.beams], length)  # an end must rank among the beams to count

        best = torch.where(ends, -math.inf, best)
        self.living, chosen = best.topk(self.beams, dim=1)
        over = self.finished[:, -1] > -math.inf  # as many as there are beams: the sentence has its answer,
        self.living.masked_fill_(over[:, None], -math.inf)  # whatever its neighbours still do
        rows = rows.gather(1, chosen).flatten()
        self.tokens = self.tokens[rows]
        self.tokens[:, length] = token.gather(1, chosen).flatten()
        if self.beams > 1:
            cache.reorder(rows)

    def _finish(
        self, score: Float[Tensor, "sentences beams"], rows: Int[Tensor, "sentences beams"], length: int
    ) -> None:
        """Keep the best finished hypotheses of each sentence."""
        texts = self.tokens[rows][:, :, 1:].clone()
        texts[:, :, length - 1 :] = PAD
        self.finished, kept = torch.cat([self.finished, score], 1).topk(self.beams, dim=1)
        texts = torch.cat([self.endings, texts], 1)
        self.endings = texts.gather(1, kept[:, :, None].expand(-1, -1, texts.shape[2]))

    def done(self) -> bool:
        """No hypothesis lives. (With one beam: the best next token of every sentence was the end.)"""
        return bool((self.living == -math.inf).all())

    def answers(self) -> list[Hypothesis]:
        """The best finished hypothesis of every sentence."""
        return [
            Hypothesis([i for i in ids if i != PAD], score)
            for ids, score in zip(self.endings[:, 0].tolist(), self.finished[:, 0].tolist(), strict=True)
        ]
