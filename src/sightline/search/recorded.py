"""CUDA graphs for the whole decoding step: a step is recorded once for each shape and replayed from then on.

A step of a small model, from the last tokens to the next ones, is about three hundred short kernels, and launching them
one by one takes longer than running them. A graph is launched as a whole, but always reads and writes the same
addresses: those of a slot. So that few graphs serve all searches, shapes are rounded up: to a larger batch, whose last
sentences are blank, and to longer sources and answers. Options that do not change the kernels of a step are tensors of
its state, so they are not part of the shape.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from sightline.config import ModelConfig
from sightline.errors import InputError
from sightline.model.cache import Cache, CrossKV, rows_of
from sightline.model.kernels.decode import DecodeWindow, summary
from sightline.model.mask import Layout, Mask
from sightline.model.protocol import Generative, Inputs
from sightline.search.beam import HypothesisState
from sightline.search.sampling import top_k_bucket
from sightline.search.scoring import Scores
from sightline.special import PAD

LEAVE = 0.25
"""The part of a batch that must be done before the rest continues as a smaller batch."""
FEW = 128
"""Rows up to which a smaller batch is not faster (docs/decisions/0015)."""
MAX_SLOTS = 100
"""Slots of a model that are kept."""


def structure(state: HypothesisState) -> tuple[int | bool | str, ...]:
    """Return what changes the kernels of a step."""
    options = state.options
    top_k = top_k_bucket(options.top_k) if options.sample else 0
    return options.beams, options.groups, options.sample, top_k, options.stop, *state.structure


class Shape(NamedTuple):
    """Two steps of equal shape are one graph."""

    sentences: int
    source: int
    given: int
    capacity: int
    structure: tuple[int | bool | str, ...]


class StaticCache(Cache):
    """A cache with the same shapes and addresses at every step, for `torch.compile` and CUDA graphs.

    It takes one token per step and attends through a `DecodeWindow`. Reordering its rows copies no keys: it changes
    `row_index`, the row that stores each key. A recorded graph of `step` and `reorder` works on the tensors of this
    cache, so record it once and replay it with any content: fill the cache with `copy_from`, and take sentences out
    with `extract`, as `select` is for growing caches only. No method waits for the device.
    """

    def __init__(
        self, config: ModelConfig, sentences: int, beams: int, capacity: int, source: int, storage: Float[Tensor, " n"]
    ) -> None:
        """Create an empty cache. `source`: columns for the keys and values of encoder-decoder attention, if any.
        `storage`: a vector of `storage_size` numbers or more for all keys and values. Caches may take turns in it."""
        super().__init__(config, sentences, beams, capacity, like=storage, storage=storage)
        self.source_lengths: Int[Tensor, " sentences"] = torch.ones_like(self.row_ids[:sentences])
        mask, stack = Mask(window=DecodeWindow(self.source_lengths)), config.decoder
        if source:
            cross = storage[2 * self.keys.numel() : self.storage_size(config, sentences, beams, capacity, source)]
            stored = cross.view(stack.layers, 2, sentences, stack.heads, source, -1)
            self.cross = [CrossKV(keys, values, mask) for keys, values in stored]
        self.row_index: Int[Tensor, "rows capacity"] = self.row_ids[:, None].repeat(1, capacity)

    @staticmethod
    def storage_size(config: ModelConfig, sentences: int, beams: int, capacity: int, source: int) -> int:
        """Return how many numbers the storage of a cache needs."""
        return 2 * config.decoder.layers * config.d_model * sentences * (beams * capacity + source)

    def next_positions(self, ids: Int[Tensor, "rows new"], layout: Layout = None) -> Int[Tensor, "rows new"]:
        if ids.shape[1] != 1 or layout is not None:
            raise InputError("A static cache takes one token of each row per step.")
        positions = super().next_positions(ids)
        self.visible, self.uniform_length = self.capacity, False
        return positions

    def mask(self, positions: Int[Tensor, "rows new"]) -> Mask:
        self.row_index.scatter_(1, positions, self.row_ids[:, None])
        return Mask(window=DecodeWindow(positions[:, 0] + 1, self.row_index))

    def advance(self, ids: Int[Tensor, "rows new"], layout: Layout = None) -> None:
        """Count the new tokens. A compiled or recorded step does not change `used`: it must not depend on a number that
        grows, and its replays do not run this code."""
        used = self.used
        super().advance(ids, layout)
        if torch.compiler.is_compiling() or (ids.is_cuda and torch.cuda.is_current_stream_capturing()):
            self.used = used

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        self.row_index.copy_(self.row_index[rows])
        self.lengths.copy_(self.lengths[rows])

    def extract(self, sentences: Int[Tensor, " some"], columns: int) -> Cache:
        """Return a growing cache with copies of these sentences. `columns`: how many columns of their rows to copy, at
        least the longest length (the caller counts the steps, since replays cannot)."""
        rows, positions = rows_of(sentences, self.beams), torch.arange(columns, device=sentences.device)
        cross = [layer.select(sentences) for layer in self.cross]
        taken = Cache(self.config, len(sentences), self.beams, columns, like=self.keys, cross=cross)
        stored = self.row_index[rows, :columns]
        for mine, theirs in ((taken.keys, self.keys), (taken.values, self.values)):
            mine.copy_(theirs[:, stored, :, positions].permute(2, 0, 3, 1, 4))
        taken.lengths, taken.used, taken.uniform_length = self.lengths[rows], columns, False
        return taken

    def copy_from(self, other: Cache) -> None:
        """Continue the sentences of a growing cache: copy them to the first rows, their keys and values and those of
        their sources to the first columns. The other cache has the same number of beams, or one, which is copied to all
        beams."""
        super().copy_from(other)
        self.row_index.copy_(self.row_ids[:, None].expand_as(self.row_index))
        self.source_lengths.fill_(1)  # of blank sentences: an empty row would give NaN
        for mine, (keys, values, mask) in zip(self.cross, other.cross, strict=True):
            sentences, _, columns, _ = keys.shape
            mine.keys[:sentences, :, :columns], mine.values[:sentences, :, :columns] = keys, values
            if mask.window is not None:
                self.source_lengths[:sentences] = mask.window.lengths
            else:
                self.source_lengths[:sentences] = columns if mask.allowed is None else mask.allowed[:, 0, 0].sum(1)


class GraphSlot(NamedTuple):
    """The addresses that all searches of one shape read and write."""

    inputs: Inputs
    cache: StaticCache
    state: HypothesisState
    graphs: dict[str, Any]
    """The recorded work, by its name."""


class GraphPool:
    """The slots of a model, which share their memory. One search at a time has it."""

    def __init__(self, model: Any) -> None:
        self.locked = threading.Lock()
        self.weights = addresses(model.modules())
        self.slots: dict[Shape, GraphSlot] = {}
        self.pool: Any = None
        self.storage: Float[Tensor, " n"] = model.classifier.weight.new_zeros(0)

    def slot(self, model: Generative, shape: Shape, state: HypothesisState) -> GraphSlot:
        """Return the slot of a shape. The content of other slots is lost."""
        if shape in self.slots:
            return self.slots[shape]
        sentences = shape.sentences
        size = StaticCache.storage_size(model.config, sentences, state.beams, shape.capacity, shape.source)
        if len(self.storage) < size:  # older slots keep the older storage, which is smaller
            self.storage = self.storage.new_zeros(max(size, 2 * len(self.storage)))
        source, given = (self.storage.new_empty(sentences, n, dtype=torch.long) for n in (shape.source, shape.given))
        source_layout, layout = (torch.empty_like(ids, dtype=torch.bool) for ids in (source, given))
        inputs = Inputs(source if shape.source else None, given, source_layout, layout)
        cache = StaticCache(model.config, sentences, state.beams, shape.capacity, shape.source, self.storage)
        if len(self.slots) >= MAX_SLOTS:
            del self.slots[next(iter(self.slots))]
        own = state.allocate(sentences, shape.capacity)
        self.slots[shape] = GraphSlot(inputs, cache, own, {})
        return self.slots[shape]

    def replay(self, work: Callable[[Generative, GraphSlot], None], model: Generative, slot: GraphSlot) -> None:
        """Do the work by its graph; the first time, do it and record the graph."""
        if work.__name__ in slot.graphs:
            slot.graphs[work.__name__].replay()
            return
        work(model, slot)
        if self.storage.is_cuda:
            slot.graphs[work.__name__] = self._record(work, model, slot)

    def _record(self, work: Callable[[Generative, GraphSlot], None], model: Generative, slot: GraphSlot) -> Any:
        """Record the work without running it. It has run once by now, so that everything it needs is ready."""
        graph, device = torch.cuda.CUDAGraph(), self.storage.device
        current, stream = torch.cuda.current_stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            work(model, slot)
            graph.capture_end()
        current.wait_stream(stream)
        self.pool = graph.pool()
        return graph


def read(model: Generative, slot: GraphSlot) -> None:
    """Read the sources and given texts of a slot."""
    state: Any = model.start(slot.inputs, capacity=max(1, slot.inputs.require("target").shape[1]))
    slot.cache.copy_from(state)


def step(model: Generative, slot: GraphSlot) -> None:
    """Add a token to all hypotheses of a slot."""
    logits = model.step(slot.state.last(), slot.cache)
    rows = slot.state.grow(Scores(logits, *summary(logits)))
    if rows is not None and slot.state.beams > 1:
        slot.cache.reorder(rows)


POOLS: WeakKeyDictionary[Any, GraphPool] = WeakKeyDictionary()


@contextlib.contextmanager
def graph_pool(model: Generative) -> Iterator[GraphPool | None]:
    """Lock the graph pool of a model for one search. None if its steps cannot be recorded (without a GPU, for an
    ensemble, while hooks are on the model) or if another search has the pool: that search then computes each step."""
    pool = _pool_of(model)
    if pool is None or not pool.locked.acquire(blocking=False):
        yield None
        return
    try:
        yield pool
    finally:
        pool.locked.release()


def _pool_of(model: Generative) -> GraphPool | None:
    if not isinstance(model, nn.Module) or model.device.type != "cuda" or torch.is_autocast_enabled("cuda"):
        return None
    modules = list(model.modules())
    for module in modules:
        if module._forward_hooks or module._forward_pre_hooks or module._compiled_call_impl is not None:
            return None
    pool = POOLS.get(model)
    if pool is None or pool.weights != addresses(modules):
        pool = POOLS[model] = GraphPool(model)
    return pool


def release(model: Generative) -> None:
    """Free the memory of a model's graph pool."""
    POOLS.pop(model, None)
    if model.device.type == "cuda":
        torch.cuda.empty_cache()


