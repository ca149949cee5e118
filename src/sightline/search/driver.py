"""Search for any number of requests, with the same result for each whatever its neighbours are.

Requests of similar size are searched together, in batches of a number of tokens; those that are done leave. The scores
that a model gives a sentence differ in the last digits with the shape of its batch (sums are added in another order),
which may decide between two hypotheses that are equally good. In float32, a request with such a near tie is searched
again alone, and that answer counts. So batches make a search faster and change nothing.
"""

import contextlib
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from sightline.config import SearchConfig
from sightline.errors import ConfigError, InputError
from sightline.model.protocol import Generative, Inputs
from sightline.search.beam import Beams, HypothesisState
from sightline.search.constrained import ConstrainedBeams, least_tokens
from sightline.search.prefix import PrefixCache
from sightline.search.recorded import LEAVE, RecordedSearch, graph_pool, release
from sightline.search.sampling import Samples
from sightline.search.scoring import last_cross_attention, next_scores
from sightline.search.types import Hypothesis, NewToken, Request, StepUpdate
from sightline.special import PAD

TIE = 2e-4
"""Hypotheses whose log-probabilities differ by less count as equally good. In float32 the log-probability of one
hypothesis differs by about 1e-5 between batches (docs/decisions/0011)."""
BATCH_TOKENS = 8192
"""Positions of a batch, those of a source counted once for each beam."""


def search(
    model: Generative, requests: Sequence[Request], options: SearchConfig, *, batch_tokens: int = BATCH_TOKENS
) -> list[list[Hypothesis]]:
    """Return the best answers to every request, best first, in the order of the requests."""
    found: list[list[Hypothesis]] = [[] for _ in requests]
    for _, answers in steps(model, requests, options, batch_tokens=batch_tokens):
        for i, best in answers.items():
            found[i] = best
    return found


