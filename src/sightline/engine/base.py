"""The engine: a model with its vocabulary. Raw text in, raw text out, and every number in between."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self, TypeVar

import torch

from sightline.backends.base import Backend
from sightline.backends.torch import TorchBackend
from sightline.config import SearchConfig
from sightline.engine.results import Plan
from sightline.errors import InputError
from sightline.model.protocol import Inputs
from sightline.search.align import Words
from sightline.search.recorded import release
from sightline.search.types import Hypothesis, NewToken, Request, StepUpdate
from sightline.text.stream import IncrementalText, StoppedText
from sightline.text.tokenizer import Span, Tokenizer
from sightline.text.words import words_of
from sightline.trace.trace import Trace
from sightline.trace.watch import trace_pass
from sightline.trace.what_if import WhatIf, active_what_if, what_if

R = TypeVar("R")


class Engine:
    """What all engines share. An engine is safe to use from several threads."""

    def __init__(
        self,
        models: Any,
        tokenizer: Tokenizer,
        *,
        backends: Sequence[Backend] = (),
        batch_tokens: int | None = None,
    ) -> None:
        """`models`: one, or several of one vocabulary that vote. `backends`: those to prefer to torch for searches
        that they can do."""
        self.models = [model.eval() for model in (models if isinstance(models, Sequence) else [models])]
        self.tokenizer = tokenizer
        self.torch = TorchBackend(self.models, batch_tokens)
        self.backends: list[Backend] = [*backends, self.torch]
        self.max_positions = min(model.config.positions.max_length for model in self.models)

    @property
    def model(self) -> Any:
        """The model; of several, the first."""
        return self.models[0]

    @property
    def device(self) -> str:
        return self.torch.device

    @property
    def memory_bytes(self) -> int:
        """Memory that the weights take, in all backends."""
        return sum(backend.memory_bytes for backend in self.backends)

    def run(self, plan: Plan[R]) -> R:
        """Search for the answers of a plan and return its results."""
        return plan.assemble(self.search(plan.requests, plan.options, log_probs=plan.log_probs))

    def search(
        self, requests: Sequence[Request], options: SearchConfig, *, log_probs: bool = True
    ) -> list[list[Hypothesis]]:
        """Return the best answers to every request, best first."""
        found: list[list[Hypothesis]] = [[] for _ in requests]
        for update in self.steps(requests, options, log_probs=log_probs):
            for i, best in update.answers.items():
                found[i] = best
        return found

    def steps(
        self,
        requests: Sequence[Request],
        options: SearchConfig,
        *,
        streamed: Collection[int] = (),
        cancelled: Collection[int] = (),
        eager: bool = False,
        log_probs: bool = True,
    ) -> Iterator[StepUpdate]:
        """Search step by step with the first backend that can (`Backend.steps`). Only torch can stream.

        With one beam, answers end as soon as they contain a text of `Request.stop`."""
        if streamed and len(self.models) > 1:
            raise InputError("Several models that vote cannot be streamed. Load one of them.")
        texts = {i: self.stopped_text(one) for i, one in enumerate(requests) if one.stop}
        if texts and options.beams == 1 and len(self.models) == 1:
            return self._steps_until_stop(requests, options, texts, streamed, cancelled, eager=eager)
        backend = self.torch if streamed else self.backend_for(requests, options)
        return backend.steps(
            requests, options, streamed=streamed, cancelled=cancelled, eager=eager, log_probs=log_probs
        )

    def backend_for(self, requests: Sequence[Request], options: SearchConfig) -> Backend:
        """Return the backend that does a search."""
        if any(active_what_if(model) for model in self.models):  # which only the models in this process follow
            return self.torch
        return next(backend for backend in self.backends if backend.reason_not(requests, options) is None)

    def _steps_until_stop(
        self,
        requests: Sequence[Request],
        options: SearchConfig,
        texts: dict[int, StoppedText],
        streamed: Collection[int],
        cancelled: Collection[int],
        *,
        eager: bool,
    ) -> Iterator[StepUpdate]:
        """Search step by step, and end each of these answers when its text contains a stop string."""
        ended, stopped = {*cancelled}, set[int]()
        written: dict[int, list[NewToken]] = {i: [] for i in texts}
        watched = {*streamed, *texts}
        for update in self.torch.steps(requests, options, streamed=watched, cancelled=ended, eager=eager):
            tokens = {i: token for i, token in update.tokens.items() if i not in stopped}
            answers = {i: best for i, best in update.answers.items() if i not in stopped}
            for i in tokens.keys() & texts.keys():
                written[i].append(tokens[i])
                texts[i].push(tokens[i].id)
                if texts[i].stopped:
                    ended.add(i)
                    stopped.add(i)
                    answers.setdefault(i, [_hypothesis(written[i], options)])
            yield StepUpdate({i: token for i, token in tokens.items() if i in streamed}, answers)
            ended.update(cancelled)

    def stopped_text(self, request: Request) -> StoppedText:
        """Return the text of the answer to a request, to be built token by token up to a stop string."""
        return StoppedText(self.tokenizer, request.given, request.stop)

    def trace(self, source: Any, /) -> Trace:
        """Trace the model on a text, on ids, or on a result: then exactly on the ids that were written."""
        raise NotImplementedError

    @contextlib.contextmanager
    def what_if(self, **changes: Any) -> Iterator[None]:
        """Change the models inside the block, as `sightline.what_if`, for this thread."""
        with contextlib.ExitStack() as stack:
            for model in self.models:
                stack.enter_context(what_if(model, **changes))
            yield

    def prepare_what_if(self, **changes: Any) -> Callable[[], AbstractContextManager[None]]:
        """Check the changes of a `what_if`. Return a function that applies them for a block, at every call."""
        whole = [WhatIf(model, **changes) for model in self.models]

        @contextlib.contextmanager
        def applied() -> Iterator[None]:
            with contextlib.ExitStack() as stack:
                for one in whole:
                    stack.enter_context(one.applied())
                yield

        return applied

    def close(self) -> None:
        """Free the memory of recorded graphs, and of other backends."""
        for model in self.models:
            release(model)
        self.torch.prefixes.clear()
        self.backends = [self.torch]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def incremental_text(self, plan: Plan[Any]) -> IncrementalText:
        """Return the text of a plan for one text, to be built token by token."""
        before = plan.requests[0].given if plan.requests else []
        return IncrementalText(self.tokenizer, plan.pieces, before)

    def _stream(self, plan: Plan[Any]) -> Iterator[str]:
        """Yield the text of a plan piece by piece, as soon as it is certain."""
        text = self.incremental_text(plan)
        yield from filter(None, [text.flush()])
        for tokens, answers in self.steps(plan.requests, plan.options, streamed=range(len(plan.requests))):
            for i, token in tokens.items():
                yield from filter(None, [text.push(i, token.id)])
            for i in answers:
                yield from filter(None, [text.finish(i)])

    def _trace(self, **ids: list[int]) -> Trace:
        """Trace one pass over these ids: those of the source and of the target."""
        longest = max(map(len, ids.values()))
        if longest > self.max_positions:
            raise InputError.of(
                "text", None, f"has {longest} tokens, and the model has {self.max_positions} positions."
            )
        tensors = {side: torch.tensor([own], device=self.model.device) for side, own in ids.items()}
        trace = trace_pass(self.model, Inputs(**tensors))
        tokenizers = {"source": self.tokenizer.source, "target": self.tokenizer}
        trace.ids, trace.tokens = ids, {side: tokenizers[side].pieces(own) for side, own in ids.items()}
        return trace.sentence(0)


def _hypothesis(tokens: Sequence[NewToken], options: SearchConfig) -> Hypothesis:
    """Return the tokens of an answer that was ended."""
    log_probs = [one.log_prob for one in tokens]
    score = sum(log_probs) / len(log_probs) ** options.length_penalty
    return Hypothesis([one.id for one in tokens], score, log_probs, [one.top for one in tokens])


class Encodings:
    """The ids of texts. Each distinct text is encoded once; ids stay as they are."""

    def __init__(self, tokenizer: Tokenizer, *, spans: bool = False) -> None:
        """`spans`: keep the spans of the tokens too, which takes longer."""
        self.tokenizer, self.with_spans = tokenizer, spans
        self.ids: dict[str, list[int]] = {}
        self.spans: dict[str, list[Span]] = {}

    def __call__(self, texts: Sequence[str | list[int]]) -> list[list[int]]:
        new = list(dict.fromkeys(text for text in texts if isinstance(text, str) and text not in self.ids))
        if new and self.with_spans:
            for text, (ids, spans) in zip(new, self.tokenizer.encode_with_spans(new), strict=True):
                self.ids[text], self.spans[text] = ids, spans
        elif new:
            self.ids |= zip(new, self.tokenizer.encode(new), strict=True)
        return [self.ids[text] if isinstance(text, str) else text for text in texts]

    def words(self, text: str, part: str, start: int) -> Words:
        """Return a part of a text as tokens with the number of their words in the whole text."""
        (ids,) = self([part])
        return Words(ids, words_of(text, self.spans[part], start))

    def lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in self(texts)]
