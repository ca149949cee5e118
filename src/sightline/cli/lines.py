"""Translate files of any length line by line, with progress, and resume after an interruption.

Shared by the commands that translate files. The input is read in windows; each window is written completely.
"""

import codecs
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import typer

from sightline.errors import InputError

FIRST, LAST = 32, 16384
"""Lines per window: few at first, so that results appear soon; later as many as take some seconds."""
EVERY = 30
"""Seconds between two lines of progress."""


class Stages(NamedTuple):
    """The three steps that answer the texts of a window. In files, they run in parallel: while a window is searched,
    the next one is prepared and the last one is written."""

    prepare: Callable[[list[str]], Any]
    """Takes the texts; returns what `search` takes."""
    search: Callable[[Any], Any]
    write: Callable[[Any, int], Iterable[bytes]]
    """Takes the result of `search` and the number of the first text; returns the output for each text."""


Show = Literal["nothing", "bar", "lines"]


def check_new(out: Path, resume: bool) -> None:
    """Refuse to overwrite a file."""

    if out.is_dir():
        raise InputError.of("out", out, f"is a folder: {out}. Name a file.")
    if out.exists() and not resume:
        message = f"`out` already exists: {out}. Add `resume` to continue it, or choose another file."
        raise InputError(message, option="out", value=out)


def check_files(paths: Iterable[Path]) -> None:
    """Check that the input files exist."""

    for path in paths:
        if not path.is_file():
            raise InputError(f"{path}: file not found.", value=path)


@contextlib.contextmanager
def only_writer(out: Path | None) -> Iterator[None]:
    """Create the file if it is missing and lock it, so that no other process writes it during the block."""
    from sightline.files import lock

    if out is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(out.open("ab"))
        except OSError as error:
            raise InputError.of("out", out, f"cannot be written: {out}: {error.strerror}.") from None
        if not lock(file, wait=False):
            message = f"`out` is being written by another process: {out}. Wait for it, or choose another file."
            raise InputError(message, option="out", value=out)
        yield


def count_done(out: Path, several: bool = False) -> int:
    """Count the input lines that a file answers, and cut off an incomplete last line. `several`: a line may have
    several answers, each with the number of the line in front."""
    count, end, first, last = 0, 0, 0, b""
    with out.open("r+b") as file:
        for raw in file:
            if not raw.endswith(b"\n"):
                break
            number = raw.split(b" ||| ", 1)[0]
            if not several or number != last:
                count, first = count + 1, end
            last, end = number, end + len(raw)
        if several and count:  # there may be more answers to the last line
            count, end = count - 1, first
        file.truncate(end)
    return count


def answer_lines(paths: Sequence[Path] | None, out: Path | None, done: int, stages: Stages, show: Show) -> None:
    """Write the answers to the lines of files (None: standard input) to a file (None: standard output), except for the
    first `done` lines."""

    written = done
    with _interruptible():
        try:
            with contextlib.ExitStack() as stack:
                into: IO[bytes] = sys.stdout.buffer if out is None else stack.enter_context(out.open("ab"))
                report = stack.enter_context(_progress(paths, done, show))
                for rows in _answers(_windows(_texts(paths, skip=done)), stages, done + 1, ahead=paths is not None):
                    into.writelines(rows)
                    into.flush()
                    written += len(rows)
                    report(len(rows))
        except BrokenPipeError:  # the reader of the pipe has closed it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except KeyboardInterrupt as stopped:
            if out is not None:
                typer.echo(f"\nStopped after {written:,} lines. Add --resume to continue.", err=True)
            sys.exit(128 + (stopped.args[0] if stopped.args else signal.SIGINT))
        except OSError as error:
            where = out if out is not None else "standard output"
            raise InputError(f"{where}: cannot be written: {error.strerror}.", value=out) from None


