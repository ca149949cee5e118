"""BLEU, chrF and TER by sacreBLEU, each with the signature that says what exactly was computed."""

from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from sightline.errors import InputError

__all__ = ["METRICS", "Score", "metric", "scores", "values"]

METRICS = ("bleu", "chrf", "ter")
"""Names of what can be computed. Of bleu and chrf more is better, of ter less."""


class Score(NamedTuple):
    """One number, and how it was computed."""

    value: float
    signature: str


def scores(
    hypotheses: Sequence[str], references: Sequence[str], names: Sequence[str] = ("bleu", "chrf")
) -> dict[str, Score]:
    """What is asked for of bleu, chrf and ter, of a corpus with one reference to each hypothesis."""
    found = {}
    for name in names:
        one = metric(name)
        value = one.corpus_score(list(hypotheses), [list(references)]).score
        found[name] = Score(value, str(one.get_signature()))
    return found


def values(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The numbers alone."""
    return {name: score.value for name, score in scores(hypotheses, references).items()}


def metric(name: str) -> Metric:
    """A metric of sacreBLEU as it is when nothing is chosen, so that the numbers are those others have."""
    if name not in METRICS:
        raise InputError(f"there is no metric {name!r}; there are {', '.join(METRICS)}.")
    made: dict[str, type[BLEU | CHRF | TER]] = {"bleu": BLEU, "chrf": CHRF, "ter": TER}
    return made[name]()
