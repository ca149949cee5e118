"""Required sequences: every answer has them, enough beams find the best such answer, and batches change nothing."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from searching import ARCHITECTURES, VARIANTS, all_scores, find, model_of, request_of
from sightline.config import SearchConfig
from sightline.errors import ConfigError, InputError
from sightline.search.constrained import Required
from sightline.search.driver import search, steps
from sightline.search.scoring import Ensemble
from sightline.search.types import Constraints, Limits
from sightline.special import END, UNKNOWN
from support import raises

WORDS = range(UNKNOWN + 1, 41)
TEXT = st.lists(st.sampled_from(WORDS), max_size=6)
SEQUENCE = st.lists(st.sampled_from(WORDS[:4]), min_size=1, max_size=3)
SEQUENCES = st.lists(SEQUENCE, min_size=1, max_size=3)
ARCHITECTURE = st.sampled_from(ARCHITECTURES)
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


def times(ids, part):
    """Return the number of occurrences that do not overlap, as text.count(part) does."""
    text, part = ("".join(map(chr, each)) for each in (ids, part))
    return text.count(part)


def has_all(ids, require):
    return all(times(ids, part) >= require.count(part) for part in require)


@given(st.lists(st.sampled_from(WORDS[:3]), max_size=12), SEQUENCES)
def test_progress_counts_occurrences(ids, require):
    required = Required(require)
    progress = required.start
    for token in ids:
        before, after = required.missing(progress), required.after(progress, [token])
        assert required.missing(after) <= required.whole(progress)
        assert not before or any(
            required.missing(required.after(progress, [one])) < before for one in required.next(progress)
        )
        progress = after
    assert (required.missing(progress) == 0) == has_all(ids, require)
    for ids_of, one in zip(required.sequences, progress, strict=True):
        assert one.left == max(0, require.count(list(ids_of)) - times(ids, list(ids_of)))


@settings(max_examples=50)
@given(
    architecture=ARCHITECTURE,
    variant=st.sampled_from(list(VARIANTS)),
    text=TEXT,
    seed=st.integers(0, 10**6),
    beams=st.integers(1, 6),
    nbest=st.integers(1, 3),
    ending=st.sampled_from([0, 1.5, 3]),
    stop=st.sampled_from(["full", "best"]),
    min_ratio=st.sampled_from([0.0, 1.0]),
    extra=st.integers(0, 4),
    coverage=st.sampled_from([0.0, 0.2]),
    prefix=st.lists(st.sampled_from(WORDS[:5]), max_size=4),
    require=SEQUENCES,
    cut=st.booleans(),
)
def test_every_answer_has_the_required_sequences(
    architecture, variant, text, seed, beams, nbest, ending, stop, min_ratio, extra, coverage, prefix, require, cut
):
    model = model_of(architecture, variant, seed, ending)
    coverage = coverage if architecture == "encoder-decoder" else 0.0
    more = {"stop": stop, "min_ratio": min_ratio, "max_ratio": 1.0, "coverage_penalty": coverage}
    options = SearchConfig(beams=beams, nbest=min(beams, nbest), max_extra=extra, **more)
    request = request_of(model, text, options, Constraints(prefix, require))
    request = request._replace(limits=request.limits._replace(cut=cut))
    (found,) = search(model, [request], options)
    most = request.limits.most
    assert most == max(len(text) + 1 + extra, most)
    assert found
    for one in found:
        assert has_all(one.ids, require)
        assert one.ids[: len(prefix)] == prefix
        assert len(one.ids) <= most - (not cut)
        assert len(one.log_probs) == min(len(one.ids) + 1, most)
        assert END not in one.ids
    assert len({tuple(one.ids) for one in found}) == len(found)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    if coverage == 0 and not cut:
        expected = all_scores(model, text, [one.ids for one in found], 1.0)
        assert [one.score for one in found] == pytest.approx(expected, abs=1e-4)


@every_architecture
@pytest.mark.parametrize(("variant", "penalty"), [("paper", 0.0), ("rotary", 1.0)])
@pytest.mark.parametrize(
    ("require", "forbid", "prefix"),
    [
        ([[4]], [], []),
        ([[4, 5]], [], []),
        ([[5, 5]], [], []),
        ([[6], [6], [4]], [], []),
        ([[4, 6], [5]], [], []),
        ([[4, 5, 4]], [], [6]),
        ([[4, 5]], [], [4]),
        ([[5]], [], [4, 5]),
        ([[6]], [[4, 6], [6, 5]], []),
    ],
)
def test_with_beams_for_all_hypotheses_the_best_with_the_sequences_is_found(
    architecture, variant, penalty, require, forbid, prefix
):
    model = model_of(architecture, variant, 7, vocab_size=7)  # three words, and at most four of them
    hypotheses = [
        h
        for n in range(5)
        for h in map(list, itertools.product(range(UNKNOWN + 1, 7), repeat=n))
        if has_all(h, require) and h[: len(prefix)] == prefix and not any(times(h, part) for part in forbid)
    ]
    for text in ([4, 5, 6], []):
        options = SearchConfig(beams=330, nbest=3, length_penalty=penalty)
        (found,) = find(model, [text], options, [Constraints(prefix, require, forbid)], Limits(5))
        scores = sorted(all_scores(model, text, hypotheses, penalty), reverse=True)
        assert [one.score for one in found] == pytest.approx(scores[:3], abs=1e-5)
        assert all(one.ids in hypotheses for one in found)


def test_an_answer_that_has_the_sequence_anyway_is_nearly_always_found():
    """Not always: the banks share out the beams, and the way to the best answer can lose its place."""
    draw = random.Random(0)
    options = SearchConfig(beams=24, max_ratio=1.0, max_extra=4, stop="best")
    worse = []
    for seed in range(40):
        model = model_of(draw.choice(ARCHITECTURES), draw.choice(list(VARIANTS)), seed, 1.5)
        text = draw.choices(WORDS, k=draw.randint(1, 6))
        ((plain,),) = find(model, [text], options)
        if plain.ids:
            first = draw.randrange(len(plain.ids))
            require = [plain.ids[first : first + draw.randint(1, 2)]]
            ((found,),) = find(model, [text], options, [Constraints(require=require)])
            worse.append(found.score < plain.score - 1e-5)
    assert len(worse) > 20
    assert sum(worse) <= 0.05 * len(worse)


@settings(max_examples=10)
@given(
    architecture=ARCHITECTURE,
    texts=st.lists(TEXT, min_size=1, max_size=4),
    seed=st.integers(0, 10**6),
    beams=st.integers(1, 4),
    data=st.data(),
)
def test_batches_change_nothing(architecture, texts, seed, beams, data):
    model = model_of(architecture, "paper", seed, 1.5)
    options = SearchConfig(beams=beams)
    constraints = [Constraints(require=data.draw(st.one_of(st.just([]), SEQUENCES))) for _ in texts]
    together = find(model, texts, options, constraints)
    for text, own, found in zip(texts, constraints, together, strict=True):
        (alone,) = find(model, [text], options, [own])
        assert [one.ids for one in found] == [one.ids for one in alone]
        if not own.require:
            assert [one.ids for one in found] == [one.ids for one in find(model, [text], options)[0]]


@settings(max_examples=10)
@given(
    architecture=ARCHITECTURE,
    text=TEXT,
    seed=st.integers(0, 10**6),
    beams=st.integers(1, 5),
    stop=st.sampled_from(["full", "best"]),
)
def test_with_a_prefix_that_has_the_sequences_it_is_plain_beam_search(architecture, text, seed, beams, stop):
    model = model_of(architecture, "paper", seed, 1.5)
    options = SearchConfig(beams=beams, nbest=beams, stop=stop)
    (plain,) = find(model, [text], options, [Constraints([7, 8, 9])])
    (found,) = find(model, [text], options, [Constraints([7, 8, 9], [[8, 9], [7, 8]])])
    assert [one.ids for one in found] == [one.ids for one in plain]


@every_architecture
def test_an_ensemble_votes_and_one_beam_streams(architecture):
    models = [model_of(architecture, "paper", seed, 1.5) for seed in (1, 2)]
    request = request_of(models[0], [4, 5, 6], SearchConfig(), Constraints(require=[[9, 10], [9]]))
    ((found,),) = search(Ensemble(models), [request], SearchConfig())
    assert has_all(found.ids, [[9, 10], [9]])
    options = SearchConfig(beams=1)
    request = request_of(models[0], [4, 5, 6], options, Constraints(require=[[9, 10]]))
    ((found,),) = search(models[0], [request], options)
    updates = list(steps(models[0], [request], options, streamed=[0]))
    assert [token.id for update in updates for token in update.tokens.values()] == found.ids


@pytest.mark.parametrize(
    ("options", "constraints", "error", "option"),
    [
        ({"sample": True}, Constraints(require=[[4]]), ConfigError, "require"),
        ({"groups": 2}, Constraints(require=[[4]]), ConfigError, "groups"),
        ({}, Constraints(require=[[4, END]]), InputError, "require"),
        ({}, Constraints(require=[[UNKNOWN]]), InputError, "require"),
        ({}, Constraints(forbid=[[5]], require=[[4, 5, 6]]), InputError, "require"),
        ({}, Constraints(require=[[4, 5]] * 5), InputError, "require"),
        ({}, Constraints([6] * 5, require=[[6, 4], [5, 5, 5]]), InputError, "require"),
        (
            {"max_ratio": 0.1, "max_extra": 0},
            Constraints(forbid=[[4, 5], [5, 4]], require=[[4], [5]]),
            InputError,
            "require",
        ),
    ],
)
def test_impossible_constraints_are_refused(options, constraints, error, option):
    model = model_of("encoder-decoder", "paper", 1, positions={"max_length": 9})
    with raises(error, option=option):
        find(model, [[4]], SearchConfig(**options), [constraints])
    assert find(model, [[4]], SearchConfig(), [Constraints(require=[[]])]) == find(model, [[4]], SearchConfig())
