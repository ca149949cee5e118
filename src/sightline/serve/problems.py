"""Errors of requests as problem details of RFC 9457: JSON objects with type, title, status and detail."""

import math
from typing import Any, NamedTuple

from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from sightline.errors import SightlineError


class Kind(NamedTuple):
    """Status and title of a type of problem."""

    status: int
    title: str


KINDS = {
    "malformed": Kind(400, "Malformed request"),
    "unauthorised": Kind(401, "Authentication required"),
    "forbidden": Kind(403, "Not allowed"),
    "not-found": Kind(404, "Not found"),
    "wrong-method": Kind(405, "Method not allowed"),
    "too-slow": Kind(408, "Request timeout"),
    "too-large": Kind(413, "Request too large"),
    "wrong-type": Kind(415, "Unsupported media type"),
    "invalid": Kind(422, "Invalid request"),
    "too-many": Kind(429, "Rate limit exceeded"),
    "internal": Kind(500, "Internal error"),
    "busy": Kind(503, "Service overloaded"),
    "deadline": Kind(503, "Deadline exceeded"),
    "unavailable": Kind(503, "Model unavailable"),
    "stopping": Kind(503, "Service shutting down"),
}


class ProblemDetails(BaseModel):
    """The error of a request (RFC 9457)."""

    model_config = ConfigDict(title="Problem", json_schema_extra=lambda schema: schema.update(examples=[_example()]))
    type: str
    """`urn:sightline:problem:` and the id of the problem."""
    title: str
    status: int
    detail: str
    """The problem and how to fix it."""


class Problem(Exception):  # noqa: N818 - the word of RFC 9457
    """An error that is sent to the client."""

    def __init__(self, kind: str, detail: str, *, retry: float | None = None, **headers: str) -> None:
        """`retry`: seconds after which the client may retry."""
        super().__init__(detail)
        self.kind, self.status, self.title, self.detail = kind, *KINDS[kind], detail
        self.headers: dict[str, str] = {name.replace("_", "-"): value for name, value in headers.items()}
        if retry is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry)))

    def body(self) -> dict[str, Any]:
        """Return the JSON object."""
        about = {"type": f"urn:sightline:problem:{self.kind}", "title": self.title}
        return {**about, "status": self.status, "detail": self.detail}

    def response(self, path: str = "") -> JSONResponse:
        """Return the response to a request for a path. LibreTranslate's clients read the member `error`."""
        body = {**self.body(), "error": self.detail} if path == "/translate" else self.body()
        return JSONResponse(body, self.status, self.headers, media_type="application/problem+json")


def _example() -> dict[str, Any]:
    return Problem("busy", "1024 requests are waiting. Retry in a second.").body()


def invalid(error: SightlineError) -> Problem:
    """Turn an error of the library into a problem."""
    return Problem("invalid", str(error))


COMMON = ("unauthorised", "too-many", "internal", "busy", "stopping")
MODEL = ("malformed", "not-found", "too-slow", "too-large", "wrong-type", "invalid", "deadline", "unavailable", *COMMON)
"""Problems of requests to a model."""


def responses(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """Describe these problems for the OpenAPI document."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    titles: dict[int, list[str]] = {}
    for status, title in (KINDS[kind] for kind in kinds):
        titles.setdefault(status, []).append(title)
    return {status: {"description": "; ".join(some) + ".", "content": content} for status, some in titles.items()}
