"""Beam search, with and without an encoder: one beam is greedy search, enough beams find the best of all hypotheses,
batches change nothing, and a few lines of plain Python find the same."""

import itertools
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from searching import ARCHITECTURES, VARIANTS, all_scores, find, log_probs, model_of, request_of
from sightline.config import SearchConfig
from sightline.errors import ConfigError
from sightline.model.protocol import Inputs
from sightline.search import driver
from sightline.search.driver import batches, search
from sightline.search.scoring import Ensemble
from sightline.search.types import Constraints, Limits, Request
from sightline.special import END, PAD, START, UNKNOWN
from sightline.trace.watch import tracing
from support import raises

WORDS = range(UNKNOWN + 1, 41)
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=6), min_size=1, max_size=4)
ARCHITECTURE = st.sampled_from(ARCHITECTURES)
VARIANT = st.sampled_from(list(VARIANTS))
SEED = st.integers(0, 10**6)
ENDING = st.sampled_from([0, 1.5, 3])
LIMITS = st.sampled_from([None, Limits(5, cut=True), Limits(8, 2, cut=True)])
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


def greedy(model, text, limit, cut):
    found = []
    while len(found) < limit - (not cut):
        scores = log_probs(model, text, found)[-1]
        best = max([END, *range(UNKNOWN + 1, len(scores))], key=lambda i: scores[i])
        if best == END:
            break
        found.append(best)
    return found


@settings(max_examples=12)
@given(architecture=ARCHITECTURE, variant=VARIANT, texts=TEXTS, seed=SEED, ending=ENDING, limits=LIMITS)
def test_one_beam_is_greedy_search(architecture, variant, texts, seed, ending, limits):
    model, options = model_of(architecture, variant, seed, ending), SearchConfig(beams=1)
    for text, (found,) in zip(texts, find(model, texts, options, limits=limits), strict=True):
        most, _, cut = limits or request_of(model, text, options).limits
        if not (limits and limits.least):
            assert found.ids == greedy(model, text, most, cut)


@settings(max_examples=12)
@given(
    architecture=ARCHITECTURE,
    variant=VARIANT,
    texts=TEXTS,
    seed=SEED,
    beams=st.integers(1, 5),
    penalty=st.sampled_from([0.0, 0.6, 1.0]),
    ending=ENDING,
    limits=LIMITS,
)
def test_batches_change_nothing_and_scores_are_those_of_the_model(
    architecture, variant, texts, seed, beams, penalty, ending, limits
):
    model = model_of(architecture, variant, seed, ending)
    options = SearchConfig(beams=beams, length_penalty=penalty)
    together = find(model, texts, options, limits=limits)
    few = find(model, texts, options, limits=limits, batch_tokens=20)
    reversed_ = find(model, texts[::-1], options, limits=limits)[::-1]
    for i, text in enumerate(texts):
        ((alone,),) = find(model, [text], options, limits=limits)
        for (found,) in (together[i], few[i], reversed_[i]):
            assert found.ids == alone.ids
            assert found.score == pytest.approx(alone.score, abs=1e-5)
        most, _, cut = limits or request_of(model, text, options).limits
        assert len(alone.ids) <= most - (not cut)
        assert not {PAD, START, END, UNKNOWN}.intersection(alone.ids)
        scores = log_probs(model, text, alone.ids)
        expected = [scores[j, token].item() for j, token in enumerate([*alone.ids, END])][: len(alone.log_probs)]
        assert alone.log_probs == pytest.approx(expected, abs=1e-4)
        assert len(alone.log_probs) == min(len(alone.ids) + 1, most)
        assert alone.score == pytest.approx(sum(expected) / len(expected) ** penalty, abs=1e-4)


