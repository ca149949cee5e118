"""Confidence intervals of scores, and significance tests between two systems.

The score of a corpus is a function of sums of statistics over its sentences. sacreBLEU computes the statistics once;
each resampled corpus then only needs another sum.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric

from sightline.errors import InputError
from sightline.evaluate.scores import METRICS, metric

RESAMPLES = 1000
"""Resampled corpora for an interval."""
TRIALS = 10_000
"""Trials of a randomisation test."""
SEED = 12345
"""The seed of sacreBLEU, so that the samples are the same."""
TRIALS_PER_BATCH = 32
"""Trials in one matrix product; each has a number for every sentence, so few save memory. A multiple of the 32 bits
that the generator draws at a time, so that the samples do not depend on it."""


class Estimate(NamedTuple):
    """A score with its 95 % confidence interval."""

    value: float
    low: float
    high: float
    signature: str


class Comparison(NamedTuple):
    """Two systems on the same sentences."""

    one: Estimate
    other: Estimate
    difference: float
    """Score of `one` minus score of `other`."""
    p_value: float
    """Probability of a difference at least as large if the systems are equally good."""
    signature: str


def estimate(
    hypotheses: Sequence[str], references: Sequence[str], names: Iterable[str] = METRICS
) -> dict[str, Estimate]:
    """Return scores with confidence intervals, by bootstrap resampling (Koehn, 2004)."""
    found = {}
    for name in names:
        one = metric(name)
        found[name] = _estimate(one, _counts(one, hypotheses, references))
    return found


def compare_systems(
    hypotheses: Sequence[str], others: Sequence[str], references: Sequence[str], names: Iterable[str] = METRICS
) -> dict[str, Comparison]:
    """Compare two systems by two-sided approximate randomisation (Riezler and Maxwell, 2005): each trial exchanges the
    translations of a random half of the sentences.

    The samples are sacreBLEU's. Trials that give exactly the observed difference count here, as the test requires.
    sacreBLEU leaves them out, and so finds a system significantly different from itself.
    """
    found = {}
    for name in names:
        of = metric(name)
        mine, theirs = (_counts(of, texts, references) for texts in (hypotheses, others))
        one, other = _estimate(of, mine), _estimate(of, theirs)
        difference = one.value - other.value
        as_large = sum(gap >= abs(difference) for gap in _exchanges(of, mine, theirs))
        p_value = (as_large + 1) / (TRIALS + 1)  # the observed assignment counts as one trial
        signature = _signature(of, bs=RESAMPLES, ar=TRIALS, seed=SEED)
        found[name] = Comparison(one, other, difference, p_value, signature)
    return found


def _counts(of: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.float64]:
    """Return the statistics that the metric sums, one row per sentence."""
    if len(hypotheses) != len(references):
        problem = f"must have one line for each of {len(hypotheses):,} hypotheses, got {len(references):,}."
        raise InputError.of("references", len(references), problem)
    if not hypotheses:
        raise InputError.of("hypotheses", hypotheses, "is empty. Give at least one line.")
    rows = of._extract_corpus_statistics(list(hypotheses), [list(references)])
    return np.array(rows, dtype=np.float64)  # integers, so sums are exact


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
    """Return the absolute differences of the scores in random exchanges of translations."""
    generator = np.random.default_rng(SEED)
    both = mine.sum(0) + theirs.sum(0)
    gaps = []
    for done in range(0, TRIALS, TRIALS_PER_BATCH):
        coins = generator.integers(2, size=(min(TRIALS_PER_BATCH, TRIALS - done), len(mine)), dtype=bool)
        sums = theirs.sum(0) + coins.astype(np.float64) @ (mine - theirs)
        gaps += [abs(_score(of, row) - _score(of, both - row)) for row in sums]
    return gaps


def _signature(of: Metric, **drawn: Any) -> str:
    signature = of.get_signature()
    for name, value in drawn.items():
        signature.update(name, value)
    return str(signature)
