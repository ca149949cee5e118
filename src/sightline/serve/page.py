"""The page that shows all this in a browser: files that `make web` has made, sent as they are."""

import gzip
import re
from functools import lru_cache
from pathlib import Path

from fastapi import APIRouter, Request, Response

from sightline.serve.problems import Problem

__all__ = ["STATIC", "is_page", "page"]

STATIC = Path(__file__).parent / "static"
"""What was built."""
NAME = re.compile(r"[\w-][\w.-]{0,99}(/[\w-][\w.-]{0,99}){0,4}", re.ASCII)
"""What a file may be called. No part begins with a dot, so no name leads out of the folder."""
KINDS = {
    ".bin": "application/octet-stream",
    ".css": "text/css",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
TEXT = (".css", ".js", ".json", ".svg")
"""What is worth compressing."""
page = APIRouter(include_in_schema=False)


def is_page(path: str) -> bool:
    """Whether it belongs to the page, which everybody may see; what it asks for then needs a key."""
    return path == "/" or path.startswith("/assets/")


@page.get("/")
def index() -> Response:
    """The page itself; a browser asks each time whether it is still the same."""
    try:
        data = (STATIC / "index.html").read_bytes()
    except OSError:
        raise Problem("not-found", "the page is not built; run make web.") from None
    return Response(data, media_type="text/html", headers={"Cache-Control": "no-cache"})


@page.get("/assets/{name:path}")
def asset(name: str, request: Request) -> Response:
    """A file of it. Its name changes with what is in it, so a browser keeps it for good."""
    file = STATIC / "assets" / name
    if not NAME.fullmatch(name) or not file.is_file():
        raise Problem("not-found", "the page has no such file.")
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    if file.suffix in TEXT:
        headers["Vary"] = "Accept-Encoding"
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
    data = _compressed(file) if "Content-Encoding" in headers else file.read_bytes()
    return Response(data, media_type=KINDS.get(file.suffix, KINDS[".bin"]), headers=headers)


@lru_cache(maxsize=256)
def _compressed(file: Path) -> bytes:
    return gzip.compress(file.read_bytes())
