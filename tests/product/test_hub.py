"""Models of the hub, from a server here that speaks as much of its protocol as the library asks for."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sightline.errors import InputError
from sightline.interop.hub import PATIENCE, fetch

pytest.importorskip("huggingface_hub")

NAME, COMMIT = "someone/en-de", "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "README.md": b"# A model\n",
    "config.json": b'{"model_type": "marian"}\n',
    "generation_config.json": b"{}\n",
    "model.safetensors": bytes(range(256)) * 40,
    "pytorch_model.bin": b"a pickle",
    "tf_model.h5": b"another format",
    "modeling.py": b"raise SystemExit\n",
    "onnx/model.safetensors": b"of something else",
    "source.spm": b"pieces",
    "target.spm": b"pieces, too",
    "vocab.json": b'{"a": 0}\n',
    "tokenizer_config.json": b"{}\n",
    "special_tokens_map.json": b"{}\n",
}
NEEDED = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "source.spm",
    "special_tokens_map.json",
    "target.spm",
    "tokenizer_config.json",
    "vocab.json",
]
LIMIT = 60
"""Seconds; without a limit of its own, a fetch tries a dead network for minutes."""
LARGE = (".safetensors", ".bin", ".h5", ".spm")

CALL = """
import json, os, sys, time
from sightline.errors import SightlineError
from sightline.interop import hub
hub.PATIENCE = 2
told, begun = [], time.monotonic()
try:
    folder = hub.fetch(tell=told.append, **json.loads(sys.argv[1]))
    found = {"folder": str(folder), "files": sorted(os.listdir(folder))}
except SightlineError as error:
    found = {"error": type(error).__name__, "says": str(error)}
print(json.dumps({**found, "told": told, "seconds": time.monotonic() - begun}))
"""


def blob_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub(ThreadingHTTPServer):
    """Serves the files of one model. `wrong`: what it sends for some, instead of what it says of them."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.files, self.wrong, self.asked, self.denied, self.moved = dict(FILES), {}, [], None, False
        self.gone = None

    def about(self):
        siblings = []
        for name, data in self.files.items():
            one = {"rfilename": name, "size": len(data), "blobId": blob_id(data)}
            if name.endswith(LARGE):
                digest = hashlib.sha256(data).hexdigest()
                one |= {"blobId": blob_id(b"a pointer"), "lfs": {"size": len(data), "sha256": digest, "pointerSize": 9}}
            siblings.append(one)
        return {"id": NAME, "sha": COMMIT, "private": False, "tags": [], "downloads": 0, "siblings": siblings}


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, data=b"", **headers):
        self.send_response(status)
        headers.setdefault("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_GET(self):  # noqa: PLR0911 - a way out for each thing that is asked
        hub, path = self.server, self.path.partition("?")[0]
        hub.asked.append((self.command, path))
        if hub.denied:
            return self.reply(hub.denied[0], b"{}", X_Error_Code=hub.denied[1], X_Error_Message="no")
        if path in (f"/api/models/{NAME}", f"/api/models/{NAME}/revision/main"):
            if hub.gone == "closed":
                hub.socket.close()
                self.close_connection = True
            return self.reply(200, json.dumps(hub.about()).encode(), Content_Type="application/json")
        if path.startswith(f"/api/models/{NAME}/"):
            return self.reply(404, b"{}", X_Error_Code="RevisionNotFound")
        start = f"/{NAME}/resolve/main/"
        if not path.startswith(start):
            return self.reply(404, b"{}", X_Error_Code="RepoNotFound")
        name = path.removeprefix(start)
        if name not in hub.files:
            return self.reply(404, b"{}", X_Error_Code="EntryNotFound")
        if hub.gone:
            self.close_connection = True
            return None
        data, sent = hub.files[name], hub.wrong.get(name, hub.files[name])
        commit = "f" * 40 if hub.moved else COMMIT
        etag = hashlib.sha256(data).hexdigest() if name.endswith(LARGE) else blob_id(data)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if name.endswith(LARGE):
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(data))}
        return self.reply(200, sent, **headers)

    do_HEAD = do_GET


