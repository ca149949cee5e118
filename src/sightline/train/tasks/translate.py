"""Translation: pairs of a source and its translation (§5)."""

from collections.abc import Iterator, Sequence

import numpy as np

from sightline.config import Config, SearchConfig
from sightline.data.corpus import Corpus, ReadLines, read_pairs
from sightline.data.examples import PairExamples
from sightline.data.store import Store
from sightline.engine.results import Plan
from sightline.engine.translator import Translator, translation_request
from sightline.model.transformer import Model
from sightline.text.split import split
from sightline.text.tokenizer import Tokenizer
from sightline.train.tasks.base import Task

SIZES = ((60_000, "tiny"), (600_000, "small"), (20_000_000, "base"))
"""Presets for fewer pairs than this."""


def preset(pairs: int) -> str:
    """Return the preset for a number of pairs."""
    return next((name for limit, name in SIZES if pairs < limit), "big")


def texts(corpus: Corpus, read: ReadLines | None) -> Iterator[tuple[str, ...]]:
    """Yield source and target of each pair."""
    return read_pairs(corpus, read)


def examples(config: Config) -> PairExamples:
    """Return the pairs to train on, once for each reading of BPE-dropout."""
    data = config.data
    length = min(data.max_length, config.model.positions.max_length - 1)
    readings = data.readings if data.bpe_dropout else 1
    return PairExamples(length, float(data.max_ratio), float(data.bpe_dropout), readings)


def valid_examples(config: Config) -> PairExamples:
    """Return all pairs that the model can read."""
    return PairExamples(config.model.positions.max_length - 1, 1e9)


def answer(model: Model, tokenizer: Tokenizer, sources: Sequence[str], *, beams: int, batch_tokens: int) -> list[str]:
    """Translate each source in one piece; those that are longer than the model can read are cut."""
    options, limit = SearchConfig(beams=beams), model.config.positions.max_length - 1
    encoded = tokenizer.source.encode(sources)
    requests = [translation_request(ids[:limit], options, model.config) for ids in encoded]
    plan = Plan(requests, options, lambda found: [tokenizer.decode(best.ids) for best, *_ in found], log_probs=False)
    with Translator(model, tokenizer, batch_tokens=batch_tokens) as translator:
        return translator.run(plan)


def source_length(store: Store, _: Tokenizer) -> int | None:
    """Return the length of long training sources in tokens, or 1 if sources are single sentences. Translation splits
    longer texts into sentences."""
    if store.source is None:
        return None
    sources = [source for _, (source, _) in store.sample]
    several = [len(split(text, lambda texts: [len(text) for text in texts], 10**9, 1)) > 1 for text in sources]
    return int(np.quantile(store.source.lengths, 0.99)) if np.mean(several) > 0.02 else 1


TRANSLATE = Task(
    name="translate",
    architectures=("encoder-decoder",),
    preset=preset,
    texts=texts,
    examples=examples,
    valid_examples=valid_examples,
    answer=answer,
    source_length=source_length,
)
