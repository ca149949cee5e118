"""Sequences that must occur: they always do, enough beams find the best answer that has them, and no neighbour
notices."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.config import SearchConfig
from sightline.errors import InputError
from sightline.search.find import find, stream
from sightline.search.hypothesis import Wish
from sightline.search.required import Required
from sightline.special import END, UNKNOWN
from support import VARIANTS, all_scores, model_of

WORDS = range(UNKNOWN + 1, 41)
SOURCE = st.lists(st.sampled_from(WORDS), max_size=6)
SEQUENCE = st.lists(st.sampled_from(WORDS[:4]), min_size=1, max_size=3)
SEQUENCES = st.lists(SEQUENCE, min_size=1, max_size=3)


def times(ids, part):
    """How often it is there, at places apart; of a text Python would say text.count(part)."""
    text, part = ("".join(map(chr, each)) for each in (ids, part))
    return text.count(part)


def has_all(ids, within):
    return all(times(ids, part) >= within.count(part) for part in within)


@given(st.lists(st.sampled_from(WORDS[:3]), max_size=12), SEQUENCES)
def test_what_is_counted_is_there(ids, within):
    required = Required(within)
    progress = required.start
    for token in ids:
        before, after = required.missing(progress), required.after(progress, [token])
        assert required.missing(after) <= required.whole(progress)
        assert not before or any(
            required.missing(required.after(progress, [one])) < before for one in required.next(progress)
        )
        progress = after
    assert (required.missing(progress) == 0) == has_all(ids, within)
    for ids_of, one in zip(required.sequences, progress, strict=True):
        assert one.left == max(0, within.count(list(ids_of)) - times(ids, list(ids_of)))


@settings(max_examples=40)
@given(
    variant=st.sampled_from(list(VARIANTS)),
    source=SOURCE,
    seed=st.integers(0, 10**6),
    beams=st.integers(1, 6),
    nbest=st.integers(1, 3),
    ending=st.sampled_from([0, 1.5, 3]),
    stop=st.sampled_from(["full", "best"]),
    min_ratio=st.sampled_from([0.0, 1.0]),
    extra=st.integers(0, 4),
    coverage=st.sampled_from([0.0, 0.2]),
    prefix=st.lists(st.sampled_from(WORDS[:5]), max_size=4),
    within=SEQUENCES,
)
def test_what_must_occur_does(
    variant, source, seed, beams, nbest, ending, stop, min_ratio, extra, coverage, prefix, within
):
    model = model_of(variant, seed, ending)
    options = {"stop": stop, "min_ratio": min_ratio, "max_ratio": 1.0, "coverage_penalty": coverage}
    config = SearchConfig(beams=beams, nbest=min(beams, nbest), max_extra=extra, **options)
    (found,) = find(model, [source], config, [Wish(prefix, [], within)])
    limit = max(len(source) + 1 + extra, len(prefix) + sum(map(len, within)) + 1)
    assert found
    for one in found:
        assert has_all(one.ids, within)
        assert one.ids[: len(prefix)] == prefix
        assert len(one.ids) < limit
        assert len(one.log_probs) == len(one.ids) + 1
        assert END not in one.ids
    assert len({tuple(one.ids) for one in found}) == len(found)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    if coverage == 0:
        expected = all_scores(model, source, [one.ids for one in found], 1.0)
        assert [one.score for one in found] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("variant", "penalty"), [("paper", 0.0), ("rotary", 1.0)])
@pytest.mark.parametrize(
    ("within", "without", "prefix"),
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
def test_with_beams_for_all_hypotheses_the_best_that_has_them_is_found(variant, penalty, within, without, prefix):
    positions = {**VARIANTS[variant].get("positions", {}), "max_length": 5}
    model = model_of(variant, 7, vocab_size=7, positions=positions)  # three words, and at most four of them
    hypotheses = [
        h
        for n in range(5)
        for h in map(list, itertools.product(range(UNKNOWN + 1, 7), repeat=n))
        if has_all(h, within) and h[: len(prefix)] == prefix and not any(times(h, part) for part in without)
    ]
    for source in ([4, 5, 6], []):
        config = SearchConfig(beams=330, nbest=3, length_penalty=penalty)
        (found,) = find(model, [source], config, [Wish(prefix, without, within)])
        scores = sorted(all_scores(model, source, hypotheses, penalty), reverse=True)
        assert [one.score for one in found] == pytest.approx(scores[:3], abs=1e-5)
        assert all(one.ids in hypotheses for one in found)


def test_what_would_have_been_said_anyway_is_nearly_always_found():
    """Not always: banks share the beams out, and the way to the best answer can lose its place."""
    draw = random.Random(0)
    config = SearchConfig(beams=24, max_ratio=1.0, max_extra=4, stop="best")
    worse = []
    for seed in range(40):
        model = model_of(draw.choice(list(VARIANTS)), seed, 1.5)
        source = draw.choices(WORDS, k=draw.randint(1, 6))
        ((plain,),) = find(model, [source], config)
        if plain.ids:
            first = draw.randrange(len(plain.ids))
            within = [plain.ids[first : first + draw.randint(1, 2)]]
            ((found,),) = find(model, [source], config, [Wish(within=within)])
            worse.append(found.score < plain.score - 1e-5)
    assert len(worse) > 20
    assert sum(worse) <= 0.05 * len(worse)


@settings(max_examples=8)
@given(
    sources=st.lists(SOURCE, min_size=1, max_size=4),
    seed=st.integers(0, 10**6),
    beams=st.integers(1, 4),
    data=st.data(),
)
def test_neighbours_do_not_matter(sources, seed, beams, data):
    model = model_of("paper", seed, 1.5)
    config = SearchConfig(beams=beams)
    wishes = [Wish(within=data.draw(st.one_of(st.just([]), SEQUENCES))) for _ in sources]
    together = find(model, sources, config, wishes)
    for source, wish, found in zip(sources, wishes, together, strict=True):
        (alone,) = find(model, [source], config, [wish])
        assert [one.ids for one in found] == [one.ids for one in alone]
        if not wish.within:
            assert [one.ids for one in found] == [one.ids for one in find(model, [source], config)[0]]


@settings(max_examples=8)
@given(source=SOURCE, seed=st.integers(0, 10**6), beams=st.integers(1, 5), stop=st.sampled_from(["full", "best"]))
def test_where_the_prefix_has_it_all_it_is_plain_beam_search(source, seed, beams, stop):
    model = model_of("paper", seed, 1.5)
    config = SearchConfig(beams=beams, nbest=beams, stop=stop)
    (plain,) = find(model, [source], config, [Wish([7, 8, 9])])
    (found,) = find(model, [source], config, [Wish([7, 8, 9], [], [[8, 9], [7, 8]])])
    assert [one.ids for one in found] == [one.ids for one in plain]


def test_several_models_vote_and_one_beam_streams():
    models = [model_of("paper", seed, 1.5) for seed in (1, 2)]
    ((found,),) = find(models, [[4, 5, 6]], SearchConfig(), [Wish(within=[[9, 10], [9]])])
    assert has_all(found.ids, [[9, 10], [9]])
    config, wish = SearchConfig(beams=1), Wish(within=[[9, 10]])
    ((found,),) = find(models[0], [[4, 5, 6]], config, [wish])
    assert list(stream(models[0], [4, 5, 6], config, wish)) == found.ids


@pytest.mark.parametrize(
    ("options", "wish", "message"),
    [
        ({"sample": True}, Wish(within=[[4]]), "cannot be had with samples"),
        ({"groups": 2}, Wish(within=[[4]]), "groups = 2"),
        ({}, Wish(within=[[4, END]]), "no answer has"),
        ({}, Wish(within=[[UNKNOWN]]), "no answer has"),
        ({}, Wish(without=[[5]], within=[[4, 5, 6]]), "one or the other"),
        ({}, Wish(within=[[4, 5]] * 5), "of 10 tokens is too long: the model writes at most 9"),
        ({}, Wish([6] * 5, within=[[6, 4], [5, 5, 5]]), "of 9 tokens is too long: the model writes at most 9"),
        ({"max_ratio": 0.1, "max_extra": 0}, Wish(without=[[4, 5], [5, 4]], within=[[4], [5]]), "nothing was found"),
    ],
)
def test_what_cannot_be_done_is_said(options, wish, message):
    model = model_of("paper", 1, positions={"max_length": 9})
    with pytest.raises(InputError, match=message):
        find(model, [[4]], SearchConfig(**options), [wish])
    assert find(model, [[4]], SearchConfig(), [Wish(within=[[]])]) == find(model, [[4]], SearchConfig())
