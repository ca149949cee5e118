"""Request ids, logs, metrics and security headers. Texts of requests are never logged."""

import json
import logging
import re
import secrets
import sys
import time
import traceback
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sightline.serve.problems import Problem

log = logging.getLogger("sightline.serve")
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Metrics:
    """The metrics for Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        common: dict[str, Any] = {"namespace": "sightline", "registry": self.registry}
        self.requests = Counter("requests", "Answered requests.", ["route", "status"], **common)
        self.seconds = Histogram(
            "request_seconds", "Seconds from the first byte of a request to the end of its answer.", ["route"], **common
        )
        self.waited = Histogram("waited_seconds", "Seconds until the search for a translation started.", **common)
        sizes = [2**power for power in range(10)]
        self.batch = Histogram("batch_sentences", "Sentences per batch.", buckets=sizes, **common)
        self.batch_seconds = Histogram("batch_seconds", "Seconds per batch.", **common)
        self.characters = Counter("characters", "Translated characters.", ["model"], **common)
        self.active = Gauge("requests_active", "Requests in progress.", **common)
        self.waiting = Gauge("requests_waiting", "Requests that wait for a model.", **common)
        self.loaded = Gauge("model_loaded", "1 if the model is in memory.", ["model"], **common)


class Observe:
    """Record each request and add the security headers to its answer."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        number = sent if REQUEST_ID.fullmatch(sent) else secrets.token_hex(8)
        scope.setdefault("state", {})["about"] = about = {"request": number}
        began, status = time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update({**HEADERS, "X-Request-ID": number})
            await send(message)

        self.metrics.active.inc()
        try:
            await self.app(scope, receive, send_with_headers)
        except Exception as error:
            about["error"] = "".join(traceback.format_exception(error))
            if not status:
                detail = f"Request {number} failed because of a bug. Please report it with this id."
                await Problem("internal", detail).response(scope["path"])(scope, receive, send_with_headers)
        finally:
            self.metrics.active.dec()
            route = getattr(scope.get("route"), "path", "none")
            seconds = time.perf_counter() - began
            self.metrics.requests.labels(route, status or "none").inc()
            self.metrics.seconds.labels(route).observe(seconds)
            level = logging.ERROR if "error" in about else logging.INFO
            ended = {"method": scope["method"], "route": route, "status": status, "ms": round(seconds * 1e3, 1)}
            log.log(level, "request", extra={"about": {**about, **ended}})


class JsonLines(logging.Formatter):
    """Log records as JSON objects, one per line."""

    def format(self, record: logging.LogRecord) -> str:
        about = {"time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"), "level": record.levelname.lower()}
        about |= {"event": record.getMessage(), **getattr(record, "about", {})}
        if record.exc_info:
            about["error"] = self.formatException(record.exc_info)
        return json.dumps(about, ensure_ascii=False, default=str)


class PlainLines(logging.Formatter):
    """Log records as plain lines."""

    def format(self, record: logging.LogRecord) -> str:
        about: dict[str, Any] = getattr(record, "about", {})
        if record.getMessage() != "request" or "route" not in about:
            rest = "  ".join(f"{name} {value}" for name, value in about.items())
            line = f"{record.getMessage()}  {rest}".rstrip()
        else:
            line = f"{about['status']} {about['method']} {about['route']}  {about['ms']:.0f} ms  {about['request']}"
            line += f"\n{about['error'].rstrip()}" if "error" in about else ""
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return f"{self.formatTime(record, '%H:%M:%S')}  {line}"


def start_logging(json_lines: bool) -> None:
    """Write logs to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if json_lines else PlainLines())
    for name, level in (("sightline.serve", logging.INFO), ("uvicorn.error", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
