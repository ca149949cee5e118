"""Downloads from the Hugging Face hub: a local server implements the part of its protocol that the library uses."""

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
from sightline.interop.hub import TIMEOUT, fetch
from support import raises

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
"""Seconds. Without a timeout, the library tries an unreachable network for minutes."""
LARGE = (".safetensors", ".bin", ".h5", ".spm")

CALL = """
import json, os, sys, time
from sightline.errors import SightlineError
from sightline.interop import hub
hub.TIMEOUT = 2
log, begun = [], time.monotonic()
try:
    folder = hub.fetch(log=log.append, **json.loads(sys.argv[1]))
    found = {"folder": str(folder), "files": sorted(os.listdir(folder))}
except SightlineError as error:
    found = {"error": type(error).__name__, "option": error.option, "value": str(error.value), "message": str(error)}
print(json.dumps({**found, "log": log, "seconds": time.monotonic() - begun}))
"""


def blob_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub(ThreadingHTTPServer):
    """Serves the files of one model. `wrong`: files that are sent instead of those that it lists."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.files, self.wrong, self.requests, self.denied, self.moved = dict(FILES), {}, [], None, False
        self.stopped = None

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

    def do_GET(self):  # noqa: PLR0911 - one return per kind of request
        hub, path = self.server, self.path.partition("?")[0]
        hub.requests.append((self.command, path))
        if hub.denied:
            return self.reply(hub.denied[0], b"{}", X_Error_Code=hub.denied[1], X_Error_Message="no")
        if path in (f"/api/models/{NAME}", f"/api/models/{NAME}/revision/main"):
            if hub.stopped == "closed":
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
        if hub.stopped:
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
        assert "%|" not in done.stderr  # no progress bars without a terminal
        return json.loads(done.stdout)

    return call


def refused(found, error, word="", *, option=None, value=NAME):
    """`word` identifies the error; `value` is its end, as the cache has unknown paths."""
    assert (found.get("error"), found["option"]) == (error, option), found
    assert found["value"].endswith(value), found
    assert word in found["message"], found
    assert "\n" not in found["message"]
    assert found["message"].endswith(".")


def contents(found):
    return {name: (Path(found["folder"]) / name).read_bytes() for name in found["files"]}


def test_the_files_of_an_import_are_downloaded_and_cached(hub, ask):
    refused(ask(offline=True), "InputError", option="offline")
    assert not hub.requests
    found = ask()
    assert found["files"] == NEEDED
    assert contents(found) == {name: FILES[name] for name in NEEDED}
    assert len(found["log"]) == 1
    assert NAME in found["log"][0]
    assert "8 files" in found["log"][0]
    requests = {path.rpartition("/main/")[2] for _, path in hub.requests if "/resolve/" in path}
    assert requests == set(NEEDED)

    hub.requests.clear()
    again = ask(revision="main")
    assert again["folder"] == found["folder"]
    assert not [path for how, path in hub.requests if how == "GET" and "/resolve/" in path]

    hub.requests.clear()
    assert ask(offline=True)["folder"] == found["folder"]
    assert ask(environment={"HF_HUB_OFFLINE": "1"})["folder"] == found["folder"]
    assert not hub.requests
    refused(ask(offline=True, revision="v2"), "InputError", "v2", option="offline")


def test_a_pickle_is_downloaded_only_without_safetensors(hub, ask):
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
    refused(ask(offline=True), "InputError", "model-00002-of-00002.safetensors", option="offline")


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.json"])
def test_a_wrong_checksum_of_a_download_is_refused(name, hub, ask, tmp_path):
    data = bytearray(FILES[name])
    data[3] ^= 1
    hub.wrong[name] = bytes(data)
    refused(ask(), "CheckpointError", "checksum", value=name)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == bytes(data)]
    refused(ask(offline=True), "InputError", option="offline")  # part of a model is not used
    hub.wrong.clear()
    assert contents(ask())[name] == FILES[name]


def test_a_wrong_checksum_in_the_cache_is_refused(ask, tmp_path):
    ask()
    path = next(tmp_path.rglob("source.spm")).resolve()
    path.write_bytes(b"PIECES")
    refused(ask(), "CheckpointError", "checksum", value="source.spm")
    assert not path.exists()
    assert contents(ask())["source.spm"] == FILES["source.spm"]


def test_a_model_that_changes_during_the_download_is_refused(hub, ask):
    hub.moved = True
    refused(ask(), "InputError", "changed")


def test_a_model_without_weights_or_config_is_refused(hub, ask):
    del hub.files["model.safetensors"], hub.files["pytorch_model.bin"]
    refused(ask(), "InputError", "no model.safetensors")
    del hub.files["config.json"]
    refused(ask(), "InputError", "no config.json")


def test_missing_and_restricted_models(hub, ask):
    refused(ask("someone/else"), "InputError", "not found", value="someone/else")
    refused(ask(revision="v9"), "InputError", NAME, option="revision", value="v9")
    for status in (401, 403):
        hub.denied = status, "GatedRepo"
        refused(ask(), "InputError", "access")
    hub.denied = 401, "RepoNotFound"
    refused(ask(), "InputError", "private")
    hub.denied = 500, "Fails"
    refused(ask(), "InputError", "500")


def test_no_network(ask):
    with socket.socket() as unanswered:
        unanswered.bind(("127.0.0.1", 0))
        endpoint = {"HF_ENDPOINT": f"http://127.0.0.1:{unanswered.getsockname()[1]}"}
        found = ask(environment=endpoint)
        refused(found, "InputError", "does not answer")
        assert found["seconds"] < LIMIT
        unanswered.listen()
        found = ask(environment=endpoint)
        refused(found, "InputError", "does not answer")
        assert found["seconds"] < LIMIT
        assert TIMEOUT <= 10


@pytest.mark.parametrize("how", ["silent", "closed"])
def test_the_hub_fails_during_the_download(how, hub, ask):
    hub.stopped = how
    found = ask()
    refused(found, "InputError", "does not answer")
    assert found["seconds"] < LIMIT


def test_invalid_names():
    for name in ("", "a/b/c", "../etc", "a b", "-x/y", "a/..", "https://somewhere/a", "/tmp/model", "a/b\n"):
        with raises(InputError, value=name, match="Invalid name"):
            fetch(name)


def test_a_missing_package_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with raises(InputError, value="huggingface_hub", match="pip install"):
        fetch(NAME)