def _answers(windows: Iterator[list[str]], stages: Stages, first: int, *, ahead: bool) -> Iterator[list[bytes]]:
    """Yield the output for each window. `ahead`: read and prepare the next window before this one is searched."""

    def write(found: Any, number: int) -> list[bytes]:
        return list(stages.write(found, number))

    def prepare() -> tuple[int, Any]:
        texts = next(windows, [])
        return len(texts), stages.prepare(texts) if texts else None

    with ThreadPoolExecutor(1) as before, ThreadPoolExecutor(1) as after:
        written: Future[list[bytes]] | None = None
        count, prepared = prepare()
        while count:
            coming = before.submit(prepare) if ahead else None
            found = stages.search(prepared)
            if written is not None:
                yield written.result()
            written = after.submit(write, found, first)
            if coming is None or coming.exception() is not None:
                yield written.result()
                written = None
            first += count
            count, prepared = coming.result() if coming is not None else prepare()
        if written is not None:
            yield written.result()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt with the signal's number on SIGTERM and SIGINT, even if the parent ignores them."""

    def interrupt(number: int, _: Any) -> None:
        raise KeyboardInterrupt(number)

    before = {which: signal.signal(which, interrupt) for which in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


def _texts(paths: Sequence[Path] | None, skip: int) -> Iterator[str | None]:
    """Yield the lines of files as texts, without the first `skip`, which must exist; and None if the next line is not
    available yet."""

    bad = 0
    for where in [None] if paths is None else paths:
        number = 0
        for raw in _from_standard_input() if where is None else _from_file(where):
            if raw is None:
                yield None
                continue
            number += 1
            if skip:
                skip -= 1
                continue
            text = decode(raw, first=number == 1)
            if "\ufffd" in text and "\ufffd".encode() not in raw:
                bad += 1
                if bad <= 3:
                    place = f"{where or 'standard input'}:{number}"
                    typer.echo(f"{place}: invalid UTF-8 is read as \ufffd.", err=True)
            yield text
    if bad > 3:
        typer.echo(f"{bad:,} lines had invalid UTF-8.", err=True)
    if skip:
        message = f"`out` has {skip:,} more lines than the text. Resume with the text that it was started with."
        raise InputError(message, option="out", value=skip)


def decode(line: bytes, *, first: bool = False) -> str:
    """Decode a line; remove the byte order mark from the first of a file."""
    line = line.removeprefix(codecs.BOM_UTF8) if first else line
    return line.removesuffix(b"\r").decode("utf-8", "replace")


def _windows(texts: Iterable[str | None]) -> Iterator[list[str]]:
    """Group texts into windows that take some seconds; end a window early before a pause (None)."""
    size = FIRST
    window: list[str] = []
    for text in chain(texts, [None]):
        if text is not None:
            window.append(text)
        if window and (text is None or len(window) >= size):
            began = time.monotonic()
            yield window
            took, window = time.monotonic() - began, []
            if took < 2:
                size = min(LAST, size * (2 if took > 0.5 else 8))
            elif took > 8:
                size = max(FIRST, size // 2)


def _from_file(path: Path) -> Iterator[bytes]:
    from sightline.data.corpus import raw_lines

    return (line.removesuffix(b"\n") for line in raw_lines(path))


def _from_standard_input() -> Iterator[bytes | None]:
    """Yield lines as they arrive, and None if the next is not available yet."""
    if sys.stdin is None:  # closed
        return
    source, rest = sys.stdin.fileno(), b""
    while some := _read(source):
        *lines, rest = (rest + some).split(b"\n")
        yield from lines
        if not _waiting(source):
            yield None
    if rest:
        yield rest


def _read(source: int) -> bytes:

    try:
        return os.read(source, 1 << 16)
    except OSError as error:
        raise InputError(f"standard input: cannot be read: {error.strerror}.", value=error.strerror) from None


def _waiting(source: int) -> bool:
    """Whether a file can be read without blocking."""
    try:
        return bool(select.select([source], [], [], 0.02)[0])
    except OSError:  # Windows can wait only for sockets
        return False


@contextlib.contextmanager
def _progress(paths: Sequence[Path] | None, done: int, show: Show) -> Iterator[Callable[[int], None]]:
    """Yield a function that reports finished lines on standard error: by a bar in a terminal, or by lines."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from sightline.data.corpus import raw_lines

    console = Console(stderr=True)
    if paths is None or show == "nothing" or (show == "bar" and not console.is_terminal):
        yield lambda _: None
        return
    total = sum(1 for path in paths for _ in raw_lines(path))
    started, count, reported = time.monotonic(), 0, time.monotonic()

    def speed() -> str:
        found = count / max(time.monotonic() - started, 1e-9)
        return f"{found:,.0f} lines/s" if found >= 10 else f"{found:.1f} lines/s"

    def report_in_lines(lines: int) -> None:
        nonlocal count, reported
        count += lines
        if time.monotonic() - reported >= EVERY:
            reported = time.monotonic()
            typer.echo(f"line {done + count:,}/{total:,}  {speed()}", err=True)

    if show == "lines":
        yield report_in_lines
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=total, completed=done, speed="")

        def report(lines: int) -> None:
            nonlocal count
            count += lines
            bar.update(task, advance=lines, speed=speed())

        yield report
