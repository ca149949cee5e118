"""Parameters, requests and answers that several routes have."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, Query, Request, Response
from torch import Tensor

from sightline.engine import Engine, Translation, Translator
from sightline.serve import limits, schemas
from sightline.serve.problems import Problem
from sightline.serve.service import Search, Service
from sightline.trace.pack import numbers


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Serving = Annotated[Service, Depends(_service)]
Row = Annotated[int | None, Query(ge=0, lt=10**9, description="Only this row of the first axis, counted from 0.")]


class Bytes(Response):
    """Bytes that are not cached."""

    media_type = "application/octet-stream"

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        super().init_headers({"Cache-Control": "no-store", **(headers or {})})


def row_bytes(values: Tensor, row: int | None, dtype: str) -> tuple[str, bytes]:
    """Return a tensor or a row of it as its precision and bytes."""
    if row is not None and row >= len(values):
        raise Problem("not-found", f"`row` {row} does not exist: there are {len(values)} rows, counted from 0.")
    return numbers((values if row is None else values[row]).float().cpu().numpy(), dtype)


async def search_for(
    body: schemas.SearchRequest, texts: Sequence[str], service: Service, *, require: Sequence[str] = (), **more: Any
) -> Search[Translator, list[Translation]]:
    """Check a request for translations and return its search. `more`: parameters of `Translator.plan`."""
    limits.check_texts([*texts, *body.constraints, *require], service.config)
    limits.check_what_if(body.what_if, service.config)
    options = limits.search_options(body, service.config)
    name, engine = await service.models.engine(body.model, Translator)
    words: dict[str, Any] = {"prefix": body.prefix, "forbid": body.forbid, "require": require}
    return Search(name, engine, texts, partial(engine.plan, texts, options, **words, **more), body.what_if)


def changed(engine: Engine, what_if: schemas.WhatIf | None) -> AbstractContextManager[None]:
    """Apply the changes of a request to the passes of this thread, until the block ends."""
    return engine.prepare_what_if(**what_if.changes())() if what_if else nullcontext()


def finite(log_probs: Sequence[float]) -> None:
    """Refuse log-probabilities that are not numbers: a changed model can overflow."""
    if any(math.isnan(one) for one in log_probs):
        raise Problem("invalid", "`what_if`: with these changes the numbers of the model overflow. Change less.")


def source_ids(engine: Translator, sources: Iterable[list[int]]) -> list[int]:
    """Return the ids of a text without its end, from the sources of its segments."""
    end = engine.model.config.source_end
    return [id for source in sources for id in source[: len(source) - end]]  # noqa: A001


def translation(found: Translation, *, details: bool = True, alternatives: bool = False) -> schemas.Translation:
    """Return a translation as an answer of the API."""
    others = [translation(one, details=details, alternatives=alternatives) for one in found.alternatives]
    return schemas.Translation(
        text=found.text,
        score=found.score if math.isfinite(found.score) else None,
        tokens=found.tokens if details else None,
        log_probs=found.log_probs if details else None,
        alternatives=others if alternatives else None,
        alignment=found.alignment,
    )
