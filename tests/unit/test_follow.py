"""A batch that is searched step by step finds what a search in one go finds; and a search can be watched."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.config import SearchConfig
from sightline.errors import InputError
from sightline.search import find as finding
from sightline.search.find import find, follow
from sightline.search.hypothesis import Wish
from sightline.search.tree import grow_tree
from sightline.special import END
from support import VARIANTS, model_of

WORDS = range(4, 41)
SOURCES = st.lists(st.lists(st.sampled_from(WORDS), max_size=6), min_size=1, max_size=5)
OPTIONS = st.sampled_from(
    [
        {"beams": 1},
        {"beams": 3, "nbest": 2},
        {"beams": 4, "groups": 2, "nbest": 3},
        {"beams": 1, "sample": True, "seed": 5},
        {"beams": 2, "nbest": 2, "sample": True, "top_k": 9},
    ]
)


def followed(model, sources, config, **more):
    """The answers, the tokens that were told, and how many steps it took until each answer was there."""
    answers, told, steps = {}, {}, {}
    for number, (tokens, found) in enumerate(follow([model], sources, config, [Wish()] * len(sources), **more)):
        for i, token in tokens.items():
            assert i not in answers, "nothing is said after the end"
            told.setdefault(i, []).append(token)
        assert not answers.keys() & found.keys(), "each answer comes once"
        answers |= found
        steps |= dict.fromkeys(found, number)
    return answers, told, steps


@settings(max_examples=15)
@given(variant=st.sampled_from(list(VARIANTS)), sources=SOURCES, seed=st.integers(0, 10**6), options=OPTIONS)
def test_the_same_is_found_step_by_step(variant, sources, seed, options):
    model = model_of(variant, seed, 1.5)
    config = SearchConfig(max_extra=4, max_ratio=1.0, **options)
    aloud = range(0, len(sources), 2) if config.beams == 1 else ()
    expected = find(model, sources, config)
    answers, told, _ = followed(model, sources, config, aloud=aloud)
    assert {i: [one.ids for one in best] for i, best in answers.items()} == {
        i: [one.ids for one in best] for i, best in enumerate(expected)
    }
    assert {i: ids for i, ids in told.items() if ids} == {i: answers[i][0].ids for i in aloud if answers[i][0].ids}


@pytest.mark.parametrize("sample", [False, True])
def test_where_it_was_near_all_is_found_again_and_nothing_is_said_twice(monkeypatch, sample):
    """As if every third decision were too near to call: the tokens that were told hold, and the rest follow."""
    model, chance = model_of("paper", 1, 0.5), random.Random(1)
    sources = [[chance.choice(WORDS) for _ in range(chance.randrange(2, 9))] for _ in range(7)]
    config = SearchConfig(beams=1, max_extra=6, max_ratio=1.0, sample=sample)
    expected = find(model, sources, config)
    monkeypatch.setattr(finding, "TIE", 0.05)
    answers, told, steps = followed(model, sources, config, aloud=range(7))
    assert max(steps.values()) > 16, "some were searched once more"
    assert [answers[i][0].ids for i in range(7)] == [best.ids for (best,) in expected]
    assert [told.get(i, []) for i in range(7)] == [best.ids for (best,) in expected]


def test_who_is_gone_leaves():
    model = model_of("paper", 3)  # which hardly ever ends
    sources, gone, rows = [[5, 6, 7]] * 8, set(), []
    plain = model.step

    def counting(tokens, cache, *more):
        rows.append(len(tokens))
        return plain(tokens, cache, *more)

    model.step = counting
    answers = {}
    for number, (_, found) in enumerate(follow([model], sources, SearchConfig(beams=2), [Wish()] * 8, gone=gone)):
        answers |= {i: best for i, best in found.items() if i not in gone}
        if number == 3:
            gone |= {0, 2, 3, 4, 6, 7}
    assert rows[0] == 16
    assert rows[6] == 4
    assert answers.keys() == {1, 5}
    steps = follow([model], sources[:1], SearchConfig(beams=2), [Wish()], gone={0})
    assert len(list(steps)) == 1


@settings(max_examples=10)
@given(
    source=st.lists(st.sampled_from(WORDS), max_size=6),
    seed=st.integers(0, 10**6),
    beams=st.integers(1, 5),
    prefix=st.lists(st.sampled_from(WORDS), max_size=2),
    penalty=st.sampled_from([0.0, 1.0]),
)
def test_a_tree_tells_all_of_a_search(source, seed, beams, prefix, penalty):
    model = model_of("paper", seed, 1.5)
    config = SearchConfig(beams=beams, nbest=beams, length_penalty=penalty, max_extra=4, max_ratio=1.0)
    nodes, answers = grow_tree([model], source, config, Wish(prefix))
    (expected,) = find(model, [source], config, [Wish(prefix)])
    assert [one.ids for one in answers] == [one.ids for one in expected]

    def ids(number):
        return [] if number < 0 else [*ids(nodes[number].parent), nodes[number].token]

    for node in nodes:
        before = nodes[node.parent].total if node.parent >= 0 else 0.0
        assert node.total == pytest.approx(before + node.log_prob, abs=1e-4)
        assert node.step == (nodes[node.parent].step + 1 if node.parent >= 0 else 0)
        assert node.parent < 0 or nodes[node.parent].fate == "grew"
        assert (node.fate == "ended") <= (node.token == END)
        assert (node.score is not None) == (node.fate == "ended")
    for step in {node.step for node in nodes}:
        here = [node for node in nodes if node.step == step]
        assert [node.total for node in here] == sorted((node.total for node in here), reverse=True)
        assert sum(node.fate == "grew" for node in here) <= beams
        worst = min((node.total for node in here if node.fate == "grew"), default=-math.inf)
        assert all(node.total <= worst for node in here if node.fate == "dropped" and node.token != END)
    ended = {tuple(ids(i)[:-1]): node.score for i, node in enumerate(nodes) if node.fate == "ended"}
    for one in answers:
        assert ended[tuple(one.ids)] == pytest.approx(one.score, abs=1e-4)


def test_a_tree_is_of_a_plain_beam_search():
    model = model_of("paper", 1)
    with pytest.raises(InputError, match="the beams of a plain beam search can be shown"):
        grow_tree([model], [5], SearchConfig(sample=True))
    short = model_of("learned", 1)
    with pytest.raises(InputError, match="a source of 64 tokens is too long: the model reads at most 64 with its end"):
        grow_tree([short], [5] * 64, SearchConfig())
    assert torch.is_grad_enabled()
