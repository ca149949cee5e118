"""What the routes of the API stand on: models, the threads that compute, and the traces that are remembered."""

import asyncio
import secrets
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple, TypeVar

from starlette.requests import Request

from sightline.config import ServeConfig
from sightline.engine import Engine, Reader, Translation
from sightline.serve.models import Models
from sightline.serve.observe import Metrics
from sightline.serve.problems import Problem
from sightline.serve.worker import TURNS, Event, Job, QueueFullError, Served, Worker
from sightline.trace.record import Trace

__all__ = ["ClientGone", "Remembered", "Service", "Traces"]

T = TypeVar("T")


class ClientGone(Exception):  # noqa: N818 - nobody erred
    """Nobody waits for the answer any more."""


class Remembered(NamedTuple):
    """A trace that can be asked for."""

    trace: Trace
    engine: Engine | Reader
    bytes: int
    """About so many."""


class Traces:
    """The last traces, by numbers that cannot be guessed. They come from threads that compute, and are asked for by the
    one that answers."""

    def __init__(self, memory: float) -> None:
        """`memory`: GiB."""
        self._memory = memory * 2**30
        self._traces: OrderedDict[str, Remembered] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, trace: Trace, engine: Engine | Reader) -> str:
        """Remember one, and forget the oldest if that is too many."""
        config = engine.model.config
        tokens = sum(map(len, trace.tokens.values()))
        layers = sum(stack.layers for stack in config.stacks.values())
        size = tokens * config.d_model * layers * 4 * 30  # some thirty vectors for each token in each layer
        number = secrets.token_urlsafe(12)
        with self._lock:
            while self._traces and sum(one.bytes for one in self._traces.values()) + size > self._memory:
                self._traces.popitem(last=False)
            self._traces[number] = Remembered(trace, engine, size)
        return number

    def get(self, number: str) -> Remembered:
        """One of them."""
        with self._lock:
            if number not in self._traces:
                raise Problem("not-found", "there is no such trace, or it is forgotten; ask for it again.")
            self._traces.move_to_end(number)
            return self._traces[number]


class Service:
    """All of it."""

    def __init__(self, models: Models, config: ServeConfig) -> None:
        self.models, self.config, self.metrics = models, config, Metrics()
        self.traces = Traces(config.trace_memory)
        self.workers: dict[str, Worker] = {}

    def worker(self, engine: Engine | Reader) -> Worker:
        """The thread of the device that a model is on. A GPU has one search at a time: it is over soon."""
        device = engine.model.classifier.weight.device
        if str(device) not in self.workers:
            worker = Worker(self.config, turns=1 if device.type == "cuda" else TURNS, name=f"model {device}")
            worker.batches = self._count_batch
            self.workers[str(device)] = worker
        return self.workers[str(device)]

    @property
    def waiting(self) -> int:
        """Requests that wait for a model."""
        return sum(worker.waiting for worker in self.workers.values())

    @property
    def healthy(self) -> bool:
        """Whether all threads work."""
        return all(worker.alive for worker in self.workers.values())

    async def translations(self, request: Request, engine: Engine, name: str, **asked: Any) -> list[Translation]:
        """The answer to a request (see `Job`)."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Served] = loop.create_future()

        def tell(event: Event) -> None:
            loop.call_soon_threadsafe(_settle, future, event)

        job = self._submit(Job(engine, tell=tell, **asked))
        served = await self._outcome(request, future, lambda: setattr(job, "gone", True))
        self.metrics.waited.observe(served.waited)
        self.metrics.characters.labels(name).inc(sum(map(len, job.texts)))
        return served.translations

    async def told(self, request: Request, engine: Engine, name: str, **asked: Any) -> AsyncIterator[str | Translation]:
        """The answer to a request for one text, piece by piece; at the end, the whole."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event] = asyncio.Queue()

        def tell(event: Event) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        job = self._submit(Job(engine, tell=tell, aloud=True, **asked))
        end = loop.time() + self.config.deadline
        try:
            while True:
                next_one = asyncio.ensure_future(events.get())
                event = await self._outcome(request, next_one, lambda: None, end - loop.time())
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, Served):
                    self.metrics.waited.observe(event.waited)
                    self.metrics.characters.labels(name).inc(sum(map(len, job.texts)))
                    yield event.translations[0]
                    return
                yield event
        finally:
            job.gone = True

    async def call(self, request: Request, engine: Engine | Reader, work: Callable[[], T]) -> T:
        """What `work` gives, which the thread of the model does."""
        try:
            future = asyncio.wrap_future(self.worker(engine).call(work))
        except QueueFullError:
            raise self._busy() from None
        return await self._outcome(request, future, lambda: None)

    def close(self) -> None:
        """End all threads, when they are done."""
        self.models.close()
        for worker in self.workers.values():
            worker.stop(self.config.shutdown)

    def _submit(self, job: Job) -> Job:
        try:
            self.worker(job.engine).submit(job)
        except QueueFullError:
            raise self._busy() from None
        return job

    def _busy(self) -> Problem:
        return Problem("busy", f"{self.waiting} requests are waiting; try again in a second.", retry=1)

    async def _outcome(
        self, request: Request, future: "asyncio.Future[T]", leave: Callable[[], None], seconds: float | None = None
    ) -> T:
        """What comes of a future, if it comes in time, and somebody is still there."""
        gone: asyncio.Future[Any] = asyncio.ensure_future(_disconnected(request))
        both: set[asyncio.Future[Any]] = {future, gone}
        seconds = self.config.deadline if seconds is None else seconds
        try:
            await asyncio.wait(both, timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED)
            if future.done():
                return future.result()
            if gone.done():
                raise ClientGone
            limit = f"{self.config.deadline:g}"
            raise Problem("deadline", f"it was not there after {limit} seconds; ask for less.", retry=1)
        finally:
            gone.cancel()
            if not future.done():
                leave()
                future.cancel()

    def _count_batch(self, sentences: int, seconds: float) -> None:
        self.metrics.batch.observe(sentences)
        self.metrics.batch_seconds.observe(seconds)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _settle(future: "asyncio.Future[Served]", event: Event) -> None:
    if future.done():
        return
    if isinstance(event, Served):
        future.set_result(event)
    elif isinstance(event, Exception):
        future.set_exception(event)
