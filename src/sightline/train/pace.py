"""The pace of a run: its number of updates, what is due after each, the learning rate, and the speed."""

import contextlib
import math
import time
from collections.abc import Iterator
from typing import NamedTuple

from sightline.config import Config, TrainConfig
from sightline.data.feed import Feed
from sightline.train.distributed import World
from sightline.train.schedule import learning_rate


class Schedule(NamedTuple):
    """The number of updates, and the intervals between validations and checkpoints."""

    options: TrainConfig
    d_model: int
    steps: int
    validate_every: int
    save_every: int

    def due(self, step: int, every: int) -> bool:
        """Return whether an action is due: at every interval, and at the end."""
        return step % every == 0 or step == self.steps

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        o = self.options
        return learning_rate(
            o.schedule, step, peak=o.learning_rate, warmup=o.warmup, total=self.steps, d_model=self.d_model
        )


def make_schedule(config: Config, feed: Feed, world: World) -> Schedule:
    """Return the pace of a run on this feed."""
    options = config.train
    epoch = len(feed.plan(0)) / (options.accumulate * world.size)
    steps = options.steps or max(1, math.ceil(options.epochs * epoch))
    validate_every = options.validate_every or max(math.ceil(epoch), steps // 10, 1)
    return Schedule(options, config.model.d_model, steps, validate_every, options.save_every or validate_every)


class Throughput:
    """Tokens per second since the last report, without the time of validations."""

    def __init__(self) -> None:
        self.seen, self.since = 0, time.perf_counter()

    def speed(self) -> float:
        """Return the tokens per second since the last call."""
        now = time.perf_counter()
        speed = self.seen / max(now - self.since, 1e-9)
        self.seen, self.since = 0, now
        return speed

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time of the block."""
        started = time.perf_counter()
        yield
        self.since += time.perf_counter() - started
