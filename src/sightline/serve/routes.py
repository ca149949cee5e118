"""The routes of the API."""

import json
import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qs

import prometheus_client
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ValidationError
from torch import Tensor

from sightline import __version__
from sightline.config import SearchConfig
from sightline.engine import Engine, Plan, Reader, Translation, Translator
from sightline.errors import SightlineError
from sightline.serve import schemas
from sightline.serve.models import NAMES
from sightline.serve.problems import Problem, invalid, responses
from sightline.serve.service import Service
from sightline.special import END, START
from sightline.text.tokenizer import with_end
from sightline.trace.pack import PIECE, numbers, pack
from sightline.trace.trace import Trace

T = TypeVar("T")
B = TypeVar("B", schemas.AlternativesRequest, schemas.BeamsRequest, schemas.TraceRequest, schemas.SearchRequest)
MAX_PACKED = 32_000_000
"""Largest answer with several tensors, in bytes."""
COMMON = ("unauthorised", "too-many", "internal", "busy", "stopping")
ALL = ("malformed", "not-found", "too-slow", "too-large", "wrong-type", "invalid", "deadline", "unavailable", *COMMON)
"""Problems of requests to a model."""
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
async def translate(body: schemas.TranslateRequest, request: Request, service: Serving) -> schemas.TranslateAnswer:
    """Translate texts. Long texts are split at the ends of sentences and joined again."""
    texts = [body.text] if isinstance(body.text, str) else body.text
    found, name = await _translate(body, texts, body.model, request, service)
    return schemas.TranslateAnswer(model=name, translations=[_translation(one, body) for one in found])


@router.post(
    "/v1/translate/stream",
    response_class=Response,
    responses={
        200: {
            "description": (
                'Server-sent events: `token` with {"text": …} for each chunk of text; at the end `done` with the '
                "translation or `error` with a problem."
            ),
            "content": {"text/event-stream": {"schema": EVENT}},
        },
        **responses(*ALL),
    },
    tags=["translation"],
)
async def stream(body: schemas.StreamRequest, request: Request, service: Serving) -> Response:
    """Translate a text and stream the translation. Later events never revise earlier ones."""
    _check(service, [body.text, *body.without], body.beam)
    name, engine = await service.models.engine(body.model)
    make_plan = partial(engine.plan, [body.text], body.config(), prefix=body.prefix, forbid=body.without)
    events = service.stream(request, name, engine, body.text, make_plan)
    try:  # an error before the first event sets the status
        first = await anext(events)
    except SightlineError as error:
        raise invalid(error) from None

    async def lines() -> AsyncIterator[str]:
        try:
            yield _event(first)
            async for event in events:
                yield _event(event)
        except Problem as problem:
            yield f"event: error\ndata: {json.dumps(problem.body())}\n\n"

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)


def _event(event: str | Translation) -> str:
    if isinstance(event, str):
        return f"event: token\ndata: {json.dumps({'text': event}, ensure_ascii=False)}\n\n"
    whole = _translation(event, schemas.TranslateRequest(text="", details=True))
    return f"event: done\ndata: {whole.model_dump_json(exclude_none=True)}\n\n"


@router.post("/v1/score", responses=responses(*ALL), tags=["translation"])
async def score(body: schemas.ScoreRequest, request: Request, service: Serving) -> schemas.ScoreAnswer:
    """Score given translations: the log-probability of each token."""
    sources, targets = [pair.source for pair in body.pairs], [pair.target for pair in body.pairs]
    _check(service, [*sources, *targets])
    name, engine = await service.models.engine(body.model)

    def work() -> list[Any]:
        encode_source, encode = engine.encodings()
        given, wanted = encode_source(sources), encode(targets)
        _check_length(service, "text", *map(len, given))
        _check_length(service, "target", *map(len, wanted))
        return engine.score(given, wanted)

    found = await on_model_thread(service, request, engine, work)
    return schemas.ScoreAnswer(model=name, scores=[schemas.Scored(**one._asdict()) for one in found])


