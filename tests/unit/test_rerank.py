"""Reranking by minimum Bayes risk: chrF equals that of sacreBLEU, and the sample most like the others is first."""

import random
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.chrf import CHRF

from sightline.data.builtin import generate
from sightline.search.rerank import chrf, expected_chrf

ODD = [
    "",
    " ",
    "a",
    "aa",
    "aaaaaaaaaaaa",
    "ab ab",
    "abab",
    "😀👩‍👩‍👧 x",
    "😀",
    "שלום עולם",
    "don't!",
    "a\u2028b\tc\x1fd",
]
TEXTS = [pair.target for pair in generate("test", 15)]


def theirs(texts):
    metric = CHRF()
    return np.array([[metric.sentence_score(one, [other]).score for other in texts] for one in texts])


def test_chrf_equals_that_of_sacrebleu():
    texts = [*TEXTS, *ODD, *(text[: len(text) // 2] + text[::-1] for text in TEXTS[:5])]
    assert np.abs(chrf(texts) - theirs(texts)).max() < 1e-9
    assert chrf([]).shape == (0, 0)


@given(
    st.lists(st.one_of(st.text("ab ", max_size=12), st.text(max_size=8), st.sampled_from(ODD)), min_size=1, max_size=5)
)
def test_chrf_of_any_text_equals_that_of_sacrebleu(texts):
    assert np.allclose(chrf(texts), theirs(texts), rtol=0, atol=1e-9)


def test_the_mean_is_over_all_other_samples():
    texts, times = TEXTS[:4], [3, 1, 2, 1]
    samples = [text for text, n in zip(texts, times, strict=True) for _ in range(n)]
    scores, expected = theirs(samples), []
    for text in texts:
        i = samples.index(text)
        expected.append(np.mean([scores[i, j] for j in range(len(samples)) if j != i]))
    assert expected_chrf(texts, times) == pytest.approx(expected, abs=1e-9)
    assert expected_chrf(samples)[[0, 3, 4, 6]] == pytest.approx(expected, abs=1e-9)
    assert expected_chrf(["one"]).tolist() == [0.0]
    assert np.argmax(expected_chrf(["the dog sees", "the dog sees a cat", "the dog saw a cat", "nothing"])) == 1


def python_calls(function, argument):
    """Return how many functions a call runs, those of C included."""
    count = 0

    def profile(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        function(argument)
    finally:
        sys.setprofile(None)
    return count


def test_chrf_does_not_call_functions_for_each_pair_of_samples():
    """For 100 samples there are 10,000 pairs; matrix products compare them all."""
    chance = random.Random(1)
    words = sorted({word for text in TEXTS for word in text.split()})
    base = [chance.choice(words) for _ in range(22)]
    texts = [" ".join(w if chance.random() < 0.6 else chance.choice(words) for w in base) for _ in range(100)]
    letters = sum(len(text) for text in texts)
    assert python_calls(chrf, texts) < letters + 5000