def addresses(modules: Iterable[nn.Module]) -> list[int]:
    """Return the addresses of all weights: a graph reads them there."""
    return [own.data_ptr() for module in modules for own in module._parameters.values() if own is not None]


class RecordedSearch:
    """A search of one batch that replays recorded steps."""

    reused = False
    """See `EagerSearch`."""

    @torch.no_grad()
    def __init__(self, pool: GraphPool, model: Generative, inputs: Inputs, state: HypothesisState) -> None:
        """`state`: the hypotheses before the first step."""
        self.pool, self.model, self.options, self.sentences = pool, model, state.options, state.sentences
        source, longest = inputs.source, model.config.positions.max_length
        given = self.given = 0 if inputs.target is None else inputs.target.shape[1]
        self.shape = Shape(
            _batch(state.sentences),
            0 if source is None else min(_rounded(source.shape[1], 16), longest),
            0 if given == 0 else min(_rounded(given, 16), longest),
            min(_rounded(given + state.longest, 64), longest),
            structure(state),
        )
        self.slot = slot = pool.slot(model, self.shape, state)
        _fill(slot.inputs.source, slot.inputs.source_layout, source, inputs.source_layout)
        _fill(slot.inputs.target, slot.inputs.target_layout, inputs.target, inputs.target_layout)
        pool.replay(read, model, slot)
        slot.state.copy_from(state)

    @property
    def state(self) -> HypothesisState:
        view = self.slot.state.narrow_to(self.sentences)
        view.options = self.options  # the slot was made for a search with other scalars
        return view

    @torch.no_grad()
    def advance(self) -> None:
        self.pool.replay(step, self.model, self.slot)

    def done(self) -> Bool[Tensor, " sentences"]:
        return self.slot.state.done()[: self.sentences]

    def should_shrink(self, left: int, total: int) -> bool:
        """Return whether the rest fits in a smaller slot that is also faster."""
        smaller = self.shape.sentences * self.slot.state.beams > FEW and _batch(left) < self.shape.sentences
        return smaller and total - left >= LEAVE * total

    @torch.no_grad()
    def select(self, sentences: Int[Tensor, " kept"]) -> None:
        """Continue with these sentences, in a smaller slot if they fit in one."""
        state = self.state.select(sentences)
        kept = self.slot.cache.extract(sentences, self.given + int(state.length) - 1)
        self.shape, self.sentences = self.shape._replace(sentences=_batch(len(sentences))), len(sentences)
        self.slot = self.pool.slot(self.model, self.shape, state)
        self.slot.cache.copy_from(kept)
        self.slot.state.copy_from(state)


def _fill(ids: Tensor | None, cells: Any, rows: Tensor | None, layout: Any) -> None:
    """Copy padded rows and their layout into a slot. A blank sentence counts as one token."""
    if ids is None or rows is None:
        return
    ids.fill_(PAD)
    ids[: len(rows), : rows.shape[1]] = rows
    cells.fill_(False)
    cells[:, :1] = True
    cells[: len(rows), : rows.shape[1]] = True if layout is None else layout


def _rounded(length: int, least: int) -> int:
    """Return the next power of two."""
    return max(least, 1 << (length - 1).bit_length())


def _batch(sentences: int) -> int:
    """Return the size of the slot: a small step takes as long for one sentence as for many, a large one twice as long
    for twice as many."""
    return _rounded(sentences, 1) if sentences <= 64 else -(-sentences // 64) * 64
