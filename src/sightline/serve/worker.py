"""The worker: one thread per device, which runs the jobs in its queue in shared batches.

A batch takes one request (mostly: a sentence) of each job in turn, up to its budget of tokens, so that a long text does
not block short ones. It always contains the job that has waited longest, and no request that is much longer than that
one's. Batches run step by step; several take turns.

A single job starts immediately. Under load, a job waits some milliseconds for others to share its batch.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from sightline.config import ServeConfig
from sightline.engine import Engine, Plan
from sightline.errors import SightlineError
from sightline.search.types import Hypothesis, NewToken
from sightline.serve.limits import check_plan
from sightline.serve.problems import Problem

T = TypeVar("T")
SHORT = 16
"""Requests of up to this many tokens share a batch whatever their lengths are."""
OVERDUE = 0.25
"""Seconds after which a waiting job starts in addition to those that are running."""
TURNS = 4
"""Most batches that take turns."""
log = logging.getLogger("sightline.serve")


class JobResult(NamedTuple):
    """The result of a job."""

    result: Any
    """What the plan assembles."""
    waited: float
    """Seconds until the job started."""


class Written(NamedTuple):
    """A new token of a job."""

    number: int
    """The request of the plan whose answer it belongs to."""
    token: NewToken


Event = str | Written | JobResult | Exception
"""Events of a job: text chunks or tokens when streaming, then the result or an error."""
Call = tuple[Callable[[], Any], Future[Any]]
"""Work for the thread, and its result."""


@dataclass(eq=False)
class Job:
    """A plan to run, and the callback for its events."""

    engine: Engine
    make_plan: Callable[[], Plan[Any]]
    """Tokenises the texts. The worker's thread calls it, as it calls `emit`."""
    emit: Callable[[Event], object]
    streamed: bool = False
    """Emit chunks of text; for one text, with one beam."""
    what_if: dict[str, Any] | None = None
    """The changes of a `what_if`. The job shares its batches with no other."""
    tokens: bool = False
    """When streaming: emit tokens instead; for any number of texts."""
    cancelled: bool = False
    """The result is not needed any more."""
    arrived: float = field(default_factory=time.monotonic)
    started: float = 0.0
    answers: list[list[Hypothesis] | None] = field(default_factory=list)
    """Of each request of the plan, when it is found."""
    taken: int = 0
    """Number of requests that are in a batch already."""

    def prepare(self, config: ServeConfig) -> None:
        """Make the plan."""
        self.plan = self.make_plan()
        check_plan(self.plan, config)
        self.answers = [None] * len(self.plan.requests)
        self.alone = any(request.constraints.require for request in self.plan.requests)
        """Whether no other request can be in a batch with one of these."""
        self.changed = self.engine.prepare_what_if(**self.what_if) if self.what_if else nullcontext
        """Applies the changes for a block. Other batches run between two steps, so a block is at most one step."""
        own = id(self) if self.alone or self.what_if else 0
        self.kind = self.engine, self.plan.options, self.plan.log_probs, self.streamed, own
        """Jobs of the same kind share batches."""
        if self.streamed and not self.tokens:
            self._text = self.engine.incremental_text(self.plan)
            self._emit(self._text.flush())

    @property
    def next_size(self) -> int:
        """Size of the next request to search for."""
        return self.plan.requests[self.taken].size

    def add_token(self, number: int, token: NewToken) -> None:
        """Stream a token of the answer to a request."""
        self._emit(Written(number, token) if self.tokens else self._text.push(number, token.id))

    def set_answers(self, number: int, best: list[Hypothesis]) -> None:
        """Set the answers to a request; after the last, emit the result."""
        self.answers[number] = best
        if self.streamed and not self.tokens:
            self._emit(self._text.finish(number))
        if None not in self.answers:
            self.finish()

    def finish(self) -> None:
        """Emit the result."""
        if not self.cancelled:
            found = [best for best in self.answers if best is not None]
            self.emit(JobResult(self.plan.assemble(found), self.started - self.arrived))

    def _emit(self, event: str | Written) -> None:
        if event and not self.cancelled:
            self.emit(event)


class Batch:
    """Requests that are searched together: of several jobs, by their numbers in the plans."""

    def __init__(self, members: list[tuple[Job, int]]) -> None:
        self.members, self.cancelled, self.missing = members, set[int](), len(members)
        job = members[0][0]
        self.changed = job.changed
        with self.changed():
            self.steps = job.engine.steps(
                [job.plan.requests[number] for job, number in members],
                job.plan.options,
                streamed=range(len(members)) if job.streamed else (),
                cancelled=self.cancelled,
                eager=True,
                log_probs=job.plan.log_probs,
            )

    def step(self) -> bool:
        """Run a step. Return whether there are more."""
        with self.changed():
            return self._step()

    def _step(self) -> bool:
        self.cancelled.update(i for i, (job, _) in enumerate(self.members) if job.cancelled)
        if len(self.cancelled) == len(self.members):
            return False
        update = next(self.steps, None)
        if update is None:
            return False
        for i, token in update.tokens.items():
            job, number = self.members[i]
            job.add_token(number, token)
        for i, best in update.answers.items():
            job, number = self.members[i]
            self.missing -= 1
            job.set_answers(number, best)
        return self.missing > 0


