"""Tokenised corpora on disk, so that text is tokenised once and memory does not grow with the corpus.

A store is a folder. Each side has the concatenated ids of all examples (`source.ids`) and their starts
(`source.starts`); `store.json` has the metadata and a sample of the examples. The name of the folder is a hash of all
inputs: the contents of the files, the tokenizer, the options of the examples (`sightline.data.examples`).

Pairs have a source and a target. Plain text has only a target, split into pieces. Dialogues have a target, a loss mask
and, for a model with an encoder, a source.
"""

import contextlib
import hashlib
import json
import os
import random
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sightline.data.corpus import Dialogue, HashedFiles, Parallel, Table, Text, file_format
from sightline.errors import InputError
from sightline.files import draft_folder, read_json_object
from sightline.text.tokenizer import Tokenizer

FORMAT = 5
IN_MEMORY = 64_000_000  # bytes; smaller sides are read once and kept in memory
SAMPLE = 1000
"""Examples of the sample that a store keeps with their text."""
STARTS = np.dtype("<i8")

Kind = TypeVar("Kind", Parallel | Table, Text, Dialogue)
Ids = tuple[NDArray[Any], NDArray[np.int64]]
"""The concatenated ids and the lengths of several sentences."""
Progress = Callable[[int], None]


class Counts(NamedTuple):
    """Numbers of examples kept and left out; of pieces, all kept, for plain text."""

    kept: int = 0
    empty: int = 0
    too_long: int = 0
    out_of_ratio: int = 0

    @property
    def read(self) -> int:
        """Number of examples read."""
        return sum(self)


class Weighted(NamedTuple, Generic[Kind]):
    """A corpus and the number of times that each pair is used per epoch: 2.5 is twice, and half of them again."""

    corpus: Kind
    weight: float


class Examples(NamedTuple):
    """Examples that are tokenised together."""

    read: int
    """Number of pairs, documents or dialogues."""
    counts: Counts
    versions: Sequence[dict[str, Ids]]
    """The sides of the examples that are kept, once for each version of the store."""
    texts: Sequence[tuple[str, ...]] = ()
    """The raw text of each example that is kept; empty if an example is not a text of its own."""


class Part(NamedTuple):
    """The examples of one corpus: from `first` to before `last`."""

    first: int
    last: int
    weight: float


class Side:
    """One side of a store: the ids of each sentence, read when they are used."""

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self.starts: NDArray[np.int64] = np.memmap(folder / f"{name}.starts", STARTS, "r")
        self._ids = os.open(folder / f"{name}.ids", os.O_RDONLY)
        weakref.finalize(self, os.close, self._ids)
        self._dtype = np.dtype(dtype)
        self._whole: NDArray[Any] | None = None

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Number of tokens of each sentence."""
        return np.diff(self.starts).astype(np.int32)

    def __getitem__(self, index: int) -> NDArray[Any]:
        first, last = self.starts[index : index + 2]
        return self._read(int(first), int(last))

    def take(self, indices: ArrayLike) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the concatenated ids of these sentences, and their lengths."""
        indices = np.asarray(indices, np.int64)
        firsts = np.asarray(self.starts[indices])
        lengths = self.starts[indices + 1] - firsts
        if self.starts[-1] * self._dtype.itemsize > IN_MEMORY:
            parts = [self._read(first, first + n) for first, n in zip(firsts.tolist(), lengths.tolist(), strict=True)]
            return np.concatenate([np.empty(0, self._dtype), *parts]), lengths
        if self._whole is None:
            self._whole = self._read(0, int(self.starts[-1]))
        ends = lengths.cumsum()
        shift = np.repeat(firsts - (ends - lengths), lengths)
        return self._whole[shift + np.arange(len(shift))], lengths

    def _read(self, first: int, last: int) -> NDArray[Any]:
        size = self._dtype.itemsize
        # Not mapped: pages of a memory map stay in the resident memory once they are used.
        return np.frombuffer(os.pread(self._ids, (last - first) * size, first * size), self._dtype)


