"""What training reads, from files: pairs of sentences (parallel text, TSV, JSONL), documents (plain text) and
conversations (JSONL); plain or compressed (gz, xz, bz2, zst).

Read as a stream, so a corpus may be larger than memory. What is wrong with a file is told with its name and line.
"""

import bz2
import gzip
import io
import itertools
import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import zstandard

from sightline.errors import InputError

__all__ = [
    "LONGEST_DOCUMENT",
    "LONGEST_LINE",
    "Corpus",
    "Dialogue",
    "Parallel",
    "Table",
    "Text",
    "lines",
    "raw_lines",
    "read_dialogues",
    "read_documents",
    "read_pairs",
]

LONGEST_LINE = 100_000
"""Characters. A longer line is no sentence; most likely the file is not what it was taken for."""
LONGEST_DOCUMENT = 1_000_000
"""Characters. A longer document is given in parts, cut between lines: a file without a blank line is one document, and
may not fit into memory."""


class Parallel(NamedTuple):
    """Two files: line i of the one translates line i of the other."""

    source: Path
    target: Path


class Table(NamedTuple):
    """One file with both sides: TSV (source, tab, target) or JSONL ({"source": ..., "target": ...})."""

    path: Path


Corpus = Parallel | Table
"""What pairs are read from."""


class Text(NamedTuple):
    """One file of plain text, one document after another. A blank line ends a document."""

    path: Path


class Dialogue(NamedTuple):
    """One file of conversations, JSONL: {"turns": ["...", "..."]} or the bare list. The first turn is the user's, the
    second its reply, and so on in turn."""

    path: Path


def read_pairs(corpus: Corpus) -> Iterator[tuple[str, str]]:
    """The pairs of a corpus, in order, as raw text."""
    if isinstance(corpus, Parallel):
        yield from _parallel(corpus)
        return
    kind = next((s for s in reversed(corpus.path.suffixes) if s not in OPENERS), "")
    readers: dict[str, Callable[[str, str], tuple[str, str]]] = {".tsv": _tsv, ".jsonl": _jsonl}
    if kind not in readers:
        raise InputError(f"{corpus.path}: pairs are read from .tsv or .jsonl files (or such files compressed).")
    for number, line in enumerate(lines(corpus.path), start=1):
        yield readers[kind](line, f"{corpus.path}:{number}")


def read_documents(corpus: Text) -> Iterator[str]:
    """The documents of a text, in order, with the line breaks that are in them."""
    found = False
    document: list[str] = []
    size = 0
    for line in itertools.chain(lines(corpus.path), [""]):
        blank = not line.strip()
        if document and (blank or size + len(line) > LONGEST_DOCUMENT):
            yield "\n".join(document)
            found, document, size = True, [], 0
        if not blank:
            document.append(line)
            size += len(line) + 1
    if not found:
        raise InputError(f"{corpus.path}: the file has nothing but blank lines.")


def read_dialogues(corpus: Dialogue) -> Iterator[list[str]]:
    """The conversations of a file, in order, each as its turns."""
    for number, line in enumerate(lines(corpus.path), start=1):
        yield _turns(line, f"{corpus.path}:{number}")


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file in UTF-8, without their ends."""
    number = 0
    for number, raw in enumerate(raw_lines(path), start=1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}:{number}: byte {error.start + 1} is not valid UTF-8.") from None
        if len(line) > LONGEST_LINE:
            raise InputError(f"{path}:{number}: the line has {len(line):,} characters; {LONGEST_LINE:,} is the limit.")
        yield line
    if number == 0:
        raise InputError(f"{path}: the file is empty.")


def raw_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file as they are, plain or compressed."""
    number = 0
    try:
        with _open(path) as file:
            for raw in file:
                number += 1
                yield raw
    except (OSError, EOFError, lzma.LZMAError, zstandard.ZstdError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "the file is cut short"
        where = f"{path}:{number + 1}" if number else str(path)
        raise InputError(f"{where}: cannot be read: {reason}.") from None


def _open_zst(path: Path) -> IO[bytes]:
    return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(path.open("rb"), closefd=True))


OPENERS: dict[str, Callable[[Path], IO[bytes]]] = {
    ".gz": gzip.open,  # type: ignore[dict-item]
    ".xz": lzma.open,
    ".bz2": bz2.open,
    ".zst": _open_zst,
}


def _open(path: Path) -> IO[bytes]:
    opener = OPENERS.get(path.suffix)
    return opener(path) if opener else path.open("rb")


def _parallel(corpus: Parallel) -> Iterator[tuple[str, str]]:
    source, target = corpus
    if source.resolve() == target.resolve():
        raise InputError(f"{source}: the same file is given as source and as target.")
    pairs = itertools.zip_longest(lines(source), lines(target))
    for number, (one, other) in enumerate(pairs):
        if one is None or other is None:
            rest = number + 1 + sum(1 for _ in pairs)
            counts = (number, rest) if one is None else (rest, number)
            raise InputError(
                f"{source} has {counts[0]:,} lines and {target} has {counts[1]:,}; they must have as many."
            )
        yield one, other


def _tsv(line: str, where: str) -> tuple[str, str]:
    columns = line.split("\t")
    if len(columns) < 2:
        raise InputError(f"{where}: the line has no tab between source and target.")
    return columns[0], columns[1]


def _jsonl(line: str, where: str) -> tuple[str, str]:
    try:
        record = json.loads(line)
        source, target = record["source"], record["target"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f'{where}: the line is not a JSON object with "source" and "target".') from None
    if not isinstance(source, str) or not isinstance(target, str):
        raise InputError(f'{where}: "source" and "target" must be texts.')
    return _whole(source, where), _whole(target, where)


def _whole(text: str, where: str) -> str:
    """A text in which no half of a character stands by itself; JSON can write such a thing, and nobody can read it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where}: half a character (a lone surrogate) is no text.") from None
    return text


def _turns(line: str, where: str) -> list[str]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    turns = record.get("turns") if isinstance(record, dict) else record
    if not isinstance(turns, list):
        raise InputError(f'{where}: the line is neither a JSON list of turns nor a JSON object with "turns".')
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, str):
            raise InputError(f"{where}: turn {number} is {json.dumps(turn)[:40]}; a turn must be a text.")
    if len(turns) < 2:
        raise InputError(
            f"{where}: the conversation has only {len(turns)} of the two turns it needs: something said, and a reply."
        )
    return [_whole(turn, where) for turn in turns]
