"""Continuations of texts, in the form of OpenAI's API."""

import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from functools import cached_property
from typing import NamedTuple

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from sightline.config import SearchConfig
from sightline.engine import Completion, Plan, ScoredText, Segment, Writer
from sightline.errors import SightlineError
from sightline.search.types import NewToken
from sightline.serve import limits, schemas
from sightline.serve.problems import MODEL, Problem, invalid, responses
from sightline.serve.routes.shared import Serving
from sightline.serve.service import ClientDisconnected, Search, Service
from sightline.serve.worker import Written
from sightline.special import START

router = APIRouter(tags=["OpenAI"], responses=responses(*MODEL))
LEAST_TOP_P = 1e-9
"""Only the likeliest token is left, as OpenAI's `top_p` = 0 means."""
Logprobs = schemas.CompletionLogprobs
Events = AsyncIterator[Written | list[list[Completion]]]


@router.post(
    "/v1/completions",
    response_model=schemas.CompletionAnswer,
    responses={200: {"content": {"text/event-stream": {"schema": schemas.CompletionEvent.model_json_schema()}}}},
)
async def completions(body: schemas.CompletionRequest, request: Request, service: Serving) -> Response:
    """Continue texts, for clients of OpenAI. With `stream`, each event has a part of one continuation, and the last one
    is [DONE]."""
    asked = Asked(body, *await service.models.engine(_model(body, service), Writer), service)
    if body.echo and body.logprobs is not None:
        await service.call(request, asked.engine, asked.score_prompts)
    if not body.stream:
        found = await service.run(request, asked.search) if asked.tokens else asked.empty()
        return Response(asked.answer([one for (one,) in found]).model_dump_json(), media_type="application/json")
    events = asked.events(request)
    first = await anext(events)  # an error before the first event sets the status

    async def lines() -> AsyncIterator[str]:
        try:
            for chunk in [*asked.beginning(), *asked.chunks(first)]:
                yield asked.event(chunk)
            async for event in events:
                for chunk in asked.chunks(event):
                    yield asked.event(chunk)
            if asked.include_usage:
                yield asked.event(None)
            yield "data: [DONE]\n\n"
        except ClientDisconnected:
            return
        except (Problem, SightlineError) as error:
            problem = asked.problem(error)
            yield f"data: {json.dumps({'error': problem.openai_error()})}\n\n"

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)


