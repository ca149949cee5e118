"""The API: what can be asked, and where."""

import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qs

import prometheus_client
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ValidationError
from torch import Tensor

from sightline import __version__
from sightline.engine import Engine, Reader
from sightline.engine import Translation as Found
from sightline.errors import SightlineError
from sightline.serve import schemas
from sightline.serve.models import NAMES
from sightline.serve.problems import Problem, responses
from sightline.serve.service import Service
from sightline.trace.pack import PIECE, numbers, pack
from sightline.trace.record import Trace

__all__ = ["router"]

T = TypeVar("T")
B = TypeVar("B", schemas.AlternativesRequest, schemas.BeamsRequest, schemas.TraceRequest, schemas.SearchRequest)
MOST_PACKED = 32_000_000
"""Bytes of tensors that are sent at once."""
COMMON = ("unauthorised", "too-many", "internal", "busy", "stopping")
ALL = ("malformed", "not-found", "too-slow", "too-large", "wrong-type", "invalid", "deadline", "unavailable", *COMMON)
"""Problems that a request to a model may have."""
EVENT = {
    "type": "object",
    "properties": {"event": {"enum": ["token", "done", "error"]}, "data": {"type": "string"}},
    "required": ["event", "data"],
}
router = APIRouter()


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Serving = Annotated[Service, Depends(_service)]


@router.post("/v1/translate", response_model_exclude_none=True, responses=responses(*ALL), tags=["translation"])
async def translate(asked: schemas.TranslateRequest, request: Request, service: Serving) -> schemas.TranslateAnswer:
    """Translate texts. Long ones are split at the ends of sentences, and put together again."""
    texts = [asked.text] if isinstance(asked.text, str) else asked.text
    found, name = await _translated(asked, texts, asked.model, request, service)
    return schemas.TranslateAnswer(model=name, translations=[_translation(one, asked) for one in found])


@router.post(
    "/v1/translate/stream",
    response_class=Response,
    responses={
        200: {
            "description": (
                'Server-sent events: `token` with {"text": …} for each bit of text; at the end `done` with the whole '
                "translation, or `error` with a problem."
            ),
            "content": {"text/event-stream": {"schema": EVENT}},
        },
        **responses(*ALL),
    },
    tags=["translation"],
)
async def stream(asked: schemas.StreamRequest, request: Request, service: Serving) -> Response:
    """Translate a text, and see it grow. What was sent is never taken back."""
    _check(service, [asked.text, *asked.without], asked.beam)
    name, engine = await service.models.engine(asked.model)
    config = asked.config()
    wanted = {"prefix": asked.prefix, "without": asked.without}
    events = service.told(request, engine, name, texts=[asked.text], config=config, details=True, **wanted)
    try:  # what can be known at once is told by the status
        first = await anext(events)
    except SightlineError as error:
        raise Problem("invalid", str(error)) from None

    async def lines() -> AsyncIterator[str]:
        try:
            yield _event(first)
            async for event in events:
                yield _event(event)
        except Problem as problem:
            yield f"event: error\ndata: {json.dumps(problem.body())}\n\n"

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)


def _event(event: str | Found) -> str:
    if isinstance(event, str):
        return f"event: token\ndata: {json.dumps({'text': event}, ensure_ascii=False)}\n\n"
    whole = _translation(event, schemas.TranslateRequest(text="", details=True))
    return f"event: done\ndata: {whole.model_dump_json(exclude_none=True)}\n\n"


@router.post("/v1/score", responses=responses(*ALL), tags=["translation"])
async def score(asked: schemas.ScoreRequest, request: Request, service: Serving) -> schemas.ScoreAnswer:
    """How probable given translations are, token by token."""
    sources, targets = [pair.source for pair in asked.pairs], [pair.target for pair in asked.pairs]
    _check(service, [*sources, *targets])
    name, engine = await service.models.engine(asked.model)

    def work() -> list[Any]:
        _check_tokens(service, engine, sources, targets)
        return engine.score(sources, targets)

    found = await _called(service, request, engine, work)
    return schemas.ScoreAnswer(model=name, scores=[schemas.Scored(**one._asdict()) for one in found])


