"""`sightline serve` under load, on loopback, with real processes.

    python benchmarks/serve.py MODEL --pairs PAIRS.tsv [--parts throughput latency mixed stop] [--minutes 10]

MODEL is a folder that `sightline train` wrote, or a bundled model; PAIRS a TSV whose sources are translated. Every
answer is compared with that of an engine in another process. Four parts:

- throughput: the same sentences one request at a time, and by 64 clients at once;
- latency: lone requests against calls of the engine, in turn, sentence by sentence;
- mixed: minutes of right requests among broken, oversized, slow, malformed and abandoned ones; every problem must be
  a documented one, no answer wrong, and memory flat;
- stop: SIGTERM under load loses no request; after SIGKILL the service is back as soon as the model is loaded.

The client runs on the same cores. Linux only; needs the development dependencies. Each part goes to
benchmarks/results/ with its own machine and commit. The exit code is 1 if an answer was wrong; a missed goal is only
printed.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
import uvloop
from common import RESULTS, keep, where
from lines import resident

from sightline.config import SearchConfig
from sightline.data.corpus import Table, read_pairs
from sightline.engine import load_translator
from sightline.model_folder import ModelFolder
from sightline.serve.problems import KINDS

HOST, NAME = "127.0.0.1", "en-de"
BEAMS = (1, 4)
PARTS = ("throughput", "latency", "mixed", "stop")
PACKAGES = ("ctranslate2", "fastapi", "uvicorn", "uvloop", "httptools")
DEADLINE = 30.0
"""Seconds in which a service must end after SIGTERM (`ServeConfig.shutdown`)."""


# --- The processes


class Alone:
    """An engine in its own process: the expected answers, and its time without a service."""

    def __init__(self, model: Path, engine: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_answer_calls, args=(model, engine, theirs), daemon=True)
        self._process.start()
        self._pipe.recv()

    def translate(self, texts: Sequence[str], beam: int) -> tuple[list[str], float]:
        """Return the translations and the seconds of the call in that process."""
        self._pipe.send((texts, beam))
        answers, seconds = self._pipe.recv()
        return answers, seconds

    def close(self) -> None:
        """End it."""
        self._pipe.send(None)
        self._process.join()


def _answer_calls(model: Path, engine: Any, pipe: Any) -> None:
    translator = load_translator(model, backend=engine)
    pipe.send(None)
    while (asked := pipe.recv()) is not None:
        texts, beam = asked
        began = time.perf_counter()
        found = translator.run(translator.plan(texts, SearchConfig(beams=beam), log_probs=False))
        seconds = time.perf_counter() - began
        pipe.send(([one.text for one in found], seconds))


class Server:
    """A service, as a user starts it."""

    def __init__(self, model: Path, engine: str, *sets: str, port: int = 0) -> None:
        self._log = tempfile.NamedTemporaryFile("rb")  # noqa: SIM115 - a file, not a pipe: nobody has to empty it
        options = ["--port", str(port), "--backend", engine, "--log", "json", *(f"--set={one}" for one in sets)]
        command = [sys.executable, "-m", "sightline.cli.main", "serve", f"{NAME}={model}", *options]
        self.began = time.perf_counter()
        with Path(self._log.name).open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log)  # noqa: S603
        self.port = 0
        while not self.port:
            said = [line for line in self.log() if line.startswith("Serving ")]
            if said:
                self.port = int(said[0].rpartition(":")[2])
            elif self.process.poll() is not None:
                sys.exit("\n".join(["the service did not start:", *self.log()]))
            time.sleep(0.01)

    def log(self) -> list[str]:
        """Return the complete lines of its log."""
        self._log.seek(0)
        text = self._log.read().decode()
        return text[: text.rfind("\n") + 1].splitlines()

    async def ready(self) -> float:
        """Return the seconds from the start of the process until it is ready."""
        while True:
            with contextlib.suppress(OSError, LostError):
                async with Connection(self.port) as one:
                    if (await one.ask("/readyz")).status == 200:
                        return time.perf_counter() - self.began
            if self.process.poll() is not None:
                sys.exit("\n".join(["the service ended:", *self.log()[-20:]]))
            await asyncio.sleep(0.01)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()


# --- A client that takes little of the processor


class LostError(Exception):
    """The connection ended before the answer did."""

    def __init__(self, begun: bool) -> None:
        super().__init__("an answer was broken off" if begun else "no answer")
        self.begun = begun
        """Whether a part of the answer had arrived."""


class Answer(NamedTuple):
    """What came back."""

    status: int
    kind: str
    body: bytes

    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.body)


def written(path: str, body: bytes | None, **headers: str) -> bytes:
    """A request, as it goes over the wire."""
    fields = {"Host": HOST, "Content-Type": "application/json", "Content-Length": str(len(body or b""))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in fields.items() if value]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def asking(text: str | Sequence[str], beam: int, **more: Any) -> bytes:
    """The body of a request for a translation."""
    return json.dumps({"text": text, "beams": beam, **more}).encode()


class Connection:
    """HTTP/1.1, as much of it as is needed; kept alive while both sides like."""

    def __init__(self, port: int, *, small: bool = False) -> None:
        """`small`: take only little at a time, as one behind a slow line."""
        self.port, self.small = port, small
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, if that is not done yet."""
        if self.reader is None or self.writer is None:
            place = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            if self.small:
                place.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            place.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(place, (HOST, self.port))
            except OSError:
                place.close()
                raise
            limit = 1024 if self.small else 1 << 20
            self.reader, self.writer = await asyncio.open_connection(sock=place, limit=limit)
        return self.reader, self.writer

    async def send(self, data: bytes) -> None:
        """Bytes, as they are."""
        _, writer = await self.open()
        writer.write(data)
        await writer.drain()

    async def ask(self, path: str, body: bytes | None = None) -> Answer:
        """Send a request and wait for its answer."""
        await self.open()
        with contextlib.suppress(ConnectionError):  # it may be answered before all of it was read
            await self.send(written(path, body))
        return await self.answer()

    async def answer(self) -> Answer:
        """The next answer."""
        status, fields = await self.head()
        pieces = [piece async for piece in self.pieces(fields)]
        if fields.get("connection") == "close":
            self.close()
        return Answer(status, fields.get("content-type", ""), b"".join(pieces))

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers."""
        reader, _ = await self.open()
        lines: list[str] = []
        try:
            while (line := await reader.readline()) != b"\r\n":
                if not line.endswith(b"\n"):
                    raise LostError(bool(lines or line))
                lines.append(line.decode("latin-1"))
        except ConnectionError:
            raise LostError(bool(lines)) from None
        fields = (line.partition(":") for line in lines[1:])
        return int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in fields}

    async def pieces(self, fields: Mapping[str, str], pause: float = 0.0) -> AsyncIterator[bytes]:
        """The body; `pause`: seconds between one piece and the next."""
        reader, _ = await self.open()
        try:
            if fields.get("transfer-encoding") == "chunked":
                while length := int(await reader.readuntil(b"\r\n"), 16):
                    yield (await reader.readexactly(length + 2))[:-2]
                    await asyncio.sleep(pause)
                await reader.readexactly(2)
            else:
                yield await reader.readexactly(int(fields.get("content-length", "0")))
        except (asyncio.IncompleteReadError, ConnectionError):
            raise LostError(True) from None

    def close(self) -> None:
        """Leave, at once."""
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def said(answer: Answer) -> list[str]:
    """The translations in an answer."""
    return [one["text"] for one in answer.json()["translations"]]


def events(body: bytes) -> list[tuple[str, Any]]:
    """Server-sent events."""
    found = []
    for block in body.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


# --- Throughput


async def throughput(options: argparse.Namespace, texts: Sequence[str], alone: Alone) -> tuple[Any, list[str]]:
    """Sentences a second, one request at a time and many."""
    rows, wrong = [], list[str]()
    with Server(options.model, options.backend) as server:
        await server.ready()
        for beam in BEAMS:
            right, _ = alone.translate(texts, beam)
            await asked_by(server, 8, texts[:64], beam)
            best: dict[int, float] = {}
            batch, client = 0.0, 0.0
            for clients in [1, options.clients] * options.rounds:
                before, used = await batches(server), time.process_time()
                seconds, answers = await asked_by(server, clients, texts, beam)
                count, sentences = (now - then for now, then in zip(await batches(server), before, strict=True))
                wrong += [f"beam {beam}: {a!r}, not {b!r}" for a, b in zip(answers, right, strict=True) if a != b]
                best[clients] = min(seconds, best.get(clients, seconds))
                if clients > 1:
                    batch, client = sentences / count, (time.process_time() - used) / seconds
            engine = min(alone.translate(texts, beam)[1] for _ in range(options.rounds))
            rate = {clients: len(texts) / seconds for clients, seconds in best.items()}
            rows.append(
                {
                    "beams": beam,
                    "sentences": len(texts),
                    "one at a time, sentences/s": round(rate[1], 1),
                    f"{options.clients} clients, sentences/s": round(rate[options.clients], 1),
                    "ratio": round(rate[options.clients] / rate[1], 2),
                    "goal: 5 or more": rate[options.clients] >= 5 * rate[1],
                    "sentences in a batch": round(batch, 1),
                    "client's share of a core": round(client, 2),
                    "all in one call of the engine, sentences/s": round(len(texts) / engine, 1),
                }
            )
    return rows, wrong


async def asked_by(server: Server, clients: int, texts: Sequence[str], beam: int) -> tuple[float, list[str]]:
    """Seconds until all texts are translated, and their translations. Each client takes the next that is left."""
    answers, left = [""] * len(texts), iter(enumerate(texts))

    async def client() -> None:
        async with Connection(server.port) as one:
            for number, text in left:
                answer = await one.ask("/v1/translate", asking(text, beam))
                answers[number] = said(answer)[0] if answer.status == 200 else f"status {answer.status}"

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return time.perf_counter() - began, answers


async def batches(server: Server) -> tuple[float, float]:
    """How many batches there were, and sentences in them."""
    async with Connection(server.port) as one:
        text = (await one.ask("/metrics")).body.decode()
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return float(found["sightline_batch_sentences_count"]), float(found["sightline_batch_sentences_sum"])


# --- Latency


async def latency(options: argparse.Namespace, texts: Sequence[str], alone: Alone) -> tuple[Any, list[str]]:
    """Milliseconds of lone requests and of calls of the engine, in turn. Between them is a rest, so that threads of the
    one that still spin, waiting for more to do, do not disturb the other."""
    rows, wrong = [], list[str]()
    texts = texts[: options.lone]
    with Server(options.model, options.backend) as server:
        await server.ready()
        async with Connection(server.port) as one:
            for beam in BEAMS:
                for text in texts[:10]:
                    alone.translate([text], beam)
                    await one.ask("/v1/translate", asking(text, beam))
                served, called = list[float](), list[float]()
                for text in texts:
                    await asyncio.sleep(options.rest)
                    (right,), seconds = alone.translate([text], beam)
                    called.append(seconds * 1e3)
                    await asyncio.sleep(options.rest)
                    began = time.perf_counter()
                    answer = await one.ask("/v1/translate", asking(text, beam))
                    served.append((time.perf_counter() - began) * 1e3)
                    if answer.status != 200 or said(answer) != [right]:
                        wrong.append(f"beam {beam}: {answer.body.decode()}, not {right!r}")
                rows.append({"beams": beam, "requests": len(texts), **_compared(served, called)})
    return rows, wrong


def _compared(served: list[float], called: list[float]) -> dict[str, Any]:
    p50, own = statistics.median(served), statistics.median(called)
    more = statistics.median(a - b for a, b in zip(served, called, strict=True))
    return {
        "p50 served, ms": round(p50, 1),
        "p50 called, ms": round(own, 1),
        "p50 of the difference, ms": round(more, 1),
        "p95 served, ms": round(statistics.quantiles(served, n=20)[-1], 1),
        "p95 called, ms": round(statistics.quantiles(called, n=20)[-1], 1),
        "goal: at most 10 % and 5 ms more": p50 <= 1.1 * own + 5,
    }


# --- Mixed load


class Mixed:
    """Requests of all kinds, one for each method. Errors are stored, and statuses are counted."""

    def __init__(self, server: Server, known: Mapping[int, Mapping[str, str]], seed: int) -> None:
        """`known`: by beam, the translation of each text."""
        self.server, self.known, self.chance = server, known, random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def client(self, until: float) -> None:
        """Send random requests until a time, over one connection if possible."""
        kinds: dict[Callable[[Connection], Awaitable[None]], int] = {
            self.right: 40, self.several: 5, self.libre: 5, self.streamed: 10, self.scored: 3, self.traced: 1,
            self.invalid: 10, self.malformed: 5, self.too_large: 3, self.left: 8, self.stream_left: 5,
            self.slow_reader: 2, self.slow_sender: 2, self.stalled: 1, self.half_a_head: 2,
        }  # fmt: skip
        one = Connection(self.server.port)
        while time.monotonic() < until:
            (kind,) = self.chance.choices(list(kinds), list(kinds.values()))
            name = kind.__name__.replace("_", " ")
            try:
                await asyncio.wait_for(kind(one), 90)
            except (LostError, OSError, TimeoutError, ValueError, LookupError) as error:
                self.note(name, f"{type(error).__name__}: {error}")
                one.close()
        one.close()

    def note(self, name: str, what: str) -> None:
        """Store an error."""
        self.counts[f"{name}: wrong"] += 1
        self.wrong.append(f"{name}: {what}")

    def check(self, name: str, answer: Answer, *statuses: int) -> bool:
        """Return whether the status is one of these. An error must be a documented problem; 503 is allowed."""
        self.counts[f"{name}: {answer.status}"] += 1
        if answer.status >= 400:
            about = answer.json()
            kind = about.get("type", "").removeprefix("urn:sightline:problem:")
            known = answer.kind == "application/problem+json" and kind in KINDS
            if not known or KINDS[kind].status != answer.status or about.get("status") != answer.status:
                self.note(name, f"status {answer.status} as {answer.kind}, {answer.body[:200]!r}")
                return False
        if answer.status not in (*statuses, 503):
            self.note(name, f"status {answer.status}: {answer.body[:200]!r}")
        return answer.status in statuses

    def compare(self, name: str, found: Sequence[str], texts: Sequence[str], beam: int) -> None:
        """Compare translations with those of the engine alone."""
        for text, one in zip(texts, found, strict=True):
            if one != self.known[beam][text]:
                self.note(name, f"{one!r}, not {self.known[beam][text]!r}, for {text!r} with beam {beam}")

    def some(self, count: int = 1) -> list[str]:
        """Return random texts."""
        return self.chance.choices(list(self.known[1]), k=count)

    async def right(self, one: Connection) -> None:
        """A text."""
        texts, beam = self.some(), self.chance.choice(BEAMS)
        answer = await one.ask("/v1/translate", asking(texts[0], beam))
        if self.check("right", answer, 200):
            self.compare("right", said(answer), texts, beam)

    async def several(self, one: Connection) -> None:
        """Some texts at once."""
        texts, beam = self.some(self.chance.randint(2, 20)), self.chance.choice(BEAMS)
        answer = await one.ask("/v1/translate", asking(texts, beam, details=self.chance.random() < 0.3))
        if self.check("several", answer, 200):
            self.compare("several", said(answer), texts, beam)

    async def libre(self, one: Connection) -> None:
        """As LibreTranslate's clients ask."""
        (text,) = self.some()
        body = json.dumps({"q": text, "source": "en", "target": "de"}).encode()
        answer = await one.ask("/translate", body)
        if self.check("libre", answer, 200):
            self.compare("libre", [answer.json()["translatedText"]], [text], 4)

    async def streamed(self, one: Connection, pause: float = 0.0, name: str = "streamed") -> None:
        """A text, word by word."""
        (text,) = self.some()
        await one.send(written("/v1/translate/stream", asking(text, 1)))
        status, fields = await one.head()
        body = b"".join([piece async for piece in one.pieces(fields, pause)])
        if self.check(name, Answer(status, fields["content-type"], body), 200):
            *parts, (last, whole) = events(body)
            if last == "error":
                self.counts[f"{name}: error {whole['type'].rpartition(':')[2]}"] += 1
            else:
                self.compare(name, [whole["text"]], [text], 1)
                self.compare(name, ["".join(part["text"] for _, part in parts)], [text], 1)

    async def slow_reader(self, _one: Connection) -> None:
        """A stream that is read little by little."""
        async with Connection(self.server.port, small=True) as slow:
            await self.streamed(slow, 0.1, "slow reader")

    async def scored(self, one: Connection) -> None:
        """Check that the score of a translation is that of its details."""
        (text,) = self.some()
        answer = await one.ask("/v1/translate", asking(text, 4, details=True))
        if not self.check("scored", answer, 200):
            return
        (found,) = answer.json()["translations"]
        if "\n" in text or len(found["log_probs"]) != len(found["tokens"]) + 1:
            return  # in parts
        pairs = {"pairs": [{"source": text, "target": found["text"]}]}
        answer = await one.ask("/v1/score", json.dumps(pairs).encode())
        if self.check("scored", answer, 200):
            (score,) = answer.json()["scores"]
            if score["tokens"] == found["tokens"] and abs(score["log_prob"] - sum(found["log_probs"])) > 1e-3:
                self.note("scored", f"{score['log_prob']}, not {sum(found['log_probs'])}, for {text!r}")

    async def traced(self, one: Connection) -> None:
        """A look inside."""
        answer = await one.ask("/v1/trace", json.dumps({"text": self.some()[0]}).encode())
        if self.check("traced", answer, 200):
            about = answer.json()
            name = self.chance.choice(about["tensors"])["name"]
            self.check("traced", await one.ask(f"/v1/trace/{about['id']}/{name}"), 200, 404)  # or it is forgotten

    async def invalid(self, one: Connection) -> None:
        """What cannot be."""
        path, body, status = self.chance.choice(
            [
                ("/v1/translate", {"text": "a", "beams": 0}, 422),
                ("/v1/translate", {"text": "a", "beams": 17}, 422),
                ("/v1/translate", {"text": "a", "beam": 4}, 422),
                ("/v1/translate", {"text": 7}, 422),
                ("/v1/translate", {"text": "a", "nbest": 17}, 422),
                ("/v1/translate", {}, 422),
                ("/v1/translate", [], 422),
                ("/v1/translate", {"text": "a", "model": "none"}, 404),
                ("/v1/translate", {"text": ["a"] * 300}, 413),
                ("/v1/translate", {"text": "a " * 30_000}, 413),
                ("/v1/translate/stream", {"text": "a", "beams": 2}, 422),
                ("/v1/alternatives", {"text": "a", "target": "b", "position": 999}, 422),
                ("/v1/nothing", {}, 404),
                ("/v1/models", {}, 405),
                ("/translate", {"q": "a", "source": "en", "target": "xx"}, 404),
            ]
        )
        self.check("invalid", await one.ask(path, json.dumps(body).encode()), status)

    async def malformed(self, one: Connection) -> None:
        """What cannot be read."""
        path = self.chance.choice(["/v1/translate", "/v1/translate/stream", "/translate", "/v1/score"])
        body = self.chance.choice(
            [b"", b"{", b'{"text": "a"', b'{"text": "\xff\xfe"}', b"\x00", b'{"text": "\\ud800"}', b"[" * 5000, b"nul"]
        )
        self.check("malformed", await one.ask(path, body), 400, 422)

    async def too_large(self, one: Connection) -> None:
        """A body that is too large."""
        body = asking("a" * 1_100_000, 1)
        try:
            if self.chance.random() < 0.5:
                answer = await one.ask("/v1/translate", body)
            else:  # without a length
                head = written("/v1/translate", b"", Content_Length="", Transfer_Encoding="chunked")
                with contextlib.suppress(ConnectionError):
                    await one.send(head + f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")
                answer = await one.answer()
        except LostError as error:  # it was closed while we were sending, and the answer is lost on the way
            if error.begun:
                raise
            self.counts["too large: closed"] += 1
        else:
            self.check("too large", answer, 413)
        one.close()

    async def left(self, _one: Connection) -> None:
        """Somebody leaves, before or after the search has begun."""
        async with Connection(self.server.port) as other:
            whole = written("/v1/translate", asking(self.some(4), 4))
            part = self.chance.choice([1.0, 1.0, self.chance.random()])
            await other.send(whole[: max(1, round(part * len(whole)))])
            await asyncio.sleep(self.chance.choice([0, 0.01, 0.1]))
            if other.writer is not None and self.chance.random() < 0.5:
                other.writer.transport.abort()
        self.counts["left"] += 1

    async def stream_left(self, _one: Connection) -> None:
        """Somebody has read enough."""
        async with Connection(self.server.port) as other:
            await other.send(written("/v1/translate/stream", asking(" ".join(self.some(3)), 1)))
            status, fields = await other.head()
            if status == 200:
                async for _ in other.pieces(fields):
                    break
        self.counts["stream left"] += 1

    async def slow_sender(self, _one: Connection) -> None:
        """It takes a while, but comes."""
        texts, beam = self.some(), self.chance.choice(BEAMS)
        whole = written("/v1/translate", asking(texts[0], beam))
        async with Connection(self.server.port) as other:
            for begin in range(0, len(whole), 40):
                await other.send(whole[begin : begin + 40])
                await asyncio.sleep(0.05)
            answer = await other.answer()
            if self.check("slow sender", answer, 200):
                self.compare("slow sender", said(answer), texts, beam)

    async def stalled(self, _one: Connection) -> None:
        """It never comes."""
        async with Connection(self.server.port) as other:
            await other.send(written("/v1/translate", asking(self.some()[0], 1))[:-3])
            self.check("stalled", await other.answer(), 408)

    async def half_a_head(self, _one: Connection) -> None:
        """Not even the headers come."""
        async with Connection(self.server.port) as other:
            await other.send(b"POST /v1/translate HTTP/1.1\r\nHost: a\r\nContent-")
            await asyncio.sleep(0.1)
        self.counts["half a head"] += 1


async def mixed(options: argparse.Namespace, texts: Sequence[str], alone: Alone) -> tuple[Any, list[str]]:
    """Everything at once."""
    groups = [texts[i : i + 3] for i in range(0, 90, 3)]
    asked = [*texts, *(" ".join(group) for group in groups), *("\n".join(group) + "\n" for group in groups)]
    known = {beam: dict(zip(asked, alone.translate(asked, beam)[0], strict=True)) for beam in BEAMS}
    seconds, seen = options.minutes * 60, list[float]()
    with Server(options.model, options.backend, "receive=3", "trace_memory=0.02") as server:
        await server.ready()
        began = time.monotonic()
        load = Mixed(server, known, options.seed)
        clients = [asyncio.create_task(load.client(began + seconds)) for _ in range(24)]
        while time.monotonic() < began + seconds:
            await asyncio.sleep(1)
            seen.append(resident(server.process.pid))
        await asyncio.gather(*clients)
        async with Connection(server.port) as one:
            healthy = (await one.ask("/healthz")).status == 200
        if not healthy:
            load.wrong.append("the service is not healthy afterwards")
        errors = [line for line in server.log() if '"level": "error"' in line]
        load.wrong += [f"logged: {line[:300]}" for line in errors]
    minute = [statistics.mean(seen[i : i + 60]) for i in range(0, len(seen) - 30, 60)]
    growth = minute[-1] / minute[1] - 1 if len(minute) > 2 else None
    if growth is not None and growth > 0.05:
        load.wrong.append(f"memory grew by {growth:.1%} from the second minute to the last")
    total = sum(count for name, count in load.counts.items() if not name.endswith("wrong"))
    result = {
        "minutes": options.minutes,
        "requests": total,
        "requests/s": round(total / seconds, 1),
        "wrong": len(load.wrong),
        "MiB, minute by minute": [round(mib) for mib in minute],
        "growth from the second minute to the last": growth if growth is None else round(growth, 4),
        "what came back": dict(sorted(load.counts.items())),
    }
    return result, load.wrong


# --- Stopping


class Sent(NamedTuple):
    """A request and its outcome."""

    at: float
    """The time at which it was sent."""
    outcome: str
    bad: str = ""
    """The error in the answer, if any."""


async def stop(options: argparse.Namespace, texts: Sequence[str], alone: Alone) -> tuple[Any, list[str]]:
    """SIGTERM under load; then SIGKILL under load, and how long it takes to be back."""
    groups = [texts[i : i + 8] for i in range(0, 128, 8)]
    known = {tuple(group): alone.translate(group, 4)[0] for group in groups}
    greedy = dict(zip(texts, alone.translate(texts, 1)[0], strict=True))
    wrong: list[str] = []
    rounds = []
    for number in range(options.rounds):
        with Server(options.model, options.backend) as server:
            await server.ready()
            sent: list[Sent] = []
            tasks = [asyncio.create_task(_until_it_ends(server, i, known, greedy, sent)) for i in range(32)]
            await asyncio.sleep(2 + number * 0.37)
            told = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            code = await asyncio.to_thread(server.process.wait, 2 * DEADLINE)
            took = time.monotonic() - told
            await asyncio.wait_for(asyncio.gather(*tasks), 10)
            errors = [line for line in server.log() if '"level": "error"' in line]
        before, after = [one for one in sent if one.at < told], [one for one in sent if one.at >= told]
        late = [one for one in before if one.outcome in ("nothing", "refused")]
        wrong += [f"stop: a request that was sent {1e3 * (told - one.at):.0f} ms before was lost" for one in late]
        wrong += [f"stop: {one.bad}" for one in sent if one.bad]
        wrong += [f"stop: exit code {code}, not 0"] if code else []
        wrong += [f"stop: it took {took:.1f} s"] if took > DEADLINE + 1 else []
        wrong += [f"stop: logged {line[:300]}" for line in errors]
        rounds.append(
            {
                "sent before": dict(Counter(one.outcome for one in before)),
                "sent after": dict(Counter(one.outcome for one in after)),
                "lost": len(late),
                "exit code": code,
                "seconds": round(took, 2),
            }
        )
    back = [await _killed(options, known, greedy) for _ in range(options.rounds)]
    plain = [_plain(options) for _ in range(options.rounds)]
    restart = {
        "ready after SIGKILL, s": round(statistics.median(back), 2),
        "model loaded by itself, s": round(statistics.median(plain), 2),
    }
    return {"SIGTERM": rounds, **restart}, wrong


async def _until_it_ends(
    server: Server,
    number: int,
    known: Mapping[tuple[str, ...], list[str]],
    greedy: Mapping[str, str],
    sent: list[Sent],
) -> None:
    """Send requests until the service has ended: over one connection or new ones, with or without streaming."""
    one, chance = Connection(server.port), random.Random(number)
    streams, kept = number % 4 >= 2, number % 2 == 0
    while True:
        text, texts = chance.choice(list(greedy)), chance.choice(list(known))
        request = (
            written("/v1/translate/stream", asking(text, 1)) if streams else written("/v1/translate", asking(texts, 4))
        )
        at, bad = time.monotonic(), ""
        try:
            await one.open()
            await one.send(request)
            at = time.monotonic()
            answer = await one.answer()
        except LostError as error:
            outcome, bad = ("broken off", "an answer was broken off") if error.begun else ("nothing", "")
            one.close()
        except OSError:
            sent.append(Sent(time.monotonic(), "refused"))
            return
        else:
            outcome = str(answer.status)
            if answer.status == 503:
                bad = "" if answer.kind == "application/problem+json" else f"a 503 as {answer.kind}"
            elif answer.status != 200:
                bad = f"status {answer.status}"
            elif streams:
                last, whole = events(answer.body)[-1]
                outcome = f"200, {last}"
                bad = f"a stream ends by {last}" if last not in ("done", "error") else ""
                bad = "a stream is wrong" if last == "done" and whole["text"] != greedy[text] else bad
            else:
                bad = "a translation is wrong" if said(answer) != known[texts] else ""
        sent.append(Sent(at, outcome, bad))
        if not kept:
            one.close()


async def _killed(
    options: argparse.Namespace, known: Mapping[tuple[str, ...], list[str]], greedy: Mapping[str, str]
) -> float:
    """Kill a service under load; return the seconds until a new one is ready at the same port."""
    with Server(options.model, options.backend) as server:
        await server.ready()
        tasks = [asyncio.create_task(_until_it_ends(server, i, known, greedy, [])) for i in range(32)]
        await asyncio.sleep(1)
        server.process.kill()
        server.process.wait()
        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        with Server(options.model, options.backend, port=server.port) as again:
            return await again.ready()


def _plain(options: argparse.Namespace) -> float:
    """Return the seconds until a process without a service has loaded the model."""
    code = "import sys, sightline; sightline.load(sys.argv[1], backend=sys.argv[2]); print('loaded', flush=True)"
    command = [sys.executable, "-c", code, str(options.model), options.backend]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: S603
        assert process.stdout is not None
        process.stdout.readline()
        return time.perf_counter() - began


# --- All of it


def main() -> None:
    """Measure, print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=lambda name: ModelFolder(name).path)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--backend", default="auto", choices=("auto", "torch", "ctranslate2"))
    parser.add_argument("--sentences", type=int, default=512)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3, help="of throughput the best counts, of restarts the median")
    parser.add_argument("--lone", type=int, default=150, help="requests of which the latency is measured")
    parser.add_argument("--rest", type=float, default=0.25, help="seconds between lone requests")
    parser.add_argument("--minutes", type=float, default=10, help="of mixed load; memory needs at least 3")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--name", help="of the result; by default that of the engine")
    options = parser.parse_args()
    if options.sentences < 128:
        parser.error("--sentences: 128 are the fewest")
    pairs = itertools.islice(read_pairs(Table(options.pairs)), options.sentences)
    texts = [source for source, _ in pairs]
    parts = {"throughput": throughput, "latency": latency, "mixed": mixed, "stop": stop}
    kind = options.name or ("torch" if options.backend == "torch" else "")
    name = "-".join(filter(None, ["serve", "cuda" if torch.cuda.is_available() else "cpu", kind]))
    kept = json.loads((RESULTS / f"{name}.json").read_text()) if (RESULTS / f"{name}.json").exists() else {}
    settings = {"model": options.model.name, "of": options.pairs.name, "backend": options.backend}
    failed = False
    for part in options.parts:
        with _open(options) as alone, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result, wrong = runner.run(parts[part](options, texts, alone))
        print(f"\n== {part}")
        for row in result if isinstance(result, list) else [result]:
            _show(row)
        for line in wrong[:20]:
            print(f"WRONG  {line}")
        failed = failed or bool(wrong)
        kept[part] = {"where": where(*PACKAGES), "settings": settings, "wrong": len(wrong), "results": result}
        path = keep(name, kept)
        print(f"kept in {path}", flush=True)
    sys.exit(failed)


@contextlib.contextmanager
def _open(options: argparse.Namespace) -> Iterator[Alone]:
    alone = Alone(options.model, options.backend)
    yield alone
    alone.close()


def _show(row: Mapping[str, Any], depth: int = 0) -> None:
    for key, value in row.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            for each in value:
                print(f"{'  ' * depth}{key}")
                _show(each, depth + 1)
        elif isinstance(value, dict):
            print(f"{'  ' * depth}{key}")
            _show(value, depth + 1)
        else:
            print(f"{'  ' * depth}{key:<{46 - 2 * depth}}{value}")
    if not depth:
        print()


if __name__ == "__main__":
    main()
