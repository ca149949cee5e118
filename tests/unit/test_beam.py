"""Beam search: one beam is greedy search, enough beams are all hypotheses, neighbours do not matter, and all of it is
what a few lines of plain Python find."""

import itertools
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.config import SearchConfig
from sightline.search.find import find
from sightline.search.hypothesis import Wish
from sightline.special import END, PAD, START, UNKNOWN
from sightline.trace.watch import tracing
from support import VARIANTS, all_scores, model_of


def search_all(model, sources, *, beams=1, length_penalty=1.0, budget=8192, **more):
    config = SearchConfig(beams=beams, length_penalty=length_penalty, **more)
    return [best for best, *_ in find(model, sources, config, budget=budget)]


WORDS = range(UNKNOWN + 1, 41)
SOURCES = st.lists(st.lists(st.sampled_from(WORDS), min_size=0, max_size=6), min_size=1, max_size=4)


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
    hypotheses = [h for n in range(4) for h in itertools.product(words, repeat=n)]
    for source, found in zip(sources, search_all(model, sources, beams=110, length_penalty=penalty), strict=True):
        scores = dict(zip(hypotheses, all_scores(model, source, hypotheses, penalty), strict=True))
        assert found.score == pytest.approx(max(scores.values()), abs=1e-5)
        assert scores[tuple(found.ids)] == pytest.approx(max(scores.values()), abs=1e-5)


def plainly(model, source, config, wish=None):
    """Beam search in so many words, over all tokens, without a cache, for one sentence."""
    wish = wish or Wish()
    limit = min(int(config.max_ratio * (len(source) + 1)) + config.max_extra, model.config.positions.max_length)
    limit, least = max(limit, len(wish.prefix) + 1), config.min_ratio * len(source)
    words = [END, *range(UNKNOWN + 1, model.config.vocab_size)]
    living, finished = [([], 0.0)], []

    def allowed(ids, token):
        if len(ids) < len(wish.prefix):
            return token == wish.prefix[len(ids)]
        if len(ids) == limit - 1:
            return token == END
        if token == END:
            return len(ids) >= least
        return not any([*ids, token][-len(bad) :] == bad for bad in wish.without)

    for length in range(1, limit + 1):
        grown = []
        for ids, total in living:
            scores = log_probs(model, source, ids)[-1]
            grown += [(ids, token, total + scores[token].item()) for token in words if allowed(ids, token)]
        grown.sort(key=lambda one: -one[2])
        ends = [one for one in grown[: config.beams] if one[1] == END]
        finished += [(ids, total / length**config.length_penalty) for ids, _, total in ends]
        finished = sorted(finished, key=lambda one: -one[1])
        living = [([*ids, token], total) for ids, token, total in grown if token != END][: config.beams]
        if config.stop == "full" and len(finished) >= (config.beams * config.patience if config.beams > 1 else 1):
            break
        if config.stop == "best" and len(finished) >= config.nbest and living:
            best = max(total for _, total in living) / limit**config.length_penalty
            if finished[config.nbest - 1][1] >= best:
                break
    return finished[: config.nbest]


@settings(max_examples=25)
@given(
    variant=st.sampled_from(list(VARIANTS)),
    sources=SOURCES,
    seed=st.integers(0, 10**6),
    beams=st.integers(1, 4),
    nbest=st.integers(1, 3),
    penalty=st.sampled_from([0.0, 0.6, 1.0]),
    ending=st.sampled_from([0, 1.5, 3]),
    stop=st.sampled_from([{"stop": "best"}, {"patience": 1}, {"patience": 1.5}, {"patience": 2}]),
    min_ratio=st.sampled_from([0.0, 1.0]),
    wish=st.builds(
        Wish,
        st.lists(st.sampled_from(WORDS), max_size=3),
        st.lists(st.lists(st.sampled_from(WORDS[:8]), min_size=1, max_size=2), max_size=8),
    ),
)
def test_it_finds_what_plain_code_finds(variant, sources, seed, beams, nbest, penalty, ending, stop, min_ratio, wish):
    model = model_of(variant, seed, ending, vocab_size=16)
    sources = [[4 + i % 12 for i in source] for source in sources]
    wish = Wish([4 + i % 12 for i in wish.prefix], wish.without)
    options = {"length_penalty": penalty, "min_ratio": min_ratio, "max_ratio": 1.0, "max_extra": 4, **stop}
    config = SearchConfig(beams=beams, nbest=min(nbest, beams), **options)
    found = find(model, sources, config, [wish] * len(sources))
    for source, mine in zip(sources, found, strict=True):
        expected = plainly(model, source, config, wish)
        assert [one.ids for one in mine] == [ids for ids, _ in expected]
        for one, (_, score) in zip(mine, expected, strict=True):
            assert one.score == pytest.approx(score, abs=1e-4)
            assert sum(one.log_probs) / len(one.log_probs) ** penalty == pytest.approx(score, abs=1e-4)
            assert len(one.log_probs) == len(one.ids) + 1


