"""Errors of requests as problem details of RFC 9457: JSON objects with type, title, status and detail."""

import math
import re
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


OPENAI_PATH = re.compile(r"/v1/(completions|models(/[^/]*)?)")
"""The routes that OpenAI has too."""


class Problem(Exception):  # noqa: N818 - the word of RFC 9457
    """An error that is sent to the client."""

    def __init__(
        self, kind: str, detail: str, *, retry: float | None = None, param: str | None = None, **headers: str
    ) -> None:
        """`retry`: seconds after which the client may retry. `param`: the field at fault, for OpenAI's clients."""
        super().__init__(detail)
        self.param = param
        self.kind, self.status, self.title, self.detail = kind, *KINDS[kind], detail
        self.headers: dict[str, str] = {name.replace("_", "-"): value for name, value in headers.items()}
        if retry is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry)))

    def body(self) -> dict[str, Any]:
        """Return the JSON object."""
        about = {"type": f"urn:sightline:problem:{self.kind}", "title": self.title}
        return {**about, "status": self.status, "detail": self.detail}

    def response(self, path: str = "") -> JSONResponse:
        """Return the response to a request for a path. Clients of LibreTranslate and of OpenAI read the member
        `error`. OpenAI's status of an invalid request is 400."""
        body, status = self.body(), self.status
        if path == "/translate":
            body["error"] = self.detail
        elif OPENAI_PATH.fullmatch(path):
            body["error"] = self.openai_error()
            status = body["status"] = 400 if self.kind == "invalid" else self.status
        return JSONResponse(body, status, self.headers, media_type="application/problem+json")

    def openai_error(self) -> dict[str, Any]:
        """Return the error in OpenAI's form."""
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        code = "model_not_found" if (self.kind, self.param) == ("not-found", "model") else self.kind
        return {"message": self.detail, "type": kind, "param": self.param, "code": code}


def _example() -> dict[str, Any]:
    return Problem("busy", "1024 requests are waiting. Retry in a second.").body()


def invalid(error: SightlineError) -> Problem:
    """Turn an error of the library into a problem."""
    return Problem("invalid", str(error), param=error.option)


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
