"""Beam search: the best few hypotheses of every sentence grow side by side, one token at a time. One beam is greedy
search.

The score of a finished hypothesis y is log P(y|x) / |y|^α, where |y| counts the end and α is the length penalty: 0 is
the plain log-probability, which likes short sentences; 1 is the mean over tokens.

A sentence's beams may be split into groups (diverse beam search). Each group is a pool: it has its own hypotheses,
those that grow and the best that have ended, and only sees the others in what they keep it from saying.
"""

import math
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sightline.config import SearchConfig
from sightline.search.growing import Growing
from sightline.search.hypothesis import Hypothesis
from sightline.search.rules import Forced, Rules
from sightline.search.scorer import Scores, highest
from sightline.special import END, PAD, START

__all__ = ["Beams"]


class Chosen(NamedTuple):
    """The best continuations of every pool, best first: somewhat more than it has beams."""

    total: Float[Tensor, "pools best"]
    """Log-probability of the whole hypothesis."""
    log_prob: Float[Tensor, "pools best"]
    """Of the new token alone."""
    token: Int[Tensor, "pools best"]
    row: Int[Tensor, "pools best"]
    """The hypothesis that it continues."""


class Beams(Growing):
    """The hypotheses of a batch of sentences. Rows are beams; those of a pool are neighbours, as are those of a
    sentence."""

    blank: ClassVar[dict[str, float]] = {
        "tokens": PAD,
        "log_probs": 0.0,
        "living": -math.inf,
        "finished": -math.inf,
        "endings": PAD,
        "ending_log_probs": 0.0,
        "ended": 0,
        "over": True,
        "margin": math.inf,
        "covered": 0.0,
        "source": False,
    }
    along: ClassVar[set[str]] = {"tokens", "log_probs", "endings", "ending_log_probs"}

    def __init__(self, rules: Rules, config: SearchConfig, source: Bool[Tensor, "sentences source"]) -> None:
        """`source`: where the sources have tokens."""
        self.rules, self.config, self.sentences, device = rules, config, len(source), source.device
        self.width = config.beams // config.groups
        pools, longest = len(source) * config.groups, rules.longest
        shape, rows = (pools, self.width), pools * self.width
        self.length = torch.ones((), dtype=torch.long, device=device)
        self.tokens = torch.full((rows, longest + 1), PAD, device=device)
        self.tokens[:, 0] = START
        self.log_probs: Float[Tensor, "rows longest"] = torch.zeros(rows, longest, device=device)
        self.living: Float[Tensor, "pools width"] = torch.full(shape, -math.inf, device=device)
        self.living[:, 0] = 0.0  # all beams begin alike: only one of them counts
        self.finished: Float[Tensor, "pools width"] = torch.full(shape, -math.inf, device=device)
        self.endings: Int[Tensor, "pools width longest"] = torch.full((*shape, longest), PAD, device=device)
        self.ending_log_probs: Float[Tensor, "pools width longest"] = torch.zeros(*shape, longest, device=device)
        self.ended: Int[Tensor, " pools"] = torch.zeros(pools, dtype=torch.long, device=device)
        """How many hypotheses have come to their end."""
        self.over: Bool[Tensor, " pools"] = torch.zeros(pools, dtype=torch.bool, device=device)
        self.margin: Float[Tensor, " pools"] = torch.full((pools,), math.inf, device=device)
        """How near any decision was to falling differently."""
        self.source = source if config.coverage_penalty else source[:, :0]
        self.covered: Float[Tensor, "rows source"] = torch.zeros(rows, self.source.shape[1], device=device)
        """Attention that each source token has got, where that counts."""

    def grow(self, scores: Scores) -> Int[Tensor, " rows"]:
        """Add one token to every hypothesis: its own best ones compete with those of the other beams. Returns the rows
        that each row goes on from."""
        forced = self.rules.apply(scores, self.tokens, self.length)
        if scores.attention is not None:
            self.covered += scores.attention
        best = self._choose(scores, forced)
        ends = (best.token == END) & (best.total > -math.inf)
        if scores.values.dtype == torch.float32:  # where numbers are coarser, nobody asks how near it was
            self._note_ties(best, ends)
        if best.total.is_cuda or bool(ends[:, : self.width].any()):  # asking a GPU costs a wait
            self._finish(best, ends)
        going = torch.where(ends, -math.inf, best.total)
        living, chosen = going.topk(self.width, dim=1)
        rows = best.row.gather(1, chosen).flatten()
        for written in (self.tokens, self.log_probs, self.covered):
            written.copy_(written[rows])
        self.tokens.index_copy_(1, self.length.view(1), best.token.gather(1, chosen).view(-1, 1))
        self.log_probs.index_copy_(1, self.length.view(1) - 1, best.log_prob.gather(1, chosen).view(-1, 1))
        self.over |= self._is_over(living)
        self.living.copy_(living.masked_fill(self.over[:, None], -math.inf))  # whatever its neighbours still do
        self.length += 1
        return rows

    def _choose(self, scores: Scores, forced: Forced) -> Chosen:
        """Twice as many as there are beams, and one more: however many of them end, enough go on, and the best of those
        that do not is seen too."""
        width, groups = self.width, self.config.groups
        others = self.config.beams if groups > 1 else 0  # so many tokens may have been taken by earlier groups
        value, token = forced.among(*highest(scores.values, 2 * width + 1 + others, scores.maxima))
        log_prob = value - scores.norm[:, None]
        total = self.living.view(-1, 1) + log_prob
        each, pools = token.shape[1], len(self.living)
        total, log_prob, token = (x.reshape(pools, -1) for x in (total, log_prob, token))
        count = min(2 * width + 1, total.shape[1])
        found = total.topk(count, dim=1).indices if groups == 1 else self._diverse(total, token, count)
        row = found // each + torch.arange(0, pools * width, width, device=found.device)[:, None]
        return Chosen(total.gather(1, found), log_prob.gather(1, found), token.gather(1, found), row)

    def _diverse(self, total: Tensor, token: Tensor, count: int) -> Int[Tensor, "pools best"]:
        """Group after group; a token costs as often as it was taken before."""
        shape = (-1, self.config.groups, total.shape[1])
        total, token = total.view(shape), token.view(shape)
        taken, found = token[:, 0, :0], []
        for group in range(self.config.groups):
            cost = (token[:, group, :, None] == taken[:, None]).sum(2) * self.config.diversity
            best = (total[:, group] - cost).topk(count, dim=1).indices
            taken = torch.cat([taken, token[:, group].gather(1, best[:, : self.width])], 1)
            found.append(best)
        return torch.stack(found, 1).flatten(0, 1)

    def _note_ties(self, best: Chosen, ends: Bool[Tensor, "pools best"]) -> None:
        """Two decisions are made on totals: which ends rank among the beams, and which of the others go on."""
        width, total = self.width, best.total
        if total.shape[1] <= width:
            return
        across = torch.where(torch.arange(total.shape[1], device=total.device) < width, width, width - 1)
        near = (total - total[:, across]).abs().masked_fill(~ends, math.inf).amin(1)
        going = torch.where(ends, -math.inf, total).sort(1, descending=True).values
        cut = going[:, width - 1] - going[:, width]
        self._note(torch.minimum(near, cut))

    def _note(self, gap: Float[Tensor, " pools"]) -> None:
        """-inf is further from anything than any gap, and what is over decides nothing."""
        gap = torch.where(gap.isnan() | self.over, math.inf, gap)
        self.margin.copy_(torch.minimum(self.margin, gap))

    def _finish(self, best: Chosen, ends: Tensor) -> None:
        """Keep the best finished hypotheses of each pool. An end must rank among the beams to count."""
        width = self.width
        ends = ends[:, :width] & ~self.over[:, None]
        self.ended += ends.sum(1)
        rows = best.row[:, :width]
        scale = self.length**self.config.length_penalty
        score = best.total[:, :width] / scale
        if self.config.coverage_penalty:
            source = self.source.repeat_interleave(self.config.beams, 0)
            logs = self.covered.clamp(1e-9, 1).log().masked_fill(~source, 0.0).sum(1)
            score = score + self.config.coverage_penalty * logs[rows]
        score = score.masked_fill(~ends, -math.inf)
        ranked, kept = torch.cat([self.finished, score], 1).sort(1, descending=True)
        if self.config.nbest == width:
            self._note((ranked[:, width - 1] - ranked[:, width]) * scale)
        self.finished.copy_(ranked[:, :width])
        kept = kept[:, :width, None].expand(self.endings.shape)
        texts = self.tokens[rows][:, :, 1:]
        log_probs = self.log_probs[rows]
        log_probs.index_copy_(2, self.length.view(1) - 1, best.log_prob[:, :width, None])
        self.endings.copy_(torch.cat([self.endings, texts], 1).gather(1, kept))
        self.ending_log_probs.copy_(torch.cat([self.ending_log_probs, log_probs], 1).gather(1, kept))

    def _is_over(self, living: Float[Tensor, "pools width"]) -> Bool[Tensor, " pools"]:
        """Nothing grows any more, or nothing more can come of it (`SearchConfig.stop`)."""
        highest_living = living.amax(1)
        if self.config.stop == "full":
            done = self.ended >= self.config.max_finished(self.width)
        else:  # a total only falls, and is divided by the limit's length at most
            limits = self.rules.limits.repeat_interleave(self.config.groups)
            given = min(self.config.nbest, self.width)
            done = self.finished[:, given - 1] >= highest_living / limits**self.config.length_penalty
        return done | (highest_living == -math.inf)

    def done(self) -> Bool[Tensor, " sentences"]:
        """Which sentences are over."""
        return self.over.view(-1, self.config.groups).all(1)

    def answers(self) -> list[tuple[list[Hypothesis], float]]:
        """The best finished hypotheses of each sentence, and how near it was that others had been found."""
        groups, given = self.config.groups, self.config.nbest
        score, order = self.finished.reshape(-1, self.config.beams).sort(1, descending=True)
        best = order if groups > 1 else order[:, :given]  # two groups may say the same
        each = best[:, :, None].expand(-1, -1, self.endings.shape[2])
        texts = self.endings.reshape(*order.shape, -1).gather(1, each)
        log_probs = self.ending_log_probs.reshape(*order.shape, -1).gather(1, each)
        lengths = (texts != PAD).sum(2)
        scale = (lengths[:, :given] + 1) ** self.config.length_penalty  # ties are of totals
        gaps = ((score[:, :given] - _next(score, given)) * scale).nan_to_num(math.inf).amin(1)
        margin = torch.minimum(self.margin.view(-1, groups).amin(1), gaps)
        found = []
        for some, near in zip(
            zip(*(x.tolist() for x in (score[:, : best.shape[1]], texts, log_probs, lengths)), strict=True),
            margin.tolist(),
            strict=True,
        ):
            seen: dict[tuple[int, ...], Hypothesis] = {}
            for one, ids, logs, length in zip(*some, strict=True):
                if one > -math.inf and len(seen) < given:
                    seen.setdefault(tuple(ids[:length]), Hypothesis(ids[:length], one, logs[: length + 1]))
            found.append((list(seen.values()) or [Hypothesis([], -math.inf, [])], near))  # all was forbidden
        return found


def _next(score: Tensor, count: int) -> Tensor:
    """The score after each of the first few; -inf after the last."""
    return torch.nn.functional.pad(score[:, 1 : count + 1], (0, max(0, count + 1 - score.shape[1])), value=-math.inf)
