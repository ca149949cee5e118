"""The routes of LibreTranslate, for its clients."""

import json
from typing import Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from sightline.serve import schemas
from sightline.serve.models import NAMES
from sightline.serve.problems import MODEL, Problem, responses
from sightline.serve.routes.shared import Serving, search_for

router = APIRouter(tags=["LibreTranslate"], responses=responses(*MODEL))
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
BODY = {"schema": {"$ref": "#/components/schemas/LibreRequest"}}


@router.post(
    "/translate",
    response_model_exclude_none=True,
    openapi_extra={"requestBody": {"required": True, "content": {JSON: BODY, FORM: BODY}}},
)
async def translate(request: Request, service: Serving) -> schemas.LibreAnswer:
    """Translate, for clients of LibreTranslate. Problems have an additional member `error`."""
    body = _parse(request.headers.get("content-type", ""), await request.body())
    models = {(one.source, one.target): one.name for one in reversed(service.models.entries.values()) if one.source}
    sources = {source for source, target in models if target == body.target}
    source = next(iter(sources)) if body.source == "auto" and len(sources) == 1 else body.source
    if (source, body.target) not in models:
        raise Problem("not-found", f"No model translates from {body.source} to {body.target}. See /languages.")
    texts = [body.q] if isinstance(body.q, str) else body.q
    wanted = schemas.TranslateRequest(text="", model=models[source, body.target], nbest=body.alternatives + 1)
    found = await service.run(request, await search_for(wanted, texts, service, log_probs=False))
    best, others = [one.text for one in found], [[other.text for other in one.alternatives] for one in found]
    single = isinstance(body.q, str)
    return schemas.LibreAnswer(
        translatedText=best[0] if single else best,
        alternatives=(others[0] if single else others) if body.alternatives else None,
    )


@router.get("/languages")
async def languages(service: Serving) -> list[schemas.Language]:
    """List source languages and their target languages, for clients of LibreTranslate."""
    targets: dict[str, dict[str, None]] = {}
    for one in service.models.entries.values():
        if one.source and one.target:
            targets.setdefault(one.source, {})[one.target] = None
    return [schemas.Language(code=code, name=NAMES[code], targets=[*some]) for code, some in targets.items()]


def _parse(kind: str, body: bytes) -> schemas.LibreRequest:
    """Parse a body as JSON or as a form."""
    try:
        if kind.startswith(FORM):
            fields: Any = {name: some[0] for name, some in parse_qs(body.decode(), keep_blank_values=True).items()}
        elif kind.startswith(JSON):
            fields = json.loads(body)
        else:
            raise Problem("wrong-type", f"Send {JSON} or {FORM}.")
    except (ValueError, RecursionError):
        raise Problem("malformed", "The body does not match its content type, or is not in UTF-8.") from None
    try:
        return schemas.LibreRequest.model_validate(fields, strict=kind.startswith(JSON))
    except ValidationError as error:
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in error.errors()]) from None