@router.post("/v1/alternatives", responses=responses(*ALL), tags=["looking inside"])
async def alternatives(
    body: schemas.AlternativesRequest, request: Request, service: Serving
) -> schemas.AlternativesAnswer:
    """Return alternatives at a position of a translation, each with its continuation."""
    body = cap_beams(body, service)
    _check(service, [body.text, body.target], body.beam)
    name, engine = await service.models.engine(body.model)

    def work() -> list[Any]:
        plan = engine.plan([body.text], SearchConfig(beams=body.beam), log_probs=False)
        (target,) = engine.tokenizer.encode([body.target])
        _check_length(service, "text", len(_join(engine, (one.source for one in plan.requests))))
        _check_length(service, "target", len(target))
        return engine.alternatives(plan, target, body.position, body.count)

    found = await on_model_thread(service, request, engine, work)
    some = [schemas.Alternative(**one._asdict()) for one in found]
    return schemas.AlternativesAnswer(model=name, alternatives=some)


@router.post("/v1/beams", response_model_exclude_none=True, responses=responses(*ALL), tags=["looking inside"])
async def beams(body: schemas.BeamsRequest, request: Request, service: Serving) -> schemas.BeamsAnswer:
    """Return the tree of a beam search: each hypothesis that was in the beam at some step, and its fate."""
    body = cap_beams(body, service)
    _check(service, [body.text, body.prefix], max(body.beam, body.nbest))
    name, engine = await service.models.engine(body.model)

    def work() -> schemas.BeamsAnswer:
        plan = engine.plan([body.text], body.config(), prefix=body.prefix)
        source = _join(engine, (one.source for one in plan.requests))
        _check_length(service, "text", len(source))
        _check_length(service, "prefix", *(len(request.constraints.prefix) for request in plan.requests))
        tree = engine.tree(plan)
        tokenizer, details = engine.tokenizer, schemas.TranslateRequest(text="", details=True)
        tokens = tokenizer.pieces(node.token for node in tree.nodes)
        texts = [tokenizer.decode(tree.ids(number)) for number in range(len(tree.nodes))]
        nodes = [
            schemas.Beam(**{**node._asdict(), "token": token, "text": text})
            for node, token, text in zip(tree.nodes, tokens, texts, strict=True)
        ]
        (best,) = plan.assemble([tree.answers])
        answers = [_translation(one, details) for one in (best, *best.alternatives)]
        pieces = tokenizer.source.pieces(source)
        return schemas.BeamsAnswer(model=name, source=pieces, beams=nodes, translations=answers)

    return await on_model_thread(service, request, engine, work)


@router.post("/v1/trace", responses=responses(*ALL), tags=["looking inside"])
async def trace(body: schemas.TraceRequest, request: Request, service: Serving) -> schemas.TraceAnswer:
    """Trace the model and list the recorded tensors. Their values are fetched by the id of the trace."""
    body = cap_beams(body, service)
    _check(service, [body.text, *filter(None, [body.target])], body.beam)
    name, engine = await service.models.opened(body.model)
    result = None
    if not isinstance(engine, Translator) and body.target is not None:
        architecture = engine.model.config.architecture
        detail = f"`target` does not apply to {name}, which is {architecture}. Leave it out."
        raise Problem("invalid", detail)
    if isinstance(engine, Translator) and body.target is None:
        (result,), _ = await _translate(body, [body.text], body.model, request, service, traced=True)

    def work() -> schemas.TraceAnswer:
        seen, parts = _trace(service, engine, body, result)
        number = service.traces.add(seen, engine)
        return schemas.TraceAnswer(
            id=number,
            model=name,
            target=body.target if result is None else result.text,
            parts=parts,
            config=engine.model.config.model_dump(),
            tokens=seen.tokens,
            ids=seen.ids,
            tensors=[_tensor(seen, one) for one in seen.names()],
        )

    return await on_model_thread(service, request, engine, work)


BINARY: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Bytes.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
Dtype = Annotated[Literal["f16", "f32"], Query(description="Half or single precision, little-endian.")]
Row = Annotated[int | None, Query(ge=0, lt=10**9, description="Only this row of the first axis, counted from 0.")]


