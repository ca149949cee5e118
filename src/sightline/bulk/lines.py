"""Answer the lines of files of any length, window by window, and continue after an interruption."""

import codecs
import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

from sightline.data.corpus import raw_lines
from sightline.engine import Engine, Plan
from sightline.errors import InputError
from sightline.files import lock

R = TypeVar("R")
FIRST, LAST = 32, 16384
"""Lines per window: few at first, so that results appear soon; later as many as take some seconds."""


class Report(NamedTuple):
    """What a job reports to its caller."""

    progress: Callable[[int, int], None]
    """Takes the number of finished lines and the number of all lines (0: unknown), first at the start, then after each
    window, in another thread."""
    log: Callable[[str], None]


def check_files(paths: Iterable[Path], out: Path | None, *, resume: bool) -> None:
    """Check that the input files exist and that the output file may be written, before a model is loaded."""
    if out is None and resume:
        raise InputError.of("resume", resume, "continues a file. Name the file with `out`.")
    if out is not None and out.is_dir():
        raise InputError.of("out", out, f"is a folder: {out}. Name a file.")
    if out is not None and out.exists() and not resume:
        raise InputError.of("out", out, f"already exists: {out}. Add `resume` to continue it, or choose another file.")
    for path in paths:
        if not path.is_file():
            raise InputError(f"{path}: file not found.", value=path)


@contextlib.contextmanager
def only_writer(out: Path) -> Iterator[IO[bytes]]:
    """Open a file to append to it, and lock it, so that no other process writes it during the block."""
    try:
        file = out.open("ab")
    except OSError as error:
        raise InputError.of("out", out, f"cannot be written: {out}: {error.strerror}.") from None
    with file:
        if not lock(file, wait=False):
            raise InputError.of(
                "out", out, f"is being written by another process: {out}. Wait for it, or choose another file."
            )
        yield file


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


def answer_lines(
    engine: Engine,
    plan: Callable[[list[str]], Plan[R]],
    write: Callable[[list[str], R, int], list[bytes]],
    paths: Sequence[Path] | None,
    into: IO[bytes],
    *,
    done: int,
    report: Report,
) -> None:
    """Write the answers to the lines of files (None: of standard input), except for the first `done` lines.

    `write` takes the texts of a window, their results and the number of the first text; it returns the output for each
    text. While a window is searched, the next one is read and planned, and the one before is written.
    """
    total = sum(1 for path in paths or () for _ in raw_lines(path))
    windows = _windows(read_texts(paths, report.log, skip=done))
    report.progress(done, total)

    def prepare() -> tuple[list[str], Plan[R] | None]:
        texts = next(windows, [])
        return texts, plan(texts) if texts else None

    def finish(texts: list[str], results: Callable[[], R]) -> None:
        nonlocal done
        rows = write(texts, results(), done + 1)
        try:
            into.writelines(rows)
            into.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            where = "standard output" if into is sys.stdout.buffer else into.name
            raise InputError(f"{where}: cannot be written: {error.strerror}.", value=into.name) from None
        done += len(rows)
        report.progress(done, total)

    # When the block ends, also by an error, the window that was searched last is written.
    with ThreadPoolExecutor(1) as before, ThreadPoolExecutor(1) as after:
        written = after.submit(lambda: None)
        texts, planned = prepare()
        while planned is not None:
            coming = None if paths is None else before.submit(prepare)
            answers = engine.search(planned.requests, planned.options, log_probs=planned.log_probs)
            written.result()
            written = after.submit(finish, texts, partial(planned.assemble, answers))
            texts, planned = prepare() if coming is None else coming.result()
        written.result()


def read_texts(paths: Sequence[Path] | None, log: Callable[[str], None], *, skip: int = 0) -> Iterator[str | None]:
    """Yield the lines of files (None: of standard input) as texts, without the first `skip`, which must exist; and None
    if the next line is not available yet."""
    bad = 0
    for where in [None] if paths is None else paths:
        number = 0
        for raw in _from_standard_input() if where is None else raw_lines(where):
            if raw is None:
                yield None
                continue
            number += 1
            if skip:
                skip -= 1
                continue
            line = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
            text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "replace")
            if "\ufffd" in text and "\ufffd".encode() not in raw:
                bad += 1
                if bad <= 3:
                    log(f"{where or 'standard input'}:{number}: invalid UTF-8 is read as \ufffd.")
            yield text
    if bad > 3:
        log(f"{bad:,} lines had invalid UTF-8.")
    if skip:
        raise InputError.of(
            "out", skip, f"has {skip:,} more lines than the text. Resume with the text that it was started with."
        )


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


def _from_standard_input() -> Iterator[bytes | None]:
    """Yield lines as they arrive, and None if the next is not available yet."""
    if sys.stdin is None:  # closed
        return
    source, rest = sys.stdin.fileno(), b""
    try:
        while some := os.read(source, 1 << 16):
            *lines, rest = (rest + some).split(b"\n")
            yield from lines
            if not _can_be_read(source):
                yield None
    except OSError as error:
        raise InputError(f"standard input: cannot be read: {error.strerror}.", value=error.strerror) from None
    if rest:
        yield rest


def _can_be_read(source: int) -> bool:
    """Whether a file can be read without blocking."""
    try:
        return bool(select.select([source], [], [], 0.02)[0])
    except OSError:  # Windows can wait only for sockets
        return False
