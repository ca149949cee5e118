"""Scores with intervals equal sacreBLEU's, and the significance test is correct."""

import itertools
import random

import pytest
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from sightline.data.builtin import generate
from sightline.errors import InputError
from sightline.evaluate import compare as module
from sightline.evaluate.compare import compare_systems, estimate
from sightline.evaluate.scores import METRICS, corpus_scores, metric, values
from support import raises

REFERENCES = [pair.target for pair in generate("test", 400)]
every_metric = pytest.mark.parametrize("name", METRICS)


@pytest.fixture(autouse=True)
def default_seed(monkeypatch):
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)


def worse(share, references=REFERENCES, seed=0):
    """Replace a share of the words."""
    generator = random.Random(seed)
    words = sorted({word for line in references for word in line.split()})
    return [
        " ".join(generator.choice(words) if generator.random() < share else word for word in line.split())
        for line in references
    ]


# --- Scores


@every_metric
def test_scores_are_those_of_sacrebleu(name):
    hypotheses = worse(0.2)
    theirs = metric(name)
    expected = theirs.corpus_score(hypotheses, [REFERENCES], n_bootstrap=1000)
    (found,) = estimate(hypotheses, REFERENCES, [name]).values()
    assert found.value == expected.score == corpus_scores(hypotheses, REFERENCES, [name])[name].value
    assert (found.high - found.low) / 2 == pytest.approx(expected._ci, abs=1e-4)  # theirs is in float32
    assert found.signature == str(theirs.get_signature())
    assert "|bs:1000|seed:12345|" in found.signature


def test_only_requested_metrics_are_computed():
    assert list(corpus_scores(["a"], ["a"])) == list(values(["a"], ["a"])) == ["bleu", "chrf"]
    assert list(estimate(["a"], ["a"])) == ["bleu", "chrf", "ter"]
    (found,) = corpus_scores(["a c"], ["a b"], ["ter"]).values()
    assert found.value == TER().corpus_score(["a c"], [["a b"]]).score == 50


@every_metric
def test_the_order_of_sentences_does_not_matter(name):
    pairs = list(zip(worse(0.3), REFERENCES, strict=True))
    there = estimate(*zip(*pairs, strict=True), [name])[name]
    random.Random(1).shuffle(pairs)
    here = estimate(*zip(*pairs, strict=True), [name])[name]
    assert here.value == there.value
    assert here[1:3] == pytest.approx(there[1:3], abs=1)  # other draws


# --- Intervals


@every_metric
@pytest.mark.parametrize("share", [0.05, 0.3, 0.7])
def test_interval_contains_the_score_and_narrows_with_more_sentences(name, share):
    widths = []
    for count in (25, 100, 400):
        (found,) = estimate(worse(share)[:count], REFERENCES[:count], [name]).values()
        assert found.low < found.value < found.high
        widths.append(found.high - found.low)
    assert widths[0] > widths[1] > widths[2]
    assert widths[0] / widths[2] == pytest.approx(4, rel=0.5)  # like the root of the number of sentences


@every_metric
def test_interval_of_perfect_translations_is_one_point(name):
    (found,) = estimate(REFERENCES, REFERENCES, [name]).values()
    assert found[:3] == pytest.approx((0 if name == "ter" else 100,) * 3)


def test_blank_lines_are_scored():
    for found in estimate(["", "x y"], ["a b c d", "x y"]).values():
        assert found.low <= found.value <= found.high


# --- Two systems


@every_metric
def test_a_system_is_not_better_than_itself(name):
    hypotheses = worse(0.2)
    (found,) = compare_systems(hypotheses, list(hypotheses), REFERENCES, [name]).values()
    assert found.one == found.other
    assert (found.difference, found.p_value) == (0, 1)


@every_metric
def test_clear_difference_is_significant_in_either_order(name):
    good, bad = worse(0.1), worse(0.2)
    (found,) = compare_systems(good, bad, REFERENCES, [name]).values()
    assert (found.difference > 0) == (name != "ter")
    assert found.p_value < 0.001
    assert found.one == estimate(good, REFERENCES, [name])[name]
    assert found.other == estimate(bad, REFERENCES, [name])[name]
    assert "|bs:1000|ar:10000|seed:12345|" in found.signature
    (turned,) = compare_systems(bad, good, REFERENCES, [name]).values()
    assert (turned.difference, turned.p_value) == (-found.difference, found.p_value)


def test_p_value_equals_sacrebleus_without_ties():
    one, other, references = worse(0.2)[:60], worse(0.25, seed=5)[:60], REFERENCES[:60]
    (found,) = compare_systems(one, other, references, ["bleu"]).values()
    _, theirs = PairedTest([("other", other), ("one", one)], {"bleu": metric("bleu")}, [references], "ar")()
    assert found.p_value == theirs["BLEU"][1].p_value
    assert 0.01 < found.p_value < 0.5


@every_metric
def test_p_value_of_few_sentences_equals_the_exact_test(name):
    count = 5
    one, other, references = worse(0.2)[:count], worse(0.5, seed=5)[:count], REFERENCES[:count]

    def gap(exchange):
        mine, theirs = zip(
            *((b, a) if turn else (a, b) for turn, a, b in zip(exchange, one, other, strict=True)), strict=True
        )
        mine, theirs = (corpus_scores(texts, references, [name])[name].value for texts in (mine, theirs))
        return abs(mine - theirs)

    gaps = [gap(exchange) for exchange in itertools.product([False, True], repeat=count)]
    share = sum(found >= gaps[0] - 1e-9 for found in gaps) / len(gaps)
    (found,) = compare_systems(one, other, references, [name]).values()
    assert found.p_value == pytest.approx(share, abs=0.02)


def test_one_sentence_is_never_significant():
    for found in compare_systems(["a b c d e"], ["x"], ["a b c d e"]).values():
        assert found.difference != 0
        assert found.p_value == 1


def test_equally_good_systems_rarely_differ_significantly(monkeypatch):
    monkeypatch.setattr(module, "TRIALS", 300)
    monkeypatch.setattr(module, "RESAMPLES", 40)
    references = REFERENCES[:60]
    found = [
        compare_systems(worse(0.3, references, seed), worse(0.3, references, seed + 1), references, ["chrf"])[
            "chrf"
        ].p_value
        for seed in range(0, 80, 2)
    ]
    assert sum(p < 0.05 for p in found) <= 5
    assert 0.35 < sum(found) / len(found) < 0.65


def test_samples_do_not_depend_on_the_batch_size(monkeypatch):
    systems = worse(0.2)[:33], worse(0.25, seed=5)[:33], REFERENCES[:33]
    expected = compare_systems(*systems, ["ter"])
    monkeypatch.setattr(module, "TRIALS_PER_BATCH", 96)
    assert compare_systems(*systems, ["ter"]) == expected


# --- Errors


def test_invalid_input_is_refused():
    with raises(InputError, option="references", value=1):
        estimate(["a", "b"], ["a"])
    with raises(InputError, option="references", value=2):
        compare_systems(["a", "b"], ["a"], ["a", "b"])
    with raises(InputError, option="hypotheses", value=[]):
        estimate([], [])
    with raises(InputError, option="names", value="meteor"):
        corpus_scores(["a"], ["a"], ["meteor"])
