"""What a run tells while it goes on. The loop emits these; sinks make of them what people look at."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

__all__ = ["Event", "Finished", "Progress", "Saved", "Sink", "Started", "Validated", "Warned"]


class Started(NamedTuple):
    """Training begins, or goes on at `step`."""

    step: int
    steps: int
    parameters: int
    device: str
    pairs: int
    batch_tokens: int
    filled: float
    """The part of the batches' cells that are tokens, not padding."""
    processes: int = 1


class Progress(NamedTuple):
    """How the last updates went, on average."""

    step: int
    epoch: float
    loss: float
    """What is minimised: label-smoothed, by token."""
    perplexity: float
    """On the training batches, under dropout, without smoothing."""
    learning_rate: float
    gradient_norm: float
    tokens: int
    """Target tokens seen so far."""
    tokens_per_second: float
    """Source and target, without padding."""
    memory: int
    """Bytes: of the device at its highest, or of the process."""


class Validated(NamedTuple):
    """A test on text that is not trained on."""

    step: int
    epoch: float
    loss: float
    """Mean negative log-likelihood of a token, without smoothing."""
    perplexity: float
    scores: dict[str, float]
    """bleu and chrf of real translations."""
    best: bool
    samples: list[tuple[str, str, str]]
    """Source, reference, and what the model says."""
    weights: str = "weights"
    """Which weights were tested: the run's own, their running average, or the mean of several states."""


class Saved(NamedTuple):
    """A checkpoint is on disk, whole."""

    step: int
    folder: Path


class Warned(NamedTuple):
    """Something is not as it should be."""

    step: int
    text: str


class Finished(NamedTuple):
    """The run is over."""

    step: int
    reason: str
    seconds: float


Event = Started | Progress | Validated | Saved | Warned | Finished
Sink = Callable[[Event], None]
