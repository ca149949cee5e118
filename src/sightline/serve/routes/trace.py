"""Traces: the tensors of a pass through a model."""

import math
from typing import Annotated, Literal

import torch
from fastapi import APIRouter, Query, Request

from sightline.config import SearchConfig
from sightline.engine import Chat, Engine, Plan, Reader, Reply, Result, Translation, Translator
from sightline.serve import limits, schemas
from sightline.serve.problems import MODEL, Problem, responses
from sightline.serve.routes.shared import Bytes, Row, Serving, changed, row_bytes, search_for, source_ids
from sightline.serve.service import Search, Service
from sightline.special import END, START
from sightline.text.tokenizer import with_end
from sightline.trace.explain import logit_lens
from sightline.trace.lineage import stacks
from sightline.trace.pack import PIECE, manifest, pack_trace
from sightline.trace.trace import Trace

router = APIRouter(tags=["looking inside"], responses=responses(*MODEL))
Dtype = Annotated[Literal["f16", "f32"], Query(description="Half or single precision, little-endian.")]


@router.post("/v1/trace", response_model_exclude_unset=True)
async def trace(body: schemas.TraceRequest, request: Request, service: Serving) -> schemas.TraceAnswer:
    """Trace the model and list the recorded tensors. Their values are fetched by the id of the trace."""
    limits.check_texts([body.text, *filter(None, [body.target]), *body.constraints], service.config)
    limits.check_what_if(body.what_if, service.config)
    options = limits.search_options(body, service.config)
    name, engine = await service.models.engine(body.model, Engine)
    result: Result | None = None
    if not isinstance(engine, Translator) and body.target is not None:
        raise Problem("invalid", f"`target` does not apply to {name}, which does not translate. Leave it out.")
    if isinstance(engine, Translator) and body.target is None:
        search = await search_for(body, [body.text], service, log_probs=False)

        def make_plan() -> Plan[list[Translation]]:
            plan = search.make_plan()
            text = source_ids(search.engine, (one.source for one in plan.requests))
            limits.check_tokens(service.config, text=[text])
            return plan

        (result,) = await service.run(request, search._replace(make_plan=make_plan))
    elif isinstance(engine, Chat):

        def make_reply_plan() -> Plan[list[list[Reply]]]:
            plan = engine.plan([body.text], options, forbid=body.forbid, log_probs=False)
            limits.check_tokens(service.config, text=[one.source or one.given for one in plan.requests])
            return plan

        ((result, *_),) = await service.run(request, Search(name, engine, [body.text], make_reply_plan, body.what_if))

    def work() -> schemas.TraceAnswer:
        with changed(engine, body.what_if):
            seen, parts = _trace(service, engine, body, result)
        seen.model, seen.parts = name, parts
        return schemas.TraceAnswer(
            id=service.traces.add(seen, engine),
            target=body.target if result is None else result.text,
            log_probs=[one if math.isfinite(one) else None for one in _log_probs(seen)],
            what_if=body.what_if,
            **manifest(seen),
        )

    return await service.call(request, engine, work)


@router.get("/v1/trace/{id}", response_class=Bytes)
async def tensors(
    id: str,  # noqa: A002
    request: Request,
    service: Serving,
    names: Annotated[list[str], Query(description="Names of tensors; default: all.")] = [],  # noqa: B006
    dtype: Dtype = "f16",
) -> Bytes:
    """Return tensors of a trace in the trace format (docs/reference/trace.md)."""
    stored = service.traces.get(id, names)

    def work() -> bytes:
        wanted = names or stored.trace.names()
        numbers = sum(math.prod(stored.trace.sizes(one).values()) for one in wanted)
        limits.check_packed(numbers * (2 if dtype == "f16" else 4))
        return pack_trace(stored.trace, wanted, dtype=dtype)

    return Bytes(await service.call(request, stored.engine, work))