@router.get("/v1/trace/{id}", response_class=Response, responses={**BINARY, **responses(*ALL)}, tags=["looking inside"])
async def tensors(
    id: str,  # noqa: A002
    request: Request,
    service: Serving,
    names: Annotated[list[str], Query(description="Names of tensors; default: all.")] = [],  # noqa: B006
    dtype: Dtype = "f16",
) -> Response:
    """Return tensors of a trace in the trace format (docs/reference/trace.md)."""
    remembered = service.traces.get(id)

    def work() -> bytes:
        seen = remembered.trace
        wanted = names or seen.names()
        _check_names(seen, wanted)
        size = sum(math.prod(seen.sizes(one).values()) for one in wanted) * (2 if dtype == "f16" else 4)
        if size > MAX_PACKED:
            raise Problem(
                "too-large",
                f"The tensors have {size} bytes, more than {MAX_PACKED}. Request fewer, or single tensors in pieces.",
            )
        return pack(seen, wanted, dtype=dtype)

    data = await on_model_thread(service, request, remembered.engine, work)
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
    piece: Annotated[int, Query(ge=0, lt=10**6, description=f"Number of the piece; a piece has {PIECE} bytes.")] = 0,
    dtype: Dtype = "f16",
) -> Response:
    """Return the values of one tensor of a trace, row by row, or of one row. The header X-Pieces is the number of
    pieces, X-Dtype the precision: f32 if half precision would overflow."""
    remembered = service.traces.get(id)

    def work() -> tuple[bytes, int, str]:
        _check_names(remembered.trace, [name])
        kind, data = numbers(_row(remembered.trace[name].values, row).float().cpu().numpy(), dtype)
        count = max(math.ceil(len(data) / PIECE), 1)
        if piece >= count:
            raise Problem(
                "not-found", f"`piece` {piece} does not exist: the tensor has {count} pieces, counted from 0."
            )
        return data[piece * PIECE : (piece + 1) * PIECE], count, kind

    data, count, kind = await on_model_thread(service, request, remembered.engine, work)
    headers = {"Cache-Control": "no-store", "X-Pieces": str(count), "X-Dtype": kind}
    return Response(data, media_type="application/octet-stream", headers=headers)


@router.get(
    "/v1/models/{model}/weights/{parameter}",
    response_class=Response,
    responses={**BINARY, **responses(*ALL)},
    tags=["looking inside"],
)
async def weights(
    model: Annotated[str, Path(description="Name of a model.")],
    parameter: Annotated[str, Path(description="Name of a parameter: decoder.layers.0.feed_forward.inner.weight.")],
    request: Request,
    service: Serving,
    row: Row = None,
) -> Response:
    """Return the values of one row of a weight matrix or of a whole vector, in single precision, little-endian. The
    header X-Shape is the shape of the whole parameter."""
    _, engine = await service.models.opened(model)

    def work() -> tuple[bytes, str]:
        whole = dict(engine.model.named_parameters(remove_duplicate=False)).get(parameter)
        if whole is None:
            raise Problem("not-found", "Unknown parameter of this model.")
        if whole.dim() > 1 and row is None:
            raise Problem("invalid", f"`row` is missing: the parameter is a matrix of {len(whole)} rows.")
        _, data = numbers(_row(whole.detach(), row).float().cpu().numpy(), "f32")
        return data, ",".join(map(str, whole.shape))

    data, shape = await on_model_thread(service, request, engine, work)
    headers = {"Cache-Control": "no-store", "X-Shape": shape}
    return Response(data, media_type="application/octet-stream", headers=headers)


