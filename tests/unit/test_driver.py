"""A search step by step: streamed, cancelled and repeated, it finds what a search in one call finds."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from searching import ARCHITECTURES, VARIANTS, find, model_of, request_of
from sightline.config import SearchConfig
from sightline.errors import ConfigError, InputError
from sightline.search import driver
from sightline.search.driver import search, steps
from sightline.search.types import Constraints, Limits, Request
from sightline.special import START
from support import raises

WORDS = range(4, 41)
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=6), min_size=1, max_size=5)
OPTIONS = st.sampled_from(
    [
        {"beams": 1},
        {"beams": 3, "nbest": 2},
        {"beams": 4, "groups": 2, "nbest": 3},
        {"beams": 1, "sample": True, "seed": 5},
        {"beams": 2, "nbest": 2, "sample": True, "top_k": 9},
    ]
)
LIMITS = st.sampled_from([None, Limits(5, cut=True)])
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


def run(model, texts, options, limits=None, **more):
    """Return the answers, the streamed tokens, and the step at which each answer was found."""
    requests = [request_of(model, text, options, limits=limits) for text in texts]
    answers, streamed, found_at = {}, {}, {}
    for number, (tokens, found) in enumerate(steps(model, requests, options, **more)):
        for i, token in tokens.items():
            assert i not in answers, "no token follows the answer"
            streamed.setdefault(i, []).append(token.id)
        assert not answers.keys() & found.keys(), "each answer comes once"
        answers |= found
        found_at |= dict.fromkeys(found, number)
    return answers, streamed, found_at


@settings(max_examples=20)
@given(
    architecture=st.sampled_from(ARCHITECTURES),
    variant=st.sampled_from(list(VARIANTS)),
    texts=TEXTS,
    seed=st.integers(0, 10**6),
    options=OPTIONS,
    limits=LIMITS,
    eager=st.booleans(),
)
def test_steps_find_what_a_search_finds(architecture, variant, texts, seed, options, limits, eager):
    model = model_of(architecture, variant, seed, 1.5)
    options = SearchConfig(max_extra=4, max_ratio=1.0, **options)
    streamed = range(0, len(texts), 2) if options.beams == 1 else ()
    expected = find(model, texts, options, limits=limits)
    answers, tokens, _ = run(model, texts, options, limits, streamed=streamed, eager=eager)
    assert {i: [one.ids for one in best] for i, best in answers.items()} == {
        i: [one.ids for one in best] for i, best in enumerate(expected)
    }
    assert tokens == {i: answers[i][0].ids for i in streamed if answers[i][0].ids}


@every_architecture
@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("limits", [None, Limits(7, cut=True)])
def test_near_ties_are_searched_again_and_no_token_is_sent_twice(monkeypatch, architecture, sample, limits):
    """With a large tolerance, about every third decision is a near tie: sent tokens hold, and the rest follow."""
    model, chance = model_of(architecture, "paper", 1, 0.5), random.Random(1)
    texts = [[chance.choice(WORDS) for _ in range(chance.randrange(2, 9))] for _ in range(7)]
    options = SearchConfig(beams=1, max_extra=6, max_ratio=1.0, sample=sample)
    expected = find(model, texts, options, limits=limits)
    plain = max(run(model, texts, options, limits)[2].values())
    monkeypatch.setattr(driver, "TIE", 0.05)
    answers, tokens, found_at = run(model, texts, options, limits, streamed=range(7))
    assert max(found_at.values()) > plain, "some requests were searched again"
    assert [answers[i][0].ids for i in range(7)] == [best.ids for (best,) in expected]
    assert [tokens.get(i, []) for i in range(7)] == [best.ids for (best,) in expected]


def test_answers_are_eager_or_wait_for_a_smaller_batch():
    model = model_of("encoder-decoder", "paper", 3, 1.5)
    texts, options = [[4 + i] * (1 + i) for i in range(9)], SearchConfig(beams=2)
    eager, lazy = (run(model, texts, options, eager=each) for each in (True, False))
    assert eager[0].keys() == lazy[0].keys()
    assert all(eager[2][i] <= lazy[2][i] for i in range(9))
    assert any(eager[2][i] < lazy[2][i] for i in range(9))


@every_architecture
def test_cancelled_requests_leave_the_batch(architecture):
    model = model_of(architecture, "paper", 3)  # it hardly ever ends
    options, cancelled, rows = SearchConfig(beams=2), set(), []
    requests = [request_of(model, [5, 6, 7], options)] * 8
    plain = model.step

    def counting(tokens, state):
        rows.append(len(tokens))
        return plain(tokens, state)

    model.step = counting
    answers = {}
    for number, (_, found) in enumerate(steps(model, requests, options, cancelled=cancelled)):
        answers |= {i: best for i, best in found.items() if i not in cancelled}
        if number == 3:
            cancelled |= {0, 2, 3, 4, 6, 7}
    assert rows[0] == 16
    assert rows[6] == 4
    assert answers.keys() == {1, 5}
    assert len(list(steps(model, requests[:1], options, cancelled={0}))) == 1


@every_architecture
def test_requests_of_unequal_length_are_prefilled_together(architecture):
    """A long `given` text per request, padded in one batch, counts nowhere: neither in the score nor in the answer."""
    model, options = model_of(architecture, "paper", 5, 1.0), SearchConfig(beams=3, nbest=2)
    source = [7, 8, 2] if architecture == "encoder-decoder" else []
    given = [[START, *range(4, 4 + n)] for n in (0, 9, 3, 1, 0, 5)]
    requests = [Request(source, Limits(9), own) for own in given]
    together = search(model, requests, options)
    for request, found in zip(requests, together, strict=True):
        (alone,) = search(model, [request], options)
        assert [one.ids for one in found] == [one.ids for one in alone]
        for one in found:
            assert one.score == pytest.approx(sum(one.log_probs) / (len(one.ids) + 1), abs=1e-5)


@pytest.mark.parametrize(
    ("request_", "option", "value"),
    [
        (Request([4] * 10, Limits(3)), "source", 10),
        (Request([4], Limits(3), constraints=Constraints(prefix=[4, 5, 6])), "prefix", 3),
        (Request([4], Limits(3, cut=True), constraints=Constraints(prefix=[4, 5, 6, 7])), "prefix", 4),
        (Request([4], Limits(4), constraints=Constraints([4], [[5, 6], [7]])), "require", 4),
        (Request([4], Limits(10)), "max_tokens", 10),
        (Request([4], Limits(5), [START, 4, 5, 6, 7, 8]), "max_tokens", 5),
    ],
)
def test_requests_that_do_not_fit_the_model_are_refused(request_, option, value):
    model = model_of("encoder-decoder", positions={"max_length": 9})
    with raises(InputError, option=option, value=value):
        search(model, [request_], SearchConfig())
    assert search(model, [Request([4] * 9, Limits(9))], SearchConfig())


def test_streaming_needs_one_beam():
    model = model_of("decoder-only")
    with raises(ConfigError, option="beams", value=2):
        next(steps(model, [Request([], Limits(3))], SearchConfig(beams=2), streamed=[0]))
