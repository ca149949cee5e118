"""HTTP as uvicorn speaks it, and what it leaves out: the head of a request must come in time, and has an end."""

import asyncio
import json
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sightline.serve.observe import HEADERS
from sightline.serve.problems import Problem

__all__ = ["Http", "http"]

MOST = 65_536
"""Bytes of a request line and its headers."""


class Http(HttpToolsProtocol):
    """A connection."""

    seconds: float
    """Within which a head must come."""
    late: asyncio.TimerHandle | None = None
    size = 0
    """Of the head, as far as it has come."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.late is not None:
            self.size += len(data)
        super().data_received(data)
        if self.late is not None and self.size > MOST:
            self._refuse(Problem("too-large", f"the headers may have {MOST} bytes at most."))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self.late is None:  # a later request on this connection
            self._begin()

    def on_headers_complete(self) -> None:
        self._end()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Where it is no HTTP at all."""
        self._refuse(Problem("malformed", "this is no HTTP request."))

    def _begin(self) -> None:
        self.size = 0
        self.late = self.loop.call_later(self.seconds, self._too_late)

    def _end(self) -> None:
        if self.late is not None:
            self.late.cancel()
            self.late = None

    def _too_late(self) -> None:
        self.late = None
        if self.size:
            self._refuse(Problem("too-slow", f"its headers must be there within {self.seconds:g} seconds."))
        else:
            self.transport.close()

    def _refuse(self, problem: Problem) -> None:
        self._end()
        body = json.dumps(problem.body()).encode()
        fields = {"Content-Type": "application/problem+json", "Content-Length": str(len(body)), "Connection": "close"}
        lines = [f"HTTP/1.1 {problem.status} {problem.title}"]
        lines += [f"{name}: {value}" for name, value in {**fields, **HEADERS}.items()]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.transport.close()


def http(seconds: float) -> Callable[..., Http]:
    """Connections whose requests must begin within so many seconds."""
    return type("Http", (Http,), {"seconds": seconds})
