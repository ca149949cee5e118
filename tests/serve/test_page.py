"""The page as the service sends it."""

import asyncio

import httpx
import pytest

import sightline
from serving import problem
from sightline.config import ServeConfig
from sightline.serve.app import create_app
from sightline.serve.models import Models
from sightline.serve.routes import page
from sightline.serve.service import Service

SCRIPT = b"export const answer = 42;\n" * 100


@pytest.fixture
def get(taught, tmp_path, monkeypatch):
    """Sends a request without a key to a service that has keys and whose page is in the folder static."""
    monkeypatch.setattr(page, "STATIC", tmp_path / "static")
    service = Service(Models({"one": taught}, sightline.load), ServeConfig())
    app = create_app(service, {"anna": "0123456789abcdef"})

    def get(path, method="GET", **headers):
        async def ask():
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://sightline", headers=headers) as client:
                return await client.request(method, path)

        return asyncio.run(ask())

    yield get
    service.close()


@pytest.fixture
def built(tmp_path):
    files = {
        "static/index.html": b"<!doctype html><title>Sightline</title>",
        "static/other.html": b"private",
        "static/assets/app-1f.js": SCRIPT,
        "static/assets/app-1f.css": b"p {}",
        "static/assets/fonts/serif-2e.woff2": b"wOF2",
        "static/assets/icon-3d.svg": b"<svg/>",
        "static/assets/cat-4c.png": b"\x89PNG",
        "static/assets/trace-5b.json": b"{}",
        "static/assets/trace-5b.bin": b"\0\1",
        "static/assets/.hidden.js": b"private",
        "secret.js": b"private",
    }
    for name, data in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def test_missing_page_is_a_problem(get):
    problem(get("/"), 404, "not-found", "make web")
    problem(get("/assets/app-1f.js"), 404, "not-found")


@pytest.mark.usefixtures("built")
def test_page_is_public_and_the_api_needs_a_key(get):
    answer = get("/")
    assert answer.text == "<!doctype html><title>Sightline</title>"
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert "script-src 'self'; style-src 'self'" in answer.headers["content-security-policy"]
    problem(get("/v1/models"), 401, "unauthorised")
    paths = get("/openapi.json", authorization="Bearer 0123456789abcdef").json()["paths"]
    assert not [path for path in paths if path == "/" or path.startswith("/assets")]


@pytest.mark.usefixtures("built")
def test_assets_have_content_types_and_are_cached(get):
    for name, kind in (
        ("app-1f.js", "text/javascript; charset=utf-8"),
        ("app-1f.css", "text/css; charset=utf-8"),
        ("fonts/serif-2e.woff2", "font/woff2"),
        ("icon-3d.svg", "image/svg+xml"),
        ("cat-4c.png", "image/png"),
        ("trace-5b.json", "application/json"),
        ("trace-5b.bin", "application/octet-stream"),
    ):
        answer = get(f"/assets/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == kind
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    small, large = (get("/assets/app-1f.js", **{"accept-encoding": kind}) for kind in ("gzip", "identity"))
    assert small.content == large.content == SCRIPT  # the client unpacks it
    assert small.headers["content-encoding"] == "gzip"
    assert int(small.headers["content-length"]) < int(large.headers["content-length"]) == len(SCRIPT)
    assert small.headers["vary"] == large.headers["vary"] == "Accept-Encoding"
    refused = get("/assets/app-1f.js", "POST")
    problem(refused, 405, "wrong-method")
    assert refused.headers["allow"] == "GET"


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    "name",
    [
        "",
        "none.js",
        "fonts",
        "fonts/",
        ".hidden.js",
        "%2e%2e/other.html",
        "..%2fother.html",
        "fonts/%2e%2e/%2e%2e/other.html",
        "%2e%2e/%2e%2e/secret.js",
        "%2fetc/passwd",
        "..%5cother.html",
        "app-1f.js%00",
        "%ff",
        "a" * 5000,
        "a/" * 2500 + "a",
    ],
)
def test_asset_names_cannot_leave_the_folder(get, name):
    problem(get(f"/assets/{name}"), 404, "not-found")