@every_architecture
@pytest.mark.parametrize("variant", ["paper", "rotary"])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
def test_with_beams_for_all_hypotheses_the_best_of_all_is_found(architecture, variant, penalty):
    model = model_of(architecture, variant, 7, vocab_size=7)  # three words, and at most three of them
    hypotheses = [h for n in range(4) for h in itertools.product(range(UNKNOWN + 1, 7), repeat=n)]
    texts, options = [[4, 5, 6], [5], [6, 6], []], SearchConfig(beams=110, length_penalty=penalty)
    for text, (found,) in zip(texts, find(model, texts, options, limits=Limits(4)), strict=True):
        scores = dict(zip(hypotheses, all_scores(model, text, hypotheses, penalty), strict=True))
        assert found.score == pytest.approx(max(scores.values()), abs=1e-5)
        assert scores[tuple(found.ids)] == pytest.approx(max(scores.values()), abs=1e-5)


@every_architecture
def test_with_beams_for_all_hypotheses_the_best_cut_answer_is_found(architecture):
    """Answers of three tokens need no end."""
    model = model_of(architecture, "paper", 7, vocab_size=7)
    words = range(UNKNOWN + 1, 7)
    for text in ([4, 5, 6], []):
        ((found,),) = find(model, [text], SearchConfig(beams=110, stop="best"), limits=Limits(3, cut=True))
        scores = {}
        for ids in (h for n in range(4) for h in itertools.product(words, repeat=n)):
            logs = log_probs(model, text, ids)
            written = [*ids, END][:3]
            scores[ids] = sum(logs[i, token].item() for i, token in enumerate(written)) / len(written)
        assert found.score == pytest.approx(max(scores.values()), abs=1e-5)
        assert scores[tuple(found.ids)] == pytest.approx(found.score, abs=1e-5)


def plainly(next_log_probs, vocab_size, request, options):
    """Beam search in plain Python, over all tokens, without a cache, for one request."""
    (limit, least, cut), (prefix, _, forbid, _) = request.limits, request.constraints
    words = [END, *range(UNKNOWN + 1, vocab_size)]
    alive, finished = [([], 0.0)], []

    def allowed(ids, token):
        if len(ids) < len(prefix):
            return token == prefix[len(ids)]
        if len(ids) == limit - 1 and not cut:
            return token == END
        if token == END:
            return len(ids) >= least
        return not any([*ids, token][-len(bad) :] == bad for bad in forbid)

    for length in range(1, limit + 1):
        grown = []
        for ids, total in alive:
            scores = next_log_probs(ids)
            grown += [(ids, token, total + scores[token].item()) for token in words if allowed(ids, token)]
        grown.sort(key=lambda one: -one[2])
        ended = [one for one in grown[: options.beams] if one[1] == END or length == limit]
        scale = length**options.length_penalty
        finished += [(ids if token == END else [*ids, token], total / scale) for ids, token, total in ended]
        finished = sorted(finished, key=lambda one: -one[1])
        alive = [([*ids, token], total) for ids, token, total in grown if token != END][: options.beams]
        if options.stop == "full" and len(finished) >= (options.beams * options.patience if options.beams > 1 else 1):
            break
        if options.stop == "best" and len(finished) >= options.nbest and alive:
            best = max(total for _, total in alive) / limit**options.length_penalty
            if finished[options.nbest - 1][1] >= best:
                break
    return finished[: options.nbest]


