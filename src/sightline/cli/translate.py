"""`sightline translate`: raw text in, raw text out, a line for a line, however many there are."""

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, cast

import typer

if TYPE_CHECKING:
    from sightline.engine import Translation

FIRST, LAST = 32, 4096
"""Lines that are translated together: few at first, so that one sees soon how it goes, then as many as take some
seconds."""


def translate(
    model: Annotated[str, typer.Argument(help="The folder of a trained model.")],
    file: Annotated[str, typer.Argument(help="Text to translate, plain or compressed; - is standard input.")] = "-",
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of standard output.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where --out ends.")] = False,
    beam: Annotated[int, typer.Option(help="Hypotheses that grow side by side; 1 is greedy search.")] = 4,
    nbest: Annotated[int, typer.Option(help="Answers to each line, as NUMBER ||| TEXT ||| SCORE.")] = 1,
    length_penalty: Annotated[float, typer.Option(help="0 likes short answers, 1 is the mean over tokens.")] = 1.0,
    sample: Annotated[bool, typer.Option("--sample", help="Draw tokens by their probability.")] = False,
    temperature: Annotated[float, typer.Option(help="Of samples: below 1 they dare less, above 1 more.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw among so many of the likeliest tokens; 0: among all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw among the likeliest with this probability together.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of samples.")] = 1,
    mbr: Annotated[
        bool, typer.Option("--mbr", help="Draw samples, as many as --beam, and give the one most like the others.")
    ] = False,
    prefix: Annotated[str, typer.Option(help="How every answer must begin.")] = "",
    without: Annotated[list[str] | None, typer.Option(help="A word that no answer may have; may be repeated.")] = None,
    within: Annotated[list[str] | None, typer.Option(help="A word that every answer has; may be repeated.")] = None,
    set: Annotated[list[str] | None, typer.Option(help="Any other option of the search, as option=value.")] = None,
    vote: Annotated[
        list[str] | None, typer.Option("--with", help="Another model, which votes; may be repeated.")
    ] = None,
    align: Annotated[
        bool, typer.Option("--align", help="Which word comes from which, as TEXT ||| 0-0 1-2: source-target, from 0.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line: text, score, tokens, ...")] = False,
    engine: Annotated[str, typer.Option(help="auto, torch or ctranslate2: what searches.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="auto, float32, or, faster and rounded, int8 (on a CPU) or bfloat16 (on a GPU).")
    ] = "auto",
    shortlist: Annotated[
        bool, typer.Option("--shortlist", help="Choose among fewer words, by what sightline shortlist wrote.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps; auto takes the best there is.")] = "auto",
) -> None:
    """Translate text, line by line. Standard input is answered as it comes."""
    from sightline.config import load_search
    from sightline.engine import load
    from sightline.errors import InputError

    given = {"nbest": nbest, "length_penalty": length_penalty, "sample": sample or mbr, "temperature": temperature}
    given |= {"top_k": top_k, "top_p": top_p, "seed": seed}
    risk = "chrf" if mbr else "none"
    options = load_search(set or [], beams=max(beam, nbest) if nbest > 1 else beam, risk=risk, **given)
    if resume and out is None:
        raise InputError("--resume goes on with a file; name it by --out.")
    if out is not None and out.exists() and not resume:
        raise InputError(f"{out}: there is such a file already; add --resume to go on, or choose another --out.")
    path = None if file == "-" else Path(file)
    if path is not None and not path.is_file():
        raise InputError(f"{path}: there is no such file.")
    chosen = {"engine": cast("Any", engine), "precision": cast("Any", precision), "shortlist": shortlist}
    translator = load([model, *(vote or [])], device=device, **chosen)
    more: dict[str, Any] = {"prefix": prefix, "without": without or [], "within": within or []}
    more |= {"details": as_json, "align": align}
    several = options.nbest > 1 and not as_json
    done = _done(out, several) if resume and out is not None else 0
    written = done

    def answer(texts: list[str]) -> list["Translation"]:
        return translator.search(texts, options, **more)

    for which in (signal.SIGTERM, signal.SIGINT):  # also where whoever started us does not listen
        signal.signal(which, _interrupt)
    with contextlib.ExitStack() as stack:
        into: IO[bytes] = sys.stdout.buffer if out is None else stack.enter_context(out.open("ab"))
        progress = stack.enter_context(_progress(path, done, quiet=out is None and sys.stdout.isatty()))
        try:
            for texts in _translatable(path, skip=done):
                for number, found in enumerate(answer(texts), written + 1):
                    into.write(_written(found, number, several, as_json))
                into.flush()
                written += len(texts)
                progress(len(texts))
        except BrokenPipeError:  # whoever reads has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except KeyboardInterrupt:
            if out is None:
                sys.exit(130)
            typer.echo(f"\nStopped after {written:,} lines; the same command with --resume goes on.", err=True)
            sys.exit(130)
        except OSError as error:
            where = out if out is not None else "standard output"
            raise InputError(f"{where}: cannot be written: {error.strerror}.") from None


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _written(found: "Translation", number: int, several: bool, as_json: bool) -> bytes:
    """What stands in the output for one line of the input. No answer has a line break in it."""
    every = (found, *found.alternatives)
    if as_json:
        values, *others = [one._asdict() for one in every]
        for one in (values, *others):
            del one["alternatives"]
            if found.alignment is None:
                del one["alignment"]
        values["alternatives"] = others
        return (json.dumps(values, ensure_ascii=False) + "\n").encode()
    rows = [
        [str(number), _line(one.text), f"{one.score:.4f}"] if several else [_line(one.text)]
        for one in (every if several else every[:1])
    ]
    if found.alignment is not None:
        from sightline.search.align import write_pharaoh

        rows = [[*row, write_pharaoh(one.alignment or [])] for row, one in zip(rows, every, strict=False)]
    return "".join(" ||| ".join(row) + "\n" for row in rows).encode()


def _line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")


def _done(out: Path, several: bool) -> int:
    """How many lines of the input are answered in a file; what was begun after them is cut off."""
    if not out.exists():
        return 0
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


def _translatable(path: Path | None, skip: int) -> Iterator[list[str]]:
    """The lines of the input as texts, in windows; without the first few."""
    bad, number = 0, 0
    for window in _windows(_from_file(path) if path is not None else _from_standard_input(), skip):
        texts = []
        for raw in window:
            number += 1
            text = raw.removesuffix(b"\r").decode("utf-8-sig" if number + skip == 1 else "utf-8", "replace")
            if "\ufffd" in text and "\ufffd".encode() not in raw:
                bad += 1
                if bad <= 3:
                    where = path or "standard input"
                    typer.echo(f"{where}:{number + skip}: bytes that are not UTF-8 are read as \ufffd.", err=True)
            texts.append(text)
        yield texts
    if bad > 3:
        typer.echo(f"{bad:,} lines had bytes that are not UTF-8.", err=True)


def _windows(lines: Iterator[bytes | None], skip: int) -> Iterator[list[bytes]]:
    """Lines that are translated together: as many as take some seconds, or all there are before a pause (None)."""
    size = FIRST
    window: list[bytes] = []
    for line in chain(lines, [None]):
        if line is not None and skip:
            skip -= 1
            continue
        if line is not None:
            window.append(line)
        if window and (line is None or len(window) >= size):
            began = time.monotonic()
            yield window
            took, window = time.monotonic() - began, []
            size = min(LAST, 2 * size) if took < 2 else max(FIRST, size // 2) if took > 8 else size


def _from_file(path: Path) -> Iterator[bytes]:
    from sightline.data.corpus import raw_lines

    return (line.removesuffix(b"\n") for line in raw_lines(path))


def _from_standard_input() -> Iterator[bytes | None]:
    """Lines as they come, and None where one would have to wait for the next."""
    source, rest = sys.stdin.fileno(), b""
    while some := os.read(source, 1 << 16):
        *lines, rest = (rest + some).split(b"\n")
        yield from lines
        if not _waiting(source):
            yield None
    if rest:
        yield rest


def _waiting(source: int) -> bool:
    """Whether there is more to read just now."""
    try:
        return bool(select.select([source], [], [], 0.02)[0])
    except OSError:  # Windows can only wait for sockets
        return False


@contextlib.contextmanager
def _progress(path: Path | None, done: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar on standard error while a file is translated, with the time that is left; nothing where nobody looks."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from sightline.data.corpus import raw_lines

    console = Console(stderr=True)
    if path is None or quiet or not console.is_terminal:
        yield lambda _: None
        return
    total = sum(1 for _ in raw_lines(path))
    speed = TextColumn("{task.fields[speed]}")
    with Progress(BarColumn(), MofNCompleteColumn(), speed, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("", total=total, completed=done, speed="")
        began, count = time.monotonic(), 0

        def tell(lines: int) -> None:
            nonlocal count
            count += lines
            speed = count / max(time.monotonic() - began, 1e-9)
            bar.update(task, advance=lines, speed=f"{speed:,.0f} lines/s" if speed >= 10 else f"{speed:.1f} lines/s")

        yield tell
