"""The writer: a language model that continues a text (GPT)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from sightline.config import SearchConfig
from sightline.engine.base import Encodings, Engine
from sightline.engine.results import Completion, Plan, Segment
from sightline.errors import InputError
from sightline.search.types import Constraints, Hypothesis, Limits, Request
from sightline.special import START
from sightline.text.split import Piece
from sightline.trace.trace import Trace

Written = TypeVar("Written")


class Writer(Engine):
    """A trained language model."""

    def complete(
        self,
        text: str,
        n: int = 1,
        *,
        max_tokens: int = 64,
        beams: int | None = None,
        sample: bool | None = None,
        forbid: Sequence[str] = (),
        require: Sequence[str] = (),
        **options: Any,
    ) -> list[Completion]:
        """Return `n` continuations of a text, best first, each of at most `max_tokens` tokens.

        By default they are samples; `beams` (1 is greedy search) or `sample=False` searches for the likeliest instead.
        `forbid` and `require`: words that a continuation must not or must contain. Other options are those of
        `SearchConfig`.
        """
        search = writing_options(n, beams, sample, options)
        plan = self.plan([text], search, max_tokens=max_tokens, forbid=forbid, require=require)
        return self.run(plan)[0]

    def stream(self, text: str, *, max_tokens: int = 64, forbid: Sequence[str] = (), **options: Any) -> Iterator[str]:
        """Yield a continuation piece by piece: a sample, or with `sample=False` greedy search."""
        search = writing_options(1, options.pop("beams", None), options.pop("sample", None), options)
        plan = self.plan([text], search, max_tokens=max_tokens, forbid=forbid)
        yield from self._stream(plan)

    def plan(
        self,
        texts: Sequence[str],
        options: SearchConfig,
        *,
        max_tokens: int = 64,
        forbid: Sequence[str] = (),
        require: Sequence[str] = (),
        log_probs: bool = True,
    ) -> Plan[list[list[Completion]]]:
        """Make the continuation of texts ready."""
        encode = Encodings(self.tokenizer)
        constraints = word_constraints(encode, forbid, require)
        rows = [(list[int](), [START, *ids]) for ids in encode(texts)]
        return writing_plan(self, rows, options, max_tokens, constraints, self._completion, log_probs=log_probs)

    def trace(self, text: str | list[int] | Completion, /) -> Trace:
        """Trace the model on a text, on ids (with the start) as they are, or on a continuation with its text."""
        if isinstance(text, Completion):
            (segment,) = text.segments
            return self._trace(target=[*segment.source_ids, *segment.ids])
        return self._trace(target=[START, *self.tokenizer.encode([text])[0]] if isinstance(text, str) else text)

    def _completion(self, request: Request, found: Hypothesis) -> Completion:
        segment = Segment(request.given, found.ids, found.log_probs, found.score, self.tokenizer)
        before, whole = self.tokenizer.decode(request.given), self.tokenizer.decode([*request.given, *found.ids])
        text = whole[len(before) :] if whole.startswith(before) else self.tokenizer.decode(found.ids)
        return Completion(text, found.score, [segment], finish_reason=finish_reason(request, found))


def writing_options(n: int, beams: int | None, sample: bool | None, options: dict[str, Any]) -> SearchConfig:
    """Return the options of a search for `n` continuations: samples, unless beams are given."""
    sample = beams is None if sample is None else sample
    return SearchConfig(beams=max(beams or 1, n), nbest=n, sample=sample, **options)


def word_constraints(encode: Encodings, forbid: Sequence[str], require: Sequence[str]) -> Constraints:
    """Return the constraints of words that an answer must not and must contain."""
    return Constraints([], *([ids for ids in encode(words) if ids] for words in (require, forbid)))


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

    def assemble(answers: Sequence[list[Hypothesis]]) -> list[list[Written]]:
        both = zip(requests, answers, strict=True)
        return [[result(request, one) for one in found] for request, found in both]

    one_piece = [Piece(" ", "")]  # also for an empty text
    return Plan(requests, options, assemble, one_piece, log_probs)


def finish_reason(request: Request, found: Hypothesis) -> Literal["stop", "length"]:
    """Return why an answer ended; see `Completion`."""
    return "length" if len(found.ids) == request.limits.most else "stop"
