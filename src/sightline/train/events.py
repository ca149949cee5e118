"""Events of a training run. The loop emits them; sinks display and store them."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Started(NamedTuple):
    """Training starts, or resumes after `step`."""

    step: int
    steps: int
    parameters: int
    device: str
    pairs: int
    batch_tokens: int
    filled: float
    """Share of the batches' cells that are tokens, not padding."""
    processes: int = 1


class Progress(NamedTuple):
    """Averages over the last updates."""

    step: int
    epoch: float
    loss: float
    """Label-smoothed loss per token: the training objective."""
    perplexity: float
    """Perplexity of the training batches, under dropout, without smoothing."""
    learning_rate: float
    gradient_norm: float
    tokens: int
    """Target tokens trained on so far."""
    tokens_per_second: float
    """Source and target tokens, without padding."""
    memory: int
    """Peak memory in bytes, of the device or of the process."""


class Validated(NamedTuple):
    """Result of a validation."""

    step: int
    epoch: float
    loss: float
    """Mean negative log-likelihood of a token, without smoothing."""
    perplexity: float
    scores: dict[str, float]
    """BLEU and chrF of translations, by name."""
    best: bool
    samples: list[tuple[str, str, str]]
    """Source, reference, and translation."""
    weights: str = "weights"
    """The validated weights: the current ones, their running average, or the mean of several states."""


class Saved(NamedTuple):
    """A checkpoint is complete on the disk."""

    step: int
    folder: Path


class Warned(NamedTuple):
    """A likely mistake in data or options."""

    step: int
    text: str


class Finished(NamedTuple):
    """The run ended."""

    step: int
    reason: str
    seconds: float


Event = Started | Progress | Validated | Saved | Warned | Finished
Sink = Callable[[Event], None]