class Asked:
    """A request for continuations, and what is known of its answer so far."""

    def __init__(self, body: schemas.CompletionRequest, name: str, engine: Writer, service: Service) -> None:
        self.body, self.name, self.engine, self.service = body, name, engine, service
        self.id, self.created = f"cmpl-{secrets.token_hex(12)}", int(time.time())
        given = body.prompt
        single = isinstance(given, str) or (bool(given) and isinstance(given[0], int))
        self.prompts: list[str | list[int]] = [given] if single else given  # type: ignore[assignment, list-item]
        self.tokens = 16 if body.max_tokens is None else body.max_tokens
        self.n = 1 if body.n is None else body.n
        self.include_usage = bool(body.stream_options and body.stream_options.include_usage)
        texts = [one for one in self.prompts if isinstance(one, str)]
        limits.check_texts([*texts, *self.stop], service.config)
        if body.stream_options is not None and not body.stream:
            detail = "`stream_options` needs `stream` = true. Leave it out."
            raise Problem("invalid", detail, param="stream_options")
        if len(self.prompts) * self.n > service.config.max_texts:
            raise Problem("too-large", f"{len(self.prompts)} prompts with `n` = {self.n} are too many. Send fewer.")
        if self.n > service.config.max_nbest:
            detail = f"`n` must be at most {service.config.max_nbest}, got {self.n}."
            raise Problem("invalid", detail, param="n")
        self.search = Search(name, engine, texts, lambda: self.plan)
        self.options = self._options()
        self.scores: list[ScoredText] = []
        self.choices: list[Choice] = []
        self.written = 0

    @property
    def stop(self) -> list[str]:
        stop = [] if self.body.stop is None else self.body.stop
        return [stop] if isinstance(stop, str) else stop

    def _options(self) -> SearchConfig:
        """Return the options of the search for one continuation."""
        body, sample = self.body, self.body.temperature != 0
        given = {
            "temperature": body.temperature or None,
            "top_p": None if body.top_p is None else max(body.top_p, LEAST_TOP_P),
            **{name: getattr(body, name) for name in ("top_k", "min_p", "repetition_penalty")},
            **{name: getattr(body, name) for name in ("presence_penalty", "frequency_penalty")},
        }
        if (body.top_k or 0) > self.service.config.max_top_k:
            detail = f"`top_k` must be at most {self.service.config.max_top_k}, got {body.top_k}."
            raise Problem("invalid", detail, param="top_k")
        return SearchConfig(beams=1, sample=sample, **{name: one for name, one in given.items() if one is not None})

    @cached_property
    def plan(self) -> Plan[list[list[Completion]]]:
        """The search: a request for each choice. It tokenises, so it is made on the model's thread."""
        seed = secrets.randbits(63) if self.body.seed is None else self.body.seed % 2**64
        # Of several choices, each has its own seed; the first has that of a single one.
        seeds = [(seed, *filter(None, [i])) for _ in self.prompts for i in range(self.n)]
        try:
            return self.engine.plan(
                [prompt for prompt in self.prompts for _ in range(self.n)],
                self.options,
                max_tokens=max(1, self.tokens),
                stop=self.stop,
                top=self.body.logprobs or 0,
                bias=self.bias(),
                seeds=seeds,
            )
        except SightlineError as error:
            raise self.problem(error) from None

    def bias(self) -> dict[int, float]:
        """Return the bias of tokens by their ids."""
        try:
            return {int(id): value for id, value in (self.body.logit_bias or {}).items()}  # noqa: A001
        except ValueError:
            raise Problem("invalid", "`logit_bias` must have ids of tokens as names.", param="logit_bias") from None

    def problem(self, error: Problem | SightlineError) -> Problem:
        """Return an error with the names of this API."""
        if isinstance(error, Problem):
            return error
        names = {"text": "prompt", "top": "logprobs", "bias": "logit_bias"}
        found = invalid(error)
        found.param = names.get(error.option or "", error.option)
        found.detail = found.detail.replace(f"`{error.option}`", f"`{found.param}`")
        return found

    def ids(self, prompt: int) -> list[int]:
        """Return the ids of a prompt, without the start."""
        return self.plan.requests[prompt * self.n].given[1:]

    def text(self, prompt: int) -> str:
        """Return the text of a prompt."""
        given = self.prompts[prompt]
        return given if isinstance(given, str) else self.engine.tokenizer.decode(given)

    def score_prompts(self) -> None:
        """Compute the log-probabilities of the prompts. They are checked as the search is."""
        limits.check_plan(self.plan, self.service.config)
        for prompt in range(len(self.prompts)):
            self.scores.append(self.engine.score(self.ids(prompt), top=self.body.logprobs or 0))

    def empty(self) -> list[list[Completion]]:
        """Return continuations without tokens."""
        limits.check_plan(self.plan, self.service.config)
        return [
            [Completion("", 0.0, [Segment(one.given, [], [], 0.0, self.engine.tokenizer)], finish_reason="length")]
            for one in self.plan.requests
        ]

    def events(self, request: Request) -> Events:
        """Search; yield the tokens, then the continuations."""
        if not self.tokens:
            return _only(self.empty())
        return self.service.stream_tokens(request, self.search)

    # --- Whole answers

    def answer(self, found: Sequence[Completion]) -> schemas.CompletionAnswer:
        """Return the answer with all choices."""
        choices = [self._choice(number, one) for number, one in enumerate(found)]
        usage = self.usage(sum(len(one.ids) for one in found))
        return schemas.CompletionAnswer(id=self.id, created=self.created, model=self.name, choices=choices, usage=usage)

    def usage(self, written: int) -> schemas.Usage:
        """Return the numbers of tokens. A prompt counts once, whatever `n` is."""
        read = sum(len(self.ids(prompt)) for prompt in range(len(self.prompts)))
        return schemas.Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)

    def _choice(self, number: int, found: Completion) -> schemas.CompletionChoice:
        begun = self.begun(number)
        text, logprobs = begun.text + found.text, begun.logprobs
        if self.body.logprobs is not None:
            (segment,) = found.segments
            written = self.engine.stopped_text(self.plan.requests[number])
            for id in segment.ids:  # noqa: A001
                written.push(id)
            tops = segment.top or [[]] * len(segment.ids)
            tokens = [NewToken(*one) for one in zip(segment.ids, segment.log_probs, tops, strict=False)]
            own = self.logprobs(tokens, written.offsets, len(begun.text))
            logprobs = own if logprobs is None else logprobs.joined(own)
        return schemas.CompletionChoice(index=number, text=text, logprobs=logprobs, finish_reason=found.finish_reason)

    def begun(self, number: int) -> "Begun":
        """Return what a choice begins with: nothing or, with `echo`, its prompt."""
        if not self.body.echo:
            return Begun("", None)
        prompt = number // self.n
        if not self.scores:
            return Begun(self.text(prompt), None)
        scored = self.scores[prompt]
        written = self.engine.stopped_text(self.plan.requests[number]._replace(given=[START], stop=()))
        for id in scored.ids:  # noqa: A001
            written.push(id)
        tokens = [NewToken(*one) for one in zip(scored.ids, scored.log_probs, scored.top, strict=True)]
        return Begun(self.text(prompt), self.logprobs(tokens, written.offsets, 0))

    def logprobs(self, tokens: Sequence[NewToken], offsets: Sequence[int], begin: int) -> Logprobs:
        """Return the log-probabilities of tokens. `begin` is added to their places in the text."""
        name = self.engine.tokenizer.token_text
        top = [{name(id): value for id, value in [(one.id, one.log_prob), *one.top]} for one in tokens]  # noqa: A001
        return Logprobs(
            tokens=[name(one.id) for one in tokens],
            token_logprobs=[one.log_prob for one in tokens],
            top_logprobs=top if self.body.logprobs else None,
            text_offset=[begin + offset for offset in offsets[: len(tokens)]],
        )

    # --- Streamed answers

    def beginning(self) -> list[schemas.CompletionChunkChoice]:
        """Return the first chunk of each choice, with `echo`."""
        self.choices = [Choice(self, number) for number in range(len(self.plan.requests))]
        return [one.begin() for one in self.choices if self.body.echo]

    def chunks(self, event: Written | list[list[Completion]]) -> list[schemas.CompletionChunkChoice]:
        """Return the chunks that an event of the search adds."""
        if isinstance(event, Written):
            return self.choices[event.number].push(event.token)
        self.written = sum(len(one.ids) for (one,) in event)
        return [choice.finish(one) for choice, (one,) in zip(self.choices, event, strict=True)]

    def event(self, choice: schemas.CompletionChunkChoice | None) -> str:
        """Return a chunk as a server-sent event; without a choice, that of the usage."""
        usage = self.usage(self.written) if choice is None else None
        chunk = schemas.CompletionChunk(
            id=self.id, created=self.created, model=self.name, choices=[choice] if choice else [], usage=usage
        )
        # Without `stream_options.include_usage`, no chunk has the field; with it, all others have null.
        return f"data: {chunk.model_dump_json(exclude=None if self.include_usage else {'usage'})}\n\n"


