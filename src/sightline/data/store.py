"""Tokenised corpora on disk, so that nothing is tokenised twice and memory does not grow with the corpus.

A store is a folder: for each side the ids of all sentences end to end (`source.ids`) and where each begins
(`source.starts`), and what it was made of (`store.json`). Its name is a hash of everything that went into it: the
contents of the files, the tokenizer, the cleaning. The same question finds the same folder.
"""

import hashlib
import json
import os
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sightline.data.corpus import Corpus, Parallel, read_pairs
from sightline.errors import InputError
from sightline.text.tokenizer import Tokenizer

__all__ = ["Cleaning", "Counts", "Side", "Store", "prepare"]

FORMAT = 1
CHUNK = 10_000  # pairs tokenised at a time


class Cleaning(NamedTuple):
    """Which pairs are left out of training."""

    max_length: int = 250
    """Tokens; longer sentences are rare, and cost memory out of proportion."""
    max_ratio: float = 4.0
    """How many times longer one side may be than the other. Short sentences have some slack."""


class Counts(NamedTuple):
    """What became of the pairs."""

    kept: int = 0
    empty: int = 0
    too_long: int = 0
    out_of_ratio: int = 0

    @property
    def read(self) -> int:
        """All pairs that were read."""
        return sum(self)


class Side:
    """One side of a store: the ids of each sentence, read from the disk when they are asked for."""

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self.starts: NDArray[np.int64] = np.load(folder / f"{name}.starts.npy", mmap_mode="r")
        self._ids = os.open(folder / f"{name}.ids", os.O_RDONLY)
        weakref.finalize(self, os.close, self._ids)
        self._dtype = np.dtype(dtype)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of every sentence."""
        return np.diff(self.starts).astype(np.int32)

    def __getitem__(self, index: int) -> NDArray[Any]:
        first, last = self.starts[index : index + 2]
        size = self._dtype.itemsize
        # Read, not mapped: mapped pages count as resident memory once they are touched.
        return np.frombuffer(os.pread(self._ids, int(last - first) * size, int(first) * size), self._dtype)


class Store:
    """A tokenised corpus."""

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / "store.json").read_text())
        self.folder = folder
        self.counts = Counts(**about["counts"])
        self.source = Side(folder, "source", about["dtype"])
        self.target = Side(folder, "target", about["dtype"])

    def __len__(self) -> int:
        return self.counts.kept


def prepare(
    corpora: Sequence[Corpus],
    tokenizer: Tokenizer,
    cache: Path,
    cleaning: Cleaning | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Store:
    """The store of these corpora: found if it was made before, made otherwise. `progress` hears how many pairs were
    read. A store that is not finished is never taken for one that is."""
    cleaning = cleaning or Cleaning()
    folder = cache / _key(corpora, tokenizer, cleaning)
    if not (folder / "store.json").exists():
        making = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        try:
            _make(making, corpora, tokenizer, cleaning, progress)
            making.replace(folder)
        except OSError as error:
            if not (folder / "store.json").exists():  # else another process was faster
                raise InputError(f"{cache}: the tokenised corpus cannot be written: {error.strerror}.") from None
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return Store(folder)


def _make(
    folder: Path,
    corpora: Sequence[Corpus],
    tokenizer: Tokenizer,
    cleaning: Cleaning,
    progress: Callable[[int], None],
) -> None:
    dtype = np.dtype("<u2" if tokenizer.size <= 1 << 16 else "<u4")
    counts = dict.fromkeys(Counts._fields, 0)
    lengths: dict[str, list[NDArray[np.int64]]] = {"source": [], "target": []}
    with (folder / "source.ids").open("wb") as source, (folder / "target.ids").open("wb") as target:
        for pairs in _chunks(pair for corpus in corpora for pair in read_pairs(corpus)):
            sides = [tokenizer.encode(side) for side in zip(*pairs, strict=True)]
            kept = []
            for one, other in zip(*sides, strict=True):
                verdict = _verdict(len(one), len(other), cleaning)
                counts[verdict] += 1
                if verdict == "kept":
                    kept.append((one, other))
            for name, file, number in (("source", source, 0), ("target", target, 1)):
                lengths[name].append(np.array([len(pair[number]) for pair in kept], np.int64))
                file.write(np.array([i for pair in kept for i in pair[number]], dtype).tobytes())
            progress(sum(counts.values()))
    if not counts["kept"]:
        raise InputError(f"none of the {sum(counts.values()):,} pairs is left after cleaning.")
    for name, found in lengths.items():
        np.save(folder / f"{name}.starts.npy", np.concatenate([[0], np.concatenate(found).cumsum()]))
    about = {"format": FORMAT, "dtype": dtype.str, "counts": counts}
    (folder / "store.json").write_text(json.dumps(about))


def _verdict(source: int, target: int, cleaning: Cleaning) -> str:
    if not source or not target:
        return "empty"
    longer, shorter = max(source, target), min(source, target)
    if longer > cleaning.max_length:
        return "too_long"
    return "out_of_ratio" if longer > cleaning.max_ratio * (shorter + 2) else "kept"


def _chunks(pairs: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    iterator = iter(pairs)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def _key(corpora: Sequence[Corpus], tokenizer: Tokenizer, cleaning: Cleaning) -> str:
    digest = hashlib.blake2b(repr((FORMAT, cleaning)).encode(), digest_size=16)
    digest.update(tokenizer.model)
    for corpus in corpora:
        for path in corpus if isinstance(corpus, Parallel) else [corpus.path]:
            digest.update(f"{type(corpus).__name__} {''.join(path.suffixes)}\0".encode())
            try:
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "blake2b").digest())
            except OSError as error:
                raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
    return digest.hexdigest()
