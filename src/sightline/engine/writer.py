"""The writer: a language model that continues a text (GPT)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

from sightline.config import SearchConfig
from sightline.engine.base import Encodings, Engine
from sightline.engine.results import Completion, Plan, ScoredText, Segment
from sightline.errors import InputError
from sightline.search.score import score_windows
from sightline.search.types import Constraints, Hypothesis, Limits, Request
from sightline.special import START
from sightline.text.split import Piece
from sightline.trace.trace import Trace

Written = TypeVar("Written")
MOST_TOP = 20
"""Most of the likeliest tokens that can be reported at each position."""


class Writer(Engine):
    """A trained language model."""

    def complete(
        self,
        text: str,
        n: int = 1,
        *,
        max_tokens: int = 64,
        stop: str | Sequence[str] = (),
        top: int = 0,
        beams: int | None = None,
        sample: bool | None = None,
        forbid: Sequence[str] = (),
        require: Sequence[str] = (),
        bias: Mapping[int, float] | None = None,
        **options: Any,
    ) -> list[Completion]:
        """Return `n` continuations of a text, best first, each of at most `max_tokens` tokens.

        By default they are samples; `beams` (1 is greedy search) or `sample=False` searches for the likeliest instead.
        `stop`: texts before the first of which a continuation ends. `top`: how many of the likeliest tokens to report
        at each position (not with several beams). `forbid` and `require`: words that a continuation must not or must
        contain. `bias`: numbers to add to the scores of tokens, by their ids. Other options are those of
        `SearchConfig`, whose own `stop` is for `plan`.
        """
        search = writing_options(n, beams, sample, options)
        more: dict[str, Any] = {"forbid": forbid, "require": require, "stop": stop, "top": top, "bias": bias}
        found = self.run(self.plan([text], search, max_tokens=max_tokens, **more))[0]
        return sorted(found, key=lambda one: -one.score) if stop else found  # some may have been cut

    def stream(
        self,
        text: str,
        *,
        max_tokens: int = 64,
        stop: str | Sequence[str] = (),
        forbid: Sequence[str] = (),
        bias: Mapping[int, float] | None = None,
        **options: Any,
    ) -> Iterator[str]:
        """Yield a continuation piece by piece: a sample, or with `sample=False` greedy search. No piece has a part of a
        stop string."""
        search = writing_options(1, options.pop("beams", None), options.pop("sample", None), options)
        plan = self.plan([text], search, max_tokens=max_tokens, forbid=forbid, stop=stop, bias=bias)
        return self.stream_plan(plan)

    def stream_plan(self, plan: Plan[Any]) -> Iterator[str]:
        """Yield the continuation of a plan for one text and one beam piece by piece."""
        written = self.stopped_text(plan.requests[0])
        for update in self.steps(plan.requests, plan.options, streamed=[0]):
            for token in update.tokens.values():
                yield from filter(None, [written.push(token.id)])
        yield from filter(None, [written.finish()])

    def score(self, text: str | list[int], *, stride: int | None = None, top: int = 0) -> ScoredText:
        """Return the log-probability of each token of a text, with its totals. `top`: how many of the likeliest tokens
        to report at each position.

        A text that is longer than the context of the model is read in windows, each `stride` tokens (by default half of
        the context) after the last: each token has at least a context without `stride` before it.
        """
        context = self.max_positions
        stride = max(1, context // 2) if stride is None else stride
        if not 1 <= stride <= context:
            raise InputError.of("stride", stride, f"must be from 1 to {context}, the context, got {stride}.")
        (ids,) = Encodings(self.tokenizer)([text])
        found = list(score_windows(self.model, self._checked(ids), context, stride, self._checked_top(top)))
        whole = text if isinstance(text, str) else self.tokenizer.decode(ids)
        return ScoredText(whole, ids, [one for one, _ in found], self.tokenizer, [likely for _, likely in found])

    def plan(
        self,
        texts: Sequence[str | list[int]],
        options: SearchConfig,
        *,
        max_tokens: int = 64,
        stop: str | Sequence[str] = (),
        top: int = 0,
        forbid: Sequence[str] = (),
        require: Sequence[str] = (),
        bias: Mapping[int, float] | None = None,
        seeds: Sequence[tuple[int, ...]] = (),
        log_probs: bool = True,
    ) -> Plan[list[list[Completion]]]:
        """Make the continuation of texts, or of ids without the start, ready. `seeds`: of the samples of each text, in
        the place of `SearchConfig.seed`."""
        encode, stop = Encodings(self.tokenizer), (stop,) if isinstance(stop, str) else (*stop,)
        if not all(stop):
            raise InputError.of("stop", "", "must not be empty. Leave it out.")
        self._checked([*(bias or {})], "bias")
        constraints = word_constraints(encode, forbid, require)._replace(bias=[*(bias or {}).items()])
        rows = [(list[int](), [START, *self._checked(ids)]) for ids in encode(texts)]
        result = partial(self._completion, options.length_penalty)
        plan = writing_plan(self, rows, options, max_tokens, constraints, result, log_probs=log_probs)
        own = seeds or [()] * len(rows)
        same: dict[str, Any] = {"top": self._checked_top(top), "stop": stop}
        requests = [one._replace(seed=seed, **same) for one, seed in zip(plan.requests, own, strict=True)]
        return replace(plan, requests=requests, assemble=assembling(requests, result))

    def trace(self, text: str | list[int] | Completion, /) -> Trace:
        """Trace the model on a text, on ids (with the start) as they are, or on a continuation with its text."""
        if isinstance(text, Completion):
            (segment,) = text.segments
            return self._trace(target=[*segment.source_ids, *segment.ids])
        return self._trace(target=[START, *self.tokenizer.encode([text])[0]] if isinstance(text, str) else text)

    def _completion(self, length_penalty: float, request: Request, found: Hypothesis) -> Completion:
        reason = finish_reason(request, found)
        if request.stop:
            written = self.stopped_text(request)
            for id in found.ids:  # noqa: A001
                written.push(id)
                if written.stopped:
                    break
            written.finish()
            text = written.text
            if written.stopped:
                found, reason = _cut(found, written.covered(len(text)), length_penalty), "stop"
        else:
            before, whole = self.tokenizer.decode(request.given), self.tokenizer.decode([*request.given, *found.ids])
            text = whole[len(before) :] if whole.startswith(before) else self.tokenizer.decode(found.ids)
        segment = Segment(request.given, found.ids, found.log_probs, found.score, self.tokenizer, found.top)
        return Completion(text, found.score, [segment], finish_reason=reason)

    def _checked(self, ids: list[int], name: str = "text") -> list[int]:
        """Return ids that are in the vocabulary."""
        for id in ids:  # noqa: A001
            if not 0 < id < self.tokenizer.size:
                problem = f"has the id {id}; ids of this vocabulary are from 1 to {self.tokenizer.size - 1}."
                raise InputError.of(name, id, problem)
        return ids

    def _checked_top(self, top: int) -> int:
        if not 0 <= top <= MOST_TOP:
            raise InputError.of("top", top, f"must be from 0 to {MOST_TOP}, got {top}.")
        return top


def _cut(found: Hypothesis, tokens: int, length_penalty: float) -> Hypothesis:
    """Return the first tokens of an answer."""
    log_probs = found.log_probs[:tokens]
    score = sum(log_probs) / max(1, tokens) ** length_penalty
    return Hypothesis(found.ids[:tokens], score, log_probs, found.top[:tokens])


def writing_options(n: int, beams: int | None, sample: bool | None, options: dict[str, Any]) -> SearchConfig:
    """Return the options of a search for `n` continuations: samples, unless beams are given."""
    sample = beams is None if sample is None else sample
    return SearchConfig(beams=max(beams or 1, n), nbest=n, sample=sample, **options)


def word_constraints(encode: Encodings, forbid: Sequence[str], require: Sequence[str]) -> Constraints:
    """Return the constraints of words that an answer must not and must contain."""
    required, forbidden = ([ids for ids in encode(words) if ids] for words in (require, forbid))
    return Constraints([], required, forbidden)


def writing_plan(
    engine: Engine,
    rows: Sequence[tuple[list[int], list[int]]],
    options: SearchConfig,
    max_tokens: int,
    constraints: Constraints,
    result: Callable[[Request, Hypothesis], Written],
    *,
    log_probs: bool,
) -> Plan[list[list[Written]]]:
    """Return the plan of answers of at most `max_tokens` tokens. `rows`: what the encoder and the decoder read before
    each answer. An answer ends early if the model has no more positions."""
    if max_tokens < 1:
        raise InputError.of("max_tokens", max_tokens, f"must be at least 1, got {max_tokens}.")
    requests = []
    for source, given in rows:
        room = engine.max_positions - len(given)  # also for the last token, so that the whole answer can be traced
        if room < 1:
            problem = f"has {len(given)} tokens with its start, and the model has {engine.max_positions} positions."
            raise InputError.of("text", len(given), f"{problem} Shorten it.")
        requests.append(Request(source, Limits(min(max_tokens, room), cut=True), given, constraints))
    one_piece = [Piece(" ", "")]  # also for an empty text
    return Plan(requests, options, assembling(requests, result), one_piece, log_probs)


def assembling(
    requests: Sequence[Request], result: Callable[[Request, Hypothesis], Written]
) -> Callable[[Sequence[list[Hypothesis]]], list[list[Written]]]:
    """Return the way from the answers to results."""

    def assemble(answers: Sequence[list[Hypothesis]]) -> list[list[Written]]:
        both = zip(requests, answers, strict=True)
        return [[result(request, one) for one in found] for request, found in both]

    return assemble


def finish_reason(request: Request, found: Hypothesis) -> Literal["stop", "length"]:
    """Return why an answer ended; see `Completion`."""
    return "length" if len(found.ids) == request.limits.most else "stop"
