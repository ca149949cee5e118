"""Sampling: tokens come as often as they should, and what is drawn depends on the sentence and the seed alone."""

import math
from collections import Counter

import pytest
import torch

from sightline.config import SearchConfig
from sightline.search.find import find
from sightline.search.scorer import highest
from sightline.special import END, START, UNKNOWN
from support import translator

SOURCE = [4, 5, 6]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(5)
    model = translator("paper", classifier_bias=True, vocab_size=20)
    with torch.no_grad():
        model.classifier.bias[END] += 1
    return model


def first_tokens(model, **options):
    """How often each token came first, in many samples."""
    counts: Counter[int] = Counter()
    for seed in range(20):
        config = SearchConfig(sample=True, beams=200, nbest=200, max_ratio=0.1, max_extra=2, seed=seed, **options)
        (found,) = find(model, [SOURCE], config)
        counts.update((one.ids or [END])[0] for one in found)
    return counts


@torch.no_grad()
def expected(model, temperature=1.0):
    scores = model(torch.tensor([[*SOURCE, END]]), torch.tensor([[START]]))[0, -1]
    scores[[0, START, UNKNOWN]] = -math.inf
    return (scores / temperature).softmax(-1)


def kept(p, where):
    p = torch.where(where, p, 0.0)
    return p / p.sum()


@pytest.mark.parametrize(
    ("options", "filtered"),
    [
        ({}, lambda p: p),
        ({"temperature": 0.7}, lambda p: p),
        ({"top_k": 3}, lambda p: kept(p, p >= p.sort(descending=True).values[2])),
        ({"min_p": 0.4}, lambda p: kept(p, p >= 0.4 * p.max())),
        ({"top_p": 0.5}, lambda p: kept(p, (p[:, None] * (p[:, None] > p)).sum(0) < 0.5)),
    ],
)
def test_tokens_come_as_often_as_they_are_likely(model, options, filtered):
    p = filtered(expected(model, options.get("temperature", 1.0)))
    counts = first_tokens(model, **options)
    draws = sum(counts.values())
    assert set(counts) <= set(p.nonzero()[:, 0].tolist())
    for token, probability in enumerate(p.tolist()):
        deviation = math.sqrt(draws * probability * (1 - probability)) + 1e-9
        assert abs(counts[token] - draws * probability) < 5 * deviation + 1e-6


def test_the_seed_and_the_sentence_decide_and_nothing_else(model):
    sources = [[4, 5, 6], [7], [8, 9, 10, 11, 12], [13, 14]]
    config = SearchConfig(sample=True, beams=3, nbest=3, seed=7, top_p=0.9)
    together = find(model, sources, config)
    alone = [find(model, [source], config)[0] for source in sources]
    turned = find(model, sources[::-1], config, budget=20)[::-1]
    ids = [[one.ids for one in each] for each in together]
    assert ids == [[one.ids for one in each] for each in alone] == [[one.ids for one in each] for each in turned]
    other = find(model, sources, config.model_copy(update={"seed": 8}))
    assert ids != [[one.ids for one in each] for each in other]
    for each in together:
        assert [one.score for one in each] == sorted((one.score for one in each), reverse=True)


@pytest.mark.parametrize("least", [1e-6, 1e-40, 5e-324])
@pytest.mark.parametrize("option", ["temperature", "top_p"])
def test_however_little_is_dared_the_likeliest_token_comes(model, option, least):
    sources = [[4, 5, 6], [7], [8, 9, 10, 11, 12]]
    drawn = find(model, sources, SearchConfig(sample=True, beams=2, **{option: least}))
    best = find(model, sources, SearchConfig(beams=1))
    assert [one.ids for (one,) in drawn] == [one.ids for (one,) in best]


@pytest.mark.parametrize("n", [5, 64, 700, 5000, 5003])
@pytest.mark.parametrize("count", [1, 9])
def test_the_highest_are_those_of_a_full_sort(n, count):
    values = torch.randn(7, n)
    found, where = highest(values, count)
    best = values.sort(1, descending=True).values[:, :count]
    assert torch.equal(found, best)
    assert torch.equal(values.gather(1, where), best)