@settings(max_examples=10)
@given(source=st.lists(st.sampled_from(WORDS), max_size=6), seed=st.integers(0, 10**6), beams=st.integers(2, 5))
def test_patience_finds_nothing_worse(source, seed, beams):
    """Who waits longer sees all that the others have seen; who waits until nothing better can come, the best of it."""
    model = model_of("paper", seed, 1.5)
    rules = [{"patience": 1}, {"patience": 1.5}, {"patience": 2}, {"patience": 100}, {"stop": "best"}]
    scores = [search_all(model, [source], beams=beams, max_extra=4, max_ratio=1.0, **rule)[0].score for rule in rules]
    assert scores == pytest.approx(sorted(scores), abs=1e-5)
    assert scores[-1] == pytest.approx(scores[-2], abs=1e-5)


def test_several_models_vote_by_the_mean_of_their_probabilities():
    models = [model_of("paper", seed, 1.5) for seed in (1, 2, 3)]

    class Mean:
        config = models[0].config

        def __call__(self, source, target):
            return torch.stack([model(source, target).softmax(-1) for model in models]).mean(0).log()

    for source in ([4, 5, 6, 7], [8], []):
        config = SearchConfig(beams=3, max_extra=4, max_ratio=1.0)
        ((found,),) = find(models, [source], config)
        (expected,) = plainly(Mean(), source, config)
        assert found.ids == expected[0]
        assert found.score == pytest.approx(expected[1], abs=1e-5)


def test_groups_say_different_things_and_without_diversity_the_same():
    model = model_of("paper", 3, 1.5)
    options = {"beams": 4, "nbest": 4, "max_extra": 4, "max_ratio": 1.0}
    sources = [[4, 5, 6, 7], [9, 10]]
    alone = find(model, sources, SearchConfig(beams=2, nbest=2, max_extra=4, max_ratio=1.0))
    alike = find(model, sources, SearchConfig(groups=2, diversity=0.0, **options))
    apart = find(model, sources, SearchConfig(groups=2, diversity=5.0, **options))
    for one, two, three in zip(alone, alike, apart, strict=True):
        assert [x.ids for x in two] == [x.ids for x in one]  # said once
        assert len(three) > len(two)
        assert {tuple(x.ids) for x in one} <= {tuple(x.ids) for x in three}  # the first group goes its own way
        assert [x.score for x in three] == sorted((x.score for x in three), reverse=True)


def test_coverage_counts_what_was_looked_at():
    """With all hypotheses in the beams, the best is the one of the highest sum of both terms."""
    positions = {"max_length": 4}
    model = model_of("paper", 7, vocab_size=7, positions=positions)
    hypotheses = [h for n in range(4) for h in itertools.product(range(UNKNOWN + 1, 7), repeat=n)]
    for source in ([4, 5, 6], [5]):
        plain = dict(zip(hypotheses, all_scores(model, source, hypotheses, 1.0), strict=True))
        sums = {}
        for n in range(4):
            some = [h for h in hypotheses if len(h) == n]
            with tracing(model) as trace:
                model(torch.tensor([[*source, END]] * len(some)), torch.tensor([[START, *h] for h in some]))
            last = f"decoder.layers.{model.config.decoder.layers - 1}.cross_attention.probabilities"
            got = trace[last].values.mean(1).sum(1).clamp(max=1).log().sum(1)
            sums |= {h: plain[h] + 2.0 * looked.item() for h, looked in zip(some, got, strict=True)}
        (found,) = search_all(model, [source], beams=110, coverage_penalty=2.0)
        assert found.score == pytest.approx(max(sums.values()), abs=1e-4)
        assert sums[tuple(found.ids)] == pytest.approx(found.score, abs=1e-4)


def test_coverage_looks_at_its_own_thread_only():
    """What another thread does with the same model, while a step is computed, is no part of it."""
    model, config = model_of("paper", 7), SearchConfig(beams=2, coverage_penalty=2.0)
    others = []

    def meanwhile(*_):
        if threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=find, args=(model, [[6, 5, 4, 4]], SearchConfig(beams=1)))
            other.start()
            other.join()
            others.append(other)

    alone = find(model, [[4, 5, 6]], config)
    hook = model.decoder.layers[0].self_attention.register_forward_pre_hook(meanwhile)
    try:
        beside = find(model, [[4, 5, 6]], config)
    finally:
        hook.remove()
    assert others
    assert beside == alone
