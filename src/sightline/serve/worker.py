"""One thread does all that a device computes; requests queue for it, and those that can are searched together.

Texts are searched for piece by piece (mostly: sentence by sentence). A batch takes one piece of each request in turn,
so that a long one does not keep short ones waiting, and as many as fit its budget of tokens. Who has waited longest is
always in it, and nothing much longer is. While a batch is searched, step by step, others may be begun: they take turns.

A request that comes alone is begun at once. Under load, one waits some milliseconds for its neighbours.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from sightline.config import SearchConfig, ServeConfig
from sightline.engine import Asked, Engine, Translation
from sightline.errors import SightlineError
from sightline.search.find import Progress
from sightline.search.hypothesis import Hypothesis
from sightline.serve.problems import Problem
from sightline.text.stream import Telling

__all__ = ["Event", "Job", "QueueFullError", "Served", "Worker"]

T = TypeVar("T")
SHORT = 16
"""Tokens of a source up to which it does not matter how long the others are."""
OVERDUE = 0.25
"""Seconds after which one who waits is searched for beside those that are running."""
TURNS = 4
"""Batches that take turns, at most."""
log = logging.getLogger("sightline.serve")


class QueueFullError(Exception):
    """Too many wait."""


class Served(NamedTuple):
    """The answer to a request."""

    translations: list[Translation]
    waited: float
    """Seconds until it was begun."""


Event = str | Served | Exception
"""What becomes of a job: more text, if it is told aloud; at last the answer, or why there is none."""


@dataclass(eq=False)
class Job:
    """A request for translations."""

    engine: Engine
    texts: Sequence[str]
    config: SearchConfig
    tell: Callable[[Event], None]
    """Called by the worker's thread."""
    prefix: str | None = None
    without: Sequence[str] = ()
    within: Sequence[str] = ()
    details: bool = False
    align: bool = False
    aloud: bool = False
    """Tell the text as it grows; of one text, with one beam."""
    gone: bool = False
    """Nobody waits for it any more."""
    arrived: float = field(default_factory=time.monotonic)
    begun: float = 0.0
    asked: Asked | None = None
    found: list[list[Hypothesis] | None] = field(default_factory=list)
    taken: int = 0
    """Pieces that some batch has."""
    telling: Telling | None = None
    numbers: list[int] = field(default_factory=list)
    """Where the pieces with text stand among all pieces of a text that is told aloud."""

    @property
    def kind(self) -> tuple[Any, ...]:
        """What must be equal for two jobs to be searched together."""
        return self.engine, self.config, self.details, self.aloud, tuple(self.within)

    def ask(self, most: int) -> None:
        """Make ready what will be searched for."""
        self.asked = self.engine.asked(self.texts, prefix=self.prefix, without=self.without, within=self.within)
        tokens = sum(len(source) + 1 for source in self.asked.sources) * self.config.beams
        if tokens > most:
            raise Problem("too-large", f"{tokens} tokens, counted once for every beam, are more than {most}.")
        self.found = [None] * len(self.asked.sources)
        if self.aloud:
            (pieces,) = self.asked.pieces
            self.telling = Telling(self.engine.tokenizer, pieces)
            self.numbers = [number for number, piece in enumerate(pieces) if piece.text]
            self._tell([self.telling.finish(number) for number, piece in enumerate(pieces) if not piece.text])

    def say(self, number: int, token: int) -> None:
        """The answer to a piece has grown."""
        if self.telling:
            self._tell([self.telling.push(self.numbers[number], token)])

    def answer(self, number: int, best: list[Hypothesis]) -> None:
        """The answer to a piece is there."""
        self.found[number] = best
        if self.telling:
            self._tell([self.telling.finish(self.numbers[number])])

    def finish(self) -> None:
        """All answers are there."""
        if self.asked is not None and not self.gone:
            found = [best for best in self.found if best is not None]
            answers = self.engine.answered(self.asked, found, align=self.align)
            self.tell(Served(answers, self.begun - self.arrived))

    def _tell(self, texts: Sequence[str]) -> None:
        for text in texts:
            if text and not self.gone:
                self.tell(text)


class Batch:
    """Pieces that are searched together."""

    def __init__(self, pieces: list[tuple[Job, int]]) -> None:
        self.pieces, self.gone, self.left = pieces, set[int](), len(pieces)
        lead = pieces[0][0]
        both = [(job.asked, number) for job, number in pieces if job.asked]
        aloud = [i for i, (job, _) in enumerate(pieces) if job.aloud]
        self.steps: Generator[Progress, None, None] = lead.engine.follow(
            [asked.sources[number] for asked, number in both],
            lead.config,
            [asked.wishes[number] for asked, number in both],
            details=lead.details,
            aloud=aloud,
            gone=self.gone,
        )

    @property
    def over(self) -> bool:
        """Whether all answers are there."""
        return not self.left

    def step(self) -> bool:
        """Whether there is more to do."""
        self.gone.update(i for i, (job, _) in enumerate(self.pieces) if job.gone)
        if len(self.gone) == len(self.pieces):
            return False
        progress = next(self.steps, None)
        if progress is None:
            return False
        for i, token in progress.tokens.items():
            job, number = self.pieces[i]
            job.say(number, token)
        for i, best in progress.answers.items():
            job, number = self.pieces[i]
            job.answer(number, best)
            self.left -= 1
            if None not in job.found:
                job.finish()
        return True


