"""The console: the log, the progress of bulk jobs and of training, and their interruption by a signal."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import echo

if TYPE_CHECKING:
    from rich.console import Console

    from sightline.bulk.lines import Report
    from sightline.runs import Sink
    from sightline.train.run import RunOptions

EVERY = 30
"""Seconds between two lines of progress."""


def log(text: str) -> None:
    """Print a line to standard error."""
    echo(text, err=True)


@contextlib.contextmanager
def bulk_progress(out: Path | None, *, plain: bool = False) -> Iterator["Report"]:
    """Report a bulk job on standard error. Its progress is shown by a bar in a terminal, otherwise or if `plain` by
    lines. Nothing is shown if the results go to a terminal.

    The process ends at SIGTERM and SIGINT, even if its parent ignores them, and when the reader of a pipe closes it.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from sightline.bulk.lines import Report

    console, stack = Console(stderr=True), contextlib.ExitStack()
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    bar = Progress(*columns, console=console)
    by_lines, hidden = plain or not console.is_terminal, out is None and sys.stdout.isatty()
    written, reported = 0, time.monotonic()

    def progress(finished: int, total: int) -> None:
        nonlocal written, reported
        written = finished
        if hidden or not total:
            return
        if not bar.tasks:
            bar.add_task("", total=total, completed=finished, begun=finished)
            if not by_lines:
                stack.enter_context(bar)
        (task,) = bar.tasks
        speed = (finished - task.fields["begun"]) / (task.elapsed or 1)
        bar.update(task.id, completed=finished, description=f"{speed:,.{0 if speed >= 10 else 1}f} lines/s")
        if by_lines and time.monotonic() - reported >= EVERY:
            reported = time.monotonic()
            log(f"line {finished:,}/{total:,}  {task.description}")

    def interrupt(number: int, _: Any) -> None:
        raise KeyboardInterrupt(number)

    before = {which: signal.signal(which, interrupt) for which in (signal.SIGTERM, signal.SIGINT)}
    try:
        with stack:
            yield Report(progress, log)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt as stopped:
        if out is not None:
            log(f"\nStopped after {written:,} lines. Add --resume to continue.")
        sys.exit(128 + stopped.args[0])
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


@contextlib.contextmanager
def console_sink(console: "Console", *, plain: bool = False) -> Iterator["Sink"]:
    """Yield a sink that shows the events of a run: by a bar in a terminal, otherwise or if `plain` by lines."""
    from sightline.train.sinks import Lines, ProgressBar

    if plain or not console.is_terminal:
        yield Lines(console)
        return
    with contextlib.closing(ProgressBar(console)) as bar:
        yield bar


def run_training(options: "RunOptions", *, plain: bool, tensorboard: bool = False) -> None:
    """Train, plot the curves, and print the folder of the run. The process ends if a signal stops the run."""
    from rich.console import Console

    from sightline.evaluate.scores import values
    from sightline.runs import CURVES, Metrics, tee
    from sightline.train.distributed import is_main
    from sightline.train.run import train_files
    from sightline.train.sinks import TensorBoard

    out, console = options.out, Console(stderr=True, highlight=False, quiet=not is_main())
    say = partial(console.print, markup=False, soft_wrap=True)
    with console_sink(console, plain=plain) as shown, contextlib.closing(Metrics(out)) as metrics:
        sinks: list[Sink] = [shown, metrics, *([TensorBoard(out / "tensorboard")] if tensorboard else [])]
        run = train_files(options, tee(sinks), say, values)
    if run.stopped:
        say(f"Stopped by a signal at step {run.step:,}. Resume with: sightline train --out {out} --resume")
        sys.exit(128 + run.stopped)
    if is_main():
        with contextlib.suppress(ImportError):  # matplotlib is optional
            from sightline.figures.curves import plot

            plot(out, out / CURVES)
        echo(str(out))
