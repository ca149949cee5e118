"""Access to the service: API keys, rate limits, and limits on the number, size and duration of requests."""

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sightline.config import ServeConfig
from sightline.errors import InputError
from sightline.serve.problems import Problem
from sightline.serve.routes.page import is_page

OPEN = {"/healthz", "/readyz"}
"""Paths that need no key and have no limits."""


def read_keys(path: Path) -> dict[str, str]:
    """Read API keys by client name from a file with lines `name key`. Lines that begin with # are comments."""

    def invalid(problem: str) -> InputError:
        return InputError(f"`keys`: {path}{problem}", option="keys", value=path)

    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise invalid(f" cannot be read: {error}.") from None
    keys: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, _, key = line.strip().partition(" ")
        key = key.strip()
        if not key or " " in key or not key.isascii():
            raise invalid(f", line {number}: expected a name, a space and a key of ASCII characters without spaces.")
        if len(key) < 16:
            raise invalid(f", line {number}: the key of {name} is too short. Use at least 16 characters.")
        if name in keys:
            raise invalid(f", line {number}: {name} already has a key.")
        keys[name] = key
    if not keys:
        raise invalid(" contains no keys.")
    return keys


class Keys:
    """API keys and their rate limits."""

    def __init__(self, keys: Mapping[str, str], rate: float) -> None:
        """`rate`: requests per minute and key; 0 is unlimited."""
        self.rate = rate / 60
        self._most = max(1.0, rate / 6)  # a burst of ten seconds' worth of requests
        self._digests = {name: _digest(key) for name, key in keys.items()}
        self._left = dict.fromkeys(keys, (self._most, 0.0))

    def __bool__(self) -> bool:
        return bool(self._digests)

    def name(self, key: str) -> str | None:
        """Return the client's name, or None for an unknown key. Takes the same time for every key."""
        digest, found = _digest(key), None
        for name, known in self._digests.items():
            if hmac.compare_digest(digest, known):
                found = name
        return found

    def take(self, name: str) -> float:
        """Count a request. Return 0 if it is allowed, otherwise the seconds until the next one is."""
        if not self.rate:
            return 0.0
        left, then = self._left[name]
        now = time.monotonic()
        left = min(self._most, left + (now - then) * self.rate)
        if left < 1:
            return (1 - left) / self.rate
        self._left[name] = left - 1, now
        return 0.0


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


class AccessMiddleware:
    """Check each request before it reaches a route."""

    def __init__(self, app: ASGIApp, config: ServeConfig, keys: Keys) -> None:
        self.app, self.config, self.keys = app, config, keys
        self.active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self.app(scope, receive, send)
            return
        self.active += 1
        try:
            body = await self._admit(scope, receive)
        except Problem as problem:
            await problem.response(scope["path"])(scope, receive, send)
        else:
            messages = iter([{"type": "http.request", "body": body, "more_body": False}])

            async def replay() -> Message:
                return next(messages, None) or await receive()

            await self.app(scope, replay, send)
        finally:
            self.active -= 1

    async def _admit(self, scope: Scope, receive: Receive) -> bytes:
        """Return the body of a request that is allowed."""
        if self.active > self.config.max_requests:
            detail = f"The service is processing {self.config.max_requests} requests, its maximum. Retry in a second."
            raise Problem("busy", detail, retry=1)
        if scope["app"].state.stopping:
            raise Problem("stopping", "The service is shutting down.", retry=1, Connection="close")
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        key = _key_in_headers(headers)
        has_key_in_body = not key and scope["path"] == "/translate"  # of clients of LibreTranslate
        needs_key = bool(self.keys) and not is_page(scope["path"])
        if needs_key and not has_key_in_body:
            self._check_key(key, scope)
        body = await self._read_body(headers, receive)
        if needs_key and has_key_in_body:
            self._check_key(_key_in_body(headers.get(b"content-type", ""), body), scope)
        return body

    def _check_key(self, key: str, scope: Scope) -> None:
        name = self.keys.name(key)
        if name is None:
            detail = "Send an API key of this service in the header `Authorization: Bearer KEY`."
            raise Problem("unauthorised", detail, WWW_Authenticate="Bearer")
        scope["state"]["about"]["key"] = name
        wait = self.keys.take(name)
        if wait:
            raise Problem("too-many", f"This key may send its next request in {wait:.1f} seconds.", retry=wait)

    async def _read_body(self, headers: Mapping[bytes, str], receive: Receive) -> bytes:
        """Read the whole body."""
        most = self.config.max_body
        too_large = Problem("too-large", f"The body must have at most {most} bytes.", Connection="close")
        length = headers.get(b"content-length", "0")
        if length.isdigit() and int(length) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.config.receive):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Problem("malformed", "The connection was closed before the end of the request.")
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            detail = f"The request must be complete within {self.config.receive:g} seconds."
            raise Problem("too-slow", detail, Connection="close") from None


def _key_in_headers(headers: Mapping[bytes, str]) -> str:
    scheme, _, key = headers.get(b"authorization", "").partition(" ")
    return (key.strip() if scheme.lower() == "bearer" else "") or headers.get(b"x-api-key", "")


def _key_in_body(kind: str, body: bytes) -> str:
    """Return `api_key` of a request by a client of LibreTranslate."""
    try:
        if kind.startswith("application/x-www-form-urlencoded"):
            return parse_qs(body.decode())["api_key"][0]
        return str(json.loads(body)["api_key"])
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return ""
