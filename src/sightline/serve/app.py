"""The service as an ASGI application and as a process."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Mapping
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from sightline import __version__
from sightline.errors import InputError, SightlineError
from sightline.serve import limits
from sightline.serve.access import AccessMiddleware, Keys
from sightline.serve.models import Models
from sightline.serve.observe import Observe
from sightline.serve.problems import Problem, ProblemDetails, invalid
from sightline.serve.protocol import http
from sightline.serve.routes import ROUTERS, completions
from sightline.serve.schemas import LibreRequest
from sightline.serve.service import ClientDisconnected, Service

LINGER = 0.5
"""Seconds that open connections are kept after the last answer when the service stops."""
HTTP_ERRORS = {
    400: ("malformed", "The body is not JSON in UTF-8."),
    404: ("not-found", "See /openapi.json for the paths of this service."),
    405: ("wrong-method", "See /openapi.json for the methods of this path."),
}
"""Problems for the errors of the framework, by status."""
DESCRIPTION = """Translate with Transformers and inspect their computation.

Errors are problem details of RFC 9457 (`application/problem+json`). The guide to serving lists their types.
"""


class _App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document with problems, limits and, if there are keys, their scheme."""
        if self.openapi_schema is not None:
            return self.openapi_schema
        whole = super().openapi()
        schemas = whole["components"]["schemas"]
        schemas["Problem"] = ProblemDetails.model_json_schema()
        schemas["LibreRequest"] = LibreRequest.model_json_schema()  # its route parses the body itself
        limits.describe(schemas, self.state.service.config)
        if self.state.has_keys:
            whole["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            whole["security"] = [{"key": []}]
        return whole


def create_app(service: Service, keys: Mapping[str, str] | None = None) -> FastAPI:
    """Make the application. `keys`: API keys by client name; without keys, access is open."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        _reload_on_hangup(service.models)
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
    app = _App(
        title="Sightline",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,  # it loads scripts from another host
        redoc_url=None,
        lifespan=lifespan,
        middleware=middleware,
        exception_handlers={
            **dict.fromkeys((Problem, SightlineError, HTTPException, RequestValidationError), _problem),
            ClientDisconnected: _disconnected,
        },
    )
    app.state.service, app.state.stopping, app.state.has_keys = service, False, bool(known)
    for router in ROUTERS:
        app.include_router(router)
    if any(one.task == "write" for one in service.models.entries.values()):
        app.include_router(completions.router)
    return app


async def _problem(request: Request, error: Exception) -> Response:
    if isinstance(error, SightlineError):
        error = invalid(error)
    elif isinstance(error, HTTPException):
        headers, error = error.headers, Problem(*HTTP_ERRORS.get(error.status_code, HTTP_ERRORS[400]))
        error.headers |= headers or {}
    elif isinstance(error, RequestValidationError):
        error = _invalid(error.errors()[0], request.headers.get("content-type", ""))
    assert isinstance(error, Problem)  # noqa: S101
    return error.response(request.url.path)


def _invalid(error: Mapping[str, Any], content_type: str) -> Problem:
    """Return the problem of a request that does not match its schema."""
    if error["loc"] == ("body",) and "json" not in content_type:
        return Problem("wrong-type", "The content type must be application/json.")
    name = ".".join(map(str, error["loc"][1:])) or "body"
    if error["type"] == "json_invalid":
        return Problem("malformed", f"The body is not valid JSON: {error['ctx']['error']} at character {name}.")
    if error["type"] == "extra_forbidden":
        detail = f"Unknown field `{name}`. See /openapi.json for the fields of this request."
        return Problem("invalid", detail, param=name)
    reason = error["msg"].removeprefix("Value error, ")
    return Problem("invalid", f"`{name}`: {reason}.", param=name.partition(".")[0])


async def _disconnected(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # for logs and metrics; the client does not receive it


def _reload_on_hangup(models: Models) -> None:
    """Reload the models on SIGHUP, if the platform has this signal and this is the main thread."""
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def start() -> None:
        task = loop.create_task(models.reload())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    with contextlib.suppress(AttributeError, ValueError, RuntimeError, NotImplementedError):
        loop.add_signal_handler(signal.SIGHUP, start)


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
