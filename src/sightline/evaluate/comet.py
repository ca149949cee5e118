"""COMET: how good another model finds a translation, given its source and its reference. Only where it is installed."""

from collections.abc import Callable, Sequence
from importlib.metadata import version

import torch

from sightline.evaluate.scores import Score
from sightline.files import optional_import

__all__ = ["MODEL", "load"]

MODEL = "Unbabel/wmt22-comet-da"
"""The one that papers use when they say COMET-22; about 2 GB, downloaded when it is first asked for."""


def load(name: str = MODEL) -> Callable[[Sequence[str], Sequence[str], Sequence[str]], Score]:
    """The score as a function of sources, hypotheses and references, with its model loaded: what is missing is told
    before anything is translated."""
    package = optional_import("comet", package="unbabel-comet")
    model = package.load_from_checkpoint(package.download_model(name))
    signature = f"model:{name}|version:{version('unbabel-comet')}"

    def comet(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> Score:
        rows = zip(sources, hypotheses, references, strict=True)
        samples = [{"src": source, "mt": hypothesis, "ref": reference} for source, hypothesis, reference in rows]
        return Score(float(model.predict(samples, gpus=int(torch.cuda.is_available())).system_score), signature)

    return comet
