"""The service behind the routes: models, their worker threads and stored traces."""

import asyncio
import secrets
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from starlette.requests import Request

from sightline.config import ServeConfig
from sightline.engine import Engine, Plan, Translation, Translator
from sightline.serve.models import Models
from sightline.serve.observe import Metrics
from sightline.serve.problems import Problem
from sightline.serve.worker import TURNS, Event, Job, JobResult, QueueFullError, Worker
from sightline.trace.trace import Trace

T = TypeVar("T")


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

    def get(self, number: str) -> StoredTrace:
        """Return a stored trace."""
        with self._lock:
            if number not in self._traces:
                raise Problem("not-found", "Unknown trace, or its memory was needed for newer ones. Request it again.")
            self._traces.move_to_end(number)
            return self._traces[number]


class Service:
    """Models, workers, traces and metrics."""

    def __init__(self, models: Models, config: ServeConfig) -> None:
        self.models, self.config, self.metrics = models, config, Metrics()
        self.traces = Traces(config.trace_memory)
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

    async def translate(
        self,
        request: Request,
        name: str,
        engine: Translator,
        texts: Sequence[str],
        make_plan: Callable[[], Plan[list[Translation]]],
    ) -> list[Translation]:
        """Run a plan for these texts and return its result."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[JobResult] = loop.create_future()
        job = Job(engine, make_plan, lambda event: loop.call_soon_threadsafe(_settle, future, event))
        self._submit(job)
        result = await self._wait(request, future, lambda: setattr(job, "cancelled", True))
        self._count_result(name, texts, result)
        return result.translations

    async def stream(
        self,
        request: Request,
        name: str,
        engine: Translator,
        text: str,
        make_plan: Callable[[], Plan[list[Translation]]],
    ) -> AsyncIterator[str | Translation]:
        """Run a plan for one text; yield the translation in chunks, then the whole."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event] = asyncio.Queue()
        job = Job(engine, make_plan, lambda event: loop.call_soon_threadsafe(events.put_nowait, event), streamed=True)
        self._submit(job)
        end = loop.time() + self.config.deadline
        try:
            while True:
                next_event = asyncio.ensure_future(events.get())
                event = await self._wait(request, next_event, lambda: None, end - loop.time())
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, JobResult):
                    self._count_result(name, [text], event)
                    yield event.translations[0]
                    return
                yield event
        finally:
            job.cancelled = True

    async def call(self, request: Request, engine: Engine, work: Callable[[], T]) -> T:
        """Run `work` on the thread of the model and return its result."""
        try:
            future = asyncio.wrap_future(self.worker(engine).call(work))
        except QueueFullError:
            raise self._busy() from None
        return await self._wait(request, future, lambda: None)

    def close(self) -> None:
        """Stop all threads after their last job."""
        self.models.close()
        for worker in self.workers.values():
            worker.stop(self.config.shutdown)

    def _submit(self, job: Job) -> None:
        try:
            self.worker(job.engine).submit(job)
        except QueueFullError:
            raise self._busy() from None

    def _busy(self) -> Problem:
        return Problem("busy", f"{self.waiting} requests are waiting. Retry in a second.", retry=1)

    async def _wait(
        self, request: Request, future: "asyncio.Future[T]", cancel: Callable[[], None], seconds: float | None = None
    ) -> T:
        """Return the result of a future. If the deadline passes or the client disconnects, call `cancel` and raise."""
        disconnected: asyncio.Future[Any] = asyncio.ensure_future(_disconnected(request))
        both: set[asyncio.Future[Any]] = {future, disconnected}
        seconds = self.config.deadline if seconds is None else seconds
        try:
            await asyncio.wait(both, timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED)
            if future.done():
                return future.result()
            if disconnected.done():
                raise ClientDisconnected
            limit = f"{self.config.deadline:g} s"
            detail = f"The request exceeded the {limit} deadline. Send less text or raise `deadline`."
            raise Problem("deadline", detail, retry=1)
        finally:
            disconnected.cancel()
            if not future.done():
                cancel()
                future.cancel()

    def _count_result(self, name: str, texts: Sequence[str], result: JobResult) -> None:
        self.metrics.waited.observe(result.waited)
        self.metrics.characters.labels(name).inc(sum(map(len, texts)))

    def _count_batch(self, requests: int, seconds: float) -> None:
        self.metrics.batch.observe(requests)
        self.metrics.batch_seconds.observe(seconds)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _settle(future: "asyncio.Future[JobResult]", event: Event) -> None:
    if future.done():
        return
    if isinstance(event, JobResult):
        future.set_result(event)
    elif isinstance(event, Exception):
        future.set_exception(event)
