"""The search over any number of sources, which finds the same for each whatever its neighbours are.

Sources of like length are searched together, in batches under a budget of tokens; those that are done leave. The
numbers a model gives for a sentence differ in the last digits with the shape of the batch it is in (sums are added in
another order), and that may decide between two hypotheses that are as good as each other. In float32, a sentence where
any decision was so near is searched again by itself, and that answer counts. So batches make it faster, and change
nothing. A sentence with sequences that must occur is always searched by itself.
"""

import contextlib
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from sightline.config import SearchConfig
from sightline.errors import InputError
from sightline.model.transformer import EncoderDecoder
from sightline.search.beam import Beams
from sightline.search.constrained import ConstrainedBeams
from sightline.search.hypothesis import Hypothesis, Wish
from sightline.search.recorded import LEAVE, RecordedSearch, stage_of
from sightline.search.rules import Rules
from sightline.search.sampling import Samples
from sightline.search.scorer import Scorer, Scores
from sightline.special import PAD
from sightline.text.tokenizer import with_end

__all__ = ["TIE", "PlainSearch", "Progress", "Translator", "find", "follow", "stream"]

TIE = 2e-4
"""Hypotheses whose log-probabilities differ by less are as good as each other. In float32 that of one hypothesis
differs by some 1e-5 between batches (docs/decisions/0011)."""


@runtime_checkable
class Translator(Protocol):
    """What can be searched with: our models, or one that other software computes."""

    room: int
    """Positions of a source, or of an answer."""
    device: torch.device
    exact: bool
    """Whether it computes in float32."""
    source_end: bool
    """Whether a source ends in END."""

    def begin(
        self, source: Int[Tensor, "sentences source"], state: Beams | Samples
    ) -> "AbstractContextManager[PlainSearch | RecordedSearch]":
        """The search for the answers to a batch of sources, padded on the right, from where it begins."""


def find(
    models: EncoderDecoder | Sequence[EncoderDecoder] | Translator,
    sources: Sequence[Sequence[int]],
    config: SearchConfig,
    wishes: Sequence[Wish] | None = None,
    *,
    budget: int = 8192,
) -> list[list[Hypothesis]]:
    """For every source (ids without END) its best answers, best first, in the order of the sources. Several models
    vote. `budget`: tokens of a batch, the sources counted once for each beam."""
    models = [models] if isinstance(models, EncoderDecoder) else models
    translator = models if isinstance(models, Translator) else Models(models)
    wishes = [Wish()] * len(sources) if wishes is None else wishes
    most = translator.room - translator.source_end
    for ids in sources:
        if len(ids) > most:
            raise InputError(f"a source of {len(ids)} tokens is too long: the model reads at most {most}.")
    found: list[list[Hypothesis]] = [[] for _ in sources]
    near: list[int] = []
    for batch in _batches(sources, wishes, budget // config.beams):
        answers = _search(translator, [sources[i] for i in batch], config, [wishes[i] for i in batch])
        for i, (best, margin) in zip(batch, answers, strict=True):
            found[i] = best
            if margin < TIE and len(batch) > 1:
                near.append(i)
    if not translator.exact:
        return found  # where numbers are coarser, too many decisions are near
    for i in near:
        ((found[i], _),) = _search(translator, [sources[i]], config, [wishes[i]])
    return found


def _batches(sources: Sequence[Sequence[int]], wishes: Sequence[Wish], budget: int) -> Iterator[list[int]]:
    alone = [any(wish.within) for wish in wishes]
    yield from ([i] for i in range(len(sources)) if alone[i])
    order = [i for i in range(len(sources)) if not alone[i]]
    order.sort(key=lambda i: -len(sources[i]))  # the longest of a batch comes first
    while order:
        count = max(1, budget // (len(sources[order[0]]) + 1))
        yield order[:count]
        order = order[count:]


def stream(model: EncoderDecoder, source: Sequence[int], config: SearchConfig, wish: Wish) -> Iterator[int]:
    """The tokens of an answer, each as soon as it is sure: of greedy search, or of one sample."""
    if config.beams > 1:
        raise InputError(
            f"beams = {config.beams} change their mind; tokens can be streamed from one beam or one sample."
        )
    with contextlib.closing(_steps(Models([model]), [source], config, [wish])) as steps:
        for search, _, (done,) in steps:
            if done:
                break
            yield int(search.state.last()[0])


class Progress(NamedTuple):
    """What a step has brought to the sentences of a batch, by their number."""

    tokens: dict[int, int]
    """The token that each answer has grown by, where that is followed and sure."""
    answers: dict[int, list[Hypothesis]]
    """Of those that are done now, their best answers, best first."""


def follow(
    models: Sequence[EncoderDecoder],
    sources: Sequence[Sequence[int]],
    config: SearchConfig,
    wishes: Sequence[Wish],
    *,
    aloud: Collection[int] = (),
    gone: Collection[int] = (),
) -> Iterator[Progress]:
    """One batch, step by step, for who does other things in between; what is found is what `find` finds. `aloud`: the
    sentences whose tokens are told as they come (with one beam, or one sample). `gone`: those that nobody waits for any
    more; it may grow meanwhile."""
    translator, told = Models(models), dict.fromkeys(aloud, 0)
    several = len(sources) > 1 and translator.exact
    over: set[int] = set()
    near: list[int] = []  # these are searched again by themselves; what has been told of them holds
    for search, here, done in _steps(translator, sources, config, wishes, lambda i: i in gone or i in over):
        state = search.state
        unsure = (state.margin < TIE).tolist() if several and told else [False] * len(here)
        found = [row for row, i in enumerate(here) if i not in over and (done[row] or (unsure[row] and i in told))]
        over.update(here[row] for row in found)
        tokens: dict[int, int] = {}
        if not over.issuperset(told):
            last = zip(here, state.last()[:, 0].tolist(), strict=True)
            tokens = {i: token for i, token in last if i in told and i not in over}
        for i in tokens:
            told[i] += 1
        answers: dict[int, list[Hypothesis]] = {}
        if found:
            state.keep(torch.tensor(found, device=state.length.device))
            for row, (best, margin) in zip(found, state.answers(), strict=True):
                if several and margin < TIE:
                    near.append(here[row])
                else:
                    answers[here[row]] = best
        yield Progress(tokens, answers)
    for i in near:
        if i in gone:
            continue
        alone = follow(models, [sources[i]], config, [wishes[i]], aloud=[0] if i in told else [])
        for number, (said, whole) in enumerate(alone):
            yield Progress({i: said[0]} if said and number >= told[i] else {}, {i: whole[0]} if whole else {})
            if i in gone:
                break


def _search(
    translator: Translator, sources: Sequence[Sequence[int]], config: SearchConfig, wishes: Sequence[Wish]
) -> list[tuple[list[Hypothesis], float]]:
    """One batch: for each source its answers, and how near it was that others had been found."""
    answers: list[tuple[list[Hypothesis], float] | None] = [None] * len(sources)
    for search, here, done in _steps(translator, sources, config, wishes):
        if not search.leave(done):
            continue
        leaving = search.state
        leaving.keep(torch.tensor([row for row, over in enumerate(done) if over], device=leaving.length.device))
        for i, answer in zip((i for i, over in zip(here, done, strict=True) if over), leaving.answers(), strict=True):
            answers[i] = answer
    return [answer for answer in answers if answer is not None]


def _steps(
    translator: Translator,
    sources: Sequence[Sequence[int]],
    config: SearchConfig,
    wishes: Sequence[Wish],
    gone: Callable[[int], bool] = lambda _: False,
) -> Generator[tuple["PlainSearch | RecordedSearch", list[int], list[bool]], None, None]:
    """A search after each token that it has added to all hypotheses of a batch; the sentences that are in it, by
    number; and which of them are done, or gone. These leave when that makes it faster."""
    device = translator.device
    read = [with_end(source, translator.source_end) for source in sources]
    longest = max(map(len, read))
    ids = torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in read], device=device)
    rules = Rules([len(source) + 1 for source in sources], config, wishes, translator.room, device)
    if any(wishes[0].within):
        state: Beams | Samples = ConstrainedBeams(rules, config, ids != PAD, wishes[0])
    else:
        state = Samples(rules, config, sources) if config.sample else Beams(rules, config, ids != PAD)
    here = list(range(len(sources)))
    with translator.begin(ids, state) as search:
        for _ in range(rules.longest):
            search.advance()
            done = [over or gone(i) for i, over in zip(here, search.done().tolist(), strict=True)]
            yield search, here, done
            if all(done):
                return
            if search.leave(done):
                search.keep(torch.tensor([row for row, over in enumerate(done) if not over], device=device))
                here = [i for i, over in zip(here, done, strict=True) if not over]


