"""Text of any length, a line for a line: read a window at a time, answered, written whole, gone on with later.

What every command has in common that translates files.
"""

import codecs
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal

import typer

FIRST, LAST = 32, 4096
"""Lines that are translated together: few at first, so that one sees soon how it goes, then as many as take some
seconds."""
EVERY = 30
"""Seconds between two lines that tell how it goes."""

Answer = Callable[[list[str], int], Iterable[bytes]]
"""From some texts, and the number of the first of them, to what is written for each."""
Show = Literal["nothing", "bar", "lines"]


def check_new(out: Path, resume: bool) -> None:
    """Nothing is written over."""
    from sightline.errors import InputError

    if out.is_dir():
        raise InputError(f"{out}: this is a folder; name a file by --out.")
    if out.exists() and not resume:
        raise InputError(f"{out}: there is such a file already; add --resume to go on, or choose another --out.")


def check_files(paths: Iterable[Path]) -> None:
    """What is to be read is there."""
    from sightline.errors import InputError

    for path in paths:
        if not path.is_file():
            raise InputError(f"{path}: there is no such file.")


@contextlib.contextmanager
def only_writer(out: Path | None) -> Iterator[None]:
    """Inside the block the file is there, and nobody else goes on with it."""
    from sightline.errors import InputError
    from sightline.files import lock

    if out is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(out.open("ab"))
        except OSError as error:
            raise InputError(f"{out}: cannot be written: {error.strerror}.") from None
        if not lock(file, wait=False):
            raise InputError(f"{out}: another process is writing it; wait for its end, or choose another --out.")
        yield


def count_done(out: Path, several: bool = False) -> int:
    """How many lines of the input are answered in a file; what was begun after them is cut off. `several`: each may
    have several answers, with its number in front of them."""
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


def answer_lines(paths: Sequence[Path] | None, out: Path | None, done: int, answer: Answer, show: Show) -> None:
    """Answer the lines of files (None: of standard input) but for those that are done, into a file (None: to standard
    output). Whoever stops it is told how to go on."""
    from sightline.errors import InputError

    written = done
    with _interruptible():
        try:
            with contextlib.ExitStack() as stack:
                into: IO[bytes] = sys.stdout.buffer if out is None else stack.enter_context(out.open("ab"))
                tell = stack.enter_context(_progress(paths, done, show))
                for texts in _windows(_texts(paths, skip=done)):
                    for row in answer(texts, written + 1):
                        into.write(row)
                    into.flush()
                    written += len(texts)
                    tell(len(texts))
        except BrokenPipeError:  # whoever reads has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except KeyboardInterrupt as stopped:
            if out is not None:
                typer.echo(f"\nStopped after {written:,} lines; the same command with --resume goes on.", err=True)
            sys.exit(128 + (stopped.args[0] if stopped.args else signal.SIGINT))
        except OSError as error:
            where = out if out is not None else "standard output"
            raise InputError(f"{where}: cannot be written: {error.strerror}.") from None


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Inside the block, SIGTERM is taken as Ctrl-C is, which is heard even if whoever started us does not listen. The
    exception has the number of the signal."""

    def interrupt(number: int, _: Any) -> None:
        raise KeyboardInterrupt(number)

    before = {which: signal.signal(which, interrupt) for which in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


def _texts(paths: Sequence[Path] | None, skip: int) -> Iterator[str | None]:
    """The lines of files as texts, without the first few, which must be there; None where one would have to wait for
    the next."""
    from sightline.errors import InputError

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
                    typer.echo(f"{place}: bytes that are not UTF-8 are read as \ufffd.", err=True)
            yield text
    if bad > 3:
        typer.echo(f"{bad:,} lines had bytes that are not UTF-8.", err=True)
    if skip:
        raise InputError(f"--out has {skip:,} lines more than the text; is this the text it was begun with?")


def decode(line: bytes, *, first: bool = False) -> str:
    """A line as text; the first of a file without a byte order mark."""
    line = line.removeprefix(codecs.BOM_UTF8) if first else line
    return line.removesuffix(b"\r").decode("utf-8", "replace")


def _windows(texts: Iterable[str | None]) -> Iterator[list[str]]:
    """Lines that are translated together: as many as take some seconds, or all there are before a pause (None)."""
    size = FIRST
    window: list[str] = []
    for text in chain(texts, [None]):
        if text is not None:
            window.append(text)
        if window and (text is None or len(window) >= size):
            began = time.monotonic()
            yield window
            took, window = time.monotonic() - began, []
            size = min(LAST, 2 * size) if took < 2 else max(FIRST, size // 2) if took > 8 else size


def _from_file(path: Path) -> Iterator[bytes]:
    from sightline.data.corpus import raw_lines

    return (line.removesuffix(b"\n") for line in raw_lines(path))


def _from_standard_input() -> Iterator[bytes | None]:
    """Lines as they come, and None where one would have to wait for the next."""
    if sys.stdin is None:  # somebody closed it
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
    from sightline.errors import InputError

    try:
        return os.read(source, 1 << 16)
    except OSError as error:
        raise InputError(f"standard input: cannot be read: {error.strerror}.") from None


def _waiting(source: int) -> bool:
    """Whether there is more to read just now."""
    try:
        return bool(select.select([source], [], [], 0.02)[0])
    except OSError:  # Windows can only wait for sockets
        return False


@contextlib.contextmanager
def _progress(paths: Sequence[Path] | None, done: int, show: Show) -> Iterator[Callable[[int], None]]:
    """What tells on standard error how far it is: a bar with the time that is left, where somebody looks, or lines."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from sightline.data.corpus import raw_lines

    console = Console(stderr=True)
    if paths is None or show == "nothing" or (show == "bar" and not console.is_terminal):
        yield lambda _: None
        return
    total = sum(1 for path in paths for _ in raw_lines(path))
    began, count, told = time.monotonic(), 0, time.monotonic()

    def speed() -> str:
        found = count / max(time.monotonic() - began, 1e-9)
        return f"{found:,.0f} lines/s" if found >= 10 else f"{found:.1f} lines/s"

    def tell_in_lines(lines: int) -> None:
        nonlocal count, told
        count += lines
        if time.monotonic() - told >= EVERY:
            told = time.monotonic()
            typer.echo(f"line {done + count:,}/{total:,}  {speed()}", err=True)

    if show == "lines":
        yield tell_in_lines
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=total, completed=done, speed="")

        def tell(lines: int) -> None:
            nonlocal count
            count += lines
            bar.update(task, advance=lines, speed=speed())

        yield tell