@router.post("/v1/alternatives", responses=responses(*ALL), tags=["looking inside"])
async def alternatives(
    asked: schemas.AlternativesRequest, request: Request, service: Serving
) -> schemas.AlternativesAnswer:
    """What could stand at a place in a translation, and how it would go on."""
    asked = _usual(asked, service)
    _check(service, [asked.text, asked.target], asked.beam)
    name, engine = await service.models.engine(asked.model)

    def work() -> list[Any]:
        _check_tokens(service, engine, [asked.text], [asked.target])
        return engine.alternatives(asked.text, asked.target, asked.position, asked.count, beam=asked.beam)

    found = await _called(service, request, engine, work)
    some = [schemas.Alternative(**one._asdict()) for one in found]
    return schemas.AlternativesAnswer(model=name, alternatives=some)


@router.post("/v1/beams", response_model_exclude_none=True, responses=responses(*ALL), tags=["looking inside"])
async def beams(asked: schemas.BeamsRequest, request: Request, service: Serving) -> schemas.BeamsAnswer:
    """All that a beam search looks at: each hypothesis that was among the best at some step, and what became of it."""
    asked = _usual(asked, service)
    _check(service, [asked.text, asked.prefix], max(asked.beam, asked.nbest))
    name, engine = await service.models.engine(asked.model)

    def work() -> schemas.BeamsAnswer:
        _check_tokens(service, engine, [asked.text], [asked.prefix])
        options = {"length_penalty": asked.length_penalty, "nbest": asked.nbest}
        tree = engine.beams(asked.text, beam=max(asked.beam, asked.nbest), prefix=asked.prefix, **options)
        words, details = engine.tokenizer, schemas.TranslateRequest(text="", details=True)
        tokens = words.pieces(node.token for node in tree.nodes)
        texts = [words.decode(tree.ids(number)) for number in range(len(tree.nodes))]
        nodes = [
            schemas.Beam(**{**node._asdict(), "token": token, "text": text})
            for node, token, text in zip(tree.nodes, tokens, texts, strict=True)
        ]
        found = [Found(words.decode(one.ids), one.score, words.pieces(one.ids), one.log_probs) for one in tree.answers]
        source = words.source.pieces(engine.asked([asked.text]).sources[0])
        answers = [_translation(one, details) for one in found]
        return schemas.BeamsAnswer(model=name, source=source, beams=nodes, translations=answers)

    return await _called(service, request, engine, work)


@router.post("/v1/trace", responses=responses(*ALL), tags=["looking inside"])
async def trace(asked: schemas.TraceRequest, request: Request, service: Serving) -> schemas.TraceAnswer:
    """Look into the model while it writes: tells which tensors there are. Their numbers are fetched by the id."""
    asked = _usual(asked, service)
    target = asked.target
    name, engine = await service.models.opened(asked.model)
    if isinstance(engine, Reader):
        if target is not None:
            about = engine.model.config.architecture
            raise Problem("invalid", f"target: the model {name} is {about} and has only the text; leave it out.")
    elif target is None:
        await _called(service, request, engine, lambda: _check_tokens(service, engine, [asked.text]))
        (found,), _ = await _translated(asked, [asked.text], asked.model, request, service)
        target = found.text
    given = [] if target is None else [target]
    _check(service, [asked.text, *given], asked.beam)

    def work() -> schemas.TraceAnswer:
        _check_tokens(service, engine, [asked.text], given, "target" if asked.target else "translation")
        seen = engine.trace(asked.text, *given)
        number = service.traces.add(seen, engine)
        return schemas.TraceAnswer(
            id=number,
            model=name,
            target=target,
            parts=1 if isinstance(engine, Reader) else len(engine.asked([asked.text]).sources),
            config=engine.model.config.model_dump(),
            tokens=seen.tokens,
            ids=seen.ids,
            tensors=[_tensor(seen, one) for one in seen.names()],
        )

    return await _called(service, request, engine, work)


BINARY: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Bytes.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
Dtype = Annotated[Literal["f16", "f32"], Query(description="Half or single precision, little-endian.")]
Row = Annotated[int | None, Query(ge=0, lt=10**9, description="Only this row of the first axis, from 0.")]


