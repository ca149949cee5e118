"""The service as an ASGI application and as a process."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from sightline import __version__
from sightline.config import ServeConfig
from sightline.errors import InputError
from sightline.serve.access import AccessMiddleware, Keys
from sightline.serve.observe import Observe
from sightline.serve.page import page
from sightline.serve.problems import Problem, ProblemDetails
from sightline.serve.protocol import http
from sightline.serve.routes import router
from sightline.serve.schemas import LibreRequest
from sightline.serve.service import ClientDisconnected, Service

LINGER = 0.5
"""Seconds that open connections are kept after the last answer when the service stops."""
DESCRIPTION = """Translate with Transformers and inspect their computation.

Errors are problem details of RFC 9457 (`application/problem+json`). The guide to serving lists their types.
"""


def create_app(service: Service, keys: Mapping[str, str] | None = None) -> FastAPI:
    """Make the application. `keys`: API keys by client name; without keys, access is open."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with _on_hangup(service.models.reload):
            yield
        app.state.stopping = True
        await asyncio.get_running_loop().run_in_executor(None, service.close)

    known = Keys(keys or {}, service.config.rate)
    middleware = [Middleware(Observe, metrics=service.metrics)]
    if service.config.origins:
        exposed = ["X-Pieces", "X-Dtype", "X-Shape", "X-Request-ID", "Retry-After"]
        allowed: dict[str, Any] = {"allow_methods": ["GET", "POST"], "allow_headers": ["*"], "expose_headers": exposed}
        middleware.append(Middleware(CORSMiddleware, allow_origins=list(service.config.origins), **allowed))
    middleware.append(Middleware(AccessMiddleware, config=service.config, keys=known))
    app = FastAPI(
        title="Sightline",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,  # it loads scripts from another host
        redoc_url=None,
        lifespan=lifespan,
        middleware=middleware,
    )
    app.state.service, app.state.stopping = service, False
    app.include_router(router)
    app.include_router(page)
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(HTTPException, _problem)
    app.add_exception_handler(RequestValidationError, _problem)
    app.add_exception_handler(ClientDisconnected, _disconnected)
    _describe(app, service.config, bool(known))
    return app


async def _problem(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        first, kind = error.errors()[0], request.headers.get("content-type", "")
        if first["loc"] == ("body",) and "json" not in kind:
            return Problem("wrong-type", "The content type must be application/json.").response()
        name = ".".join(str(part) for part in first["loc"][1:]) or "body"
        if first["type"] == "json_invalid":
            error = Problem("malformed", f"The body is not valid JSON: {first['ctx']['error']} at character {name}.")
        elif first["type"] == "extra_forbidden":
            error = Problem("invalid", f"Unknown field `{name}`. See /openapi.json for the fields of this request.")
        else:
            error = Problem("invalid", f"`{name}`: {first['msg']}.")
    elif isinstance(error, HTTPException):
        kind = {400: "malformed", 404: "not-found", 405: "wrong-method"}.get(error.status_code, "malformed")
        details = {
            "malformed": "The body is not JSON in UTF-8.",
            "not-found": "See /openapi.json for the paths of this service.",
            "wrong-method": "See /openapi.json for the methods of this path.",
        }
        error_headers = dict(error.headers or {})
        error = Problem(kind, details[kind])
        error.headers |= error_headers
    assert isinstance(error, Problem)  # noqa: S101
    return error.response(libre=request.url.path == "/translate")


async def _disconnected(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # for logs and metrics; the client does not receive it


def _describe(app: FastAPI, config: ServeConfig, keys: bool) -> None:
    """Add problems, limits and, if there are keys, their scheme to the OpenAPI document."""
    plain = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            whole = plain()
            schemas = whole["components"]["schemas"]
            schemas["Problem"] = ProblemDetails.model_json_schema()
            schemas["LibreRequest"] = LibreRequest.model_json_schema()  # its route parses the body itself
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            for schema in schemas.values():
                for name, about in schema.get("properties", {}).items():
                    if name in ("beam", "nbest"):
                        about["maximum"] = min(about["maximum"], config.max_beams)
                        about["default"] = min(about["default"], config.max_beams)
                    for part in [about, *about.get("anyOf", [])]:
                        if part.get("type") == "array" and name in ("text", "q", "pairs"):
                            part["maxItems"] = config.max_texts // (2 if name == "pairs" else 1)
            if keys:
                whole["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
                whole["security"] = [{"key": []}]
        return app.openapi_schema  # type: ignore[return-value]

    app.openapi = document  # type: ignore[method-assign]


@contextlib.contextmanager
def _on_hangup(work: Callable[[], Any]) -> Any:
    """Run `work` on SIGHUP, if the platform has this signal and this is the main thread."""
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def start() -> None:
        task = loop.create_task(work())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    hangup = getattr(signal, "SIGHUP", None)
    with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
        if hangup is not None:
            loop.add_signal_handler(hangup, start)
    yield
    with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
        if hangup is not None:
            loop.remove_signal_handler(hangup)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound and does not listen yet."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:  # UnicodeError: the name cannot be a host name
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError.of("host", host, f"cannot be resolved: {host} ({reason}).") from None
    bound = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        message = f"`port` {port} of {host} cannot be used: {error.strerror}. Choose another port."
        raise InputError(message, option="port", value=port) from None
    return bound


class _Server(uvicorn.Server):
    """A server that answers late requests with a problem while it stops."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.config.app.state.stopping = True  # type: ignore[union-attr]
        super().handle_exit(sig, frame)

    async def main_loop(self) -> None:
        """Run; at the end, refuse new connections and keep open ones for a moment. A request that arrives then gets the
        problem `stopping` instead of a closed connection."""
        await super().main_loop()
        for server in self.servers:
            server.close()
        latest = time.monotonic() + (self.config.timeout_graceful_shutdown or 0)
        end = time.monotonic() + LINGER
        while time.monotonic() < min(end, latest) and not self.force_exit and self.server_state.connections:
            if self.server_state.tasks:  # its client may send another request
                end = time.monotonic() + LINGER
            await asyncio.sleep(0.02)


def run(app: FastAPI, bound: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT; then finish the requests in progress."""
    service: Service = app.state.service
    config = uvicorn.Config(
        app,
        http=http(service.config.receive),  # type: ignore[arg-type]
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, round(service.config.shutdown)),
        backlog=2048,
    )
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: None)  # uvicorn raises the signal again after it has stopped
    _Server(config).run([bound])