@pytest.fixture
def hub():
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def ask(hub, tmp_path):
    """Fetch in a process of its own: the library reads its settings when it is imported."""

    def call(name=NAME, environment=(), **more):
        kept = {n: v for n, v in os.environ.items() if not n.startswith("HF_") and "proxy" not in n.lower()}
        settings = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(tmp_path / "cache")}
        settings |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", **dict(environment)}
        done = subprocess.run(
            [sys.executable, "-c", CALL, json.dumps({"name": name, **more})],
            env={**kept, **settings},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert "%|" not in done.stderr  # no bars where there is no terminal
        return json.loads(done.stdout)

    return call


def refused(found, kind, *words):
    assert found.get("error") == kind, found
    assert all(word in found["says"] for word in words), found
    assert "\n" not in found["says"]
    assert found["says"].endswith(".")


def contents(found):
    return {name: (Path(found["folder"]) / name).read_bytes() for name in found["files"]}


def test_what_an_import_needs_is_fetched_and_kept(hub, ask):
    refused(ask(offline=True), "InputError", NAME, "not in the cache")
    assert not hub.asked
    found = ask()
    assert found["files"] == NEEDED
    assert contents(found) == {name: FILES[name] for name in NEEDED}
    assert found["told"] == [f"{NAME}: 8 files, 0.0 MB in all."]
    asked = {path.rpartition("/main/")[2] for _, path in hub.asked if "/resolve/" in path}
    assert asked == set(NEEDED)

    hub.asked.clear()
    again = ask(revision="main")
    assert again["folder"] == found["folder"]
    assert not [path for how, path in hub.asked if how == "GET" and "/resolve/" in path]

    hub.asked.clear()
    assert ask(offline=True)["folder"] == found["folder"]
    assert ask(environment={"HF_HUB_OFFLINE": "1"})["folder"] == found["folder"]
    assert not hub.asked
    refused(ask(offline=True, revision="v2"), "InputError", f"{NAME} at v2 is not in the cache")


def test_a_pickle_only_where_there_is_nothing_else(hub, ask):
    del hub.files["model.safetensors"]
    found = ask()
    assert "pytorch_model.bin" in found["files"]
    assert "model.safetensors" not in found["files"]


def test_shards(hub, ask, tmp_path):
    shards = {f"model-0000{i}-of-00002.safetensors": bytes([i]) * 99 for i in (1, 2)}
    index = {"weight_map": dict(zip("ab", shards, strict=True))}
    del hub.files["model.safetensors"]
    hub.files |= {**shards, "model.safetensors.index.json": json.dumps(index).encode()}
    found = ask()
    assert {*shards, "model.safetensors.index.json"} <= set(found["files"])
    next(tmp_path.rglob("model-00002-of-00002.safetensors")).unlink()
    refused(ask(offline=True), "InputError", "the cache lacks model-00002-of-00002.safetensors")


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.json"])
def test_a_file_that_was_changed_on_the_way_is_refused(name, hub, ask, tmp_path):
    data = bytearray(FILES[name])
    data[3] ^= 1
    hub.wrong[name] = bytes(data)
    refused(ask(), "CheckpointError", name, "not what the hub says of it")
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == bytes(data)]
    refused(ask(offline=True), "InputError", "not in the cache")  # half a model is none
    hub.wrong.clear()
    assert contents(ask())[name] == FILES[name]


def test_a_file_that_was_changed_in_the_cache_is_refused(ask, tmp_path):
    ask()
    path = next(tmp_path.rglob("source.spm")).resolve()
    path.write_bytes(b"PIECES")
    refused(ask(), "CheckpointError", "source.spm")
    assert not path.exists()
    assert contents(ask())["source.spm"] == FILES["source.spm"]


def test_a_model_that_changes_meanwhile(hub, ask):
    hub.moved = True
    refused(ask(), "InputError", "changed on the hub while it was fetched")


def test_what_is_no_model_to_import(hub, ask):
    del hub.files["model.safetensors"], hub.files["pytorch_model.bin"]
    refused(ask(), "InputError", NAME, "no weights")
    del hub.files["config.json"]
    refused(ask(), "InputError", NAME, "no config.json")


def test_who_is_not_let_in(hub, ask):
    refused(ask("someone/else"), "InputError", "there is no model someone/else")
    refused(ask(revision="v9"), "InputError", "no revision 'v9'")
    for status in (401, 403):
        hub.denied = status, "GatedRepo"
        refused(ask(), "InputError", NAME, "its owner lets in")
    hub.denied = 401, "RepoNotFound"
    refused(ask(), "InputError", NAME, "private")
    hub.denied = 500, "Fails"
    refused(ask(), "InputError", NAME, "500")


def test_no_network(ask):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        endpoint = {"HF_ENDPOINT": f"http://127.0.0.1:{nobody.getsockname()[1]}"}
        found = ask(environment=endpoint)
        refused(found, "InputError", NAME, "cannot be reached")
        assert found["seconds"] < LIMIT
        nobody.listen()  # and never answers
        found = ask(environment=endpoint)
        refused(found, "InputError", NAME, "cannot be reached")
        assert found["seconds"] < LIMIT
        assert PATIENCE <= 10


@pytest.mark.parametrize("how", ["silent", "closed"])
def test_a_hub_that_goes_away_meanwhile(how, hub, ask):
    hub.gone = how
    found = ask()
    refused(found, "InputError", NAME, "cannot be reached")
    assert found["seconds"] < LIMIT


def test_names_that_are_none():
    for name in ("", "a/b/c", "../etc", "a b", "-x/y", "a/..", "https://somewhere/a", "/tmp/model", "a/b\n"):
        with pytest.raises(InputError, match="is no name of a model"):
            fetch(name)


def test_the_library_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match="pip install 'sightline"):
        fetch(NAME)
