"""Sampling: tokens are as frequent as they should be, and the draws depend on the request and the seed alone."""

import math
from collections import Counter

import pytest
import torch

from searching import ARCHITECTURES, find, log_probs, model_of, request_of
from sightline.config import SearchConfig
from sightline.search.driver import search
from sightline.search.scoring import highest
from sightline.search.types import Limits
from sightline.special import END, PAD, START, UNKNOWN

TEXT = [4, 5, 6]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request):
    return model_of(request.param, "paper", 5, 1.0, vocab_size=20)


def first_tokens(model, **options):
    """Return how often each token came first, in many samples."""
    counts: Counter[int] = Counter()
    for seed in range(20):
        search_options = SearchConfig(sample=True, beams=200, nbest=200, seed=seed, **options)
        (found,) = find(model, [TEXT], search_options, limits=Limits(2))
        counts.update((one.ids or [END])[0] for one in found)
    return counts


def expected(model, temperature=1.0):
    scores = log_probs(model, TEXT, [])[-1]
    scores[[PAD, START, UNKNOWN]] = -math.inf
    return (scores / temperature).softmax(-1)


def kept(p, condition):
    p = torch.where(condition, p, 0.0)
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
def test_tokens_are_as_frequent_as_they_are_probable(model, options, filtered):
    p = filtered(expected(model, options.get("temperature", 1.0)))
    counts = first_tokens(model, **options)
    draws = sum(counts.values())
    assert set(counts) <= set(p.nonzero()[:, 0].tolist())
    for token, probability in enumerate(p.tolist()):
        deviation = math.sqrt(draws * probability * (1 - probability)) + 1e-9
        assert abs(counts[token] - draws * probability) < 5 * deviation + 1e-6


@pytest.mark.parametrize("limits", [None, Limits(6, cut=True)])
def test_draws_depend_on_the_seed_and_the_request_alone(model, limits):
    texts = [[4, 5, 6], [7], [8, 9, 10, 11, 12], [13, 14]]
    options = SearchConfig(sample=True, beams=3, nbest=3, seed=7, top_p=0.9)
    together = find(model, texts, options, limits=limits)
    alone = [find(model, [text], options, limits=limits)[0] for text in texts]
    reversed_ = find(model, texts[::-1], options, limits=limits, batch_tokens=20)[::-1]
    ids = [[one.ids for one in each] for each in together]
    assert ids == [[one.ids for one in each] for each in alone] == [[one.ids for one in each] for each in reversed_]
    other = find(model, texts, options.model_copy(update={"seed": 8}), limits=limits)
    assert ids != [[one.ids for one in each] for each in other]
    for text, each in zip(texts, together, strict=True):
        assert [one.score for one in each] == sorted((one.score for one in each), reverse=True)
        for one in each:
            most = (limits or request_of(model, text, options).limits).most
            assert len(one.log_probs) == min(len(one.ids) + 1, most)
            scores = log_probs(model, text, one.ids)
            logs = [scores[i, token].item() for i, token in enumerate([*one.ids, END])]
            assert one.log_probs == pytest.approx(logs[: len(one.log_probs)], abs=1e-4)


def test_draws_depend_on_the_given_text(model):
    options = SearchConfig(sample=True, beams=1, temperature=5.0)
    requests = [request_of(model, TEXT, options)._replace(given=[START, *given]) for given in ([4], [5])]
    requests = [request._replace(limits=Limits(12, cut=True)) for request in requests]
    (one,), (other,) = search(model, requests, options)
    assert one.ids != other.ids


@pytest.mark.parametrize("least", [1e-6, 1e-40, 5e-324])
@pytest.mark.parametrize("option", ["temperature", "top_p"])
def test_the_smallest_temperature_or_top_p_draws_the_likeliest_token(model, option, least):
    texts = [[4, 5, 6], [7], [8, 9, 10, 11, 12]]
    drawn = find(model, texts, SearchConfig(sample=True, beams=2, **{option: least}))
    best = find(model, texts, SearchConfig(beams=1))
    assert [one.ids for (one,) in drawn] == [one.ids for (one,) in best]


@pytest.mark.parametrize("n", [5, 64, 700, 5000, 5003])
@pytest.mark.parametrize("count", [1, 9])
def test_the_highest_are_those_of_a_full_sort(n, count):
    values = torch.randn(7, n)
    found, columns = highest(values, count)
    best = values.sort(1, descending=True).values[:, :count]
    assert torch.equal(found, best)
    assert torch.equal(values.gather(1, columns), best)
