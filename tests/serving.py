"""A service in its own process, as users start it."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import httpx
import pytest


class Server:
    """The real command line, and a client of it."""

    def __init__(self, *arguments, seconds=120, port=0):
        command = [sys.executable, "-m", "sightline.cli.main", "serve", *map(str, arguments), "--port", str(port)]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        self.lines = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._ready.wait(seconds), self.log
        found = [re.search(r"^Serving .* at (http://\S+)$", line) for line in self.lines]
        assert any(found), self.log
        self.url = next(one[1] for one in found if one)
        self.client = httpx.Client(base_url=self.url, timeout=60, limits=httpx.Limits(max_connections=200))

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if line.startswith("Serving"):
                self._ready.set()
        self._ready.set()

    @property
    def log(self):
        return "\n".join(self.lines)

    @property
    def events(self):
        return [json.loads(line) for line in self.lines if line.startswith("{")]

    def get(self, path, **more):
        return self.client.get(path, **more)

    def post(self, path, body=None, **more):
        return self.client.post(path, json=body, **more)

    def translate(self, text, **options):
        answer = self.post("/v1/translate", {"text": text, **options})
        assert answer.status_code == 200, answer.text
        return answer.json()["translations"]

    def stop(self, sign=signal.SIGTERM, seconds=60):
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(sign)
        code = self.process.wait(seconds)
        self._reader.join(5)
        self.process.stderr.close()
        return code


@contextlib.contextmanager
def serving(*arguments):
    server = Server(*arguments)
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)


def problem(answer, status, kind, *words):
    """Check that an answer is this problem, in the form of RFC 9457, and that its detail has these words."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["type"] == f"urn:sightline:problem:{kind}"
    assert body["status"] == status
    assert body["title"]
    assert body["detail"].endswith(".")
    assert "\n" not in body["detail"]
    for word in words:
        assert re.search(rf"(?<!\w){re.escape(str(word))}(?!\w)", body["detail"]), (word, body["detail"])
    return body["detail"]


def wait_until(condition, seconds=120):
    """Wait for a condition. The limit only bounds the time that a failing test takes."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def cannot(why):
    """Skip a test whose requirement is not installed here; fail in CI, which must run every test."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


def check_document(server, folder, *arguments, also=()):
    """Let schemathesis make requests of all kinds from the OpenAPI document; each answer must match the document.

    A request with valid fields can be invalid as a whole: a prefix for two lines, samples with required words. Too
    large a request has its own status. `also`: other statuses of invalid requests."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--max-examples", "8"]
    command += ["--checks", "all", "--request-timeout", "30", "--suppress-health-check", "all", *arguments]
    (folder / "schemathesis.toml").write_text(
        f"checks.positive_data_acceptance.expected-statuses = {['2xx', *also, 404, 413, 422]}\n"
        "checks.negative_data_rejection.expected-statuses = [400, 404, 405, 413, 415, 422]\n"
    )
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env={**os.environ, "NO_COLOR": "1"}
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