class Begun(NamedTuple):
    """What a choice begins with."""

    text: str
    logprobs: Logprobs | None


class Choice:
    """A continuation that is streamed."""

    def __init__(self, asked: Asked, number: int) -> None:
        self.asked, self.number = asked, number
        self._text = asked.engine.stopped_text(asked.plan.requests[number])
        self._begun = len(asked.text(number // asked.n)) if asked.body.echo else 0
        self._tokens: list[NewToken] = []
        self._sent_tokens = self._sent = 0

    def begin(self) -> schemas.CompletionChunkChoice:
        """Return the chunk with the prompt."""
        begun = self.asked.begun(self.number)
        return schemas.CompletionChunkChoice(index=self.number, text=begun.text, logprobs=begun.logprobs)

    def push(self, token: NewToken) -> list[schemas.CompletionChunkChoice]:
        """Return the chunk with the text that a token makes certain, if there is any."""
        self._tokens.append(token)
        text = self._text.push(token.id)
        return [self._chunk(text, self._text.covered(self._sent + len(text)))] if text else []

    def finish(self, found: Completion) -> schemas.CompletionChunkChoice:
        """Return the last chunk, with the rest of the text."""
        chunk = self._chunk(found.text[self._sent :], len(found.ids))
        return chunk.model_copy(update={"finish_reason": found.finish_reason})

    def _chunk(self, text: str, tokens: int) -> schemas.CompletionChunkChoice:
        logprobs = None
        if self.asked.body.logprobs is not None:
            new, offsets = self._tokens[self._sent_tokens : tokens], self._text.offsets[self._sent_tokens : tokens]
            logprobs = self.asked.logprobs(new, offsets, self._begun)
        self._sent, self._sent_tokens = self._sent + len(text), max(tokens, self._sent_tokens)
        return schemas.CompletionChunkChoice(index=self.number, text=text, logprobs=logprobs)


def _model(body: schemas.CompletionRequest, service: Service) -> str:
    """Return the name of the model: by default, the first that writes."""
    writers = [one.name for one in service.models.entries.values() if one.task == "write"]
    return writers[0] if body.model is None else body.model


async def _only(found: list[list[Completion]]) -> Events:
    yield found
