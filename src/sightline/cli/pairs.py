"""Write text and its translations as pairs to train on.

The file has a row for every line of the text, so that its length shows where to resume. If a line is left out, both
columns are empty; `train` skips such a row, as it skips every empty pair.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sightline.cli.lines import Show, Stages, answer_lines, count_done, decode, only_writer
from sightline.errors import InputError

if TYPE_CHECKING:
    from sightline.config import SearchConfig
    from sightline.engine import Plan, Translation, Translator

LEFT_OUT = b"\t\n"
BROKEN = re.compile("[\t\r\n\ufffd]")
"""Characters that would break a row, and the replacement character of invalid bytes."""


def write_pairs(
    translator: "Translator", options: "SearchConfig", texts: Sequence[Path], out: Path, *, reverse: bool, plain: bool
) -> None:
    """Write text, tab, translation for every line that the file does not have yet, and report the number of lines that
    were left out. `reverse`: the translation comes first."""
    from rich.console import Console

    def prepare(lines: list[str]) -> tuple[list[str], "Plan[list[Translation]]"]:
        some = [_readable(line) for line in lines]
        return some, translator.plan([text for text in some if text], options, log_probs=False)

    def search(prepared: tuple[list[str], "Plan[list[Translation]]"]) -> tuple[list[str], list["Translation"]]:
        some, plan = prepared
        return some, translator.run(plan)

    def write(results: tuple[list[str], list["Translation"]], _: int) -> Iterator[bytes]:
        some, found = results[0], iter(results[1])
        for text in some:
            yield _row(text, next(found).text if text else "", reverse)

    show: Show = "lines" if plain or not Console(stderr=True).is_terminal else "bar"
    with only_writer(out):
        _check_rows(out, texts, reverse)
        answer_lines(texts, out, count_done(out), Stages(prepare, search, write), show)
    with out.open("rb") as file:
        rows = Counter(row == LEFT_OUT for row in file)
    if not rows[False]:
        out.unlink()  # it has no pair
        message = f"None of {rows.total():,} lines gave a pair. Check the text and the model."
        raise InputError(message, value=rows.total())
    report = f"{out}: {rows[False]:,} pairs"
    if rows[True]:
        report += f"; {rows[True]:,} of {rows.total():,} lines left out: text or translation is empty or broken"
    typer.echo(report, err=True)


def _check_rows(out: Path, texts: Sequence[Path], reverse: bool) -> None:
    """Check that the rows of a file are pairs of this text, so that a file never has pairs of two texts."""
    from sightline.data.corpus import raw_lines

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
                message = (
                    f"`out` has a row of another text: {out}:{number}. Resume with the text that it was started with."
                )
                raise InputError(message, option="out", value=number)


def _readable(text: str) -> str:
    """Return a line as a column of a row; empty if it is useless for training."""
    from sightline.data.corpus import LONGEST_LINE

    text = text.replace("\t", " ").replace("\r", " ")
    return "" if BROKEN.search(text) or not text.strip() or len(text) > LONGEST_LINE else text


def _row(text: str, answer: str, reverse: bool) -> bytes:
    from sightline.data.corpus import LONGEST_LINE

    row = f"{answer}\t{text}" if reverse else f"{text}\t{answer}"
    lines = len(answer.splitlines()) == len(text.splitlines())
    fits = lines and answer.strip() and not BROKEN.search(answer) and len(row) <= LONGEST_LINE
    return f"{row}\n".encode() if fits else LEFT_OUT
