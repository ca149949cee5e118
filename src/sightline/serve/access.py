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
from sightline.serve.page import is_page
from sightline.serve.problems import Problem

OPEN = {"/healthz", "/readyz"}
"""Paths that need no key and have no limits."""


def read_keys(path: Path) -> dict[str, str]:
    """Read API keys by client name from a file with lines `name key`. Lines that begin with # are comments."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"`keys`: {path} cannot be read: {error}.", option="keys", value=path) from None

    def invalid(number: int, problem: str) -> InputError:
        return InputError(f"`keys`: {path}, line {number}: {problem}", option="keys", value=path)

    keys: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, _, key = line.strip().partition(" ")
        key = key.strip()
        if not key or " " in key or not key.isascii():
            raise invalid(number, "expected a name, a space and a key of ASCII characters without spaces.")
        if len(key) < 16:
            raise invalid(number, f"the key of {name} is too short. Use at least 16 characters.")
        if name in keys:
            raise invalid(number, f"{name} already has a key.")
        keys[name] = key
    if not keys:
        raise InputError(f"`keys`: {path} contains no keys.", option="keys", value=path)
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
        if self.active >= self.config.max_requests:
            detail = f"The service is processing {self.active} requests, its maximum. Retry in a second."
            busy = Problem("busy", detail, retry=1)
            await busy.response(libre=scope["path"] == "/translate")(scope, receive, send)
            return
        self.active += 1
        try:
            await self._admit(scope, receive, send)
        finally:
            self.active -= 1

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["app"].state.stopping:
                raise Problem("stopping", "The service is shutting down.", retry=1, Connection="close")
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            self._check_headers(headers, scope)
            body = await self._read_body(headers, receive)
            if self.keys and scope["path"] == "/translate" and "key" not in scope["state"]["about"]:
                self._check_key(_key_in_body(headers.get(b"content-type", ""), body), scope)
        except Problem as problem:
            await problem.response(libre=scope["path"] == "/translate")(scope, receive, send)
            return
        replayed = False

        async def replay() -> Message:
            nonlocal replayed
            if replayed:
                return await receive()
            replayed = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, replay, send)

    def _check_headers(self, headers: Mapping[bytes, str], scope: Scope) -> None:
        """Check the key in the headers. LibreTranslate's clients send it in the body instead."""
        if not self.keys or is_page(scope["path"]):
            return
        scheme, _, key = headers.get(b"authorization", "").partition(" ")
        if key and scheme.lower() == "bearer":
            self._check_key(key.strip(), scope)
        elif b"x-api-key" in headers:
            self._check_key(headers[b"x-api-key"], scope)
        elif scope["path"] != "/translate" or scope["method"] != "POST":
            self._check_key("", scope)

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
            seconds = f"{self.config.receive:g}"
            raise Problem(
                "too-slow", f"The request must be complete within {seconds} seconds.", Connection="close"
            ) from None


def _key_in_body(kind: str, body: bytes) -> str:
    """Return `api_key` of a request by a client of LibreTranslate."""
    try:
        if kind.startswith("application/x-www-form-urlencoded"):
            return parse_qs(body.decode())["api_key"][0]
        return str(json.loads(body)["api_key"])
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return ""
