"""Shortlists: frequent tokens, translations of source words, and tokens to spell any word."""

import numpy as np
import pytest

from sightline.data.builtin import generate
from sightline.errors import ConfigError, InputError
from sightline.special import END, PAD, START, UNKNOWN
from sightline.text import shortlist
from sightline.text.shortlist import learn
from sightline.text.tokenizer import Tokenizer
from support import raises

PAIRS = list(generate("train", 3000))


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train((line for pair in PAIRS for line in (pair.source, pair.target)), 700)


@pytest.fixture(scope="module")
def pairs(tokenizer):
    sides = ([pair.source for pair in PAIRS], [pair.target for pair in PAIRS])
    return list(zip(*map(tokenizer.encode, sides), strict=True))


def words(tokenizer, number):
    """A vocabulary's own words, which no text has."""
    return list(range(tokenizer.size - number, tokenizer.size))


def test_source_words_allow_their_translations(tokenizer):
    """Each source word has one translation, at a place left to chance, and there is one word without a source."""
    chance = np.random.default_rng(1)
    ids = words(tokenizer, 60)
    sources, targets, common = ids[:29], ids[29:58], ids[58]
    pairs = []
    for _ in range(400):
        places = chance.permutation(29)[:6]
        pairs.append(([sources[i] for i in places], [common, *(targets[i] for i in chance.permutation(places))]))
    found = learn(pairs, tokenizer, often=1, likely=1)
    assert common in found.always
    assert [found.of(source)[0] for source in sources] == targets
    assert all(source in found.of(source) for source in sources)  # names stay as they are
    assert found.coverage == 1.0
    assert learn(pairs[:5], tokenizer, often=1, likely=1).coverage == 1.0  # too few to hold some out


def test_most_of_a_text_is_covered(tokenizer, pairs):
    found = learn(pairs, tokenizer, often=30, likely=20)
    assert 0.97 < found.coverage <= 1.0
    few = learn(pairs, tokenizer, often=1, likely=1)
    assert few.coverage < found.coverage
    for one, other in zip(found, learn(iter(pairs), tokenizer, often=30, likely=20), strict=True):
        assert np.array_equal(one, other)


def test_special_tokens_and_spelling_are_always_allowed(tokenizer, pairs):
    found = learn(pairs[:50], tokenizer, often=1, likely=1)
    assert {PAD, START, END, UNKNOWN} <= set(found.always.tolist())
    strange = "Ωmega 漢字 🙂"
    assert UNKNOWN not in tokenizer.encode([strange])[0]
    allowed = [*found.always.tolist(), *(token for i in tokenizer.encode([strange])[0] for token in found.of(i))]
    assert set(tokenizer.encode([strange])[0]) <= set(allowed)
    everything = learn(pairs[:50], tokenizer, often=10**6, likely=1)
    assert everything.always.tolist() == list(range(tokenizer.size))
    assert len(everything.likely) == 0


def test_a_long_corpus_is_sampled_evenly(tokenizer, pairs, monkeypatch):
    seen = []
    monkeypatch.setattr(shortlist, "SAMPLE", 40)
    monkeypatch.setattr(shortlist, "_estimate", lambda learnt, *_: seen.extend(learnt) or (np.empty(0, int),) * 2)
    learn(pairs[:1000], tokenizer)
    assert 20 <= len(seen) <= 40
    places = [pairs.index((source.tolist(), target.tolist())) for source, target in seen]
    assert max(np.diff(places)) <= 64
    assert places[-1] > 900


def test_batch_size_does_not_change_the_result(tokenizer, pairs, monkeypatch):
    whole = learn(pairs[:300], tokenizer, often=5, likely=3)
    monkeypatch.setattr(shortlist, "CELLS", 100)
    for one, other in zip(whole, learn(pairs[:300], tokenizer, often=5, likely=3), strict=True):
        assert np.array_equal(one, other)


def test_empty_sides_and_no_pairs(tokenizer):
    one, other, third, fourth = words(tokenizer, 4)  # no bytes, which may always come
    odd = [([], [one]), ([one], []), ([], []), ([one], [other]), ([third] * 300, [fourth, fourth])]
    found = learn(odd, tokenizer, often=1, likely=2)
    assert fourth in found.always
    assert found.of(one) == [other, one]
    assert found.of(third) == [third]
    for pairs in ([], [([], [one]), ([one], [])]):
        with raises(InputError, match="no pairs"):
            learn(pairs, tokenizer)
    with raises(ConfigError, option="often", value=0):
        learn([([one], [other])], tokenizer, often=0)
