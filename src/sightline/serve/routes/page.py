"""The web page: static files that `make web` builds."""

import gzip
import re
from functools import lru_cache
from pathlib import Path

from fastapi import APIRouter, Request, Response

from sightline.serve.problems import Problem

STATIC = Path(__file__).parents[1] / "static"
"""The folder of the built page."""
NAME = re.compile(r"[\w-][\w.-]{0,99}(/[\w-][\w.-]{0,99}){0,4}", re.ASCII)
"""Valid names of assets. No part begins with a dot, so that a name cannot leave the folder."""
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
"""Files that are compressed."""
router = APIRouter(include_in_schema=False)


def is_page(path: str) -> bool:
    """Whether a path belongs to the page, which is public. The API may need a key."""
    return path == "/" or path.startswith("/assets/")


@router.get("/")
def index() -> Response:
    """Return the page. Browsers revalidate it each time."""
    try:
        data = (STATIC / "index.html").read_bytes()
    except OSError:
        raise Problem("not-found", "The page is not built. Run `make web`.") from None
    return Response(data, media_type="text/html", headers={"Cache-Control": "no-cache"})


@router.get("/assets/{name:path}")
def asset(name: str, request: Request) -> Response:
    """Return a file of the page. Its name contains a hash of its content, so browsers may cache it permanently."""
    file = STATIC / "assets" / name
    if not NAME.fullmatch(name) or not file.is_file():
        raise Problem("not-found", "Unknown file of the page.")
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
