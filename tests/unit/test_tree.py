"""The tree of a beam search: all hypotheses that were considered, and what became of them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from searching import ARCHITECTURES, find, model_of, request_of
from sightline.config import SearchConfig
from sightline.errors import InputError
from sightline.search.tree import grow_tree
from sightline.search.types import Constraints, Limits, Request
from sightline.special import END
from support import raises

WORDS = range(4, 41)


@settings(max_examples=14)
@given(
    architecture=st.sampled_from(ARCHITECTURES),
    text=st.lists(st.sampled_from(WORDS), max_size=6),
    seed=st.integers(0, 10**6),
    beams=st.integers(1, 5),
    prefix=st.lists(st.sampled_from(WORDS), max_size=2),
    penalty=st.sampled_from([0.0, 1.0]),
    limits=st.sampled_from([None, Limits(5, cut=True)]),
)
def test_a_tree_has_all_hypotheses_of_a_search(architecture, text, seed, beams, prefix, penalty, limits):
    model = model_of(architecture, "paper", seed, 1.5)
    options = SearchConfig(beams=beams, nbest=beams, length_penalty=penalty, max_extra=4, max_ratio=1.0)
    nodes, answers = grow_tree(model, request_of(model, text, options, Constraints(prefix), limits), options)
    (expected,) = find(model, [text], options, [Constraints(prefix)], limits)
    assert [one.ids for one in answers] == [one.ids for one in expected]

    def ids(number):
        return [] if number < 0 else [*ids(nodes[number].parent), nodes[number].token]

    for node in nodes:
        before = nodes[node.parent].total if node.parent >= 0 else 0.0
        assert node.total == pytest.approx(before + node.log_prob, abs=1e-4)
        assert node.step == (nodes[node.parent].step + 1 if node.parent >= 0 else 0)
        assert node.parent < 0 or nodes[node.parent].fate == "grew"
        assert (node.fate == "ended") <= (node.token == END or (limits is not None and node.step == 4))
        assert (node.score is not None) == (node.fate == "ended")
    for step in {node.step for node in nodes}:
        here = [node for node in nodes if node.step == step]
        assert [node.total for node in here] == sorted((node.total for node in here), reverse=True)
        assert sum(node.fate == "grew" for node in here) <= beams
        worst = min((node.total for node in here if node.fate == "grew"), default=-math.inf)
        assert all(node.total <= worst for node in here if node.fate == "dropped" and node.token != END) or worst < -1e9
    ended = {tuple(i for i in ids(n) if i != END): node.score for n, node in enumerate(nodes) if node.fate == "ended"}
    for one in answers:
        assert ended[tuple(one.ids)] == pytest.approx(one.score, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "constraints", "option"),
    [
        ({"sample": True}, Constraints(), "sample"),
        ({"groups": 2}, Constraints(), "groups"),
        ({"coverage_penalty": 1.0}, Constraints(), "coverage_penalty"),
        ({}, Constraints(require=[[4]]), "require"),
    ],
)
def test_a_tree_is_of_a_plain_beam_search(options, constraints, option):
    with raises(InputError, option=option):
        grow_tree(
            model_of("encoder-decoder"), Request([5], Limits(4), constraints=constraints), SearchConfig(**options)
        )
    assert torch.is_grad_enabled()


def test_the_source_of_a_tree_fits_the_model():
    with raises(InputError, option="source", value=65):
        grow_tree(model_of("encoder-decoder", "learned"), Request([5] * 65, Limits(4)), SearchConfig())
