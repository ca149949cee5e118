"""Training text from files: sentence pairs (parallel text, TSV, JSONL), documents (plain text) and dialogues (JSONL),
plain or compressed (gz, xz, bz2, zst).

Files are streamed, so they may be larger than memory. Errors have the name and the line of the file.
"""

import bz2
import gzip
import hashlib
import io
import itertools
import json
import lzma
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import zstandard

from sightline.errors import InputError

LONGEST_LINE = 100_000
"""Maximum characters of a line. Longer lines are not sentences; the file probably has another format."""
LONGEST_DOCUMENT = 1_000_000
"""Maximum characters of a document. Longer ones are split between lines, because a file without blank lines may not fit
into memory."""
OPENERS: dict[str, Callable[..., IO[Any]]] = {
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".bz2": bz2.open,
    ".zst": lambda path, mode: io.BufferedReader(zstandard.open(path, mode)),
}
"""How to open compressed files."""


class Parallel(NamedTuple):
    """Two files; line i of one is the translation of line i of the other."""

    source: Path
    target: Path


class Table(NamedTuple):
    """One file with both sides: TSV (source, tab, target) or JSONL ({"source": ..., "target": ...})."""

    path: Path


Corpus = Parallel | Table
"""Files with sentence pairs."""


class Text(NamedTuple):
    """One file of plain text; blank lines separate documents."""

    path: Path


class Dialogue(NamedTuple):
    """One JSONL file of dialogues: {"turns": ["...", "..."]} or a list. Turns alternate; the user begins."""

    path: Path


ReadLines = Callable[[Path], Iterator[bytes]]
"""A function that yields the lines of a file: `raw_lines`, or a `HashedFiles`."""


def read_pairs(corpus: Corpus, read: ReadLines | None = None) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a corpus in order, as raw text."""
    if isinstance(corpus, Parallel):
        yield from _parallel(corpus, read)
        return
    readers: dict[str, Callable[[str, str], tuple[str, str]]] = {".tsv": _tsv, ".jsonl": _jsonl}
    kind = file_format(corpus.path)
    if kind not in readers:
        raise InputError(f"{corpus.path}: not a .tsv or .jsonl file, plain or compressed.", value=corpus.path)
    for number, line in enumerate(lines(corpus.path, read), start=1):
        yield readers[kind](line, f"{corpus.path}:{number}")


def file_format(path: Path) -> str:
    """Return the last suffix of a file's name that is not one of a compression."""
    return next((suffix for suffix in reversed(path.suffixes) if suffix not in OPENERS), "")


def read_documents(corpus: Text, read: ReadLines | None = None) -> Iterator[str]:
    """Yield the documents of a text in order, with their line breaks."""
    found = False
    document: list[str] = []
    size = 0
    for line in itertools.chain(lines(corpus.path, read), [""]):
        blank = not line.strip()
        if document and (blank or size + len(line) > LONGEST_DOCUMENT):
            yield "\n".join(document)
            found, document, size = True, [], 0
        if not blank:
            document.append(line)
            size += len(line) + 1
    if not found:
        raise InputError(f"{corpus.path}: the file has only blank lines.", value=corpus.path)


def read_dialogues(corpus: Dialogue, read: ReadLines | None = None) -> Iterator[list[str]]:
    """Yield the dialogues of a file in order, as lists of turns."""
    for number, line in enumerate(lines(corpus.path, read), start=1):
        yield _turns(line, f"{corpus.path}:{number}")


def lines(path: Path, read: ReadLines | None = None) -> Iterator[str]:
    """Yield the lines of a text file in UTF-8, without line ends."""
    number = 0
    for number, raw in enumerate((read or raw_lines)(path), start=1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}:{number}: byte {error.start + 1} is not valid UTF-8.", value=path) from None
        if len(line) > LONGEST_LINE:
            raise InputError(
                f"{path}:{number}: the line has {len(line):,} characters; the limit is {LONGEST_LINE:,}.", value=path
            )
        yield line
    if number == 0:
        raise InputError(f"{path}: the file is empty.", value=path)


def raw_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a plain or compressed file as bytes."""
    number = 0
    try:
        with OPENERS.get(path.suffix, open)(path, "rb") as file:
            for raw in file:
                number += 1
                yield raw
    except (OSError, EOFError, lzma.LZMAError, zstandard.ZstdError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "the file is incomplete"
        where = f"{path}:{number + 1}" if number else str(path)
        raise InputError(f"{where}: cannot be read: {reason}.", value=path) from None


class HashedFiles:
    """Reads the lines of files and hashes them on the way, so that identifying a text needs no reading of its own."""

    def __init__(self) -> None:
        self.digests: dict[Path, bytes] = {}
        """The hash of each file that was read to its end, without its compression."""

    def __call__(self, path: Path) -> Iterator[bytes]:
        digest = hashlib.blake2b(digest_size=16)
        for raw in raw_lines(path):
            digest.update(raw)
            yield raw
        self.digests[path] = digest.digest()

    def digest(self, path: Path) -> bytes:
        """Return the hash of a file, which is read if it was not before."""
        if path not in self.digests:
            deque(self(path), maxlen=0)
        return self.digests[path]


def _parallel(corpus: Parallel, read: ReadLines | None) -> Iterator[tuple[str, str]]:
    source, target = corpus
    if source.resolve() == target.resolve():
        raise InputError(f"{source}: source and target are the same file.", value=source)
    pairs = itertools.zip_longest(lines(source, read), lines(target, read))
    for number, (one, other) in enumerate(pairs):
        if one is None or other is None:
            rest = number + 1 + sum(1 for _ in pairs)
            counts = (number, rest) if one is None else (rest, number)
            raise InputError(
                f"{source} has {counts[0]:,} lines, {target} has {counts[1]:,}. The numbers must be equal.",
                value=source,
            )
        yield one, other


def _tsv(line: str, where: str) -> tuple[str, str]:
    columns = line.split("\t")
    if len(columns) < 2:
        raise InputError(f"{where}: no tab between source and target.", value=where)
    return columns[0], columns[1]


def _jsonl(line: str, where: str) -> tuple[str, str]:
    try:
        record = json.loads(line)
        source, target = record["source"], record["target"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f'{where}: not a JSON object with "source" and "target".', value=where) from None
    if not isinstance(source, str) or not isinstance(target, str):
        raise InputError(f'{where}: "source" and "target" must be strings.', value=where)
    return _valid(source, where), _valid(target, where)


def _valid(text: str, where: str) -> str:
    """Return a text without lone surrogates, which JSON can contain and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where}: the text has a lone surrogate (half a character).", value=where) from None
    return text


def _turns(line: str, where: str) -> list[str]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    turns = record.get("turns") if isinstance(record, dict) else record
    if not isinstance(turns, list):
        raise InputError(f'{where}: not a JSON list of turns or a JSON object with "turns".', value=where)
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, str):
            raise InputError(f"{where}: turn {number} must be a string, got {json.dumps(turn)[:40]}.", value=where)
    if len(turns) < 2:
        raise InputError(f"{where}: a dialogue must have at least 2 turns, got {len(turns)}.", value=where)
    return [_valid(turn, where) for turn in turns]
