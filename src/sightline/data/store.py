"""Tokenised corpora on disk, so that text is tokenised once and memory does not grow with the corpus.

A store is a folder. Each side has the concatenated ids of all sentences (`source.ids`) and their starts
(`source.starts`); `store.json` has the metadata. The name of the folder is a hash of all inputs: the contents of the
files, the tokenizer, the filter.

Pairs have a source and a target. Plain text has only a target, split into pieces. Dialogues have a target and a loss
mask.
"""

import hashlib
import json
import math
import os
import threading
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sightline.data.corpus import Corpus, Dialogue, Parallel, Table, Text, read_dialogues, read_documents, read_pairs
from sightline.errors import InputError
from sightline.files import draft_folder, read_json_object
from sightline.special import END
from sightline.text.dialogue import DialogueFormat, alternating_turns
from sightline.text.tokenizer import Tokenizer

FORMAT = 4
CHUNK = 10_000  # pairs, documents or dialogues that are tokenised together
CHUNK_TEXT = 8_000_000  # characters, because documents can have any size
IN_MEMORY = 64_000_000  # bytes; smaller sides are read once and kept in memory
STARTS = np.dtype("<i8")

Kind = TypeVar("Kind", Parallel | Table, Text, Dialogue)
Item = TypeVar("Item")
Progress = Callable[[int], None]


class Cleaning(NamedTuple):
    """Limits of training pairs; other pairs are left out."""

    max_length: int = 250
    """Tokens of a sentence; longer ones are rare and need much memory."""
    max_ratio: float = 4.0
    """Ratio between the lengths of both sides, with some slack for short sentences."""


class Counts(NamedTuple):
    """Numbers of pairs kept and left out; of pieces, all kept, for plain text."""

    kept: int = 0
    empty: int = 0
    too_long: int = 0
    out_of_ratio: int = 0

    @property
    def read(self) -> int:
        """Number of pairs read."""
        return sum(self)


class Weighted(NamedTuple, Generic[Kind]):
    """A corpus and the number of times that each pair is used per epoch: 2.5 is twice, and half of them again."""

    corpus: Kind
    weight: float


class Part(NamedTuple):
    """The pairs of one corpus: from `first` to before `last`."""

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
        self.target: Side = sides["target"]
        self.source: Side | None = sides.get("source")
        self.loss_mask: Side | None = sides.get("loss_mask")
        """1 for each target token in the loss, else 0. None: all tokens are in the loss."""
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


def prepare(
    corpora: Sequence[Corpus | Weighted[Corpus]],
    tokenizer: Tokenizer,
    cache: Path,
    cleaning: Cleaning | None = None,
    progress: Progress = lambda _: None,
    dropout: float = 0.0,
    reading: int = 0,
) -> Store:
    """Return the store of sentence pairs; create it if needed. `progress` is called with the number of pairs read.

    `dropout`: probability of skipping merges (BPE-dropout), differently in each `reading`. All readings have the same
    pairs in the same order, because the filter uses the text without dropout. A reading that is made again in another
    process has other tokens (`Tokenizer.encode`).
    """
    cleaning, weighted = cleaning or Cleaning(), _weighted(corpora)
    reading = reading if dropout else 0
    chunks = _pair_chunks(weighted, tokenizer, cleaning, dropout, reading)
    return _find_or_make(("pairs", cleaning, float(dropout), reading), weighted, tokenizer, cache, chunks, progress)


def prepare_texts(
    corpora: Sequence[Text | Weighted[Text]],
    tokenizer: Tokenizer,
    cache: Path,
    context: int,
    progress: Progress = lambda _: None,
) -> Store:
    """Return the store of plain text. Each corpus is one stream of tokens with END after each document, split into
    pieces of `context` tokens. `progress` is called with the number of documents."""
    weighted = _weighted(corpora)
    chunks = _text_chunks(weighted, tokenizer, context)
    return _find_or_make(("texts", context), weighted, tokenizer, cache, chunks, progress)


def prepare_dialogues(
    corpora: Sequence[Dialogue | Weighted[Dialogue]],
    tokenizer: Tokenizer,
    cache: Path,
    context: int,
    progress: Progress = lambda _: None,
) -> Store:
    """Return the store of dialogues, each one sequence of at most `context` tokens (see `sightline.text.dialogue`).
    Only replies are in the loss. `progress` is called with the number of dialogues."""
    weighted = _weighted(corpora)
    chunks = _dialogue_chunks(weighted, tokenizer, context)
    return _find_or_make(("dialogues", context), weighted, tokenizer, cache, chunks, progress)


