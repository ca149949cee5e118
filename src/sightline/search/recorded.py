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
from sightline.model.cache import Cache, Memory
from sightline.model.mask import Mask
from sightline.model.stepwise import Reading, summary
from sightline.model.transformer import EncoderDecoder
from sightline.search.beam import Beams
from sightline.search.sampling import Samples
from sightline.search.scorer import Scores
from sightline.search.state import spread
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
    lengths: Int[Tensor, " sentences"]
    """Of the sources."""
    cache: Cache
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
        config, rows = model.config, shape.sentences * state.config.beams
        layers, heads, d_k = config.decoder.layers, config.decoder.heads, config.d_model // config.decoder.heads
        written = 2 * layers * rows * shape.capacity * config.d_model
        read = 2 * layers * shape.sentences * shape.source * config.d_model
        if len(self.vectors) < written + read:  # older places know the older memory, which is less than this
            self.vectors = self.vectors.new_zeros(max(written + read, 2 * len(self.vectors)))
        source = torch.full((shape.sentences, shape.source), PAD, device=self.vectors.device)
        lengths = torch.ones(shape.sentences, dtype=torch.long, device=self.vectors.device)
        known = self.vectors[written : written + read].view(layers, 2, shape.sentences, heads, shape.source, d_k)
        memory = [Memory(keys, values, Mask(reading=Reading(lengths))) for keys, values in known]
        room = self.vectors[:written]
        cache = Cache(config, rows, shape.capacity, like=self.vectors, static=True, memory=memory, room=room)
        if len(self.places) >= MOST:
            del self.places[next(iter(self.places))]
        own = state.roomy(shape.sentences, shape.capacity - state.log_probs.shape[1])
        self.places[shape] = Place(source, lengths, cache, own, {})
        return self.places[shape]

    def play(self, work: Callable[[EncoderDecoder, Place], None], model: EncoderDecoder, place: Place) -> None:
        """Do what `work` does, as it was recorded; the first time, do and record it."""
        if work.__name__ in place.recorded:
            place.recorded[work.__name__].replay()
            return
        work(model, place)
        if place.lengths.is_cuda:
            place.recorded[work.__name__] = self._record(work, model, place)

    def _record(self, work: Callable[[EncoderDecoder, Place], None], model: EncoderDecoder, place: Place) -> Any:
        """Recording does nothing. It has been done once by now, which has made ready all that it needs."""
        graph, device = torch.cuda.CUDAGraph(), place.lengths.device
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
    """Encode the sources of a place. A sentence that nobody asked for seems to have one token."""
    there = place.source != PAD
    place.lengths.copy_(there.sum(1).clamp(min=1))
    encoded = model.encoder(place.source, there)
    for into, (keys, values, _) in zip(place.cache.memory, model.decoder.remember(encoded, Mask()), strict=True):
        into.keys.copy_(keys)
        into.values.copy_(values)


def step(model: EncoderDecoder, place: Place) -> None:
    """Add a token to all hypotheses of a place."""
    place.cache.used = 0  # it is full when the longest answer is, and counts by itself
    logits = model.step(place.state.last(), place.cache)[:, -1]
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
        place.cache.lengths.zero_()
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
        used = int(state.length) - 1
        rows, positions = spread(sentences, state.config.beams), torch.arange(used, device=sentences.device)
        holders = old.holders[rows, :used]  # type: ignore[index]
        written = [kept[:, holders, :, positions] for kept in (old.keys, old.values)]
        memory = [(keys[sentences], values[sentences]) for keys, values, _ in old.memory]
        lengths = self.place.lengths[sentences]
        self.shape, self.sentences = self.shape._replace(sentences=_batch(len(sentences))), len(sentences)
        self.place = place = self.stage.place(self.model, self.shape, state)
        cache = place.cache
        cache.lengths.fill_(used)
        cache.holders.copy_(cache.numbers[:, None].expand_as(cache.holders))  # type: ignore[union-attr, arg-type]
        for into, kept in zip((cache.keys, cache.values), written, strict=True):
            into[:, : len(rows), :, :used] = kept.permute(2, 0, 3, 1, 4)
        for known, (keys, values) in zip(cache.memory, memory, strict=True):
            known.keys[: len(keys)], known.values[: len(keys)] = keys, values
        place.lengths.fill_(1)
        place.lengths[: len(lengths)] = lengths
        place.state.enter(state)  # type: ignore[arg-type]


def _rounded(length: int, least: int) -> int:
    """To the next power of two."""
    return max(least, 1 << (length - 1).bit_length())


def _batch(sentences: int) -> int:
    """A small step takes as long for one sentence as for many; a great one, twice as long for twice as many."""
    return _rounded(sentences, 1) if sentences <= 64 else -(-sentences // 64) * 64


def _name(config: SearchConfig) -> str:
    return config.model_copy(update={"seed": 0}).model_dump_json()
