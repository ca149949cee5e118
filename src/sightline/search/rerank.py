"""Minimum Bayes risk (Eikema and Aziz, 2020, arXiv:2005.10283): of many samples, choose the one that is most similar to
the others.

The likeliest answer of a model may be unlike all others that it gives. The expected utility of an answer is its mean
similarity to the other samples; here that is chrF (Popović, 2015): the F-score of character n-grams up to six, where
recall counts twice as much as precision and white space does not count, as sacreBLEU computes it for a sentence.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

ORDER = 6
BETA = 2
BLOCK = 4096
"""Different n-grams counted together, which bounds the memory."""


def expected_chrf(texts: Sequence[str], weights: Sequence[int] | None = None) -> Float[ndarray, " texts"]:
    """Return the mean chrF of each text, with all other samples as references. `weights`: how often each text was
    drawn; a text that was drawn twice is one of its own references."""
    times = np.ones(len(texts)) if weights is None else np.array(weights, np.float64)
    scores = chrf(texts)
    return (scores @ times - scores.diagonal()) / max(times.sum() - 1, 1)


def chrf(texts: Sequence[str]) -> Float[ndarray, "texts texts"]:
    """Return chrF, from 0 to 100, of each text (row) with each text as its reference (column)."""
    letters = [np.array([ord(letter) for letter in "".join(text.split())], np.int64) for text in texts]
    lengths = np.array([len(each) for each in letters], np.int64)
    shape = len(texts), len(texts)
    precision, recall, orders = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    text, letter = np.repeat(np.arange(len(texts)), lengths), np.concatenate([*letters, np.zeros(0, np.int64)])
    left = np.concatenate([*(np.arange(n, 0, -1) for n in lengths), np.zeros(0, np.int64)])  # letters to the end
    gram = np.zeros_like(letter)
    for n in range(1, ORDER + 1):
        begins = (left >= n).nonzero()[0]
        gram[begins] = _numbered(gram[begins], letter[begins + n - 1])
        matches = _matches(text[begins], gram[begins], len(texts))
        totals = np.maximum(lengths - n + 1, 0)
        counted = (totals[:, None] > 0) & (totals > 0)
        precision += np.where(counted, matches / np.maximum(totals, 1)[:, None], 0)
        recall += np.where(counted, matches / np.maximum(totals, 1), 0)
        orders += counted
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    below = BETA**2 * precision + recall
    return 100 * (1 + BETA**2) * precision * recall / np.where(below > 0, below, 1)


def _matches(text: Int[ndarray, " n"], gram: Int[ndarray, " n"], texts: int) -> Float[ndarray, "texts texts"]:
    """Return the number of n-grams that two texts share. A repeated n-gram counts as often as both texts have it: the
    second "a" of a text matches the second "a" of another."""
    order = np.lexsort((gram, text))
    text, gram = text[order], gram[order]
    new = np.ones(len(text), bool)
    new[1:] = (text[1:] != text[:-1]) | (gram[1:] != gram[:-1])
    position = np.arange(len(text))
    which = _numbered(gram, position - np.maximum.accumulate(np.where(new, position, 0)))
    found = np.zeros((texts, texts), np.float32)
    for first in range(0, which.max(initial=-1) + 1, BLOCK):
        here = (which >= first) & (which < first + BLOCK)
        has = np.zeros((texts, BLOCK), np.float32)
        has[text[here], which[here] - first] = 1
        found += has @ has.T
    return found.astype(np.float64)


def _numbered(a: Int[ndarray, " n"], b: Int[ndarray, " n"]) -> Int[ndarray, " n"]:
    """Return a number for each different pair."""
    return np.unique(a * (b.max(initial=0) + 1) + b, return_inverse=True)[1]
