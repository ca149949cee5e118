"""The infinite stream of training batches, prepared in the background.

The stream is a pure function of the seed, so a run that is resumed at an epoch and batch continues with the same
batches. An update takes the next few batches; with several processes, each takes its share of them.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sightline.data.batches import Batch, MakeBatch, Shared, collate, plan, plan_shared
from sightline.data.store import Store
from sightline.errors import InputError

Rows = Literal["padded", "shared"]
Item = TypeVar("Item")


class Place(NamedTuple):
    """A position in the stream: the next batch is number `batch` of this epoch."""

    epoch: int = 0
    batch: int = 0


class Update(NamedTuple):
    """The batches of one update."""

    batches: list[tuple[int, Batch]]
    """The batches of this process, each with its number in the update."""
    tokens: int
    """Target tokens in the batches of all processes."""
    cells: int
    """Source and target tokens in the batches of all processes."""
    place: Place
    """The position of the next update."""
    epoch: float
    """Passes over the corpus after this update."""

    def pinned(self) -> "Update":
        """Copy the batches to pinned memory."""
        return self._replace(batches=[(number, batch.pinned()) for number, batch in self.batches])


class Feed:
    """Batches of a store. With several versions of its examples (BPE-dropout), epochs alternate between them."""

    def __init__(
        self,
        stores: list[Store],
        *,
        batch_tokens: int,
        seed: int,
        rows: Rows = "padded",
        make: MakeBatch = collate,
        only: NDArray[np.int64] | None = None,
    ) -> None:
        """`make`: makes a batch of examples. `only`: indices of the examples to use."""
        self.stores, self.batch_tokens, self.seed, self.rows, self.make = stores, batch_tokens, seed, rows, make
        self.only = only
        self._plans: dict[int, list[Any]] = {}

    def plan(self, epoch: int) -> list[Any]:
        """Return the composition of each batch of an epoch."""
        if epoch not in self._plans:
            store = self._store(epoch)
            target = store.target.lengths
            make = plan_shared if self.rows == "shared" else plan
            source = (store.source or store.target).lengths
            drawn = store.draw(self.seed, epoch)
            if self.only is not None:
                drawn = drawn[np.isin(drawn, self.only)]
            made = list(make(source, target, self.batch_tokens, self.seed, epoch, drawn))
            if not made:
                raise InputError("No training text is left: the weights of the files are too small.")
            first = {0: self._plans[0]} if 0 in self._plans else {}  # is used repeatedly
            self._plans = {**first, epoch: made}
        return self._plans[epoch]

    def _store(self, epoch: int) -> Store:
        return self.stores[epoch % len(self.stores)]

    def batch(self, place: Place) -> Batch:
        """Return the batch at a position."""
        return self.make(self._store(place.epoch), self.plan(place.epoch)[place.batch], [self.seed, *place])

    def updates(self, place: Place, accumulate: int = 1, rank: int = 0, world: int = 1) -> Iterator[Update]:
        """Yield the updates from a position, without end."""
        while True:
            mine, tokens, cells = [], 0, 0
            for number in range(accumulate * world):
                sizes = self._sizes(place)
                if number % world == rank:
                    mine.append((number, self.batch(place)))
                    tokens += mine[-1][1].tokens
                else:  # tokens of another process normalise the loss, too
                    all_in_loss = self.stores[0].source and not self.stores[0].loss_mask
                    tokens += sizes[0] if all_in_loss else self.batch(place).tokens
                cells += sum(sizes)
                place = Place(place.epoch, place.batch + 1)
                if place.batch == len(self.plan(place.epoch)):
                    place = Place(place.epoch + 1, 0)
            epoch = place.epoch + place.batch / len(self.plan(place.epoch)) if place.batch else float(place.epoch)
            yield Update(mine, tokens, cells, place, epoch)

    def _sizes(self, place: Place) -> list[int]:
        """Return the tokens of the target of a batch, and of its source."""
        store, pairs = self._store(place.epoch), _pairs(self.plan(place.epoch)[place.batch])
        sides = [side for side in (store.target, store.source) if side]
        return [int((side.starts[pairs + 1] - side.starts[pairs] + 1).sum()) for side in sides]

    def filled(self) -> float:
        """Return the fraction of cells that are not padding, in the first epoch."""
        store = self._store(0)
        tokens = cells = 0
        for lengths in (store.target.lengths, (store.source or store.target).lengths):
            for chosen in self.plan(0):
                sizes = lengths[_pairs(chosen)] + 1
                tokens += int(sizes.sum())
                cells += chosen.rows * chosen.length if isinstance(chosen, Shared) else int(sizes.max()) * len(sizes)
        return tokens / max(cells, 1)


def _pairs(chosen: Shared | NDArray[np.int64]) -> NDArray[np.int64]:
    return chosen.pairs if isinstance(chosen, Shared) else chosen


def ahead(make: Callable[[], Iterator[Item]], depth: int = 8) -> Generator[Item, None, None]:
    """Yield the items of an iterator that runs in a thread, up to `depth` items ahead."""
    items, end = make(), object()
    thread = ThreadPoolExecutor(1, "sightline batches")
    try:
        waiting = deque(thread.submit(next, items, end) for _ in range(depth + 1))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(thread.submit(next, items, end))
            yield item  # type: ignore[misc]
    finally:
        thread.shutdown(cancel_futures=True)
