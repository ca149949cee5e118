"""uvicorn's HTTP protocol with limits on the duration and size of request heads."""

import asyncio
import json
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sightline.serve.limits import MAX_HEAD
from sightline.serve.observe import HEADERS
from sightline.serve.problems import Problem


class Http(HttpToolsProtocol):
    """An HTTP connection."""

    seconds: float
    """Time limit for a head."""
    head_timeout: asyncio.TimerHandle | None = None
    size = 0
    """Bytes of the head so far."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.head_timeout is not None:
            self.size += len(data)
        super().data_received(data)
        if self.head_timeout is not None and self.size > MAX_HEAD:
            self._refuse(Problem("too-large", f"The headers must have at most {MAX_HEAD} bytes."))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self.head_timeout is None:  # a later request on this connection
            self._begin()

    def on_headers_complete(self) -> None:
        self._end()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Refuse bytes that are not HTTP."""
        self._refuse(Problem("malformed", "Not an HTTP request."))

    def _begin(self) -> None:
        self.size = 0
        self.head_timeout = self.loop.call_later(self.seconds, self._time_out)

    def _end(self) -> None:
        if self.head_timeout is not None:
            self.head_timeout.cancel()
            self.head_timeout = None

    def _time_out(self) -> None:
        self.head_timeout = None
        if self.size:
            self._refuse(Problem("too-slow", f"The headers must be complete within {self.seconds:g} seconds."))
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
    """Return a connection class with this time limit for heads."""
    return type("Http", (Http,), {"seconds": seconds})