@settings(max_examples=40)
@given(
    architecture=ARCHITECTURE,
    variant=VARIANT,
    texts=TEXTS,
    seed=SEED,
    beams=st.integers(1, 4),
    nbest=st.integers(1, 3),
    penalty=st.sampled_from([0.0, 0.6, 1.0]),
    ending=ENDING,
    stop=st.sampled_from([{"stop": "best"}, {"patience": 1}, {"patience": 1.5}, {"patience": 2}]),
    min_ratio=st.sampled_from([0.0, 1.0]),
    cut=st.booleans(),
    constraints=st.builds(
        Constraints,
        st.lists(st.sampled_from(WORDS), max_size=3),
        st.just([]),
        st.lists(st.lists(st.sampled_from(WORDS[:8]), min_size=1, max_size=2), max_size=8),
        st.just([]),
    ),
)
def test_plain_python_finds_the_same(
    architecture, variant, texts, seed, beams, nbest, penalty, ending, stop, min_ratio, cut, constraints
):
    model = model_of(architecture, variant, seed, ending, vocab_size=16)
    texts = [[4 + i % 12 for i in text] for text in texts]
    constraints = constraints._replace(prefix=[4 + i % 12 for i in constraints.prefix])
    more = {"length_penalty": penalty, "min_ratio": min_ratio, "max_ratio": 1.0, "max_extra": 4, **stop}
    options = SearchConfig(beams=beams, nbest=min(nbest, beams), **more)
    requests = [request_of(model, text, options, constraints) for text in texts]
    requests = [request._replace(limits=request.limits._replace(cut=cut)) for request in requests]
    for text, request, mine in zip(texts, requests, search(model, requests, options), strict=True):
        expected = plainly(lambda ids, text=text: log_probs(model, text, ids)[-1], 16, request, options)
        assert [one.ids for one in mine] == [ids for ids, _ in expected]
        for one, (_, score) in zip(mine, expected, strict=True):
            assert one.score == pytest.approx(score, abs=1e-4)
            assert sum(one.log_probs) / len(one.log_probs) ** penalty == pytest.approx(score, abs=1e-4)
            assert len(one.log_probs) == min(len(one.ids) + 1, request.limits.most)


@settings(max_examples=10)
@given(architecture=ARCHITECTURE, text=st.lists(st.sampled_from(WORDS), max_size=6), seed=SEED, beams=st.integers(2, 5))
def test_patience_never_finds_a_worse_answer(architecture, text, seed, beams):
    model = model_of(architecture, "paper", seed, 1.5)
    rules = [{"patience": 1}, {"patience": 1.5}, {"patience": 2}, {"patience": 100}, {"stop": "best"}]
    limits = {"beams": beams, "max_extra": 4, "max_ratio": 1.0}
    scores = [find(model, [text], SearchConfig(**limits, **rule))[0][0].score for rule in rules]
    assert scores == pytest.approx(sorted(scores), abs=1e-5)
    assert scores[-1] == pytest.approx(scores[-2], abs=1e-5)


@every_architecture
def test_an_ensemble_votes_by_the_mean_of_probabilities(architecture):
    models = [model_of(architecture, "paper", seed, 1.5) for seed in (1, 2, 3)]
    options = SearchConfig(beams=3, max_extra=4, max_ratio=1.0)
    for text in ([4, 5, 6, 7], [8], []):
        request = request_of(models[0], text, options)
        ((found,),) = search(Ensemble(models), [request], options)

        def mean(ids, text=text):
            return torch.stack([log_probs(model, text, ids)[-1].exp() for model in models]).mean(0).log()

        (expected,) = plainly(mean, 41, request, options)
        assert found.ids == expected[0]
        assert found.score == pytest.approx(expected[1], abs=1e-5)


@every_architecture
def test_groups_differ_unless_diversity_is_zero(architecture):
    model = model_of(architecture, "paper", 3, 1.5)
    more = {"beams": 4, "nbest": 4, "max_extra": 4, "max_ratio": 1.0}
    texts = [[4, 5, 6, 7], [9, 10]]
    alone = find(model, texts, SearchConfig(beams=2, nbest=2, max_extra=4, max_ratio=1.0))
    alike = find(model, texts, SearchConfig(groups=2, diversity=0.0, **more))
    apart = find(model, texts, SearchConfig(groups=2, diversity=5.0, **more))
    for one, two, three in zip(alone, alike, apart, strict=True):
        assert [x.ids for x in two] == [x.ids for x in one]  # duplicates are removed
        assert len(three) > len(two)
        assert {tuple(x.ids) for x in one} <= {tuple(x.ids) for x in three}  # the first group searches as if alone
        assert [x.score for x in three] == sorted((x.score for x in three), reverse=True)