def _weighted(corpora: Sequence[Kind | Weighted[Kind]]) -> list[Weighted[Kind]]:
    weighted = [corpus if isinstance(corpus, Weighted) else Weighted(corpus, 1.0) for corpus in corpora]
    for corpus, weight in weighted:
        if not 0 < weight < math.inf:
            raise InputError.of("weight", weight, f"must be a number greater than 0, got {weight} for {corpus[0]}.")
    return weighted


class _Chunk(NamedTuple):
    """Examples of corpus number `place` that are tokenised together."""

    place: int
    read: int
    """Number of pairs, documents or dialogues."""
    counts: Counts
    sides: dict[str, tuple[NDArray[Any], NDArray[np.int64]]]
    """The concatenated ids and the lengths of the sentences that are kept."""


def _find_or_make(
    key: tuple[Any, ...],
    corpora: list[Weighted[Any]],
    tokenizer: Tokenizer,
    cache: Path,
    chunks: Iterator[_Chunk],
    progress: Progress,
) -> Store:
    """Return a store; create it if needed. Weights are not part of its key, because they do not change the ids."""
    folder = cache / _key(key, [corpus for corpus, _ in corpora], tokenizer)
    if not (folder / "store.json").exists():
        try:
            with draft_folder(folder, str(threading.get_native_id())) as draft:
                _write(draft, len(corpora), chunks, progress)
        except OSError as error:
            if not (folder / "store.json").exists():  # else another process has written it
                raise InputError(f"{cache}: cannot be written: {error.strerror}.", value=cache) from None
    return Store(folder, [weight for _, weight in corpora])


def _write(folder: Path, corpora: int, chunks: Iterator[_Chunk], progress: Progress) -> None:
    counts, parts, read = np.zeros(len(Counts._fields), np.int64), [0] * corpora, 0
    dtypes: dict[str, str] = {}
    lengths: dict[str, list[NDArray[np.int64]]] = {}
    for chunk in chunks:
        for name, (ids, sizes) in chunk.sides.items():
            dtypes[name] = ids.dtype.str
            lengths.setdefault(name, [np.zeros(1, np.int64)]).append(sizes)
            with (folder / f"{name}.ids").open("ab") as file:
                file.write(ids.tobytes())
        counts += chunk.counts
        parts[chunk.place] += chunk.counts.kept
        read += chunk.read
        progress(read)
    for name, several in lengths.items():
        (folder / f"{name}.starts").write_bytes(np.concatenate(several).cumsum().astype(STARTS).data)
    about = {"format": FORMAT, "counts": Counts(*counts.tolist())._asdict(), "parts": parts, "sides": dtypes}
    (folder / "store.json").write_text(json.dumps(about))


def _pair_chunks(
    corpora: list[Weighted[Corpus]], tokenizer: Tokenizer, cleaning: Cleaning, dropout: float, reading: int
) -> Iterator[_Chunk]:
    tokenizers = {"source": tokenizer.source, "target": tokenizer}
    total = np.zeros(len(Counts._fields), np.int64)
    for place, (corpus, _) in enumerate(corpora):
        read = same = 0
        for number, pairs in enumerate(_chunks(read_pairs(corpus), lambda pair: len(pair[0]) + len(pair[1]))):
            read += len(pairs)
            same += sum(one == other != "" for one, other in pairs)
            texts = dict(zip(tokenizers, zip(*pairs, strict=True), strict=True))
            sides = {name: _flat(own, own.encode(texts[name])) for name, own in tokenizers.items()}
            verdicts = _verdicts(sides["source"][1], sides["target"][1], cleaning)
            kept = verdicts == 0
            for name, own in tokenizers.items():
                if dropout:
                    seed = zlib.crc32(f"{reading} {place} {number} {name}".encode())
                    some = list(compress(texts[name], kept))
                    sides[name] = _flat(own, _dropped(own, some, dropout, seed, cleaning))
                else:
                    ids, lengths = sides[name]
                    sides[name] = ids[np.repeat(kept, lengths)], lengths[kept]
            counts = np.bincount(verdicts, minlength=len(total))
            total += counts
            yield _Chunk(place, len(pairs), Counts(*counts.tolist()), sides)
        if same >= 10 and same > read / 2:
            raise InputError(
                f"{' and '.join(map(str, corpus))}: source and target are equal in {same:,} of {read:,} pairs. "
                "Check that they are in different languages.",
                value=same,
            )
    if not total[0]:
        raise InputError(f"The filter left none of {total.sum():,} pairs.", value=int(total.sum()))


