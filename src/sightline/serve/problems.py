"""What can go wrong with a request, told as RFC 9457 has it: a JSON object with type, title, status and detail."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

__all__ = ["KINDS", "Kind", "Problem", "ProblemDetails", "responses"]


class Kind(NamedTuple):
    """A sort of problem."""

    status: int
    title: str


KINDS = {
    "malformed": Kind(400, "The request cannot be read"),
    "unauthorised": Kind(401, "A key is needed"),
    "not-found": Kind(404, "There is no such thing"),
    "wrong-method": Kind(405, "This cannot be done here"),
    "too-slow": Kind(408, "The request did not come in time"),
    "too-large": Kind(413, "The request is too large"),
    "wrong-type": Kind(415, "The request is of an unknown type"),
    "invalid": Kind(422, "The request asks for what cannot be"),
    "too-many": Kind(429, "Too many requests for this key"),
    "internal": Kind(500, "This should not have happened"),
    "busy": Kind(503, "There is too much to do"),
    "deadline": Kind(503, "The answer took too long"),
    "unavailable": Kind(503, "The model cannot be used"),
    "stopping": Kind(503, "The service is being stopped"),
}


class ProblemDetails(BaseModel):
    """Why a request has no answer (RFC 9457)."""

    model_config = ConfigDict(
        title="Problem",
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:sightline:problem:busy",
                    "title": "There is too much to do",
                    "status": 503,
                    "detail": "1024 requests are waiting; try again in a second.",
                }
            ]
        },
    )
    type: str
    """urn:sightline:problem: and the sort of the problem."""
    title: str
    status: int
    detail: str
    """One sentence: what, and the way out."""


class Problem(Exception):  # noqa: N818 - the word of RFC 9457
    """A request that has no answer."""

    def __init__(self, kind: str, detail: str, *, retry: float | None = None, **headers: str) -> None:
        """`retry`: after so many seconds it may go better."""
        super().__init__(detail)
        self.kind, self.status, self.title, self.detail = kind, *KINDS[kind], detail
        self.headers: dict[str, str] = {name.replace("_", "-"): value for name, value in headers.items()}
        if retry is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry)))

    def body(self) -> dict[str, Any]:
        """As JSON has it."""
        about = {"type": f"urn:sightline:problem:{self.kind}", "title": self.title}
        return {**about, "status": self.status, "detail": self.detail}

    def response(self, libre: bool = False) -> JSONResponse:
        """As it is sent. `libre`: clients of LibreTranslate look for a member `error`."""
        body = {**self.body(), "error": self.detail} if libre else self.body()
        return JSONResponse(body, self.status, self.headers, media_type="application/problem+json")


def responses(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """What the OpenAPI document says of these problems."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    known: Mapping[int, list[str]] = {}
    for kind in kinds:
        known = {**known, KINDS[kind].status: [*known.get(KINDS[kind].status, []), KINDS[kind].title]}
    return {status: {"description": "; ".join(titles) + ".", "content": content} for status, titles in known.items()}
