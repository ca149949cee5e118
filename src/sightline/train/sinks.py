"""Sinks for the events of a run: progress bar, plain lines, TensorBoard."""

import importlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from sightline.files import optional_import
from sightline.runs import Event, Finished, Progress, Started, Validated, Warned


class TensorBoard:
    """Curves for TensorBoard. Needs the package tensorboard."""

    def __init__(self, folder: Path) -> None:
        optional_import("tensorboard", package="tensorboard")
        self._make = partial(importlib.import_module("torch.utils.tensorboard").SummaryWriter, str(folder))

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._writer = self._make(purge_step=event.step + 1 if event.step else None)
        elif isinstance(event, Progress):
            for name in ("loss", "perplexity", "learning_rate", "gradient_norm", "tokens_per_second"):
                self._writer.add_scalar(f"train/{name}", getattr(event, name), event.step)
        elif isinstance(event, Validated):
            for name, value in {"loss": event.loss, "perplexity": event.perplexity, **event.scores}.items():
                self._writer.add_scalar(f"valid/{name}", value, event.step)
        elif isinstance(event, Finished):
            self._writer.close()


class Lines:
    """One plain line per event, for files, pipes and logs."""

    def __init__(self, console: Console) -> None:
        self.console, self.steps = console, 0

    def __call__(self, event: Event) -> None:
        self.steps = event.steps if isinstance(event, Started) else self.steps
        for line in describe(event, self.steps):
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class ProgressBar:
    """A progress bar, with the lines of other events above it."""

    def __init__(self, console: Console) -> None:
        self.lines = Lines(console)
        self.task = TaskID(0)
        self.best = ""
        self.bar = Bar(
            TextColumn("[bold]{task.completed:,.0f}[/]/{task.total:,.0f}"),
            BarColumn(bar_width=16),
            TextColumn("{task.description}"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
        )

    def __call__(self, event: Event) -> None:
        if isinstance(event, Progress):
            self.bar.update(self.task, completed=event.step, description=f"{summary(event)}{self.best}")
            return
        if isinstance(event, Validated) and event.best:
            self.best = "".join(f"  {name} {value:.1f}" for name, value in list(event.scores.items())[:1])
        self.lines(event)
        if isinstance(event, Started):
            self.task = self.bar.add_task("first steps are slower", total=event.steps, completed=event.step)
            self.bar.start()
        elif isinstance(event, Finished):
            self.bar.stop()

    def close(self) -> None:
        """Remove the bar."""
        self.bar.stop()


def describe(event: Event, steps: int) -> Iterator[str]:
    """Yield the lines that describe an event."""
    if isinstance(event, Started):
        where = f"on {event.processes} x {event.device}" if event.processes > 1 else f"on {event.device}"
        yield (
            f"{event.parameters:,} parameters, {event.examples:,} training examples, "
            f"{event.batch_tokens:,} tokens per batch ({event.filled:.0%} filled), {event.steps:,} steps {where}"
        )
        if event.step:
            yield f"resuming after step {event.step:,}"
    elif isinstance(event, Progress):
        yield f"step {event.step:,}/{steps:,}  {summary(event)}"
    elif isinstance(event, Validated):
        scores = "".join(f"  {name} {value:.2f}" for name, value in event.scores.items())
        which = "" if event.weights == "weights" else f"  ({event.weights})"
        best = "  best so far" if event.best else ""
        yield (
            f"validation at step {event.step:,}  epoch {event.epoch:.1f}  loss {event.loss:.3f}  "
            f"perplexity {event.perplexity:.2f}{scores}{best}{which}"
        )
        for source, reference, text in event.samples:
            yield f"    {_cut(source)}\n    = {_cut(reference)}\n    > {_cut(text)}"
    elif isinstance(event, Warned):
        yield f"WARNING: {event.text}"
    elif isinstance(event, Finished):
        why = "" if event.reason == "done" else f" ({event.reason})"
        yield f"finished at step {event.step:,}{why} after {event.seconds:,.0f} s"


def _cut(text: str, longest: int = 160) -> str:
    """Shorten a text: translations of an untrained model can be long."""
    return text if len(text) <= longest else f"{text[:longest]}…"


def summary(event: Progress) -> str:
    """Return a progress report in one line."""
    return (
        f"epoch {event.epoch:.1f}  loss {event.loss:.3f}  lr {event.learning_rate:.2e}  "
        f"{event.tokens_per_second / 1e3:,.1f}k tokens/s  {event.memory / 2**30:.1f} GiB"
    )
