"""Examples from corpora: what becomes one row of a store.

Each class makes the examples of one kind. Its fields are the options that they depend on.
"""

import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sightline.data.corpus import (
    Corpus,
    Dialogue,
    HashedFiles,
    Text,
    read_dialogues,
    read_documents,
    read_pairs,
)
from sightline.data.store import Counts, Examples, Ids, Progress, Store, Weighted, make_stores
from sightline.errors import InputError
from sightline.special import END
from sightline.text.dialogue import DialogueFormat, Turn, alternating_turns
from sightline.text.tokenizer import Tokenizer

CHUNK = 10_000  # pairs, documents or dialogues that are tokenised together
CHUNK_TEXT = 8_000_000  # characters, because documents can have any size

Item = TypeVar("Item")


class MakeExamples(Protocol):
    """Makes the examples of a corpus. Its repr states its options, and is part of the key of a store."""

    @property
    def versions(self) -> int:
        """Number of tokenisations of the same examples; epochs alternate between them."""

    def __call__(self, corpus: Any, tokenizer: Tokenizer, /) -> Iterator[Examples]: ...

    def check(self, counts: Counts, /) -> None:
        """Raise an error if these numbers of all corpora leave nothing to train on."""


@dataclass(frozen=True)
class PairExamples:
    """Pairs of a source and a target. Pairs beyond these limits are left out."""

    max_length: int = 250
    """Tokens of a sentence; longer ones are rare and need much memory."""
    max_ratio: float = 4.0
    """Ratio between the lengths of both sides, with some slack for short sentences."""
    dropout: float = 0.0
    """Probability of skipping merges (BPE-dropout), differently in each version. All versions have the same pairs in
    the same order, because the filter uses the text without dropout. Made again in another process, a version has other
    tokens (`Tokenizer.encode`)."""
    versions: int = 1

    def __call__(self, corpus: Corpus, tokenizer: Tokenizer) -> Iterator[Examples]:
        tokenizers = {"source": tokenizer.source, "target": tokenizer}
        read = same = 0
        for number, pairs in enumerate(chunks(read_pairs(corpus), lambda pair: len(pair[0]) + len(pair[1]))):
            read += len(pairs)
            same += sum(one == other != "" for one, other in pairs)
            texts = dict(zip(tokenizers, zip(*pairs, strict=True), strict=True))
            sides = {name: flat(own, own.encode(texts[name])) for name, own in tokenizers.items()}
            verdicts = self._verdicts(sides["source"][1], sides["target"][1])
            kept = verdicts == 0
            versions: list[dict[str, Ids]] = []
            for version in range(self.versions):
                some: dict[str, Ids] = {}
                for name, own in tokenizers.items():
                    ids, lengths = sides[name]
                    if self.dropout:
                        seed = zlib.crc32(f"{version} {number} {name} {pairs[0]}".encode())
                        some[name] = flat(own, self._dropped(own, list(compress(texts[name], kept)), seed))
                    else:
                        some[name] = ids[np.repeat(kept, lengths)], lengths[kept]
                versions.append(some)
            counts = np.bincount(verdicts, minlength=len(Counts._fields))
            yield Examples(len(pairs), Counts(*counts.tolist()), versions, list(compress(pairs, kept)))
        if same >= 10 and same > read / 2:
            raise InputError(
                f"{' and '.join(map(str, corpus))}: source and target are equal in {same:,} of {read:,} pairs. "
                "Check that they are in different languages.",
                value=same,
            )

    def check(self, counts: Counts) -> None:
        if not counts.kept:
            raise InputError(f"The filter left none of {counts.read:,} pairs.", value=counts.read)

    def _verdicts(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the outcome of each pair, as an index of `Counts`."""
        longer, shorter = np.maximum(source, target), np.minimum(source, target)
        tests = [shorter == 0, longer > self.max_length, longer > self.max_ratio * (shorter + 2)]
        return np.select(tests, [1, 2, 3], 0)

    def _dropped(self, tokenizer: Tokenizer, texts: list[str], seed: int) -> list[list[int]]:
        """Encode texts with dropout; those that become too long, without."""
        found = tokenizer.encode(texts, self.dropout, seed)
        too_long = [i for i, ids in enumerate(found) if len(ids) > self.max_length]
        for i, ids in zip(too_long, tokenizer.encode([texts[i] for i in too_long]), strict=True):
            found[i] = ids
        return found


@dataclass(frozen=True)
class TextExamples:
    """Pieces of plain text. Each corpus is one stream of tokens with END after each document, split into pieces of
    `context` tokens."""

    context: int
    versions: int = 1

    def __call__(self, corpus: Text, tokenizer: Tokenizer) -> Iterator[Examples]:
        rest = 0  # tokens of the incomplete piece
        for documents in chunks(read_documents(corpus), len):
            ids, lengths = flat(tokenizer, [[*document, END] for document in tokenizer.encode(documents)])
            full, rest = divmod(rest + len(ids), self.context)
            yield Examples(len(lengths), Counts(full), [{"target": (ids, np.full(full, self.context))}])
        if rest:
            yield Examples(0, Counts(1), [{"target": (ids[:0], np.array([rest]))}])

    def check(self, counts: Counts) -> None:
        """Each text has a piece."""


@dataclass(frozen=True)
class DialogueExamples:
    """Dialogues, each one sequence of at most `context` tokens (see `sightline.text.dialogue`). Only replies are in the
    loss."""

    context: int
    versions: int = 1

    def __call__(self, corpus: Dialogue, tokenizer: Tokenizer) -> Iterator[Examples]:
        form = DialogueFormat(tokenizer)
        for dialogues in chunks(read_dialogues(corpus), lambda turns: sum(map(len, turns))):
            counts: Counter[str] = Counter()
            kept: list[tuple[list[int], list[int]]] = []
            for turns, encoded in _spoken(dialogues, form):
                sequence, mask = form.training_sequence(turns, encoded, self.context)
                empty = not any(turn.text.strip() for turn in turns)
                verdict = "empty" if empty else "kept" if any(mask) else "too_long"
                counts[verdict] += 1
                if verdict == "kept":
                    kept.append((sequence, mask))
            sides = {"target": flat(tokenizer, [ids for ids, _ in kept]), "loss_mask": _flat_mask(kept)}
            yield Examples(len(dialogues), Counts(**counts), [sides])

    def check(self, counts: Counts) -> None:
        if not counts.kept:
            problem = f"None of {counts.read:,} dialogues has a reply within {self.context} tokens."
            raise InputError(problem, value=self.context)


@dataclass(frozen=True)
class ReplyExamples:
    """Replies of dialogues, each with its history as source (see `sightline.text.dialogue`). Sources and targets have
    at most `max_length` tokens. The role of a reply is not in the loss."""

    max_length: int
    versions: int = 1

    def __call__(self, corpus: Dialogue, tokenizer: Tokenizer) -> Iterator[Examples]:
        form, limit = DialogueFormat(tokenizer), self.max_length + 1  # with END
        for dialogues in chunks(read_dialogues(corpus), lambda turns: sum(map(len, turns))):
            counts: Counter[str] = Counter()
            sources: list[list[int]] = []
            replies: list[tuple[list[int], list[int]]] = []
            for turns, encoded in _spoken(dialogues, form):
                spoken = sum(turn.role == "assistant" for turn in turns)
                pairs = list(form.training_pairs(turns, encoded, limit, limit))
                counts.update(kept=len(pairs), too_long=spoken - len(pairs))
                sources += [pair.source for pair in pairs]
                replies += [(pair.target, pair.loss_mask) for pair in pairs]
            sides = {
                "source": flat(tokenizer, sources),
                "target": flat(tokenizer, [ids for ids, _ in replies]),
                "loss_mask": _flat_mask(replies),
            }
            yield Examples(len(dialogues), Counts(**counts), [sides])

    def check(self, counts: Counts) -> None:
        if not counts.kept:
            problem = f"None of {counts.read:,} replies has at most {self.max_length} tokens."
            raise InputError(problem, value=self.max_length)


def prepare(
    corpora: Sequence[Any],
    tokenizer: Tokenizer,
    cache: Path,
    make: MakeExamples = PairExamples(),
    progress: Progress = lambda _: None,
    files: HashedFiles | None = None,
) -> list[Store]:
    """Return the stores of corpora (`Weighted`, or with the weight 1), one for each version of their examples; create
    them if needed.

    `progress` is called with the number of pairs, documents or dialogues that were read. `files` knows the hashes of
    files that were read before.
    """
    weighted = [corpus if isinstance(corpus, Weighted) else Weighted(corpus, 1.0) for corpus in corpora]
    for corpus, weight in weighted:
        if not 0 < weight < math.inf:
            raise InputError.of("weight", weight, f"must be a number greater than 0, got {weight} for {corpus[0]}.")

    def examples() -> Iterator[tuple[int, Examples]]:
        total = np.zeros(len(Counts._fields), np.int64)
        for place, (corpus, _) in enumerate(weighted):
            for some in make(corpus, tokenizer):
                total += some.counts
                yield place, some
        make.check(Counts(*total.tolist()))

    return make_stores(
        make,
        weighted,
        examples(),
        make.versions,
        tokenizer=tokenizer,
        cache=cache,
        files=files or HashedFiles(),
        progress=progress,
    )


def chunks(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield lists of items to tokenise together; `size` returns the characters of an item."""
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


def flat(tokenizer: Tokenizer, sentences: Sequence[Sequence[int]]) -> Ids:
    """Return the concatenated ids, in the smallest type for the vocabulary, and the length of each sentence."""
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    dtype = np.dtype("<u2" if tokenizer.size <= 1 << 16 else "<u4")
    return np.fromiter(chain.from_iterable(sentences), dtype, lengths.sum()), lengths


def _flat_mask(sequences: Sequence[tuple[list[int], list[int]]]) -> Ids:
    lengths = np.fromiter((len(mask) for _, mask in sequences), np.int64, len(sequences))
    return np.fromiter(chain.from_iterable(mask for _, mask in sequences), np.uint8, lengths.sum()), lengths


def _spoken(dialogues: Sequence[list[str]], form: DialogueFormat) -> Iterator[tuple[list[Turn], list[list[int]]]]:
    """Yield the turns of each dialogue, and their ids; all dialogues are encoded together."""
    spoken = [alternating_turns(texts) for texts in dialogues]
    encoded = iter(form.encode([turn for turns in spoken for turn in turns]))
    for turns in spoken:
        yield turns, [next(encoded) for _ in turns]