class Store:
    """A tokenised corpus, or several, concatenated."""

    def __init__(self, folder: Path, weights: Sequence[float] | None = None) -> None:
        about = read_json_object(folder / "store.json")
        sides = {name: Side(folder, name, dtype) for name, dtype in about["sides"].items()}
        self.folder = folder
        self.counts = Counts(**about["counts"])
        self.digest: str = about["digest"]
        """The hash of the ids. BPE-dropout gives other ids when a store is made again."""
        self.target: Side = sides["target"]
        self.source: Side | None = sides.get("source")
        self.loss_mask: Side | None = sides.get("loss_mask")
        """1 for each target token in the loss, else 0. None: all tokens are in the loss."""
        self.sample: list[tuple[int, tuple[str, ...]]] = [(i, tuple(texts)) for i, texts in about["sample"]]
        """Up to 1,000 random examples: their indices and texts, in random order. The same for every seed of a run."""
        ends = np.cumsum(about["parts"]).tolist()
        weights = weights or [1.0] * len(ends)
        self.parts = [Part(*part) for part in zip([0, *ends[:-1]], ends, weights, strict=True)]

    def __len__(self) -> int:
        return self.counts.kept

    def draw(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the pairs of an epoch in order, each as often as the weight of its corpus. The fraction of a weight
        selects random pairs, by seed and epoch."""
        generator = np.random.default_rng([seed, epoch])
        times = np.empty(len(self), np.int64)
        for first, last, weight in self.parts:
            times[first:last] = int(weight)
            more = round((weight - int(weight)) * (last - first))
            times[first + generator.permutation(last - first)[:more]] += 1
        return np.repeat(np.arange(len(self)), times)


def make_stores(
    key: object,
    corpora: Sequence[Weighted[Any]],
    examples: Iterable[tuple[int, Examples]],
    versions: int,
    *,
    tokenizer: Tokenizer,
    cache: Path,
    files: HashedFiles,
    progress: Progress,
) -> list[Store]:
    """Return the stores of `versions` tokenisations of the same examples; create them if needed.

    `examples`: with the number of their corpus; read only if a store is missing. `key`: what the examples depend on, in
    addition to the text and the tokenizer. Weights are not part of it, because they do not change the ids.
    """
    name = _key(key, [corpus for corpus, _ in corpora], tokenizer, files)
    folders = [cache / (f"{name}-{version}" if version else name) for version in range(versions)]
    if not all((folder / "store.json").exists() for folder in folders):
        try:
            with contextlib.ExitStack() as stack:
                own = str(threading.get_native_id())
                drafts = [stack.enter_context(draft_folder(folder, own)) for folder in folders]
                _write(drafts, len(corpora), examples, progress)
        except OSError as error:
            if not all((folder / "store.json").exists() for folder in folders):  # else another process has written them
                raise InputError(f"{cache}: cannot be written: {error.strerror}.", value=cache) from None
    return [Store(folder, [weight for _, weight in corpora]) for folder in folders]


def _write(folders: list[Path], corpora: int, examples: Iterable[tuple[int, Examples]], progress: Progress) -> None:
    counts, parts, read = np.zeros(len(Counts._fields), np.int64), [0] * corpora, 0
    dtypes: dict[str, str] = {}
    lengths: list[dict[str, list[NDArray[np.int64]]]] = [{} for _ in folders]
    sample, digests = _Sample(), [hashlib.blake2b(digest_size=16) for _ in folders]
    for place, some in examples:
        for folder, sides, sizes, digest in zip(folders, some.versions, lengths, digests, strict=True):
            for name, (ids, own) in sides.items():
                dtypes[name] = ids.dtype.str
                sizes.setdefault(name, [np.zeros(1, np.int64)]).append(own)
                with (folder / f"{name}.ids").open("ab") as file:
                    file.write(ids.tobytes())
                digest.update(ids.tobytes())
                digest.update(own.tobytes())
        sample.add(some.counts.kept, some.texts)
        counts += some.counts
        parts[place] += some.counts.kept
        read += some.read
        progress(read)
    about = {
        "format": FORMAT,
        "counts": Counts(*counts.tolist())._asdict(),
        "parts": parts,
        "sides": dtypes,
        "sample": sample.shuffled(),
    }
    for folder, sizes, digest in zip(folders, lengths, digests, strict=True):
        for name, several in sizes.items():
            (folder / f"{name}.starts").write_bytes(np.concatenate(several).cumsum().astype(STARTS).data)
        (folder / "store.json").write_text(json.dumps({**about, "digest": digest.hexdigest()}))


class _Sample:
    """A uniform sample of examples (reservoir sampling)."""

    def __init__(self) -> None:
        self.generator = random.Random(0)  # noqa: S311
        self.kept: list[tuple[int, tuple[str, ...]]] = []
        self.seen = 0

    def add(self, count: int, texts: Sequence[tuple[str, ...]]) -> None:
        """Add the next `count` examples."""
        for i in range(count):
            place = len(self.kept) if self.seen < SAMPLE else int(self.generator.random() * (self.seen + 1))
            if place < SAMPLE:
                self.kept[place : place + 1] = [(self.seen, texts[i] if texts else ())]
            self.seen += 1

    def shuffled(self) -> list[tuple[int, tuple[str, ...]]]:
        """Return the sample in random order, so that each beginning of it is a sample too."""
        return self.generator.sample(self.kept, len(self.kept))


def _key(key: object, corpora: Sequence[Iterable[Path]], tokenizer: Tokenizer, files: HashedFiles) -> str:
    digest = hashlib.blake2b(repr((FORMAT, key)).encode(), digest_size=16)
    for model in tokenizer.files.values():
        digest.update(model)
    for corpus in corpora:
        for path in corpus:
            digest.update(f"{type(corpus).__name__} {file_format(path)}\0".encode())
            digest.update(files.digest(path))
    return digest.hexdigest()
