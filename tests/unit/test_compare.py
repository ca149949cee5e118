"""Scores with intervals, and two systems side by side: sacreBLEU's numbers, and a test that is right."""

import itertools
import random
import sys

import pytest
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from sightline.data.builtin import generate
from sightline.errors import InputError
from sightline.evaluate import comet
from sightline.evaluate import compare as module
from sightline.evaluate.compare import compare, estimate
from sightline.evaluate.scores import METRICS, metric, scores, values

REFERENCES = [pair.target for pair in generate("test", 400)]
every_metric = pytest.mark.parametrize("name", METRICS)


@pytest.fixture(autouse=True)
def no_seed_of_ones_own(monkeypatch):
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)


def worse(share, references=REFERENCES, seed=0):
    """Translations in which so many of the words are others."""
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
    assert found.value == expected.score == scores(hypotheses, REFERENCES, [name])[name].value
    assert (found.high - found.low) / 2 == pytest.approx(expected._ci, abs=1e-4)  # theirs is in float32
    assert found.signature == str(theirs.get_signature())
    assert "|bs:1000|seed:12345|" in found.signature


def test_what_is_not_asked_for_is_not_computed():
    assert list(scores(["a"], ["a"])) == list(values(["a"], ["a"])) == ["bleu", "chrf"]
    assert list(estimate(["a"], ["a"])) == ["bleu", "chrf", "ter"]
    (found,) = scores(["a c"], ["a b"], ["ter"]).values()
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
def test_an_interval_has_the_score_in_it_and_narrows_with_more_sentences(name, share):
    widths = []
    for count in (25, 100, 400):
        (found,) = estimate(worse(share)[:count], REFERENCES[:count], [name]).values()
        assert found.low < found.value < found.high
        widths.append(found.high - found.low)
    assert widths[0] > widths[1] > widths[2]
    assert widths[0] / widths[2] == pytest.approx(4, rel=0.5)  # as the root of how many there are


@every_metric
def test_what_is_perfect_is_perfect_however_it_is_drawn(name):
    (found,) = estimate(REFERENCES, REFERENCES, [name]).values()
    assert found[:3] == pytest.approx((0 if name == "ter" else 100,) * 3)


def test_blank_lines_are_scored_not_refused():
    for found in estimate(["", "x y"], ["a b c d", "x y"]).values():
        assert found.low <= found.value <= found.high


# --- Two systems


@every_metric
def test_a_system_is_not_better_than_itself(name):
    hypotheses = worse(0.2)
    (found,) = compare(hypotheses, list(hypotheses), REFERENCES, [name]).values()
    assert found.one == found.other
    assert (found.difference, found.p_value) == (0, 1)


@every_metric
def test_what_is_clearly_better_is_significant_whichever_is_named_first(name):
    good, bad = worse(0.1), worse(0.2)
    (found,) = compare(good, bad, REFERENCES, [name]).values()
    assert (found.difference > 0) == (name != "ter")
    assert found.p_value < 0.001
    assert found.one == estimate(good, REFERENCES, [name])[name]
    assert found.other == estimate(bad, REFERENCES, [name])[name]
    assert "|bs:1000|ar:10000|seed:12345|" in found.signature
    (turned,) = compare(bad, good, REFERENCES, [name]).values()
    assert (turned.difference, turned.p_value) == (-found.difference, found.p_value)


def test_where_no_trial_gives_the_very_difference_the_p_value_is_that_of_sacrebleu():
    one, other, references = worse(0.2)[:60], worse(0.25, seed=5)[:60], REFERENCES[:60]
    (found,) = compare(one, other, references, ["bleu"]).values()
    _, theirs = PairedTest([("other", other), ("one", one)], {"bleu": metric("bleu")}, [references], "ar")()
    assert found.p_value == theirs["BLEU"][1].p_value
    assert 0.01 < found.p_value < 0.5


@every_metric
def test_of_few_sentences_the_p_value_is_the_share_of_all_ways_to_exchange_them(name):
    count = 5
    one, other, references = worse(0.2)[:count], worse(0.5, seed=5)[:count], REFERENCES[:count]

    def gap(exchange):
        mine, theirs = zip(
            *((b, a) if turn else (a, b) for turn, a, b in zip(exchange, one, other, strict=True)), strict=True
        )
        mine, theirs = (scores(texts, references, [name])[name].value for texts in (mine, theirs))
        return abs(mine - theirs)

    gaps = [gap(exchange) for exchange in itertools.product([False, True], repeat=count)]
    share = sum(found >= gaps[0] - 1e-9 for found in gaps) / len(gaps)
    (found,) = compare(one, other, references, [name]).values()
    assert found.p_value == pytest.approx(share, abs=0.02)


def test_one_sentence_shows_nothing():
    for found in compare(["a b c d e"], ["x"], ["a b c d e"]).values():
        assert found.difference != 0
        assert found.p_value == 1


def test_of_systems_that_are_as_good_few_seem_different(monkeypatch):
    monkeypatch.setattr(module, "TRIALS", 300)
    monkeypatch.setattr(module, "RESAMPLES", 40)
    references = REFERENCES[:60]
    found = [
        compare(worse(0.3, references, seed), worse(0.3, references, seed + 1), references, ["chrf"])["chrf"].p_value
        for seed in range(0, 80, 2)
    ]
    assert sum(p < 0.05 for p in found) <= 5
    assert 0.35 < sum(found) / len(found) < 0.65


def test_the_draws_do_not_depend_on_how_many_are_made_at_once(monkeypatch):
    systems = worse(0.2)[:33], worse(0.25, seed=5)[:33], REFERENCES[:33]
    expected = compare(*systems, ["ter"])
    monkeypatch.setattr(module, "AT_ONCE", 96)
    assert compare(*systems, ["ter"]) == expected


# --- What cannot be


def test_what_cannot_be_scored_is_told():
    with pytest.raises(InputError, match=r"^there are 2 hypotheses and 1 references; there must be as many\.$"):
        estimate(["a", "b"], ["a"])
    with pytest.raises(InputError, match=r"^there are 1 hypotheses and 2 references; there must be as many\.$"):
        compare(["a", "b"], ["a"], ["a", "b"])
    with pytest.raises(InputError, match=r"^there is nothing to score; give at least one hypothesis"):
        estimate([], [])
    with pytest.raises(InputError, match=r"^there is no metric 'meteor'; there are bleu, chrf, ter\.$"):
        scores(["a"], ["a"], ["meteor"])


def test_comet_says_how_it_is_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "comet", None)
    with pytest.raises(InputError, match=r"pip install unbabel-comet"):
        comet.load()
