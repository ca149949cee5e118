"""COMET: a score by a model that reads source, translation and reference. Needs the package unbabel-comet."""

from collections.abc import Callable, Sequence
from importlib.metadata import version

import torch

from sightline.evaluate.scores import Score
from sightline.files import optional_import

MODEL = "Unbabel/wmt22-comet-da"
"""The model of COMET-22; about 2 GB, downloaded when first used."""


def load(name: str = MODEL) -> Callable[[Sequence[str], Sequence[str], Sequence[str]], Score]:
    """Load the model; return the score as a function of sources, hypotheses and references."""
    package = optional_import("comet", package="unbabel-comet")
    model = package.load_from_checkpoint(package.download_model(name))
    signature = f"model:{name}|version:{version('unbabel-comet')}"

    def comet(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> Score:
        rows = zip(sources, hypotheses, references, strict=True)
        samples = [{"src": source, "mt": hypothesis, "ref": reference} for source, hypothesis, reference in rows]
        return Score(float(model.predict(samples, gpus=int(torch.cuda.is_available())).system_score), signature)

    return comet