@router.get("/v1/trace/{id}", response_class=Response, responses={**BINARY, **responses(*ALL)}, tags=["looking inside"])
async def tensors(
    id: str,  # noqa: A002
    request: Request,
    service: Serving,
    names: Annotated[list[str], Query(description="Of tensors; all of them if none is named.")] = [],  # noqa: B006
    dtype: Dtype = "f16",
) -> Response:
    """Tensors of a trace in one block, in the trace format (docs/reference/trace.md)."""
    remembered = service.traces.get(id)

    def work() -> bytes:
        seen = remembered.trace
        wanted = names or seen.names()
        _check_names(seen, wanted)
        size = sum(math.prod(seen.sizes(one).values()) for one in wanted) * (2 if dtype == "f16" else 4)
        if size > MOST_PACKED:
            raise Problem("too-large", f"{size} bytes are too many at once; ask for fewer tensors, or for pieces.")
        return pack(seen, wanted, dtype=dtype)

    data = await _called(service, request, remembered.engine, work)
    return Response(data, media_type="application/octet-stream", headers={"Cache-Control": "no-store"})


@router.get(
    "/v1/trace/{id}/{name}", response_class=Response, responses={**BINARY, **responses(*ALL)}, tags=["looking inside"]
)
async def tensor(
    id: str,  # noqa: A002
    name: str,
    request: Request,
    service: Serving,
    row: Row = None,
    piece: Annotated[int, Query(ge=0, lt=10**6, description=f"A tensor travels in pieces of {PIECE} bytes.")] = 0,
    dtype: Dtype = "f16",
) -> Response:
    """The plain numbers of one tensor of a trace, row by row, or of one row of it. X-Pieces tells how many pieces
    these are, X-Dtype their precision: what half cannot hold is single."""
    remembered = service.traces.get(id)

    def work() -> tuple[bytes, int, str]:
        _check_names(remembered.trace, [name])
        kind, data = numbers(_row(remembered.trace[name].values, row).float().cpu().numpy(), dtype)
        count = max(math.ceil(len(data) / PIECE), 1)
        if piece >= count:
            raise Problem("not-found", f"there are {count} pieces, the first of which is 0.")
        return data[piece * PIECE : (piece + 1) * PIECE], count, kind

    data, count, kind = await _called(service, request, remembered.engine, work)
    headers = {"Cache-Control": "no-store", "X-Pieces": str(count), "X-Dtype": kind}
    return Response(data, media_type="application/octet-stream", headers=headers)


@router.get(
    "/v1/models/{model}/weights/{parameter}",
    response_class=Response,
    responses={**BINARY, **responses(*ALL)},
    tags=["looking inside"],
)
async def weights(
    model: Annotated[str, Path(description="The name of a model.")],
    parameter: Annotated[str, Path(description="Its dotted name: decoder.layers.0.feed_forward.inner.weight.")],
    request: Request,
    service: Serving,
    row: Row = None,
) -> Response:
    """The plain numbers of one row of a weight matrix, or of a whole vector; single precision, little-endian. X-Shape
    tells the shape of the whole."""
    _, engine = await service.models.opened(model)

    def work() -> tuple[bytes, str]:
        whole = dict(engine.model.named_parameters(remove_duplicate=False)).get(parameter)
        if whole is None:
            raise Problem("not-found", "there is no parameter of this name in the model.")
        if whole.dim() > 1 and row is None:
            raise Problem("invalid", f"row: this is a matrix of {len(whole)} rows; ask for one of them.")
        _, data = numbers(_row(whole.detach(), row).float().cpu().numpy(), "f32")
        return data, ",".join(map(str, whole.shape))

    data, shape = await _called(service, request, engine, work)
    headers = {"Cache-Control": "no-store", "X-Shape": shape}
    return Response(data, media_type="application/octet-stream", headers=headers)


