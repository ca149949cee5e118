"""Who comes in: keys, rates, how many at a time, how large a request is and how long it takes to come."""

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

__all__ = ["Gate", "Keys", "read_keys"]

OPEN = {"/healthz", "/readyz"}
"""What needs no key and is always answered."""


def read_keys(path: Path) -> dict[str, str]:
    """Keys by name, from a file with a line `name key` for each. Lines that begin with # say nothing."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: the keys cannot be read: {error}.") from None
    keys: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, _, key = line.strip().partition(" ")
        key = key.strip()
        if not key or " " in key or not key.isascii():
            raise InputError(f"{path}, line {number}: this is no `name key`, with a key of ASCII without blanks.")
        if len(key) < 16:
            raise InputError(f"{path}, line {number}: the key of {name} is too short; use 16 characters or more.")
        if name in keys:
            raise InputError(f"{path}, line {number}: {name} has a key already.")
        keys[name] = key
    if not keys:
        raise InputError(f"{path}: there is no key in it.")
    return keys


class Keys:
    """Who may ask, and how often."""

    def __init__(self, keys: Mapping[str, str], rate: float) -> None:
        """`rate`: requests a minute; 0 is any number."""
        self.rate = rate / 60
        self._most = max(1.0, rate / 6)  # what ten seconds give may come at once
        self._digests = {name: _digest(key) for name, key in keys.items()}
        self._left = dict.fromkeys(keys, (self._most, 0.0))

    def __bool__(self) -> bool:
        return bool(self._digests)

    def name(self, key: str) -> str | None:
        """Whose key it is. It takes the same time for every key."""
        digest, found = _digest(key), None
        for name, known in self._digests.items():
            if hmac.compare_digest(digest, known):
                found = name
        return found

    def take(self, name: str) -> float:
        """Count a request. Seconds until there may be another one; 0 if this one may be."""
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


class Gate:
    """The layer that every request comes through."""

    def __init__(self, app: ASGIApp, config: ServeConfig, keys: Keys) -> None:
        self.app, self.config, self.keys = app, config, keys
        self.active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self.app(scope, receive, send)
            return
        if self.active >= self.config.max_requests:
            busy = Problem("busy", f"{self.active} requests are being answered; try again in a second.", retry=1)
            await busy.response(libre=scope["path"] == "/translate")(scope, receive, send)
            return
        self.active += 1
        try:
            await self._let_in(scope, receive, send)
        finally:
            self.active -= 1

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["app"].state.stopping:
                raise Problem("stopping", "it takes no more requests; ask another one.", retry=1, Connection="close")
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            self._check(headers, scope)
            body = await self._body(headers, receive)
            if self.keys and scope["path"] == "/translate" and "key" not in scope["state"]["about"]:
                self._admit(_key_within(headers.get(b"content-type", ""), body), scope)
        except Problem as problem:
            await problem.response(libre=scope["path"] == "/translate")(scope, receive, send)
            return
        given = False

        async def again() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, again, send)

    def _check(self, headers: Mapping[bytes, str], scope: Scope) -> None:
        """Whether one with these headers may come in. LibreTranslate's clients have the key in the body."""
        if not self.keys or is_page(scope["path"]):
            return
        scheme, _, key = headers.get(b"authorization", "").partition(" ")
        if key and scheme.lower() == "bearer":
            self._admit(key.strip(), scope)
        elif b"x-api-key" in headers:
            self._admit(headers[b"x-api-key"], scope)
        elif scope["path"] != "/translate" or scope["method"] != "POST":
            self._admit("", scope)

    def _admit(self, key: str, scope: Scope) -> None:
        name = self.keys.name(key)
        if name is None:
            raise Problem(
                "unauthorised", "send a key of this service, as Authorization: Bearer KEY.", WWW_Authenticate="Bearer"
            )
        scope["state"]["about"]["key"] = name
        wait = self.keys.take(name)
        if wait:
            raise Problem("too-many", f"the next one may come in {wait:.1f} seconds.", retry=wait)

    async def _body(self, headers: Mapping[bytes, str], receive: Receive) -> bytes:
        """All of it, before anything is done."""
        most = self.config.max_body
        too_large = Problem("too-large", f"the body may have {most} bytes at most.", Connection="close")
        length = headers.get(b"content-length", "0")
        if length.isdigit() and int(length) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.config.receive):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Problem("malformed", "the connection was closed before the request was there.")
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            seconds = f"{self.config.receive:g}"
            raise Problem("too-slow", f"it must be there within {seconds} seconds.", Connection="close") from None


def _key_within(kind: str, body: bytes) -> str:
    """`api_key`, as LibreTranslate's clients send it."""
    try:
        if kind.startswith("application/x-www-form-urlencoded"):
            return parse_qs(body.decode())["api_key"][0]
        return str(json.loads(body)["api_key"])
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return ""
