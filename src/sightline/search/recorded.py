"""Search on a GPU: a step is recorded once for each shape it comes in, and played again and again (CUDA graphs).

A step of a small model, from the last tokens to the next ones, is some three hundred short kernels, and asking for each
of them takes longer than doing it. A recording is asked for as a whole. But it always reads and writes the same places
in memory: a stage. So that few recordings serve all searches, shapes are rounded up: to a greater batch, whose last
sentences nobody asked for, and to longer sources and answers.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from sightline.config import SearchConfig
from sightline.model.kernels.decode import summary
from sightline.model.protocol import Inputs
from sightline.model.static_cache import StaticCache
from sightline.model.transformer import EncoderDecoder
from sightline.search.beam import Beams
from sightline.search.sampling import Samples
from sightline.search.scorer import Scores
from sightline.special import PAD

__all__ = ["LEAVE", "RecordedSearch", "Stage", "forget", "stage_of"]

LEAVE = 0.25
"""Part of a batch that must be done before what is left of it is made a smaller one."""
FEW = 128
"""Rows of a batch so small that a smaller one is no faster (docs/decisions/0015)."""

MOST = 100
"""Recordings of a model that are kept."""


class Shape(NamedTuple):
    """What must be equal for two steps to be one recording."""

    sentences: int
    source: int
    capacity: int
    config: str
    """Of the search, all of it but the seed."""


class Place(NamedTuple):
    """Where all of one shape reads and writes."""

    source: Int[Tensor, "sentences source"]
    cache: StaticCache
    state: Beams | Samples
    recorded: dict[str, Any]
    """What was done here before, by name."""


class Stage:
    """The places of all shapes, which lie over each other. One search at a time has it."""

    def __init__(self, model: EncoderDecoder) -> None:
        self.taken = threading.Lock()
        self.weights = weights_of(model.modules())
        self.places: dict[Shape, Place] = {}
        self.pool: Any = None
        self.vectors: Float[Tensor, " n"] = model.classifier.weight.new_zeros(0)

    def place(self, model: EncoderDecoder, shape: Shape, state: Beams | Samples) -> Place:
        """Where a shape is played. What another shape has left there is lost."""
        if shape in self.places:
            return self.places[shape]
        sizes = model.config, shape.sentences, state.config.beams, shape.capacity
        needed = StaticCache.storage_size(*sizes, shape.source)
        if len(self.vectors) < needed:  # older places know the older memory, which is less than this
            self.vectors = self.vectors.new_zeros(max(needed, 2 * len(self.vectors)))
        source = torch.full((shape.sentences, shape.source), PAD, device=self.vectors.device)
        cache = StaticCache(*sizes, like=self.vectors, source=shape.source, storage=self.vectors)
        if len(self.places) >= MOST:
            del self.places[next(iter(self.places))]
        own = state.roomy(shape.sentences, shape.capacity - state.log_probs.shape[1])
        self.places[shape] = Place(source, cache, own, {})
        return self.places[shape]

    def play(self, work: Callable[[EncoderDecoder, Place], None], model: EncoderDecoder, place: Place) -> None:
        """Do what `work` does, as it was recorded; the first time, do and record it."""
        if work.__name__ in place.recorded:
            place.recorded[work.__name__].replay()
            return
        work(model, place)
        if place.source.is_cuda:
            place.recorded[work.__name__] = self._record(work, model, place)

    def _record(self, work: Callable[[EncoderDecoder, Place], None], model: EncoderDecoder, place: Place) -> Any:
        """Recording does nothing. It has been done once by now, which has made ready all that it needs."""
        graph, device = torch.cuda.CUDAGraph(), place.source.device
        usual, stream = torch.cuda.current_stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(usual)
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            work(model, place)
            graph.capture_end()
        usual.wait_stream(stream)
        self.pool = graph.pool()
        return graph


def read(model: EncoderDecoder, place: Place) -> None:
    """Encode the sources of a place."""
    inputs = Inputs(place.source, source_layout=place.source != PAD)
    place.cache.copy_from(model.start(inputs, capacity=1))


def step(model: EncoderDecoder, place: Place) -> None:
    """Add a token to all hypotheses of a place."""
    logits = model.step(place.state.last(), place.cache)
    rows = place.state.grow(Scores(logits, *summary(logits)))
    if rows is not None and place.state.config.beams > 1:
        place.cache.reorder(rows)


STAGES: WeakKeyDictionary[EncoderDecoder, Stage] = WeakKeyDictionary()


def stage_of(models: Sequence[EncoderDecoder]) -> Stage | None:
    """The stage of a model, taken for one search; whoever takes it gives it back (`taken.release()`). None where steps
    cannot be recorded: without a GPU, for several models, or while somebody looks into the model or changes it; or
    where another search has it."""
    if len(models) > 1 or not models[0].classifier.weight.is_cuda or torch.is_autocast_enabled("cuda"):
        return None
    (model,) = models
    modules = list(model.modules())
    for module in modules:
        if module._forward_hooks or module._forward_pre_hooks or module._compiled_call_impl is not None:
            return None
    stage = STAGES.get(model)
    if stage is None or stage.weights != weights_of(modules):
        stage = STAGES[model] = Stage(model)
    return stage if stage.taken.acquire(blocking=False) else None


def forget(model: EncoderDecoder) -> None:
    """Give the memory of a model's stage back."""
    STAGES.pop(model, None)