@router.get("/v1/models/{model}/pieces", responses=responses(*ALL), tags=["looking inside"])
async def pieces(
    model: Annotated[str, Path(description="The name of a model.")],
    request: Request,
    service: Serving,
    ids: Annotated[list[int], Query(description="Numbers of entries.", max_length=1000)] = [],  # noqa: B006
) -> schemas.PiecesAnswer:
    """How entries of a model's vocabulary are written."""
    _, engine = await service.models.opened(model)

    def work() -> schemas.PiecesAnswer:
        size = engine.tokenizer.size
        if not all(0 <= one < size for one in ids):
            raise Problem("not-found", f"the vocabulary has {size} entries, the first of which is 0.")
        return schemas.PiecesAnswer(pieces=engine.tokenizer.pieces(ids))

    return await _called(service, request, engine, work)


@router.get("/v1/models", responses=responses(*COMMON), tags=["service"])
async def models(service: Serving) -> schemas.ModelsAnswer:
    """The models of this service."""
    found = []
    for name, entry in service.models.entries.items():
        source, target = entry.languages or (None, None)
        found.append(
            schemas.ModelAbout(
                name=name,
                architecture=entry.architecture,
                parameters=entry.parameters,
                loaded=entry.engine is not None,
                source=source,
                target=target,
                examples=entry.examples,
                about=entry.about,
            )
        )
    return schemas.ModelsAnswer(models=found)


@router.get("/healthz", responses=responses("unavailable"), tags=["service"])
async def healthz(service: Serving) -> dict[str, str]:
    """Whether the process works at all; if not, restart it."""
    if not service.healthy:
        raise Problem("unavailable", "a thread of the service has ended; restart it.")
    return {"status": "ok", "version": __version__}


@router.get("/readyz", responses=responses("stopping"), tags=["service"])
async def readyz(request: Request) -> dict[str, str]:
    """Whether requests should be sent here."""
    if request.app.state.stopping:
        raise Problem("stopping", "it takes no more requests.", retry=1)
    return {"status": "ok"}


@router.get("/metrics", response_class=Response, responses=responses(*COMMON), tags=["service"])
async def metrics(service: Serving) -> Response:
    """What Prometheus collects."""
    service.metrics.waiting.set(service.waiting)
    for name, entry in service.models.entries.items():
        service.metrics.loaded.labels(name).set(entry.engine is not None)
    text = prometheus_client.generate_latest(service.metrics.registry)
    return Response(text, media_type=prometheus_client.CONTENT_TYPE_LATEST)


# --- As LibreTranslate has it

FORM = {"schema": {"$ref": "#/components/schemas/LibreRequest"}}


@router.post(
    "/translate",
    response_model_exclude_none=True,
    responses=responses(*ALL),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": FORM, "application/x-www-form-urlencoded": FORM},
        }
    },
    tags=["LibreTranslate"],
)
async def libre_translate(request: Request, service: Serving) -> schemas.LibreAnswer:
    """Translate, for clients of LibreTranslate. Problems also have a member `error`, as it has."""
    asked = _libre(request.headers.get("content-type", ""), await request.body())
    pairs = {entry.languages: name for name, entry in reversed(service.models.entries.items()) if entry.languages}
    sources = {source for source, target in pairs if target == asked.target}
    source = next(iter(sources)) if asked.source == "auto" and len(sources) == 1 else asked.source
    if (source, asked.target) not in pairs:
        raise Problem("not-found", f"there is no model from {asked.source} to {asked.target}; see /languages.")
    texts, count = [asked.q] if isinstance(asked.q, str) else asked.q, asked.alternatives + 1
    search = schemas.TranslateRequest(text="", nbest=count)
    found, _ = await _translated(search, texts, pairs[source, asked.target], request, service)
    said, others = [one.text for one in found], [[other.text for other in one.alternatives] for one in found]
    if isinstance(asked.q, str):
        said, others = said[0], others[0]  # type: ignore[assignment]
    return schemas.LibreAnswer(translatedText=said, alternatives=others if asked.alternatives else None)


@router.get("/languages", responses=responses(*COMMON), tags=["LibreTranslate"])
async def languages(service: Serving) -> list[schemas.Language]:
    """What can be translated into what, for clients of LibreTranslate."""
    targets: dict[str, list[str]] = {}
    for entry in service.models.entries.values():
        if entry.languages:
            source, target = entry.languages
            known = targets.setdefault(source, [])
            known += [target] if target not in known else []
    return [schemas.Language(code=code, name=NAMES[code], targets=some) for code, some in targets.items()]


