"""Beam search: one beam is greedy search, enough beams are all hypotheses, and neighbours do not matter."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence

from sightline.search.beam import search, search_all
from sightline.text.tokenizer import END, PAD, START, UNKNOWN
from support import VARIANTS, translator

WORDS = range(UNKNOWN + 1, 41)
SOURCES = st.lists(st.lists(st.sampled_from(WORDS), min_size=0, max_size=6), min_size=1, max_size=4)


def model_of(variant, seed, ending=0.0, **more):
    """One that ends its sentences now and then."""
    torch.manual_seed(seed)
    model = translator(variant, **{"classifier_bias": True, **more})
    with torch.no_grad():
        model.classifier.weight.mul_(0.7)
        model.classifier.bias[END] += ending
    return model


@torch.no_grad()
def log_probs(model, source, target):
    """Of each next token, by one pass over the whole."""
    return model(torch.tensor([[*source, END]]), torch.tensor([[START, *target]]))[0].log_softmax(-1)


def greedy(model, source):
    found = []
    while len(found) < 2 * (len(source) + 1) + 9:
        scores = log_probs(model, source, found)[-1]
        best = max([END, *range(UNKNOWN + 1, len(scores))], key=lambda i: scores[i])
        if best == END:
            break
        found.append(best)
    return found


def score(model, source, ids, penalty):
    scores = log_probs(model, source, ids)
    return sum(scores[i, token].item() for i, token in enumerate([*ids, END])) / (len(ids) + 1) ** penalty


@settings(max_examples=8)
@given(
    variant=st.sampled_from(list(VARIANTS)),
    sources=SOURCES,
    seed=st.integers(0, 10**6),
    ending=st.sampled_from([0, 1.5, 3]),
)
def test_one_beam_is_greedy_search(variant, sources, seed, ending):
    model = model_of(variant, seed, ending)
    for source, found in zip(sources, search_all(model, sources), strict=True):
        assert found.ids == greedy(model, source)


@settings(max_examples=8)
@given(
    variant=st.sampled_from(list(VARIANTS)),
    sources=SOURCES,
    seed=st.integers(0, 10**6),
    beams=st.integers(1, 5),
    penalty=st.sampled_from([0.0, 0.6, 1.0]),
    ending=st.sampled_from([0, 1.5, 3]),
)
def test_neighbours_do_not_matter_and_scores_are_those_of_the_model(variant, sources, seed, beams, penalty, ending):
    model = model_of(variant, seed, ending)
    together = search_all(model, sources, beams=beams, length_penalty=penalty)
    few = search_all(model, sources, beams=beams, length_penalty=penalty, budget=20)
    turned = search_all(model, sources[::-1], beams=beams, length_penalty=penalty)[::-1]
    for i, source in enumerate(sources):
        (alone,) = search_all(model, [source], beams=beams, length_penalty=penalty)
        for found in (together[i], few[i], turned[i]):
            assert found.ids == alone.ids
            assert found.score == pytest.approx(alone.score, abs=1e-5)
        assert len(alone.ids) < 2 * (len(source) + 1) + 10
        assert not {PAD, START, END, UNKNOWN}.intersection(alone.ids)
        assert alone.score == pytest.approx(score(model, source, alone.ids, penalty), abs=1e-4)


@pytest.mark.parametrize("variant", ["paper", "rotary"])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
def test_with_beams_for_all_hypotheses_the_best_of_all_is_found(variant, penalty):
    positions = {**VARIANTS[variant].get("positions", {}), "max_length": 4}
    model = model_of(variant, 7, vocab_size=7, positions=positions)  # three words, and at most three of them
    words = range(UNKNOWN + 1, 7)
    sources = [[4, 5, 6], [5], [6, 6], []]
    ids = torch.tensor([[*source, END, *[PAD] * (3 - len(source))] for source in sources])
    hypotheses = [h for n in range(4) for h in itertools.product(words, repeat=n)]
    for source, found in zip(sources, search(model, ids, beams=110, length_penalty=penalty), strict=True):
        scores = dict(zip(hypotheses, all_scores(model, source, hypotheses, penalty), strict=True))
        assert found.score == pytest.approx(max(scores.values()), abs=1e-5)
        assert scores[tuple(found.ids)] == pytest.approx(max(scores.values()), abs=1e-5)


@torch.no_grad()
def all_scores(model, source, hypotheses, penalty):
    rows = [torch.tensor([START, *h, END]) for h in hypotheses]
    target, lengths = pad_sequence(rows, batch_first=True), [len(row) - 1 for row in rows]
    sources = torch.tensor([[*source, END]]).expand(len(rows), -1)
    found = model(sources, target[:, :-1]).log_softmax(-1).gather(2, target[:, 1:, None])[:, :, 0]
    return [found[i, :n].sum().item() / n**penalty for i, n in enumerate(lengths)]
