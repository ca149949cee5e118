"""The service behind the routes: models, their worker threads and stored traces."""

import asyncio
import secrets
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

from starlette.requests import Request

from sightline.config import ServeConfig
from sightline.engine import Chat, Engine, Plan, Translator, Writer
from sightline.serve.lesson import Lesson
from sightline.serve.models import Models
from sightline.serve.observe import Metrics
from sightline.serve.problems import Problem
from sightline.serve.schemas import WhatIf
from sightline.serve.worker import TURNS, Event, Job, JobResult, Worker, Written
from sightline.trace.trace import Trace

T = TypeVar("T")
E = TypeVar("E", Translator, Writer, Chat)


class Search(NamedTuple, Generic[E, T]):
    """A search that a request asks for."""

    model: str
    engine: E
    texts: Sequence[str]
    make_plan: Callable[[], Plan[T]]
    what_if: WhatIf | None = None


class ClientDisconnected(Exception):  # noqa: N818 - not an error
    """The client has closed the connection."""


class StoredTrace(NamedTuple):
    """A trace and its engine."""

    trace: Trace
    engine: Engine
    bytes: int
    """Approximate size."""


class Traces:
    """The most recent traces, by ids that cannot be guessed. Worker threads add them; the event loop reads them."""

    def __init__(self, memory: float) -> None:
        """`memory`: budget in GiB."""
        self._memory = memory * 2**30
        self._traces: OrderedDict[str, StoredTrace] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, trace: Trace, engine: Engine) -> str:
        """Store a trace and return its id. The oldest traces are dropped if the budget is exceeded."""
        config = engine.model.config
        tokens = sum(map(len, trace.tokens.values()))
        layers = sum(stack.layers for stack in config.stacks.values())
        size = tokens * config.d_model * layers * 4 * 30  # about thirty vectors per token and layer
        number = secrets.token_urlsafe(12)
        with self._lock:
            while self._traces and sum(one.bytes for one in self._traces.values()) + size > self._memory:
                self._traces.popitem(last=False)
            self._traces[number] = StoredTrace(trace, engine, size)
        return number

    def get(self, number: str, names: Sequence[str] = ()) -> StoredTrace:
        """Return a stored trace that has tensors with these names."""
        with self._lock:
            if number not in self._traces:
                raise Problem("not-found", "Unknown trace, or its memory was needed for newer ones. Request it again.")
            self._traces.move_to_end(number)
            stored = self._traces[number]
        if not all(name in stored.trace for name in names):
            raise Problem("not-found", "Unknown tensor of this trace.")
        return stored


class Service:
    """Models, workers, traces and metrics."""

    def __init__(self, models: Models, config: ServeConfig, *, training: bool = False) -> None:
        """`training`: whether clients may start the training run of the tour."""
        self.models, self.config, self.metrics = models, config, Metrics()
        self.traces = Traces(config.trace_memory)
        self.lesson = Lesson(allowed=training)
        models.find_state = self.lesson.folder
        self.workers: dict[str, Worker] = {}

    def worker(self, engine: Engine) -> Worker:
        """Return the worker of the model's device. On a GPU one search runs at a time, because it is short."""
        device = engine.model.device
        if str(device) not in self.workers:
            worker = Worker(self.config, turns=1 if device.type == "cuda" else TURNS, name=f"model {device}")
            worker.on_batch = self._count_batch
            self.workers[str(device)] = worker
        return self.workers[str(device)]

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a model."""
        return sum(worker.waiting for worker in self.workers.values())

    @property
    def healthy(self) -> bool:
        """Whether all worker threads run."""
        return all(worker.alive for worker in self.workers.values())

    async def run(self, request: Request, search: Search[E, T]) -> T:
        """Run a search and return its result."""
        (result,) = [event async for event in self._events(request, search)]
        return cast("T", result)

    def stream(self, request: Request, search: Search[E, T]) -> AsyncIterator[str | T]:
        """Run a search for one text; yield the answer in chunks, then the result."""
        return cast("AsyncIterator[str | T]", self._events(request, search, streamed=True))

    def stream_tokens(self, request: Request, search: Search[E, T]) -> AsyncIterator[Written | T]:
        """Run a search; yield the tokens of all answers, then the result."""
        return cast("AsyncIterator[Written | T]", self._events(request, search, streamed=True, tokens=True))

    async def _events(
        self, request: Request, search: Search[E, T], *, streamed: bool = False, tokens: bool = False
    ) -> AsyncIterator[str | Written | T]:
        loop = asyncio.get_running_loop()
        end = loop.time() + self.config.deadline
        events: asyncio.Queue[Event] = asyncio.Queue()
        put = events.put_nowait
        changes = search.what_if.changes() if search.what_if else None
        job = Job(
            search.engine,
            search.make_plan,
            lambda event: loop.call_soon_threadsafe(put, event),
            streamed,
            changes,
            tokens,
        )
        self.worker(search.engine).submit(job)
        try:
            while True:
                event = await self._wait(request, asyncio.ensure_future(events.get()), end - loop.time())
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, JobResult):
                    self.metrics.waited.observe(event.waited)
                    self.metrics.characters.labels(search.model).inc(sum(map(len, search.texts)))
                    yield event.result
                    return
                yield event
        finally:
            job.cancelled = True

    async def call(self, request: Request, engine: Engine, work: Callable[[], T]) -> T:
        """Run `work` on the thread of the model and return its result."""
        return await self._wait(request, asyncio.wrap_future(self.worker(engine).call(work)), self.config.deadline)

    def close(self) -> None:
        """Stop all threads after their last job."""
        self.lesson.close()
        self.models.close()
        for worker in self.workers.values():
            worker.stop(self.config.shutdown)

    async def _wait(self, request: Request, future: "asyncio.Future[T]", seconds: float) -> T:
        """Return the result of a future. Raise if the time is over or the client disconnects."""
        disconnected: asyncio.Future[Any] = asyncio.ensure_future(_disconnected(request))
        both: set[asyncio.Future[Any]] = {future, disconnected}
        try:
            await asyncio.wait(both, timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED)
            if future.done():
                return future.result()
            if disconnected.done():
                raise ClientDisconnected
            detail = (
                f"The request exceeded the {self.config.deadline:g} s deadline. Send less text or raise `deadline`."
            )
            raise Problem("deadline", detail, retry=1)
        finally:
            disconnected.cancel()
            future.cancel()

    def _count_batch(self, requests: int, seconds: float) -> None:
        self.metrics.batch.observe(requests)
        self.metrics.batch_seconds.observe(seconds)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