def _dropped(tokenizer: Tokenizer, texts: list[str], dropout: float, seed: int, cleaning: Cleaning) -> list[list[int]]:
    """Encode texts with dropout; those that become too long, without."""
    found = tokenizer.encode(texts, dropout, seed)
    too_long = [i for i, ids in enumerate(found) if len(ids) > cleaning.max_length]
    for i, ids in zip(too_long, tokenizer.encode([texts[i] for i in too_long]), strict=True):
        found[i] = ids
    return found


def _text_chunks(corpora: list[Weighted[Text]], tokenizer: Tokenizer, context: int) -> Iterator[_Chunk]:
    for place, (corpus, _) in enumerate(corpora):
        rest = 0  # tokens of the incomplete piece
        for documents in _chunks(read_documents(corpus), len):
            ids, lengths = _flat(tokenizer, [[*document, END] for document in tokenizer.encode(documents)])
            full, rest = divmod(rest + len(ids), context)
            yield _Chunk(place, len(lengths), Counts(full), {"target": (ids, np.full(full, context))})
        if rest:
            yield _Chunk(place, 0, Counts(1), {"target": (ids[:0], np.array([rest]))})


def _dialogue_chunks(corpora: list[Weighted[Dialogue]], tokenizer: Tokenizer, context: int) -> Iterator[_Chunk]:
    form, read, written = DialogueFormat(tokenizer), 0, 0
    for place, (corpus, _) in enumerate(corpora):
        for dialogues in _chunks(read_dialogues(corpus), lambda turns: sum(map(len, turns))):
            counts: Counter[str] = Counter()
            kept = []
            spoken = [alternating_turns(texts) for texts in dialogues]
            encoded = iter(form.encode([turn for turns in spoken for turn in turns]))
            for turns in spoken:
                sequence, mask = form.training_sequence(turns, [next(encoded) for _ in turns], context)
                empty = not any(turn.text.strip() for turn in turns)
                verdict = "empty" if empty else "kept" if any(mask) else "too_long"
                counts[verdict] += 1
                if verdict == "kept":
                    kept.append((sequence, mask))
            ids, lengths = _flat(tokenizer, [sequence for sequence, _ in kept])
            in_loss = np.fromiter(chain.from_iterable(mask for _, mask in kept), np.uint8, len(ids))
            read, written = read + len(dialogues), written + len(kept)
            sides = {"target": (ids, lengths), "loss_mask": (in_loss, lengths)}
            yield _Chunk(place, len(dialogues), Counts(**counts), sides)
    if not written:
        raise InputError(f"None of {read:,} dialogues has a reply within {context} tokens.", value=context)


def _flat(tokenizer: Tokenizer, sentences: Sequence[Sequence[int]]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the concatenated ids, in the smallest type for the vocabulary, and the length of each sentence."""
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    dtype = np.dtype("<u2" if tokenizer.size <= 1 << 16 else "<u4")
    return np.fromiter(chain.from_iterable(sentences), dtype, lengths.sum()), lengths


def _verdicts(source: NDArray[np.int64], target: NDArray[np.int64], cleaning: Cleaning) -> NDArray[np.int64]:
    """Return the outcome of each pair, as an index of `Counts`."""
    longer, shorter = np.maximum(source, target), np.minimum(source, target)
    tests = [shorter == 0, longer > cleaning.max_length, longer > cleaning.max_ratio * (shorter + 2)]
    return np.select(tests, [1, 2, 3], 0)


def _chunks(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    chunk: list[Item] = []
    total = 0
    for item in items:
        chunk.append(item)
        total += size(item)
        if len(chunk) >= CHUNK or total >= CHUNK_TEXT:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk


def _key(key: tuple[Any, ...], corpora: Sequence[Corpus | Text | Dialogue], tokenizer: Tokenizer) -> str:
    digest = hashlib.blake2b(repr((FORMAT, key)).encode(), digest_size=16)
    for model in tokenizer.files.values():
        digest.update(model)
    for corpus in corpora:
        for path in corpus:
            digest.update(f"{type(corpus).__name__} {''.join(path.suffixes)}\0".encode())
            try:
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "blake2b").digest())
            except OSError as error:
                raise InputError(f"{path}: cannot be read: {error.strerror}.", value=path) from None
    return digest.hexdigest()