def _libre(kind: str, body: bytes) -> schemas.LibreRequest:
    try:
        form = kind.startswith("application/x-www-form-urlencoded")
        if form:
            fields: Any = {name: some[0] for name, some in parse_qs(body.decode(), keep_blank_values=True).items()}
        elif kind.startswith("application/json"):
            fields = json.loads(body)
        else:
            raise Problem("wrong-type", "send JSON, or a form (application/x-www-form-urlencoded).")
    except (ValueError, RecursionError):
        raise Problem("malformed", "the body is not what its type says, or not in UTF-8.") from None
    try:
        return schemas.LibreRequest.model_validate(fields, strict=not form)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise Problem("invalid", f"{where}: {first['msg']}.") from None


# --- What they share


async def _translated(
    asked: schemas.SearchRequest, texts: Sequence[str], model: str | None, request: Request, service: Service
) -> tuple[list[Found], str]:
    asked = _usual(asked, service)
    more = asked.model_dump(include={"without", "within", "details", "align"})
    words = [*more.get("without", []), *more.get("within", []), *filter(None, [asked.prefix])]
    config = asked.config()
    _check(service, [*texts, *words], config.beams)
    name, engine = await service.models.engine(model)
    try:
        found = await service.translations(
            request, engine, name, texts=texts, config=config, prefix=asked.prefix or None, **more
        )
    except SightlineError as error:
        raise Problem("invalid", str(error)) from None
    return found, name


async def _called(service: Service, request: Request, engine: Engine | Reader, work: Callable[[], T]) -> T:
    try:
        return await service.call(request, engine, work)
    except SightlineError as error:
        raise Problem("invalid", str(error)) from None


def _usual(asked: B, service: Service) -> B:
    """Who says nothing of beams gets no more of them than there may be."""
    if "beam" in asked.model_fields_set:
        return asked
    return asked.model_copy(update={"beam": min(asked.beam, service.config.max_beams)})


def _check(service: Service, texts: Sequence[str], beams: int = 1) -> None:
    config = service.config
    if len(texts) > config.max_texts:
        raise Problem("too-large", f"{len(texts)} texts are too many; send {config.max_texts} at most.")
    characters = sum(map(len, texts))
    if characters > config.max_characters:
        raise Problem("too-large", f"{characters} characters are too many; send {config.max_characters} at most.")
    if beams > config.max_beams:
        raise Problem("invalid", f"beam: {beams} are too many; ask for {config.max_beams} at most.")


def _check_tokens(
    service: Service, engine: Engine | Reader, sources: Sequence[str], targets: Sequence[str] = (), what: str = "target"
) -> None:
    """For what is not searched: it is done in one go. `what` the targets are."""
    most, words = service.config.max_traced, engine.tokenizer
    for name, texts in (("text", words.source.encode(sources)), (what, words.encode(targets))):
        longest = max(map(len, texts), default=0)
        if longest > most:
            raise Problem("too-large", f"a {name} of {longest} tokens is too long; it may have {most} at most.")


def _check_names(seen: Trace, names: Sequence[str]) -> None:
    for name in names:
        if name not in seen:
            raise Problem("not-found", "there is no tensor of this name in the trace.")


def _row(values: Tensor, row: int | None) -> Tensor:
    if row is None:
        return values
    if row >= len(values):
        raise Problem("not-found", f"there are {len(values)} rows, the first of which is 0.")
    return values[row]


def _tensor(seen: Trace, name: str) -> schemas.Tensor:
    sizes = seen.sizes(name)
    return schemas.Tensor(name=name, axes=list(sizes), shape=list(sizes.values()))


def _translation(found: Found, asked: schemas.TranslateRequest) -> schemas.Translation:
    return schemas.Translation(
        text=found.text,
        score=None if math.isnan(found.score) or math.isinf(found.score) else found.score,
        tokens=found.tokens if asked.details else None,
        log_probs=found.log_probs if asked.details else None,
        alternatives=[_translation(one, asked) for one in found.alternatives] if asked.nbest > 1 else None,
        alignment=found.alignment,
    )