@router.get("/v1/trace/{id}/lens")
async def lens(
    id: str,  # noqa: A002
    request: Request,
    service: Serving,
    position: Annotated[int, Query(ge=0, lt=10**6, description="A position of the stack that predicts words.")],
    count: Annotated[int, Query(ge=1, le=20, description="Number of entries.")] = 3,
) -> schemas.LensAnswer:
    """Return the logit lens at a position of a trace: the likeliest entries of the vocabulary after each layer."""
    stored = service.traces.get(id, [])
    trace, engine = stored.trace, stored.engine
    stack = stacks(engine.model)[-1]["name"]  # the one that predicts tokens

    def work() -> schemas.LensAnswer:
        length = trace.sizes(f"{stack}.output")["position"]
        if position >= length:
            raise Problem("not-found", f"`position` {position} does not exist: there are {length}, counted from 0.")
        best = logit_lens(trace, engine.model, stack, position).values[:, 0].float().softmax(-1).topk(count)
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return schemas.LensAnswer(
            layers=[
                [
                    schemas.LensEntry(id=entry, token=token, probability=probability)
                    for entry, token, probability in zip(ids, engine.tokenizer.pieces(ids), probabilities, strict=True)
                ]
                for ids, probabilities in rows
            ]
        )

    return await service.call(request, engine, work)


@router.get("/v1/trace/{id}/{name}", response_class=Bytes)
async def tensor(
    id: str,  # noqa: A002
    name: str,
    request: Request,
    service: Serving,
    row: Row = None,
    piece: Annotated[int, Query(ge=0, lt=10**6, description=f"Number of the piece; a piece has {PIECE} bytes.")] = 0,
    dtype: Dtype = "f16",
) -> Bytes:
    """Return the values of one tensor of a trace, row by row, or of one row. The header X-Pieces is the number of
    pieces, X-Dtype the precision: f32 if half precision would overflow."""
    stored = service.traces.get(id, [name])

    def work() -> Bytes:
        kind, data = row_bytes(stored.trace[name].values, row, dtype)
        count = max(math.ceil(len(data) / PIECE), 1)
        if piece >= count:
            detail = f"`piece` {piece} does not exist: the tensor has {count} pieces, counted from 0."
            raise Problem("not-found", detail)
        return Bytes(data[piece * PIECE : (piece + 1) * PIECE], headers={"X-Pieces": str(count), "X-Dtype": kind})

    return await service.call(request, stored.engine, work)


def _trace(service: Service, engine: Engine, body: schemas.TraceRequest, result: Result | None) -> tuple[Trace, int]:
    """Trace the ids that were read and written for `result`, or those of the texts in the request. Return the trace and
    the number of segments. Several segments are traced in one pass."""
    if isinstance(engine, Chat) and isinstance(result, Reply):
        return engine.trace(result), 1
    if not isinstance(engine, Translator):
        reads, tokenizer = isinstance(engine, Reader), engine.tokenizer
        ids = tokenizer.encode_masked([body.text])[0][0] if reads else tokenizer.encode([body.text])[0]
        limits.check_tokens(service.config, text=[ids])
        return engine.trace([START, *ids, END] if reads else [START, *ids]), 1
    if result is not None:
        sources, target = [segment.source_ids for segment in result.segments], result.ids
    else:
        sources = [one.source for one in engine.plan([body.text], SearchConfig()).requests]
        (target,) = engine.tokenizer.encode([body.target or ""])
    source = source_ids(engine, sources)
    limits.check_tokens(service.config, text=[source], **{"translation" if result else "target": [target]})
    return engine.trace(with_end(source, engine.model.config.source_end), target), len(sources)


def _log_probs(seen: Trace) -> list[float]:
    """Return the log-probability of the token after each position of a decoder, or of the tokens of an encoder."""
    ids = [*seen.ids["target"][1:], END] if "target" in seen.ids else seen.ids["source"]
    log_probs = seen["logits"].values.float().log_softmax(-1)
    found: list[float] = log_probs[torch.arange(len(ids)), ids].tolist()
    return found