@router.get("/v1/models/{model}/pieces", responses=responses(*ALL), tags=["looking inside"])
async def pieces(
    model: Annotated[str, Path(description="Name of a model.")],
    request: Request,
    service: Serving,
    ids: Annotated[list[int], Query(description="Ids of entries.", max_length=1000)] = [],  # noqa: B006
) -> schemas.PiecesAnswer:
    """Return entries of a model's vocabulary as text."""
    _, engine = await service.models.opened(model)

    def work() -> schemas.PiecesAnswer:
        size = engine.tokenizer.size
        if not all(0 <= one < size for one in ids):
            raise Problem("not-found", f"`ids` must be less than {size}, the size of the vocabulary.")
        return schemas.PiecesAnswer(pieces=engine.tokenizer.pieces(ids))

    return await on_model_thread(service, request, engine, work)


@router.get("/v1/models", responses=responses(*COMMON), tags=["service"])
async def models(service: Serving) -> schemas.ModelsAnswer:
    """List the models of this service."""
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
    """Report whether the process works. If it does not, restart it."""
    if not service.healthy:
        raise Problem("unavailable", "A thread of the service has ended. Restart the service.")
    return {"status": "ok", "version": __version__}


@router.get("/readyz", responses=responses("stopping"), tags=["service"])
async def readyz(request: Request) -> dict[str, str]:
    """Report whether the service accepts requests."""
    if request.app.state.stopping:
        raise Problem("stopping", "The service is shutting down.", retry=1)
    return {"status": "ok"}


@router.get("/metrics", response_class=Response, responses=responses(*COMMON), tags=["service"])
async def metrics(service: Serving) -> Response:
    """Return metrics for Prometheus."""
    service.metrics.waiting.set(service.waiting)
    for name, entry in service.models.entries.items():
        service.metrics.loaded.labels(name).set(entry.engine is not None)
    text = prometheus_client.generate_latest(service.metrics.registry)
    return Response(text, media_type=prometheus_client.CONTENT_TYPE_LATEST)


# --- Routes of LibreTranslate

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
    """Translate, for clients of LibreTranslate. Problems have an additional member `error`."""
    body = _libre(request.headers.get("content-type", ""), await request.body())
    pairs = {entry.languages: name for name, entry in reversed(service.models.entries.items()) if entry.languages}
    sources = {source for source, target in pairs if target == body.target}
    source = next(iter(sources)) if body.source == "auto" and len(sources) == 1 else body.source
    if (source, body.target) not in pairs:
        raise Problem("not-found", f"No model translates from {body.source} to {body.target}. See /languages.")
    texts = [body.q] if isinstance(body.q, str) else body.q
    search = schemas.TranslateRequest(text="", nbest=body.alternatives + 1)
    found, _ = await _translate(search, texts, pairs[source, body.target], request, service)
    best, others = [one.text for one in found], [[other.text for other in one.alternatives] for one in found]
    single = isinstance(body.q, str)
    return schemas.LibreAnswer(
        translatedText=best[0] if single else best,
        alternatives=(others[0] if single else others) if body.alternatives else None,
    )


@router.get("/languages", responses=responses(*COMMON), tags=["LibreTranslate"])
async def languages(service: Serving) -> list[schemas.Language]:
    """List source languages and their target languages, for clients of LibreTranslate."""
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
            raise Problem("wrong-type", "Send application/json or application/x-www-form-urlencoded.")
    except (ValueError, RecursionError):
        raise Problem("malformed", "The body does not match its content type, or is not in UTF-8.") from None
    try:
        return schemas.LibreRequest.model_validate(fields, strict=not form)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "body"
        raise Problem("invalid", f"`{name}`: {first['msg']}.") from None


# --- Shared by the routes


async def _translate(
    body: schemas.SearchRequest,
    texts: Sequence[str],
    model: str | None,
    request: Request,
    service: Service,
    *,
    traced: bool = False,
) -> tuple[list[Translation], str]:
    body = cap_beams(body, service)
    options, fields = body.config(), body.model_dump()
    forbid, require = fields.get("without", []), fields.get("within", [])
    _check(service, [*texts, *forbid, *require, *filter(None, [body.prefix])], options.beams)
    name, engine = await service.models.engine(model)
    more = {"align": fields.get("align", False), "log_probs": fields.get("details", False)}

    def make_plan() -> Plan[list[Translation]]:
        plan = engine.plan(texts, options, prefix=body.prefix, forbid=forbid, require=require, **more)
        if traced:
            _check_length(service, "text", len(_join(engine, (one.source for one in plan.requests))))
        return plan

    try:
        found = await service.translate(request, name, engine, texts, make_plan)
    except SightlineError as error:
        raise invalid(error) from None
    return found, name


