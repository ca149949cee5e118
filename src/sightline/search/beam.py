"""Beam search: the best few hypotheses of every sentence grow in parallel, one token at a time. One beam is greedy
search.

The score of a finished hypothesis y is log P(y|x) / |y|^α, where |y| counts its new tokens with the end and α is the
length penalty: 0 is the plain log-probability, which prefers short answers; 1 is the mean over tokens.

The beams of a sentence may be split into groups (diverse beam search). Each group is a pool with hypotheses of its own,
and the other groups only change what its tokens cost.
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sightline.config import SearchConfig
from sightline.errors import ConfigError
from sightline.model.cache import rows_of
from sightline.search.scoring import Scores, highest
from sightline.search.types import Hypothesis, NewToken, Request
from sightline.special import END, PAD, START, UNKNOWN

NEVER = [PAD, START, UNKNOWN]
"""Tokens that no answer has."""


# --- The state of a batch, and the rules of its requests


class Forced(NamedTuple):
    """The only token that a row may take: the next one of its prefix, or the end at its limit."""

    token: Int[Tensor, "rows 1"]
    """-1 for a free choice."""
    value: Float[Tensor, "rows 1"]

    def mask(self, values: Float[Tensor, "rows vocab"]) -> None:
        """Set all other values to -inf, in place."""
        values.masked_fill_(self.token >= 0, -math.inf)
        values.scatter_(1, self.token.clamp(min=0), torch.where(self.token >= 0, self.value, values[:, :1]))

    def replace(
        self, value: Float[Tensor, "rows best"], token: Int[Tensor, "rows best"]
    ) -> tuple[Float[Tensor, "rows best"], Int[Tensor, "rows best"]]:
        """Return the best tokens of each row, with a forced token as the only one."""
        free = self.token < 0
        first = torch.arange(value.shape[1], device=value.device) == 0
        only = torch.where(first, self.value, -math.inf)
        return torch.where(free, value, only), torch.where(free | ~first, token, self.token)


class HypothesisState:
    """The hypotheses of a batch: tensors by name, each with the same number of neighbouring rows for every sentence.

    A recorded step reads and writes them at fixed addresses. So all updates are in place, and options that do not
    change the structure of a step are tensors too.
    """

    blank: ClassVar[dict[str, float]] = {
        "limits": 1,
        "prefix": -1,
        "is_done": True,
        "decision_margin": math.inf,
        "top_log_probs": -math.inf,
    }
    """The value of a tensor in the rows that no sentence uses, if it is not 0, as `PAD` is."""
    along: ClassVar[set[str]] = {"tokens", "log_probs", "prefix", "top_ids", "top_log_probs"}
    """The tensors whose last axis is the position in the answer."""
    shared: ClassVar[set[str]] = {"length", "never", "repetition", "presence", "frequency"}
    """The tensors that all sentences share. Each sentence has rows in the others."""

    is_done: Bool[Tensor, " n"]
    """Which hypotheses or pools of them are done; the same number for each sentence."""
    decision_margin: Float[Tensor, " n"]
    """The smallest gap by which any decision was made, for each of these."""

    def __init__(self, requests: Sequence[Request], options: SearchConfig, device: torch.device) -> None:
        self.options, self.beams, self.sentences = options, options.beams, len(requests)
        limits = [request.limits for request in requests]
        constraints = [request.constraints for request in requests]
        self.longest = max(each.most for each in limits)
        """Most new tokens of any answer."""
        self.limits: Int[Tensor, " sentences"] = torch.tensor([each.most for each in limits], device=device)
        self.least: Int[Tensor, " sentences"] = torch.tensor([each.least for each in limits], device=device)
        self.cut: Bool[Tensor, " sentences"] = torch.tensor([each.cut for each in limits], device=device)
        self.has_least = any(each.least for each in limits)
        self.prefix: Int[Tensor, "sentences longest"] = torch.full((len(requests), self.longest), -1, device=device)
        for i, each in enumerate(constraints):
            if each.prefix:
                self.prefix[i, : len(each.prefix)] = torch.tensor(each.prefix, device=device)
        self.forbid = [[torch.tensor(ids, device=device) for ids in each.forbid if ids] for each in constraints]
        self.never = torch.tensor(NEVER, device=device)
        self.repetition = torch.tensor(options.repetition_penalty, device=device)
        self.presence = torch.tensor(options.presence_penalty, device=device)
        self.frequency = torch.tensor(options.frequency_penalty, device=device)
        repeated = options.repetition_penalty != 1
        self.given: Int[Tensor, "sentences given"] = _table(
            [each.given if repeated else [] for each in requests], device
        )
        """The tokens that each answer continues, if they count for the penalty of repetition."""
        self.bias_ids: Int[Tensor, "sentences biased"] = _table(
            [[i for i, _ in each.bias] for each in constraints], device
        )
        self.bias: Float[Tensor, "sentences biased"] = _table(
            [[b for _, b in each.bias] for each in constraints], device, torch.float32
        )
        rows = len(requests) * self.beams
        self.length = torch.ones((), dtype=torch.long, device=device)
        """New tokens of the hypotheses, the one that comes next included."""
        self.tokens: Int[Tensor, "rows longest+1"] = torch.full((rows, self.longest + 1), PAD, device=device)
        """The last token that was given, then the new ones."""
        last = torch.tensor([request.given[-1] for request in requests], device=device)
        self.tokens[:, 0] = last.repeat_interleave(self.beams)
        self.log_probs: Float[Tensor, "rows longest"] = torch.zeros(rows, self.longest, device=device)
        shape = (rows, _bucket(max(request.top for request in requests)), self.longest)
        self.top_ids: Int[Tensor, "rows top longest"] = torch.zeros(shape, dtype=torch.long, device=device)
        """The likeliest tokens at each position, if requested."""
        self.top_log_probs: Float[Tensor, "rows top longest"] = torch.full(shape, -math.inf, device=device)

    @property
    def penalises(self) -> bool:
        """Whether tokens are chosen by other scores than the model's."""
        return self.options.penalises or bool(self.bias_ids.shape[1])

    @property
    def structure(self) -> tuple[int | bool | str, ...]:
        """What changes the kernels of a step."""
        widths = self.given.shape[1], self.bias_ids.shape[1], self.top_ids.shape[1]
        return self.has_least, self.options.penalises, *widths

    def last(self) -> Int[Tensor, "rows 1"]:
        """Return the last token of each row."""
        return self.tokens.index_select(1, self.length.view(1) - 1)

    def grow(self, scores: Scores) -> Int[Tensor, " rows"] | None:
        """Add one token to every hypothesis. Return the row that each row continues, if rows changed."""
        raise NotImplementedError

    def done(self) -> Bool[Tensor, " sentences"]:
        """Return which sentences are done."""
        return self.is_done.view(self.sentences, -1).all(1)

    def near_ties(self, tie: float) -> Bool[Tensor, " sentences"]:
        """Return in which sentences a decision was closer than `tie`."""
        return (self.decision_margin < tie).view(self.sentences, -1).any(1)

    def answers(self) -> list[tuple[list[Hypothesis], float]]:
        """Return the best answers to each request, and the smallest gap of any decision on the way."""
        raise NotImplementedError

    def new_tokens(self) -> list[NewToken]:
        """Return the last token of each row, with the likeliest ones at its position."""
        position = self.length.view(1) - 2
        tops = self._tops(self.top_ids.index_select(2, position), self.top_log_probs.index_select(2, position))
        log_probs = self.log_probs.index_select(1, position)[:, 0].tolist()
        return [NewToken(*one[:2], one[2][0]) for one in zip(self.last()[:, 0].tolist(), log_probs, tops, strict=True)]

    def top(self) -> list[list[list[tuple[int, float]]]]:
        """Return the likeliest tokens at each position of each row."""
        return self._tops(self.top_ids, self.top_log_probs)

    def _tops(self, ids: Tensor, log_probs: Tensor) -> list[list[list[tuple[int, float]]]]:
        if not ids.shape[1]:
            return [[[]] * ids.shape[2]] * len(ids)
        both = zip(ids.transpose(1, 2).tolist(), log_probs.transpose(1, 2).tolist(), strict=True)
        return [
            [[one for one in zip(*at, strict=True) if one[1] > -math.inf] for at in zip(*row, strict=True)]
            for row in both
        ]

    def apply_rules(self, scores: Scores) -> tuple[Forced, Scores]:
        """Return the tokens that rows must take, and the scores by which tokens are chosen: forbidden tokens have -inf,
        and penalties are subtracted from a copy. A prefix comes first, whatever else is required."""
        prefix = self.prefix.index_select(1, self.length.view(1) - 1)[:, 0]
        ends = (self.limits <= self.length) & ~self.cut
        forced = torch.where(ends, END, prefix).repeat_interleave(self.beams)[:, None]
        value = scores.values.gather(1, forced.clamp(min=0)).float()
        scores.values.index_fill_(1, self.never, -math.inf)
        scores.update_first_chunk()
        if self.top_ids.shape[1]:
            self._write_top(scores)
        if self.penalises:
            scores = self._penalise(scores)
        if self.has_least:
            early = (self.least >= self.length).repeat_interleave(self.beams)
            scores.values[:, END] = scores.values[:, END].masked_fill(early, -math.inf)
        if any(self.forbid):
            self._forbid(scores.values, int(self.length))
        scores.update_first_chunk()
        return Forced(forced, value), scores

    def _write_top(self, scores: Scores) -> None:
        """Write the likeliest tokens of the model, before any penalty."""
        value, token = highest(scores.values, self.top_ids.shape[1], scores.maxima)
        position = self.length.view(1) - 1
        found = value.shape[1]  # fewer, if the vocabulary is small
        self.top_ids[:, :found].index_copy_(2, position, token[:, :, None])
        self.top_log_probs[:, :found].index_copy_(2, position, (value - scores.norm[:, None])[:, :, None])

    def _penalise(self, scores: Scores) -> Scores:
        """Return scores with the bias of tokens, and with the penalties of those that are in the text already."""
        values = scores.values.clone()
        if self.bias_ids.shape[1]:
            bias = self.bias.to(values.dtype).repeat_interleave(self.beams, 0)
            values.scatter_add_(1, self.bias_ids.repeat_interleave(self.beams, 0), bias)
        if self.options.penalises:
            answer = self.tokens[:, 1:]  # PAD where no token is yet, which is never chosen
            text = torch.cat([self.given.repeat_interleave(self.beams, 0), answer], 1)
            old = values.gather(1, text)
            values.scatter_(
                1, text, torch.where(old > 0, old / self.repetition, old * self.repetition).to(values.dtype)
            )
            present = torch.zeros_like(values).scatter_(1, answer, 1.0)
            counts = torch.zeros_like(values).scatter_add_(1, answer, torch.ones_like(answer, dtype=values.dtype))
            values -= present * self.presence + counts * self.frequency
        return scores._replace(values=values, maxima=None)

    def _forbid(self, values: Tensor, length: int) -> None:
        for i, sequences in enumerate(self.forbid):
            mine = slice(i * self.beams, (i + 1) * self.beams)
            for ids in sequences:
                if len(ids) <= length:
                    again = (self.tokens[mine, length - len(ids) + 1 : length] == ids[:-1]).all(1)
                    values[mine, ids[-1]] = values[mine, ids[-1]].masked_fill(again, -math.inf)

    def at_limit(self) -> Bool[Tensor, " sentences"]:
        """Return which sentences are cut after the next token."""
        return self.cut & (self.limits <= self.length)

    # Batches shrink, and recorded steps have room for more sentences than a batch has.

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors with rows for each sentence, by name."""
        return {name: x for name, x in vars(self).items() if isinstance(x, Tensor) and name not in self.shared}

    def _with(self, sentences: int, change: Callable[[str, Tensor, int], Tensor]) -> "HypothesisState":
        """Return a state of this many sentences. `change` takes the name of a tensor, the tensor, and its rows for each
        sentence."""
        other = copy.copy(self)
        for name, mine in self.tensors().items():
            setattr(other, name, change(name, mine, len(mine) // self.sentences))
        other.sentences = sentences
        return other

    def select(self, sentences: Int[Tensor, " kept"]) -> "HypothesisState":
        """Return a copy of these sentences. It shares `length` with this state, so only one of the two may grow."""
        other = self._with(len(sentences), lambda _, mine, times: mine[rows_of(sentences, times)])
        other.forbid = [self.forbid[i] for i in sentences.tolist()] if any(self.forbid) else []
        return other

    def allocate(self, sentences: int, longest: int) -> "HypothesisState":
        """Return a blank state of the same structure for this many sentences, and answers of this length."""

        def blank(name: str, mine: Tensor, times: int) -> Tensor:
            shape = [sentences * times, *mine.shape[1:]]
            shape[-1] += longest - self.log_probs.shape[1] if name in self.along else 0
            return mine.new_full(shape, self.blank.get(name, 0))

        other = self._with(sentences, blank)
        for name in self.shared:
            setattr(other, name, getattr(self, name).clone())
        return other

    def copy_from(self, other: "HypothesisState") -> None:
        """Take over the sentences of another state, not more than this one has room for."""
        for name, theirs in other.tensors().items():
            mine = getattr(self, name)
            mine.fill_(self.blank.get(name, 0))
            mine[tuple(slice(size) for size in theirs.shape)] = theirs
        for name in self.shared:
            getattr(self, name).copy_(getattr(other, name))

    def narrow_to(self, sentences: int) -> "HypothesisState":
        """Return a view of the first few sentences."""
        return self._with(sentences, lambda _, mine, times: mine[: times * sentences])


def _table(rows: Sequence[Sequence[int | float]], device: torch.device, dtype: torch.dtype = torch.long) -> Tensor:
    """Return rows of ids or numbers, padded on the right to a power of two, so that few steps are recorded."""
    width = _bucket(max(map(len, rows)))
    cells = [[*row, *[PAD] * (width - len(row))] for row in rows]  # PAD is 0
    return torch.tensor(cells, dtype=dtype, device=device).view(len(rows), width)


def _bucket(count: int) -> int:
    """Return the next power of two; 0 for none."""
    return 1 << (count - 1).bit_length() if count else 0


# --- Beam search


class Chosen(NamedTuple):
    """The best continuations of every pool, best first: more than it has beams."""

    total: Float[Tensor, "pools best"]
    """Log-probability of the whole hypothesis."""
    log_prob: Float[Tensor, "pools best"]
    """Of the new token alone."""
    token: Int[Tensor, "pools best"]
    row: Int[Tensor, "pools best"]
    """The hypothesis that it continues."""


class Beams(HypothesisState):
    """The hypotheses of a beam search. Rows are beams; those of a pool are neighbours, as are those of a sentence."""

    blank: ClassVar[dict[str, float]] = {**HypothesisState.blank, "alive": -math.inf, "finished": -math.inf}
    along: ClassVar[set[str]] = {*HypothesisState.along, "endings", "ending_log_probs"}
    shared: ClassVar[set[str]] = {*HypothesisState.shared, "length_penalty", "diversity", "max_finished", "nbest"}

    def __init__(self, requests: Sequence[Request], options: SearchConfig, device: torch.device) -> None:
        super().__init__(requests, options, device)
        if options.beams > 1 and self.top_ids.shape[1]:
            raise ConfigError.of(
                "top", self.top_ids.shape[1], f"needs samples or `beams` = 1, got {options.beams} beams."
            )
        self.width = options.beams // options.groups
        pools, longest = len(requests) * options.groups, self.longest
        shape, rows = (pools, self.width), pools * self.width
        self.alive: Float[Tensor, "pools width"] = torch.full(shape, -math.inf, device=device)
        """Log-probability of the hypotheses that grow."""
        self.alive[:, 0] = 0.0  # all beams start equal, so only one of them counts
        self.finished: Float[Tensor, "pools width"] = torch.full(shape, -math.inf, device=device)
        """Scores of the best finished hypotheses."""
        self.endings: Int[Tensor, "pools width longest"] = torch.full((*shape, longest), PAD, device=device)
        self.ending_log_probs: Float[Tensor, "pools width longest"] = torch.zeros(*shape, longest, device=device)
        self.ended: Int[Tensor, " pools"] = torch.zeros(pools, dtype=torch.long, device=device)
        """The number of hypotheses that have ended."""
        self.is_done = torch.zeros(pools, dtype=torch.bool, device=device)
        self.decision_margin = torch.full((pools,), math.inf, device=device)
        lengths = torch.tensor([len(request.source) for request in requests], device=device)
        columns = int(lengths.max()) if options.coverage_penalty else 0
        self.source: Bool[Tensor, "sentences source"] = torch.arange(columns, device=device) < lengths[:, None]
        """Which cells of the sources are tokens, if coverage counts."""
        self.covered: Float[Tensor, "rows source"] = torch.zeros(rows, columns, device=device)
        """Attention that each source token has got, if coverage counts."""
        self.length_penalty = torch.tensor(options.length_penalty, device=device)
        self.diversity = torch.tensor(options.diversity, device=device)
        self.max_finished = torch.tensor(options.max_finished(self.width), device=device)
        self.nbest = torch.tensor(min(options.nbest, self.width), device=device)

    def grow(self, scores: Scores) -> Int[Tensor, " rows"]:
        """Add one token to every hypothesis: its best ones compete with those of the other beams."""
        forced, ruled = self.apply_rules(scores)
        if scores.attention is not None:
            self.covered += scores.attention
        best = self._choose(ruled, forced)
        if ruled is not scores:
            best = best._replace(log_prob=self._log_prob(scores, best, forced))
        cut = self.at_limit().repeat_interleave(self.options.groups)[:, None]
        ends = ((best.token == END) | cut) & (best.total > -math.inf)
        if scores.values.dtype == torch.float32:  # with coarser numbers, ties are not searched again
            self._note_ties(best, ends)
        if best.total.is_cuda or bool(ends[:, : self.width].any()):  # asking a GPU would cost a synchronisation
            self._finish(best, ends)
        going = torch.where(ends, -math.inf, best.total)
        alive, chosen = going.topk(self.width, dim=1)
        rows = best.row.gather(1, chosen).flatten()
        for written in (self.tokens, self.log_probs, self.covered):
            written.copy_(written[rows])
        self.tokens.index_copy_(1, self.length.view(1), best.token.gather(1, chosen).view(-1, 1))
        self.log_probs.index_copy_(1, self.length.view(1) - 1, best.log_prob.gather(1, chosen).view(-1, 1))
        self.is_done |= self._is_done(alive)
        self.alive.copy_(alive.masked_fill(self.is_done[:, None], -math.inf))  # whatever its neighbours still do
        self.length += 1
        return rows

    def _choose(self, scores: Scores, forced: Forced) -> Chosen:
        """Choose twice as many as there are beams, and one more: even if many of them end, enough can grow, and
        `decision_margin` knows the best of the rest."""
        width, groups = self.width, self.options.groups
        others = self.beams if groups > 1 else 0  # earlier groups may have taken this many tokens
        value, token = forced.replace(*highest(scores.values, 2 * width + 1 + others, scores.maxima))
        log_prob = value - scores.norm[:, None]
        total = self.alive.view(-1, 1) + log_prob
        each, pools = token.shape[1], len(self.alive)
        total, log_prob, token = (x.reshape(pools, -1) for x in (total, log_prob, token))
        count = min(2 * width + 1, total.shape[1])
        found = total.topk(count, dim=1).indices if groups == 1 else self._diverse(total, token, count)
        row = found // each + torch.arange(0, pools * width, width, device=found.device)[:, None]
        return Chosen(total.gather(1, found), log_prob.gather(1, found), token.gather(1, found), row)

    @staticmethod
    def _log_prob(scores: Scores, best: Chosen, forced: Forced) -> Float[Tensor, "pools best"]:
        """Return the log-probabilities of the model for tokens that were chosen with penalties."""
        free = forced.token[best.row][:, :, 0] < 0
        values = torch.where(free, scores.values[best.row, best.token].float(), forced.value[best.row][:, :, 0])
        return values - scores.norm[best.row]

    def _diverse(self, total: Tensor, token: Tensor, count: int) -> Int[Tensor, "pools best"]:
        """Choose group after group; a token costs more each time an earlier group has taken it."""
        shape = (-1, self.options.groups, total.shape[1])
        total, token = total.view(shape), token.view(shape)
        taken, found = token[:, 0, :0], []
        for group in range(self.options.groups):
            cost = (token[:, group, :, None] == taken[:, None]).sum(2) * self.diversity
            best = (total[:, group] - cost).topk(count, dim=1).indices
            taken = torch.cat([taken, token[:, group].gather(1, best[:, : self.width])], 1)
            found.append(best)
        return torch.stack(found, 1).flatten(0, 1)

    def _note_ties(self, best: Chosen, ends: Bool[Tensor, "pools best"]) -> None:
        """Note the gaps of the two decisions on totals: which ends rank among the beams, and which others grow."""
        width, total = self.width, best.total
        if total.shape[1] <= width:
            return
        across = torch.where(torch.arange(total.shape[1], device=total.device) < width, width, width - 1)
        near = (total - total[:, across]).abs().masked_fill(~ends, math.inf).amin(1)
        going = torch.where(ends, -math.inf, total).sort(1, descending=True).values
        gap = going[:, width - 1] - going[:, width]
        self._note(torch.minimum(near, gap))

    def _note(self, gap: Float[Tensor, " pools"]) -> None:
        """Note the gap of a decision. It is infinite if -inf is involved or the sentence is done."""
        gap = torch.where(gap.isnan() | self.is_done, math.inf, gap)
        self.decision_margin.copy_(torch.minimum(self.decision_margin, gap))

    def _finish(self, best: Chosen, ends: Tensor) -> None:
        """Keep the best finished hypotheses of each pool. Only ends that rank among the beams count."""
        width = self.width
        ends = ends[:, :width] & ~self.is_done[:, None]
        self.ended += ends.sum(1)
        rows = best.row[:, :width]
        scale = self.length**self.length_penalty
        score = best.total[:, :width] / scale
        if self.options.coverage_penalty:
            source = self.source.repeat_interleave(self.beams, 0)
            logs = self.covered.clamp(1e-9, 1).log().masked_fill(~source, 0.0).sum(1)
            score = score + self.options.coverage_penalty * logs[rows]
        score = score.masked_fill(~ends, -math.inf)
        ranked, kept = torch.cat([self.finished, score], 1).sort(1, descending=True)
        dropped = (ranked[:, width - 1] - ranked[:, width]) * scale
        self._note(torch.where(self.nbest == width, dropped, math.inf))
        self.finished.copy_(ranked[:, :width])
        kept = kept[:, :width, None].expand(self.endings.shape)
        texts, log_probs = self.tokens[rows][:, :, 1:], self.log_probs[rows]
        texts.index_copy_(2, self.length.view(1) - 1, best.token[:, :width, None])
        log_probs.index_copy_(2, self.length.view(1) - 1, best.log_prob[:, :width, None])
        self.endings.copy_(torch.cat([self.endings, texts], 1).gather(1, kept))
        self.ending_log_probs.copy_(torch.cat([self.ending_log_probs, log_probs], 1).gather(1, kept))

    def _is_done(self, alive: Float[Tensor, "pools width"]) -> Bool[Tensor, " pools"]:
        """Return which pools have no hypothesis left, or no chance of a better answer (`SearchConfig.stop`)."""
        best = alive.amax(1)
        if self.options.stop == "full":
            done = self.ended >= self.max_finished
        else:  # a total only falls, and its score divides it by the length at the limit at most
            limits = self.limits.repeat_interleave(self.options.groups)
            worst = self.finished.index_select(1, self.nbest.view(1) - 1)[:, 0]
            done = worst >= best / limits**self.length_penalty
        return done | (best == -math.inf)

    def answers(self) -> list[tuple[list[Hypothesis], float]]:
        groups, nbest = self.options.groups, self.options.nbest
        score, order = self.finished.reshape(-1, self.beams).sort(1, descending=True)
        best = order if groups > 1 else order[:, :nbest]  # two groups may have the same answer
        each = best[:, :, None].expand(-1, -1, self.endings.shape[2])
        texts = self.endings.reshape(*order.shape, -1).gather(1, each)
        log_probs = self.ending_log_probs.reshape(*order.shape, -1).gather(1, each)
        lengths = (texts != PAD).sum(2)
        longest = int(lengths.max())
        scale = lengths[:, :nbest] ** self.length_penalty  # ties are those of totals
        after = torch.nn.functional.pad(score[:, 1:], (0, 1), value=-math.inf)
        gaps = ((score - after)[:, :nbest] * scale).nan_to_num(math.inf).amin(1)
        margin = torch.minimum(self.decision_margin.view(-1, groups).amin(1), gaps)
        shortened = texts[:, :, :longest], log_probs[:, :, :longest]
        found = []
        for hypotheses, near, tops in zip(
            zip(*(x.tolist() for x in (score[:, : best.shape[1]], *shortened, lengths)), strict=True),
            margin.tolist(),
            self.top()[:: self.beams],  # with several beams there are none
            strict=True,
        ):
            seen: dict[tuple[int, ...], Hypothesis] = {}
            for one, ids, logs, length in zip(*hypotheses, strict=True):
                if one > -math.inf and len(seen) < nbest:
                    own = ids[: length - (ids[length - 1] == END)]
                    # Penalties decide the search; the score is the model's.
                    mean = sum(logs[:length]) / length**self.options.length_penalty if self.penalises else one
                    seen.setdefault(tuple(own), Hypothesis(own, mean, logs[:length], tops[:length]))
            found.append((list(seen.values()) or [Hypothesis([], -math.inf, [])], near))  # everything was forbidden
        return found
