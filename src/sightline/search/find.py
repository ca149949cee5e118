"""The search over any number of sources, which finds the same for each whatever its neighbours are.

Sources of like length are searched together, in batches under a budget of tokens; those that are done leave. The
numbers a model gives for a sentence differ in the last digits with the shape of the batch it is in (sums are added in
another order), and that may decide between two hypotheses that are as good as each other. In float32, a sentence where
any decision was so near is searched again by itself, and that answer counts. So batches make it faster, and change
nothing. A sentence with sequences that must occur is always searched by itself.
"""

from collections.abc import Iterator, Sequence

import torch

from sightline.config import SearchConfig
from sightline.errors import InputError
from sightline.model.transformer import EncoderDecoder
from sightline.search.beam import Beams
from sightline.search.constrained import ConstrainedBeams
from sightline.search.hypothesis import Hypothesis, Wish
from sightline.search.rules import Rules
from sightline.search.sampling import Samples
from sightline.search.scorer import Scorer
from sightline.text.tokenizer import END, PAD

__all__ = ["TIE", "find", "stream"]

TIE = 2e-4
"""Hypotheses whose log-probabilities differ by less are as good as each other. In float32 that of one hypothesis
differs by some 1e-5 between batches (docs/decisions/0011)."""
LEAVE = 0.25
"""Part of a batch that must be done before what is left of it is made a smaller one."""


def find(
    models: EncoderDecoder | Sequence[EncoderDecoder],
    sources: Sequence[Sequence[int]],
    config: SearchConfig,
    wishes: Sequence[Wish] | None = None,
    *,
    budget: int = 8192,
) -> list[list[Hypothesis]]:
    """For every source (ids without END) its best answers, best first, in the order of the sources. Several models
    vote. `budget`: tokens of a batch, the sources counted once for each beam."""
    models = [models] if isinstance(models, EncoderDecoder) else list(models)
    wishes = [Wish()] * len(sources) if wishes is None else wishes
    longest = min(model.config.positions.max_length for model in models)
    for ids in sources:
        if len(ids) >= longest:
            raise InputError(f"a source of {len(ids)} tokens is too long: the model reads at most {longest - 1}.")
    found: list[list[Hypothesis]] = [[] for _ in sources]
    near: list[int] = []
    for batch in _batches(sources, wishes, budget // config.beams):
        answers = _search(models, [sources[i] for i in batch], config, [wishes[i] for i in batch])
        for i, (best, margin) in zip(batch, answers, strict=True):
            found[i] = best
            if margin < TIE and len(batch) > 1:
                near.append(i)
    weight = models[0].classifier.weight
    if weight.dtype != torch.float32 or torch.is_autocast_enabled(weight.device.type):
        return found  # where numbers are coarser, too many decisions are near
    for i in near:
        ((found[i], _),) = _search(models, [sources[i]], config, [wishes[i]])
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
    for state in _steps([model], [source], config, [wish]):
        token = int(state.tokens[0, -1])
        if bool(state.done()[0]):
            break
        yield token


def _search(
    models: Sequence[EncoderDecoder], sources: Sequence[Sequence[int]], config: SearchConfig, wishes: Sequence[Wish]
) -> list[tuple[list[Hypothesis], float]]:
    """One batch: for each source its answers, and how near it was that others had been found."""
    answers: list[tuple[list[Hypothesis], float] | None] = [None] * len(sources)
    here = list(range(len(sources)))  # the sentences that are still in the batch
    for state in _steps(models, sources, config, wishes):
        done = state.done().tolist()
        if sum(done) < LEAVE * len(done):
            continue
        for i, answer, over in zip(here, state.answers(), done, strict=True):
            answers[i] = answer if over else None
        here = [i for i, over in zip(here, done, strict=True) if not over]
    return [answer for answer in answers if answer is not None]


@torch.no_grad()
def _steps(
    models: Sequence[EncoderDecoder], sources: Sequence[Sequence[int]], config: SearchConfig, wishes: Sequence[Wish]
) -> Iterator[Beams | Samples]:
    """The state of a search after each token that is added to all hypotheses of a batch; on a GPU, which one waits for,
    after every eighth. When a quarter of the sentences is done, these leave."""
    device = models[0].classifier.weight.device
    ids = torch.full((len(sources), max(map(len, sources)) + 1), PAD)
    for row, source in zip(ids, sources, strict=True):
        row[: len(source) + 1] = torch.tensor([*source, END])
    ids = ids.to(device)
    room = min(model.config.positions.max_length for model in models)
    rules = Rules([len(source) + 1 for source in sources], config, wishes, room, device)
    watched = config.coverage_penalty > 0 and not config.sample
    scorer = Scorer(models, ids, beams=config.beams, capacity=rules.longest, watched=watched)
    if any(wishes[0].within):
        state: Beams | Samples = ConstrainedBeams(rules, config, ids != PAD, wishes[0])
    else:
        state = Samples(rules, config, sources) if config.sample else Beams(rules, config, ids != PAD)
    every = 1 if device.type == "cpu" or len(sources) == 1 else 8
    for length in range(1, rules.longest + 1):
        rows = state.grow(*scorer.next(state.tokens[:, -1:]), scorer.attention)
        seen = length % every == 0 or length == rules.longest
        if seen:
            yield state
        done = state.done() if seen else None
        if done is not None and bool(done.all()):
            return
        if rows is not None and config.beams > 1:
            scorer.reorder(rows)
        if done is not None and float(done.float().mean()) >= LEAVE:
            kept = (~done).nonzero()[:, 0]
            scorer.keep(kept)
            state.keep(kept)
