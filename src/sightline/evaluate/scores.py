"""BLEU, chrF and TER by sacreBLEU, with its signatures."""

from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from sightline.errors import InputError

METRICS: dict[str, type[BLEU | CHRF | TER]] = {"bleu": BLEU, "chrf": CHRF, "ter": TER}
"""The metrics by name. Higher is better for bleu and chrf, lower for ter."""


class Score(NamedTuple):
    """A score, and the signature of its computation."""

    value: float
    signature: str


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], names: Sequence[str] = ("bleu", "chrf")
) -> dict[str, Score]:
    """Return the scores of a corpus with one reference per hypothesis, by metric."""
    found = {}
    for name in names:
        one = metric(name)
        value = one.corpus_score(list(hypotheses), [list(references)]).score
        found[name] = Score(value, str(one.get_signature()))
    return found


def values(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return bleu and chrf as plain numbers."""
    return {name: score.value for name, score in corpus_scores(hypotheses, references).items()}


def metric(name: str) -> Metric:
    """Return a metric of sacreBLEU with its default options, so that scores are comparable."""
    if name not in METRICS:
        raise InputError.of("names", name, f"has an unknown metric: {name!r}. Choose from {', '.join(METRICS)}.")
    return METRICS[name]()