class Worker:
    """The thread of a device."""

    def __init__(self, config: ServeConfig, *, turns: int = TURNS, name: str = "model") -> None:
        self.config, self.turns = config, turns
        self.waiting = 0
        """Jobs that are not begun."""
        self.batches: Callable[[int, float], None] = lambda _sentences, _seconds: None
        """Is told of every batch: how many sentences, how long it took."""
        # Not a SimpleQueue: in Python 3.11 its get may wait for ever when its timeout is a few microseconds.
        self._inbox: queue.Queue[Job | tuple[Callable[[], Any], Future[Any]] | None] = queue.Queue()
        self._jobs: deque[Job] = deque()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._running: deque[tuple[Batch, float]] = deque()
        self._crowd = 0.0
        """When several were last searched together."""
        self._owed = 0.0
        """Seconds that those who run have waited for a batch that was searched in one go, and have before the next."""
        self._stopping = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it works at all."""
        return self._thread.is_alive()

    def submit(self, job: Job) -> None:
        """Let a job wait for its turn."""
        with self._lock:
            if self.waiting >= self.config.max_queue or not self.alive:
                raise QueueFullError
            self.waiting += 1
        self._inbox.put(job)

    def call(self, work: Callable[[], T]) -> "Future[T]":
        """Let something else be done between two steps."""
        future: Future[T] = Future()
        with self._lock:
            if self.waiting >= self.config.max_queue or not self.alive:
                raise QueueFullError
            self.waiting += 1
        self._inbox.put((work, future))
        return future

    def stop(self, seconds: float) -> None:
        """Do what there is to do, and no more."""
        self._inbox.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        while not (self._stopping and not (self._jobs or self._calls or self._running)):
            self._take()
            if self._calls:
                self._do(*self._calls.popleft())
            if self._may_begin():
                self._begin()
            if self._running:
                self._step(*self._running.popleft())

    def _take(self) -> None:
        """See who has come; wait if there is nothing to do, and a moment where more are to be expected."""
        idle = not (self._jobs or self._calls or self._running or self._stopping)
        try:
            while True:
                if idle:
                    self._accept(self._inbox.get())
                elif self._jobs and not self._running and time.monotonic() - self._crowd < 0.1:
                    rest = self._jobs[0].arrived + self.config.wait - time.monotonic()
                    self._accept(self._inbox.get(timeout=max(rest, 1e-6)))
                else:
                    self._accept(self._inbox.get_nowait())
                idle = not (self._jobs or self._calls or self._running or self._stopping)
        except queue.Empty:
            return

    def _accept(self, item: Job | tuple[Callable[[], Any], Future[Any]] | None) -> None:
        if item is None:
            self._stopping = True
        elif isinstance(item, Job):
            try:
                if not item.gone:
                    item.ask(self.config.max_tokens)
                if item.found:
                    self._jobs.append(item)
                    return
                item.begun = item.arrived
                item.finish()
            except Exception as error:
                self._fail([item], error)
            self._begun(1)
        else:
            self._calls.append(item)

    def _begun(self, count: int) -> None:
        with self._lock:
            self.waiting -= count

    def _do(self, work: Callable[[], Any], future: "Future[Any]") -> None:
        self._begun(1)
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

    def _may_begin(self) -> bool:
        if not self._jobs or not self._running:
            return bool(self._jobs)
        if self._owed > 0 or len(self._running) >= self.turns:
            return False
        return time.monotonic() - self._jobs[0].arrived > OVERDUE

    def _begin(self) -> None:
        pieces = self._choose()
        if not pieces:
            return
        now = time.monotonic()
        if len(pieces) > 1:
            self._crowd = now
        self._running.append((Batch(pieces), now))

    def _choose(self) -> list[tuple[Job, int]]:
        """A batch: pieces of the jobs that can be searched with the one that has waited longest."""
        self._drop()
        if not self._jobs:
            return []
        now, lead = time.monotonic(), self._jobs[0]
        least = len(_next(lead))
        longest, most = 0, max(SHORT, 2 * least)
        budget = self.config.batch_tokens // lead.config.beams
        kind, chosen = lead.kind, list[tuple[Job, int]]()
        able = deque(job for job in self._jobs if job is lead or (job.kind == kind and not lead.within))
        while able:
            job = able.popleft()
            length = max(longest, len(_next(job)) + 1)
            if chosen and (len(_next(job)) > most or length * (len(chosen) + 1) > budget):
                continue
            longest = length
            chosen.append((job, job.taken))
            job.begun = job.begun or now
            job.taken += 1
            if job.taken < len(job.found) and not lead.within:
                able.append(job)
        served = {id(job) for job, _ in chosen}
        turned = [job for job in self._jobs if id(job) in served]
        self._jobs = deque(job for job in self._jobs if id(job) not in served)
        self._jobs.extend(job for job in turned if job.taken < len(job.found))  # behind those that wait
        self._begun(sum(job.taken == len(job.found) for job in turned))
        return chosen

    def _drop(self) -> None:
        """Forget whom nobody waits for."""
        gone = [job for job in self._jobs if job.gone]
        if gone:
            self._jobs = deque(job for job in self._jobs if not job.gone)
            self._begun(len(gone))

    def _step(self, batch: Batch, began: float) -> None:
        now = time.monotonic()
        try:
            more = batch.step()
        except Exception as error:
            self._fail([job for job, _ in batch.pieces], error)
            more = False
        if more and not batch.over:
            self._owed -= time.monotonic() - now
            self._running.append((batch, began))
        else:
            batch.steps.close()
            self._owed = time.monotonic() - now if batch.over else self._owed
            self.batches(len(batch.pieces), time.monotonic() - began)
            if len(batch.pieces) > 1:
                self._crowd = time.monotonic()

    def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
        if not isinstance(error, SightlineError | Problem):
            log.exception("a batch failed")
        for job in jobs:
            if not job.gone:
                job.tell(error)
            job.gone = True


def _next(job: Job) -> list[int]:
    """The piece of a job that comes next."""
    return job.asked.sources[job.taken] if job.asked else []
