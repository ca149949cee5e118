"""Translations, their scores, their alternatives, and the beam searches that find them."""

import json
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from sightline.engine import Alternative, Scored, Translation, Translator
from sightline.errors import SightlineError
from sightline.serve import limits, schemas
from sightline.serve.problems import MODEL, Problem, invalid, responses
from sightline.serve.routes.shared import Serving, changed, finite, search_for, source_ids, translation
from sightline.serve.service import ClientDisconnected

router = APIRouter(tags=["translation"], responses=responses(*MODEL))


@router.post("/v1/translate", response_model_exclude_none=True)
async def translate(body: schemas.TranslateRequest, request: Request, service: Serving) -> schemas.TranslateAnswer:
    """Translate texts. Long texts are split at the ends of sentences and joined again."""
    texts = [body.text] if isinstance(body.text, str) else body.text
    search = await search_for(body, texts, service, require=body.require, align=body.align, log_probs=body.details)
    found = await service.run(request, search)
    translations = [translation(one, details=body.details, alternatives=body.nbest > 1) for one in found]
    return schemas.TranslateAnswer(model=search.model, translations=translations)


@router.post(
    "/v1/translate/stream",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {"schema": schemas.Event.model_json_schema()}}}},
)
async def stream(body: schemas.StreamRequest, request: Request, service: Serving) -> StreamingResponse:
    """Translate a text and stream the translation. Later events never revise earlier ones."""
    events = service.stream(request, await search_for(body, [body.text], service))
    first = await anext(events)  # an error before the first event sets the status

    async def lines() -> AsyncIterator[str]:
        try:
            yield _event(first)
            async for event in events:
                yield _event(event)
        except ClientDisconnected:
            return
        except (Problem, SightlineError) as error:
            problem = invalid(error) if isinstance(error, SightlineError) else error
            yield f"event: error\ndata: {json.dumps(problem.body())}\n\n"

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)


def _event(event: str | list[Translation]) -> str:
    if isinstance(event, str):
        return f"event: token\ndata: {json.dumps({'text': event}, ensure_ascii=False)}\n\n"
    return f"event: done\ndata: {translation(event[0]).model_dump_json(exclude_none=True)}\n\n"


@router.post("/v1/score")
async def score(body: schemas.ScoreRequest, request: Request, service: Serving) -> schemas.ScoreAnswer:
    """Score given translations: the log-probability of each token."""
    sources, targets = [pair.source for pair in body.pairs], [pair.target for pair in body.pairs]
    limits.check_texts([*sources, *targets], service.config)
    limits.check_what_if(body.what_if, service.config)
    name, engine = await service.models.engine(body.model, Translator)

    def work() -> list[Scored]:
        encode_source, encode = engine.encodings()
        given, wanted = encode_source(sources), encode(targets)
        limits.check_tokens(service.config, text=given, target=wanted)
        with changed(engine, body.what_if):
            found = engine.score(given, wanted)
        for one in found:
            finite(one.log_probs)
        return found

    return schemas.ScoreAnswer.model_validate({"model": name, "scores": await service.call(request, engine, work)})


@router.post("/v1/alternatives")
async def alternatives(
    body: schemas.AlternativesRequest, request: Request, service: Serving
) -> schemas.AlternativesAnswer:
    """Return alternatives at a position of a translation, each with its continuation."""
    limits.check_texts([body.text, body.target], service.config)
    limits.check_what_if(body.what_if, service.config)
    options = limits.search_options(body, service.config)
    name, engine = await service.models.engine(body.model, Translator)

    def work() -> list[Alternative]:
        plan = engine.plan([body.text], options, log_probs=False)
        (target,) = engine.tokenizer.encode([body.target])
        source = source_ids(engine, (one.source for one in plan.requests))
        limits.check_tokens(service.config, text=[source], target=[target])
        with changed(engine, body.what_if):
            found = engine.alternatives(plan, target, body.position, body.count)
        finite([one.log_prob for one in found])
        return found

    found = await service.call(request, engine, work)
    return schemas.AlternativesAnswer.model_validate({"model": name, "alternatives": found})


@router.post("/v1/beams", response_model_exclude_none=True)
async def beams(body: schemas.BeamsRequest, request: Request, service: Serving) -> schemas.BeamsAnswer:
    """Return the tree of a beam search: each hypothesis that was in the beam at some step, and its fate."""
    search = await search_for(body, [body.text], service)
    engine = search.engine

    def work() -> schemas.BeamsAnswer:
        plan = search.make_plan()
        source = source_ids(engine, (one.source for one in plan.requests))
        limits.check_tokens(service.config, text=[source], prefix=[one.constraints.prefix for one in plan.requests])
        with changed(engine, body.what_if):
            tree = engine.tree(plan)
        tokens = engine.tokenizer.pieces(node.token for node in tree.nodes)
        nodes = [
            schemas.Beam(**{**node._asdict(), "token": token, "text": engine.tokenizer.decode(tree.ids(number))})
            for number, (node, token) in enumerate(zip(tree.nodes, tokens, strict=True))
        ]
        (best,) = plan.assemble([tree.answers])
        return schemas.BeamsAnswer(
            model=search.model,
            source=engine.tokenizer.source.pieces(source),
            beams=nodes,
            translations=[translation(one) for one in (best, *best.alternatives)],
        )

    return await service.call(request, engine, work)
