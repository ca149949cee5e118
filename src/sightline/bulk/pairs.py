"""Pairs of a text and its translation: read in windows, learn a shortlist, write files to train on.

A written file has a row for every line of the text, so that its length shows where to resume. If a line is left out,
both columns are empty; training skips such a row, as it skips every empty pair.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sightline.backends.ctranslate2_format import save_shortlist
from sightline.bulk.lines import Report, answer_lines, count_done, only_writer, read_texts
from sightline.config import SearchConfig
from sightline.data.corpus import LONGEST_LINE, Corpus, read_pairs
from sightline.engine import Plan, Translation, Translator
from sightline.errors import InputError
from sightline.model_folder import SHORTLIST, ModelFolder
from sightline.text.shortlist import Shortlist, learn

WINDOW = 2048
LEFT_OUT = b"\t\n"
BROKEN = re.compile("[\t\r\n\ufffd]")
"""Characters that would break a row, and the replacement character of invalid bytes."""


def read_windows(corpora: Iterable[Corpus]) -> Iterator[tuple[int, tuple[str, ...], tuple[str, ...]]]:
    """Yield the pairs of corpora in windows: the number of the first pair, the sources, the targets."""
    pairs = itertools.chain.from_iterable(map(read_pairs, corpora))
    for first in itertools.count(1, WINDOW):
        if not (window := list(itertools.islice(pairs, WINDOW))):
            return
        sources, targets = zip(*window, strict=True)
        yield first, sources, targets


def learn_shortlist(model: str | Path, corpora: Iterable[Corpus], **options: Any) -> tuple[Path, Shortlist]:
    """Learn a shortlist from pairs and store it with the model; return its file and the shortlist. `options`: those of
    `ShortlistOptions`."""
    folder = ModelFolder(model)
    tokenizer = folder.load_tokenizer()

    def tokenised() -> Iterator[tuple[list[int], list[int]]]:
        for _, sources, targets in read_windows(corpora):
            yield from zip(tokenizer.source.encode(sources), tokenizer.encode(targets), strict=True)

    found = learn(tokenised(), tokenizer, **options)
    save_shortlist(found, tokenizer, folder.cache)
    return folder.cache / SHORTLIST, found


def write_pairs(
    translator: Translator, options: SearchConfig, texts: Sequence[Path], out: Path, *, reverse: bool, report: Report
) -> None:
    """Write text, tab, translation for every line that the file does not have yet; then log the number of pairs and of
    lines that were left out. `reverse`: the translation comes first."""

    def plan(lines: list[str]) -> Plan[list[Translation]]:
        return translator.plan(list(filter(None, map(_readable, lines))), options, log_probs=False)

    def write(lines: list[str], results: list[Translation], _: int) -> list[bytes]:
        found = iter(results)
        return [_row(text, next(found).text, reverse) if (text := _readable(line)) else LEFT_OUT for line in lines]

    with only_writer(out) as into:
        _check_rows(out, texts, reverse)
        answer_lines(translator, plan, write, texts, into, done=count_done(out), report=report)
    with out.open("rb") as file:
        rows = Counter(row == LEFT_OUT for row in file)
    if not rows[False]:
        out.unlink()  # it has no pair
        raise InputError(
            f"None of {rows.total():,} lines gave a pair. Check the text and the model.", value=rows.total()
        )
    left_out = f"; {rows[True]:,} of {rows.total():,} lines left out: text or translation is empty or broken"
    report.log(f"{out}: {rows[False]:,} pairs{left_out if rows[True] else ''}")


def _check_rows(out: Path, texts: Sequence[Path], reverse: bool) -> None:
    """Check that the rows of a file are pairs of this text, so that a file never has pairs of two texts."""
    lines = read_texts(texts, log=lambda _: None)
    with out.open("rb") as rows:
        for number, row in enumerate(rows, 1):
            line = next(lines, None)
            if row == LEFT_OUT or not row.endswith(b"\n"):
                continue
            text = row.removesuffix(b"\n").split(b"\t")[-1 if reverse else 0].decode("utf-8", "replace")
            if text != _readable(line or ""):
                problem = f"has a row of another text: {out}:{number}. Resume with the text that it was started with."
                raise InputError.of("out", number, problem)


def _readable(text: str) -> str:
    """Return a line as a column of a row; empty if it is useless for training."""
    text = text.replace("\t", " ").replace("\r", " ")
    return "" if BROKEN.search(text) or not text.strip() or len(text) > LONGEST_LINE else text


def _row(text: str, answer: str, reverse: bool) -> bytes:
    row = f"{answer}\t{text}" if reverse else f"{text}\t{answer}"
    lines = len(answer.splitlines()) == len(text.splitlines())
    fits = lines and answer.strip() and not BROKEN.search(answer) and len(row) <= LONGEST_LINE
    return f"{row}\n".encode() if fits else LEFT_OUT
