"""BLEU and chrF by sacreBLEU, each with the signature that says what exactly was computed."""

from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

__all__ = ["Score", "scores", "values"]


class Score(NamedTuple):
    """One number, and how it was computed."""

    value: float
    signature: str


def scores(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Score]:
    """bleu and chrf of a corpus, one reference to each hypothesis."""
    found = {}
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        value = metric.corpus_score(list(hypotheses), [list(references)]).score
        found[name] = Score(value, str(metric.get_signature()))
    return found


def values(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The numbers alone."""
    return {name: score.value for name, score in scores(hypotheses, references).items()}
