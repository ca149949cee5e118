"""The service as an ASGI application, and as a process that can be started and stopped."""

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
from sightline.serve.gate import Gate, Keys
from sightline.serve.observe import Observe
from sightline.serve.page import page
from sightline.serve.problems import Problem, ProblemDetails
from sightline.serve.protocol import http
from sightline.serve.routes import router
from sightline.serve.schemas import LibreRequest
from sightline.serve.service import ClientGone, Service

__all__ = ["create_app", "run", "take_port"]

LINGER = 0.5
"""Seconds for which open connections are kept after the last answer, when the service is stopped."""
ABOUT = """Translation by Transformers, and a look inside them.

Problems are told as RFC 9457 has it (`application/problem+json`). Their types, and everything else, are described in
the guide to serving.
"""


def create_app(service: Service, keys: Mapping[str, str] | None = None) -> FastAPI:
    """The application. `keys`: who may ask, by name; without, everybody."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with _on_hangup(service.models.reload):
            yield
        app.state.stopping = True
        await asyncio.get_running_loop().run_in_executor(None, service.close)

    known = Keys(keys or {}, service.config.rate)
    middleware = [Middleware(Observe, metrics=service.metrics)]
    if service.config.origins:
        told = ["X-Pieces", "X-Dtype", "X-Shape", "X-Request-ID", "Retry-After"]
        allowed: dict[str, Any] = {"allow_methods": ["GET", "POST"], "allow_headers": ["*"], "expose_headers": told}
        middleware.append(Middleware(CORSMiddleware, allow_origins=list(service.config.origins), **allowed))
    middleware.append(Middleware(Gate, config=service.config, keys=known))
    app = FastAPI(
        title="Sightline",
        version=__version__,
        description=ABOUT,
        docs_url=None,  # it would load scripts from elsewhere
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
    app.add_exception_handler(ClientGone, _gone)
    _describe(app, service.config, bool(known))
    return app


async def _problem(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        first, kind = error.errors()[0], request.headers.get("content-type", "")
        if first["loc"] == ("body",) and "json" not in kind:
            return Problem("wrong-type", "send application/json.").response()
        where = ".".join(str(part) for part in first["loc"][1:]) or "the body"
        if first["type"] == "json_invalid":
            error = Problem("malformed", f"the body is no JSON: {first['ctx']['error']} at character {where}.")
        elif first["type"] == "extra_forbidden":
            error = Problem("invalid", f"{where}: there is no such option here; see /openapi.json for those there are.")
        else:
            error = Problem("invalid", f"{where}: {first['msg']}.")
    elif isinstance(error, HTTPException):
        kind = {400: "malformed", 404: "not-found", 405: "wrong-method"}.get(error.status_code, "malformed")
        about = {"not-found": "see /openapi.json for what there is.", "malformed": "the body is no JSON in UTF-8."}
        error_headers = dict(error.headers or {})
        error = Problem(kind, about.get(kind, "see /openapi.json for what can be done."))
        error.headers |= error_headers
    assert isinstance(error, Problem)  # noqa: S101
    return error.response(libre=request.url.path == "/translate")


async def _gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it; logs and metrics know it by this number


def _describe(app: FastAPI, config: ServeConfig, keys: bool) -> None:
    """Put problems, limits, and keys where there are some, into the OpenAPI document."""
    plain = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            whole = plain()
            schemas = whole["components"]["schemas"]
            schemas["Problem"] = ProblemDetails.model_json_schema()
            schemas["LibreRequest"] = LibreRequest.model_json_schema()  # which is read by hand
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
    """Do it on SIGHUP, where there is such a signal and it is ours to take."""
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


def take_port(host: str, port: int) -> socket.socket:
    """A place where requests will come in, once it listens."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        place = socket.socket(family, kind, protocol)
        if os.name == "posix":
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(address)
    except (OSError, UnicodeError) as error:  # a name that no host can have is a UnicodeError
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"port {port} of {host} cannot be used ({reason}); choose another one by --port.") from None
    return place


class _Server(uvicorn.Server):
    """Stops by saying so first."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.config.app.state.stopping = True  # type: ignore[union-attr]
        super().handle_exit(sig, frame)

    async def main_loop(self) -> None:
        """At the end no more connections come in, but open ones stay so for a moment: a request that is on its way is
        told that it comes too late, and does not find the door shut."""
        await super().main_loop()
        for server in self.servers:
            server.close()
        latest = time.monotonic() + (self.config.timeout_graceful_shutdown or 0)
        end = time.monotonic() + LINGER
        while time.monotonic() < min(end, latest) and not self.force_exit and self.server_state.connections:
            if self.server_state.tasks:  # who has been answered may ask once more
                end = time.monotonic() + LINGER
            await asyncio.sleep(0.02)


def run(app: FastAPI, place: socket.socket) -> None:
    """Serve until the process is told to stop (SIGTERM, SIGINT); what was begun by then ends."""
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
        signal.signal(sign, lambda *_: None)  # uvicorn raises them once more when it is done, which then means nothing
    _Server(config).run([place])