class Worker:
    """The thread of a device and its queue."""

    def __init__(self, config: ServeConfig, *, turns: int = TURNS, name: str = "model") -> None:
        self.config, self.turns = config, turns
        self.waiting = 0
        """Number of jobs and calls that have not started."""
        self.on_batch: Callable[[int, float], None] = lambda _requests, _seconds: None
        """Called after each batch with its number of requests and its duration."""
        # Not a SimpleQueue: in Python 3.11 its get can block without end if the timeout is a few microseconds.
        self._inbox: queue.Queue[Job | Call | None] = queue.Queue()
        self._jobs: deque[Job] = deque()
        self._calls: deque[Call] = deque()
        self._running: deque[tuple[Batch, float]] = deque()
        self._last_shared = 0.0
        """Time of the last batch with several requests."""
        self._owed = 0.0
        """Seconds that running batches have waited for a batch of a single step; they run this long before the next."""
        self._stopping = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(self, item: Job | Call) -> None:
        """Add a job or a call to the queue."""
        with self._lock:
            if self.waiting >= self.config.max_queue or not self.alive:
                raise Problem("busy", f"{self.waiting} requests are waiting. Retry in a second.", retry=1)
            self.waiting += 1
        self._inbox.put(item)

    def call(self, work: Callable[[], T]) -> "Future[T]":
        """Run `work` on the thread, between two steps."""
        future: Future[T] = Future()
        self.submit((work, future))
        return future

    def stop(self, seconds: float) -> None:
        """Finish the jobs in the queue, then end the thread."""
        self._inbox.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        while not (self._stopping and self._idle):
            self._receive()
            if self._calls:
                self._run_call(*self._calls.popleft())
            if self._may_start():
                self._start_batch()
            if self._running:
                self._step(*self._running.popleft())

    @property
    def _idle(self) -> bool:
        return not (self._jobs or self._calls or self._running)

    def _receive(self) -> None:
        """Read the inbox. Wait if there is nothing to do; under load, wait a moment for jobs to share a batch."""
        try:
            while True:
                if self._idle and not self._stopping:
                    self._accept(self._inbox.get())
                elif self._jobs and not self._running and time.monotonic() - self._last_shared < 0.1:
                    rest = self._jobs[0].arrived + self.config.wait - time.monotonic()
                    self._accept(self._inbox.get(timeout=max(rest, 1e-6)))
                else:
                    self._accept(self._inbox.get_nowait())
        except queue.Empty:
            return

    def _accept(self, item: Job | Call | None) -> None:
        if item is None:
            self._stopping = True
        elif isinstance(item, Job):
            try:
                if not item.cancelled:
                    item.prepare(self.config)
                    if item.answers:
                        self._jobs.append(item)
                        return
                    item.started = item.arrived
                    item.finish()
            except Exception as error:
                self._fail([item], error)
            self._count_started(1)
        else:
            self._calls.append(item)

    def _count_started(self, count: int) -> None:
        with self._lock:
            self.waiting -= count

    def _run_call(self, work: Callable[[], Any], future: "Future[Any]") -> None:
        self._count_started(1)
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

    def _may_start(self) -> bool:
        if not self._jobs or not self._running:
            return bool(self._jobs)
        if self._owed > 0 or len(self._running) >= self.turns:
            return False
        return time.monotonic() - self._jobs[0].arrived > OVERDUE

    def _start_batch(self) -> None:
        """Start a batch with requests of the oldest job, and of jobs that can share its batch."""
        self._keep([job for job in self._jobs if not job.cancelled])
        if not self._jobs:
            return
        now, oldest = time.monotonic(), self._jobs[0]
        largest, limit = 0, max(SHORT, 2 * oldest.next_size)
        budget = self.config.batch_tokens // oldest.plan.options.beams
        members = list[tuple[Job, int]]()
        candidates = deque(job for job in self._jobs if job.kind == oldest.kind)
        while candidates:
            job = candidates.popleft()
            size = max(largest, job.next_size)
            if members and (job.next_size > limit or size * (len(members) + 1) > budget):
                continue
            largest = size
            members.append((job, job.taken))
            job.started = job.started or now
            job.taken += 1
            if job.taken < len(job.answers) and not job.alone:
                candidates.append(job)
        chosen = dict.fromkeys(job for job, _ in members)
        rest = [job for job in chosen if job.taken < len(job.answers)]  # after those that wait
        self._keep([*(job for job in self._jobs if job not in chosen), *rest])
        if len(members) > 1:
            self._last_shared = now
        self._running.append((Batch(members), now))

    def _keep(self, jobs: list[Job]) -> None:
        """Set the jobs that wait; the others have started, or are cancelled."""
        self._count_started(len(self._jobs) - len(jobs))
        self._jobs = deque(jobs)

    def _step(self, batch: Batch, started: float) -> None:
        now = time.monotonic()
        try:
            more = batch.step()
        except Exception as error:
            self._fail([job for job, _ in batch.members], error)
            more = False
        if more:
            self._owed -= time.monotonic() - now
            self._running.append((batch, started))
        else:
            self._owed = time.monotonic() - now if not batch.missing else self._owed
            self.on_batch(len(batch.members), time.monotonic() - started)
            if len(batch.members) > 1:
                self._last_shared = time.monotonic()

    def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
        if not isinstance(error, SightlineError | Problem):
            log.exception("a batch failed")
        for job in jobs:
            if not job.cancelled:
                job.emit(error)
            job.cancelled = True
