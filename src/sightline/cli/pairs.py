"""Text and what a model makes of it, as pairs to train on.

The file has a row for every line of the text, so that its length alone says where to go on. Where a line is left out,
both columns are empty: `train` passes over such a row, as over every empty pair.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sightline.cli.lines import Show, answer_lines, count_done, decode, only_writer

if TYPE_CHECKING:
    from sightline.config import SearchConfig
    from sightline.engine import Engine

LEFT_OUT = b"\t\n"
BROKEN = re.compile("[\t\r\n\ufffd]")
"""What would tear a row apart, and what is left of bytes that are no text."""


def write_pairs(
    translator: "Engine", options: "SearchConfig", texts: Sequence[Path], out: Path, *, reverse: bool, plain: bool
) -> None:
    """Write text, tab, translation for every line that is not yet there; with `reverse` the translation comes first.
    How many lines were left out is told."""
    from rich.console import Console

    from sightline.errors import InputError

    def answer(some: list[str], _: int) -> Iterator[bytes]:
        asked = [_readable(text) for text in some]
        found = iter(translator.search([text for text in asked if text], options, details=False))
        for text in asked:
            yield _row(text, next(found).text if text else "", reverse)

    show: Show = "lines" if plain or not Console(stderr=True).is_terminal else "bar"
    with only_writer(out):
        _check_begun(out, texts, reverse)
        answer_lines(texts, out, count_done(out), answer, show)
    with out.open("rb") as file:
        rows = Counter(row == LEFT_OUT for row in file)
    if not rows[False]:
        out.unlink()  # there is nothing in it
        raise InputError(
            f"{out}: not one of {rows.total():,} lines became a pair; is it the right text, and the right model?"
        )
    told = f"{out}: {rows[False]:,} pairs"
    if rows[True]:
        told += (
            f"; {rows[True]:,} of {rows.total():,} lines are left out: they, or their translations, are empty or broken"
        )
    typer.echo(told, err=True)


def _check_begun(out: Path, texts: Sequence[Path], reverse: bool) -> None:
    """The rows that are there are of these lines: no file has the pairs of two texts, and none that is something else
    is gone on with."""
    from sightline.data.corpus import raw_lines
    from sightline.errors import InputError

    lines = (
        decode(line.removesuffix(b"\n"), first=number == 0)
        for path in texts
        for number, line in enumerate(raw_lines(path))
    )
    with out.open("rb") as rows:
        for number, row in enumerate(rows, 1):
            if row == LEFT_OUT or not row.endswith(b"\n"):
                next(lines, None)
                continue
            text = row.removesuffix(b"\n").split(b"\t")[-1 if reverse else 0].decode("utf-8", "replace")
            if text != _readable(next(lines, "")):
                raise InputError(f"{out}:{number}: this row is not of the text; was it begun with another one?")


def _readable(text: str) -> str:
    """A line as a column can have it; nothing, where it cannot be learnt from."""
    from sightline.data.corpus import LONGEST_LINE

    text = text.replace("\t", " ").replace("\r", " ")
    return "" if BROKEN.search(text) or not text.strip() or len(text) > LONGEST_LINE else text


def _row(text: str, answer: str, reverse: bool) -> bytes:
    from sightline.data.corpus import LONGEST_LINE

    row = f"{answer}\t{text}" if reverse else f"{text}\t{answer}"
    lines = len(answer.splitlines()) == len(text.splitlines())
    fits = lines and answer.strip() and not BROKEN.search(answer) and len(row) <= LONGEST_LINE
    return f"{row}\n".encode() if fits else LEFT_OUT