def test_coverage_is_part_of_the_score():
    """With all hypotheses in the beams, the best is the one with the highest sum of both terms."""
    model = model_of("encoder-decoder", "paper", 7, vocab_size=7)
    hypotheses = [h for n in range(4) for h in itertools.product(range(UNKNOWN + 1, 7), repeat=n)]
    for text in ([4, 5, 6], [5]):
        plain = dict(zip(hypotheses, all_scores(model, text, hypotheses, 1.0), strict=True))
        sums = {}
        for n in range(4):
            some = [h for h in hypotheses if len(h) == n]
            inputs = Inputs(torch.tensor([[*text, END]] * len(some)), torch.tensor([[START, *h] for h in some]))
            with tracing(model) as trace:
                model.hidden(inputs)
            last = f"decoder.layers.{model.config.decoder.layers - 1}.cross_attention.probabilities"
            got = trace[last].values.mean(1).sum(1).clamp(max=1).log().sum(1)
            sums |= {h: plain[h] + 2.0 * covered.item() for h, covered in zip(some, got, strict=True)}
        ((found,),) = find(model, [text], SearchConfig(beams=110, coverage_penalty=2.0), limits=Limits(4))
        assert found.score == pytest.approx(max(sums.values()), abs=1e-4)
        assert sums[tuple(found.ids)] == pytest.approx(found.score, abs=1e-4)


def test_coverage_needs_an_encoder():
    with raises(ConfigError, option="coverage_penalty"):
        find(model_of("decoder-only"), [[4]], SearchConfig(coverage_penalty=1.0))


def test_coverage_ignores_other_threads():
    """Another thread uses the same model while a step is computed."""
    model, options = model_of("encoder-decoder", "paper", 7), SearchConfig(beams=2, coverage_penalty=2.0)
    others = []

    def meanwhile(*_):
        if threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=find, args=(model, [[6, 5, 4, 4]], SearchConfig(beams=1)))
            other.start()
            other.join()
            others.append(other)

    alone = find(model, [[4, 5, 6]], options)
    hook = model.decoder.layers[0].self_attention.register_forward_pre_hook(meanwhile)
    try:
        disturbed = find(model, [[4, 5, 6]], options)
    finally:
        hook.remove()
    assert others
    assert disturbed == alone


def test_no_row_of_a_batch_exceeds_the_positions_of_the_model():
    """A long text with few new tokens and a short text with many do not fit in one batch."""
    model = model_of("decoder-only", positions={"max_length": 12})
    requests = [Request([], Limits(2), [START] * 10), Request([], Limits(11), [START]), Request([], Limits(3), [START])]
    assert [sorted(batch) for batch in batches(requests, 10**6, 12)] == [[0], [1, 2]]
    for (found,), request in zip(search(model, requests, SearchConfig(beams=2)), requests, strict=True):
        assert len(found.ids) < request.limits.most


@every_architecture
def test_a_batch_that_does_not_fit_in_memory_is_halved(architecture, monkeypatch):
    model, texts = model_of(architecture, "paper", 3, 1.0), [[5, 6, 7], [8], [9, 10], [4] * 5, [7]]
    expected, start, sizes = find(model, texts, SearchConfig()), type(model).start, []

    def limited(self, inputs, **more):
        rows = len(inputs.target)
        sizes.append(rows)
        if rows > 2:
            raise torch.OutOfMemoryError
        return start(self, inputs, **more)

    monkeypatch.setattr(type(model), "start", limited)
    found = find(model, texts, SearchConfig())
    assert [one.ids for (one,) in found] == [one.ids for (one,) in expected]
    assert sizes[:3] == [5, 2, 3]
    monkeypatch.setattr(driver, "TIE", 0.0)
    with pytest.raises(torch.OutOfMemoryError):
        monkeypatch.setattr(type(model), "start", lambda *_, **__: limited(model, Inputs(target=torch.zeros(3, 0))))
        find(model, texts[:1], SearchConfig())
