"""How sure a score is, and whether one system is better than another or was only lucky with its sentences.

A score of a corpus is computed from sums of counts over its sentences. The counts are taken once, by sacreBLEU; to
score a thousand corpora made of the same sentences is then a thousand sums.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric

from sightline.errors import InputError
from sightline.evaluate.scores import METRICS, metric

__all__ = ["RESAMPLES", "SEED", "TRIALS", "Comparison", "Estimate", "compare", "estimate"]

RESAMPLES = 1000
"""Corpora drawn for an interval."""
TRIALS = 10_000
"""Exchanges drawn for a p-value."""
SEED = 12345
"""The one sacreBLEU takes: the draws are the same, here and there, today and tomorrow."""
AT_ONCE = 32
"""Trials in one product of matrices. Few, as each has a number for every sentence; a multiple of the 32 bits that are
drawn at a time, so that the draws do not depend on it."""


class Estimate(NamedTuple):
    """A score, and where it would be 95 times of 100 with other sentences of the same kind."""

    value: float
    low: float
    high: float
    signature: str


class Comparison(NamedTuple):
    """Two systems on the same sentences."""

    one: Estimate
    other: Estimate
    difference: float
    """The one's score minus the other's."""
    p_value: float
    """How often a difference as large comes about if it makes no difference which system a translation is from."""
    signature: str


def estimate(
    hypotheses: Sequence[str], references: Sequence[str], names: Sequence[str] = METRICS
) -> dict[str, Estimate]:
    """Scores with their intervals, by the bootstrap of Koehn (2004): the score again and again, each time of as many
    sentences, drawn from the corpus with replacement."""
    found = {}
    for name in names:
        one = metric(name)
        found[name] = _estimate(one, _counts(one, hypotheses, references))
    return found


def compare(
    hypotheses: Sequence[str], others: Sequence[str], references: Sequence[str], names: Sequence[str] = METRICS
) -> dict[str, Comparison]:
    """Two systems side by side. The p-value is that of approximate randomisation, two-sided (Riezler and Maxwell,
    2005): for every sentence a coin decides whether the two exchange their translations.

    The draws are sacreBLEU's. But it leaves out trials that give exactly the difference there is, and so finds a system
    significantly different from itself; here they count, as they must for the test to be right.
    """
    found = {}
    for name in names:
        of = metric(name)
        mine, theirs = (_counts(of, texts, references) for texts in (hypotheses, others))
        one, other = _estimate(of, mine), _estimate(of, theirs)
        difference = one.value - other.value
        as_large = sum(gap >= abs(difference) for gap in _exchanges(of, mine, theirs))
        p_value = (as_large + 1) / (TRIALS + 1)  # what was found is one of the ways it could have come out
        signature = _signature(of, bs=RESAMPLES, ar=TRIALS, seed=SEED)
        found[name] = Comparison(one, other, difference, p_value, signature)
    return found


def _counts(of: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.float64]:
    """What the metric adds up, a row for each sentence."""
    if len(hypotheses) != len(references):
        raise InputError(
            f"there are {len(hypotheses):,} hypotheses and {len(references):,} references; there must be as many."
        )
    if not hypotheses:
        raise InputError("there is nothing to score; give at least one hypothesis and its reference.")
    rows = of._extract_corpus_statistics(list(hypotheses), [list(references)])
    return np.array(rows, dtype=np.float64)  # counts, and so exact


def _score(of: Metric, sums: NDArray[np.float64]) -> float:
    return float(of._compute_score_from_stats(sums.tolist()).score)


def _estimate(of: Metric, counts: NDArray[np.float64]) -> Estimate:
    generator = np.random.default_rng(SEED)
    found = []
    for _ in range(RESAMPLES):
        drawn = generator.choice(len(counts), size=len(counts), replace=True)
        found.append(_score(of, np.bincount(drawn, minlength=len(counts)) @ counts))
    found.sort()
    beyond = RESAMPLES // 40
    low, high = found[beyond], found[-1 - beyond]
    return Estimate(_score(of, counts.sum(0)), low, high, _signature(of, bs=RESAMPLES, seed=SEED))


def _exchanges(of: Metric, mine: NDArray[np.float64], theirs: NDArray[np.float64]) -> list[float]:
    """How far apart the two are, each time a coin has decided for every sentence whose translation is whose."""
    generator = np.random.default_rng(SEED)
    both = mine.sum(0) + theirs.sum(0)
    gaps = []
    for done in range(0, TRIALS, AT_ONCE):
        coins = generator.integers(2, size=(min(AT_ONCE, TRIALS - done), len(mine)), dtype=bool)
        sums = theirs.sum(0) + coins.astype(np.float64) @ (mine - theirs)
        gaps += [abs(_score(of, row) - _score(of, both - row)) for row in sums]
    return gaps


def _signature(of: Metric, **drawn: Any) -> str:
    signature = of.get_signature()
    for name, value in drawn.items():
        signature.update(name, value)
    return str(signature)