def steps(
    model: Generative,
    requests: Sequence[Request],
    options: SearchConfig,
    *,
    batch_tokens: int = BATCH_TOKENS,
    streamed: Collection[int] = (),
    cancelled: Collection[int] = (),
    eager: bool = False,
    prefixes: PrefixCache | None = None,
) -> Iterator[StepUpdate]:
    """Search step by step; the caller may do other work between two steps.

    `streamed`: the requests, by number, whose tokens are reported as they are found. `cancelled`: those whose answers
    are no longer needed; the caller may add more. `eager`: report each answer as soon as it is found, instead of when
    the batch becomes smaller, which is faster. `prefixes`: of this model, from earlier searches.
    """
    if streamed and options.beams > 1:
        raise ConfigError(f"Streaming needs `beams` = 1, got {options.beams}.", option="beams", value=options.beams)
    for request in requests:
        check(request, model.config.positions.max_length)
    run = Run(model, requests, options, frozenset(streamed), cancelled, eager or bool(streamed), prefixes)
    waiting = deque(batches(requests, batch_tokens // options.beams, model.config.positions.max_length))
    while waiting:
        batch = waiting.popleft()
        try:
            yield from run.batch(batch)
        except torch.OutOfMemoryError:
            left = [i for i in batch if i not in run.answered]
            if len(left) <= 1:
                raise
            release(model)
            waiting.extendleft([left[len(left) // 2 :], left[: len(left) // 2]])
    run.prefixes = None
    for i in run.near_ties:
        if i not in cancelled:
            yield from run.batch([i])


def batches(requests: Sequence[Request], budget: int, max_positions: int) -> Iterator[list[int]]:
    """Yield the numbers of the requests to search together, the largest first. Requests with `require` are alone."""
    alone = [any(request.constraints.require) for request in requests]
    yield from ([i] for i in range(len(requests)) if alone[i])
    order = sorted((i for i in range(len(requests)) if not alone[i]), key=lambda i: -requests[i].size)
    while order:
        count = max(1, budget // requests[order[0]].size)
        batch: list[int] = []
        given = most = 0
        for i in order[:count]:  # every row reads and writes as many positions as the longest
            given, most = max(given, len(requests[i].given)), max(most, requests[i].limits.most)
            if batch and given - 1 + most > max_positions:
                break
            batch.append(i)
        yield batch
        order = order[len(batch) :]


def by_size(sizes: Mapping[int, int], budget: int) -> Iterator[list[int]]:
    """Yield the numbers of rows in batches, the largest first. Each row counts as many positions as the largest."""
    order = sorted(sizes, key=lambda i: -sizes[i])
    while order:
        count = max(1, budget // sizes[order[0]])
        yield order[:count]
        order = order[count:]


def check(request: Request, max_positions: int) -> None:
    """Raise an InputError if a model with this many positions cannot answer a request."""
    (source, limits, given, constraints, *_), needed = request, least_tokens(request.constraints)
    if len(source) > max_positions:
        raise InputError.of(
            "source",
            len(source),
            f"has {len(source)} tokens with its end, and the model reads at most {max_positions}. Shorten it.",
        )
    if needed > limits.most - (not limits.cut):
        what = "require" if any(constraints.require) else "prefix"
        raise InputError.of(
            what, needed, f"needs {needed} tokens, and the answer has at most {limits.most} with its end."
        )
    if len(given) - 1 + limits.most > max_positions:
        raise InputError.of(
            "max_tokens",
            limits.most,
            f"= {limits.most} after {len(given)} given tokens exceeds {max_positions} positions.",
        )


def inputs_of(requests: Sequence[Request], device: torch.device) -> Inputs:
    """Return what a model reads before the first step: the sources, and all that is given but the last token."""
    source, source_layout = padded([request.source for request in requests], device)
    given, layout = padded([request.given[:-1] for request in requests], device)
    return Inputs(source if source.shape[1] else None, given, source_layout, layout)


def padded(
    rows: Sequence[Sequence[int]], device: torch.device
) -> tuple[Int[Tensor, "rows length"], Bool[Tensor, "rows length"] | None]:
    """Return rows of ids, padded on the right, and their layout."""
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    cells = [[*row, *[PAD] * (longest - len(row))] for row in rows]
    ids = torch.tensor(cells, dtype=torch.long, device=device).view(len(rows), longest)
    if min(lengths) == longest:
        return ids, None
    return ids, torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]


class EagerSearch:
    """The search of one batch that computes every step anew. `RecordedSearch` has the same methods."""

    @torch.no_grad()
    def __init__(
        self,
        model: Generative,
        inputs: Inputs,
        state: HypothesisState,
        requests: Sequence[Request] = (),
        prefixes: PrefixCache | None = None,
    ) -> None:
        """`requests`: those of the state, with the texts of `prefixes`."""
        given = 0 if inputs.target is None else inputs.target.shape[1]
        coverage = state.options.coverage_penalty > 0 and not state.options.sample
        self.model, self.state, self.watched = model, state, last_cross_attention(model) if coverage else []
        capacity = given + state.longest
        self.prefixes = prefixes if prefixes and prefixes.usable(requests) else None
        kept = self.prefixes.start(requests, state.beams, capacity) if self.prefixes else None
        self.reused = kept is not None
        """Whether it began with keys of an earlier search."""
        self.cache: Any = model.start(inputs, beams=state.beams, capacity=capacity) if kept is None else kept

    @torch.no_grad()
    def keep(self, request: Request, sentences: int) -> None:
        """Keep the keys of the first of these sentences, which is that of a request, if none has left."""
        if self.prefixes and self.state.sentences == sentences and self.prefixes.usable([request]):
            self.prefixes.keep(request, self.state.tokens[0, 1 : int(self.state.length)].tolist(), self.cache)

    @torch.no_grad()
    def advance(self) -> None:
        """Add one token to every hypothesis."""
        if self.prefixes and self.prefixes.hooked():
            self.prefixes = None
        rows = self.state.grow(next_scores(self.model, self.state.last(), self.cache, self.watched))
        if rows is not None and self.state.beams > 1:
            self.cache.reorder(rows)

    def done(self) -> Bool[Tensor, " sentences"]:
        """Return which sentences are done."""
        return self.state.done()

    def should_shrink(self, left: int, total: int) -> bool:
        """Return whether it pays to continue with the sentences that are left alone."""
        return total - left >= LEAVE * total

    def select(self, sentences: Int[Tensor, " kept"]) -> None:
        """Continue with these sentences only."""
        self.cache.select(sentences)
        self.state = self.state.select(sentences)


@dataclass
class Run:
    """The requests of one call, searched batch by batch."""

    model: Generative
    requests: Sequence[Request]
    options: SearchConfig
    streamed: frozenset[int]
    cancelled: Collection[int]
    eager: bool
    prefixes: PrefixCache | None = None
    answered: set[int] = field(default_factory=set)
    near_ties: list[int] = field(default_factory=list)
    """Requests to search again, alone."""
    sent: dict[int, int] = field(default_factory=dict)
    """The number of tokens that were reported of each streamed answer."""

    def batch(self, batch: Sequence[int]) -> Iterator[StepUpdate]:
        """Search one batch, given as numbers of requests."""
        here, written = list(batch), 0
        over: set[int] = set()
        """Requests that were answered, or will be searched again."""
        with self._start(batch) as searching:
            alone = len(batch) == 1 and not searching.reused
            device, before = searching.done().device, None
            while True:
                searching.advance()
                written += 1
                done = searching.done().tolist()
                if (done, len(self.cancelled)) == before and self.streamed.isdisjoint(here):
                    yield StepUpdate({}, {})
                    continue
                before, now = (done, len(self.cancelled)), searching.state
                streaming = not over.issuperset(i for i in here if i in self.streamed)
                close = now.near_ties(TIE).tolist() if streaming and not alone else [False] * len(here)
                close = [tie and i in self.streamed for tie, i in zip(close, here, strict=True)]
                left = [row for row, i in enumerate(here) if not (done[row] or i in over or i in self.cancelled)]
                shrink = not left or searching.should_shrink(len(left), len(here))
                ready = [row for row, i in enumerate(here) if (done[row] or close[row]) and i not in over]
                tokens, answers = {}, {}
                if streaming:
                    last = zip(here, now.new_tokens(), done, close, strict=True)
                    tokens = {
                        i: token._replace(top=self._trimmed(i, [token.top])[0])
                        for i, token, *stop in last
                        if i in self.streamed - over and not any(stop)
                    }
                if ready and (self.eager or shrink):
                    found = now.select(torch.tensor(ready, device=device)).answers()
                    for row, (best, margin) in zip(ready, found, strict=True):
                        i = here[row]
                        over.add(i)
                        if not alone and (margin < TIE or close[row]):
                            self.near_ties.append(i)
                        else:
                            answers[i] = [one._replace(top=self._trimmed(i, one.top)) for one in best]
                            first = answers[i][0]
                            if i in self.streamed and len(first.ids) == written:  # it was cut after a new token
                                tokens[i] = NewToken(first.ids[-1], first.log_probs[-1], first.top[-1])
                self.answered |= answers.keys()
                yield StepUpdate(self._unsent(tokens, written), answers)
                if not left:
                    return
                if shrink:
                    searching.select(torch.tensor(left, device=device))
                    here, before = [here[row] for row in left], None

    def _eager(self, search: EagerSearch, request: Request) -> Iterator[EagerSearch]:
        """Yield a search; when it is over, or is not needed any more, keep the keys of its first request."""
        sentences = search.state.sentences
        try:
            yield search
        except GeneratorExit:  # a stream that is closed
            search.keep(request, sentences)
            raise
        search.keep(request, sentences)

    def _trimmed(self, number: int, top: list[list[tuple[int, float]]]) -> list[list[tuple[int, float]]]:
        """Return the likeliest tokens that a request asks for: others in its batch may ask for more."""
        return [one[: self.requests[number].top] for one in top]

    def _unsent(self, tokens: dict[int, NewToken], written: int) -> dict[int, NewToken]:
        """Return the tokens that were not reported before: a streamed request may be searched twice."""
        new = {i: token for i, token in tokens.items() if written > self.sent.get(i, 0)}
        self.sent |= dict.fromkeys(new, written)
        return new

    @contextlib.contextmanager
    def _start(self, batch: Sequence[int]) -> Iterator[EagerSearch | RecordedSearch]:
        """Start the search of a batch: with recorded steps if possible; not for coverage, `require` and `forbid`."""
        requests, options, device = [self.requests[i] for i in batch], self.options, self.model.device
        inputs, constrained = inputs_of(requests, device), any(requests[0].constraints.require)
        kind = ConstrainedBeams if constrained else Samples if options.sample else Beams
        state = kind(requests, options, device)
        coverage = options.coverage_penalty > 0 and not options.sample
        recordable = not (coverage or constrained or any(state.forbid))
        with graph_pool(self.model) if recordable else contextlib.nullcontext() as pool:
            if pool is None:
                yield from self._eager(EagerSearch(self.model, inputs, state, requests, self.prefixes), requests[0])
            else:
                yield RecordedSearch(pool, self.model, inputs, state)
