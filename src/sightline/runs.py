"""Training runs: the events that a run emits, and `metrics.jsonl`, which stores them.

run.json           the options of the run, to resume it
metrics.jsonl      one line for each report, validation and warning
model.safetensors  with config.json and tokenizer.model: the best model so far (`sightline.model_folder`)
checkpoints/       the state to resume from
states/            the validated weights to average
tested/            every validated state as a model, with `train.keep_tested`
curves.png         loss, scores, learning rate and speed
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from sightline.files import not_written, write_files

OPTIONS, METRICS, CURVES = "run.json", "metrics.jsonl", "curves.png"
CHECKPOINTS, STATES, TESTED = "checkpoints", "states", "tested"


class Started(NamedTuple):
    """Training starts, or resumes after `step`."""

    step: int
    steps: int
    parameters: int
    device: str
    examples: int
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


def tee(sinks: list[Sink]) -> Sink:
    """Return one sink that passes events to all of these."""

    def emit(event: Event) -> None:
        for sink in sinks:
            sink(event)

    return emit


class Metrics:
    """A sink that writes the metrics.jsonl of a run and flushes each line. When a run is resumed, the lines after its
    last checkpoint are removed, because the run writes them again."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / METRICS
        self._kept: set[str] = set()
        self._file: IO[str] | None = None

    def __call__(self, event: Event) -> None:
        try:
            if isinstance(event, Started):
                self._begin(event.step)
            elif self._file and isinstance(event, Progress | Validated | Warned):
                line = _line(as_json(event))
                if line not in self._kept:  # the resumed run repeats the events at the step of the checkpoint
                    self._file.write(line)
                    self._file.flush()
        except OSError as error:
            raise not_written(self.path, error) from None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _begin(self, step: int) -> None:
        kept = [_line(line) for line in read_metrics(self.path.parent) if line["step"] <= step] if step else []
        write_files(self.path.parent, {METRICS: "".join(kept).encode()})
        self._kept, self._file = set(kept), self.path.open("a", encoding="utf-8")


def as_json(event: Event) -> dict[str, Any]:
    """Return an event as an object of metrics.jsonl."""
    values = {name: None if _is_not_finite(value) else value for name, value in event._asdict().items()}
    return {"event": type(event).__name__.lower(), **values}


def _line(values: dict[str, Any]) -> str:
    """Return one line of JSON, with Unicode line separators escaped."""
    text = json.dumps(values, ensure_ascii=False)
    return text.replace("\x85", "\\u0085").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029") + "\n"


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def read_metrics(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of the metrics.jsonl of a run; a crash can leave an incomplete one."""
    path = folder / METRICS
    if path.exists():
        for line in path.read_text("utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                return


def remove_run(folder: Path) -> None:
    """Delete the states of an earlier run from a folder."""
    for name in (CHECKPOINTS, STATES, TESTED):
        shutil.rmtree(folder / name, ignore_errors=True)