class Models:
    """Our models, of which several vote, as a translator."""

    def __init__(self, models: Sequence[EncoderDecoder]) -> None:
        weight = models[0].classifier.weight
        self.models = models
        self.room = min(model.config.positions.max_length for model in models)
        self.device, self.source_end = weight.device, models[0].config.source_end
        self.exact = weight.dtype == torch.float32 and not torch.is_autocast_enabled(weight.device.type)

    @contextlib.contextmanager
    def begin(
        self, source: Int[Tensor, "sentences source"], state: Beams | Samples
    ) -> "Iterator[PlainSearch | RecordedSearch]":
        """Recorded where that can be; not where it asks for attention, or for words that must or must not occur."""
        watched = state.config.coverage_penalty > 0 and not state.config.sample
        plain = watched or any(state.rules.without) or isinstance(state, ConstrainedBeams)
        stage = None if plain else stage_of(self.models)
        if stage is None:
            more = {"beams": state.config.beams, "capacity": state.rules.longest}
            scorer = Scorer(self.models, source, **more, watched=watched)
            yield PlainSearch(scorer, state)
            return
        try:
            yield RecordedSearch(stage, self.models[0], source, state)
        finally:
            stage.taken.release()


@runtime_checkable
class Scoring(Protocol):
    """The hypotheses of a batch of sources, as far as what scores their tokens is concerned."""

    def next(self, tokens: Int[Tensor, "rows 1"]) -> Scores:
        """The scores of the tokens that could follow these."""

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Let each row go on from another one of its sentence."""

    def keep(self, sentences: Int[Tensor, " kept"]) -> None:
        """Go on with these sentences alone."""


class PlainSearch:
    """The search for the answers to a batch of sources, step by step."""

    def __init__(self, scorer: Scoring, state: Beams | Samples) -> None:
        self.scorer, self.now = scorer, state

    @property
    def state(self) -> Beams | Samples:
        """Where the search is; what becomes of this does not change it."""
        return self.now.first(self.now.sentences)

    def advance(self) -> None:
        """Add one token to every hypothesis."""
        rows = self.now.grow(self.scorer.next(self.now.last()))
        if rows is not None and self.now.config.beams > 1:
            self.scorer.reorder(rows)

    def done(self) -> Bool[Tensor, " sentences"]:
        """Which sentences are over."""
        return self.now.done()

    def leave(self, done: Sequence[bool]) -> bool:
        """Whether it is time for the sentences that are done to leave."""
        return sum(done) >= LEAVE * len(done)

    def keep(self, sentences: Int[Tensor, " kept"]) -> None:
        """Go on with these sentences alone."""
        self.scorer.keep(sentences)
        self.now.keep(sentences)