async def on_model_thread(service: Service, request: Request, engine: Engine, work: Callable[[], T]) -> T:
    """Run `work` on the thread of the model."""
    try:
        return await service.call(request, engine, work)
    except SightlineError as error:
        raise invalid(error) from None


def cap_beams(body: B, service: Service) -> B:
    """Cap the default beam size at `max_beams`. An explicit one is checked instead."""
    if "beam" in body.model_fields_set:
        return body
    return body.model_copy(update={"beam": min(body.beam, service.config.max_beams)})


def _check(service: Service, texts: Sequence[str], beams: int = 1) -> None:
    config = service.config
    if len(texts) > config.max_texts:
        raise Problem("too-large", f"{len(texts)} texts are more than {config.max_texts}. Split the request.")
    characters = sum(map(len, texts))
    if characters > config.max_characters:
        raise Problem("too-large", f"{characters} characters are more than {config.max_characters}. Split the request.")
    if beams > config.max_beams:
        raise Problem("invalid", f"`beam` must be at most {config.max_beams}, got {beams}.")


def _check_length(service: Service, name: str, *lengths: int) -> None:
    """Limit the tokens of texts that are computed in one step."""
    longest, most = max(lengths, default=0), service.config.max_traced
    if longest > most:
        raise Problem("too-large", f"`{name}` has {longest} tokens, more than {most}. Send less text.")


def _join(engine: Translator, sources: Iterable[list[int]]) -> list[int]:
    """Return the ids of a text without its end, from the sources of its segments."""
    end = engine.model.config.source_end
    return [id for source in sources for id in source[: len(source) - end]]  # noqa: A001


def _trace(
    service: Service, engine: Engine, body: schemas.TraceRequest, result: Translation | None
) -> tuple[Trace, int]:
    """Trace the ids that were read and written for `result`, or those of the texts in the request. Return the trace and
    the number of segments. Several segments are traced in one pass."""
    if not isinstance(engine, Translator):
        (ids,) = engine.tokenizer.encode([body.text])
        _check_length(service, "text", len(ids))
        return engine.trace([START, *ids, END] if isinstance(engine, Reader) else [START, *ids]), 1
    if result is not None:
        sources, target = [segment.source_ids for segment in result.segments], result.ids
    else:
        sources = [request.source for request in engine.plan([body.text], SearchConfig()).requests]
        (target,) = engine.tokenizer.encode([body.target or ""])
    source = _join(engine, sources)
    _check_length(service, "text", len(source))
    _check_length(service, "translation" if result else "target", len(target))
    return engine.trace(with_end(source, engine.model.config.source_end), target), len(sources)


def _check_names(seen: Trace, names: Sequence[str]) -> None:
    for name in names:
        if name not in seen:
            raise Problem("not-found", "Unknown tensor of this trace.")


def _row(values: Tensor, row: int | None) -> Tensor:
    if row is None:
        return values
    if row >= len(values):
        raise Problem("not-found", f"`row` {row} does not exist: there are {len(values)} rows, counted from 0.")
    return values[row]


def _tensor(seen: Trace, name: str) -> schemas.Tensor:
    sizes = seen.sizes(name)
    return schemas.Tensor(name=name, axes=list(sizes), shape=list(sizes.values()))


def _translation(found: Translation, body: schemas.TranslateRequest) -> schemas.Translation:
    return schemas.Translation(
        text=found.text,
        score=None if math.isnan(found.score) or math.isinf(found.score) else found.score,
        tokens=found.tokens if body.details else None,
        log_probs=found.log_probs if body.details else None,
        alternatives=[_translation(one, body) for one in found.alternatives] if body.nbest > 1 else None,
        alignment=found.alignment,
    )