def weights_of(modules: Iterable[nn.Module]) -> list[int]:
    """Where in memory the numbers of a model's parts lie: a recording reads them there."""
    return [own.data_ptr() for module in modules for own in module._parameters.values() if own is not None]


class RecordedSearch:
    """The search for the answers to a batch of sources, on a stage."""

    @torch.no_grad()
    def __init__(
        self,
        stage: Stage,
        model: EncoderDecoder,
        source: Int[Tensor, "sentences source"],
        state: Beams | Samples,
    ) -> None:
        """`source` is padded on the right. `state`: where the search begins."""
        self.stage, self.model, self.sentences = stage, model, state.sentences
        longest = model.config.positions.max_length
        self.shape = Shape(
            _batch(len(source)),
            min(_rounded(source.shape[1], 16), longest),
            min(_rounded(state.rules.longest, 64), longest),
            _name(state.config),
        )
        self.place = place = stage.place(model, self.shape, state)
        place.source.fill_(PAD)
        place.source[: len(source), : source.shape[1]] = source
        stage.play(read, model, place)
        place.state.enter(state)  # type: ignore[arg-type]

    @property
    def state(self) -> Beams | Samples:
        """Where the search is; what becomes of this does not change it."""
        return self.place.state.first(self.sentences)

    @torch.no_grad()
    def advance(self) -> None:
        """Add one token to every hypothesis."""
        self.stage.play(step, self.model, self.place)

    def done(self) -> Bool[Tensor, " sentences"]:
        """Which sentences are over."""
        return self.place.state.done()[: self.sentences]

    def leave(self, done: Sequence[bool]) -> bool:
        """Whether it is time for the sentences that are done to leave: the others then fit in a smaller place, which is
        also a faster one."""
        left, here = len(done) - sum(done), self.shape.sentences
        smaller = here * self.place.state.config.beams > FEW and _batch(left) < here
        return left == 0 or (smaller and sum(done) >= LEAVE * len(done))

    @torch.no_grad()
    def keep(self, sentences: Int[Tensor, " kept"]) -> None:
        """Go on with these sentences alone, in a smaller place if they fit in one."""
        old, state = self.place.cache, self.state
        state.keep(sentences)
        kept = old.extract(sentences, int(state.length) - 1)
        self.shape, self.sentences = self.shape._replace(sentences=_batch(len(sentences))), len(sentences)
        self.place = place = self.stage.place(self.model, self.shape, state)
        place.cache.copy_from(kept)
        place.state.enter(state)  # type: ignore[arg-type]


def _rounded(length: int, least: int) -> int:
    """To the next power of two."""
    return max(least, 1 << (length - 1).bit_length())


def _batch(sentences: int) -> int:
    """A small step takes as long for one sentence as for many; a great one, twice as long for twice as many."""
    return _rounded(sentences, 1) if sentences <= 64 else -(-sentences // 64) * 64


def _name(config: SearchConfig) -> str:
    return config.model_copy(update={"seed": 0}).model_dump_json()
