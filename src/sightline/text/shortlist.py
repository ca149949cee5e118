"""Which tokens a translation may need, told by those of its source, so that a search need not weigh the whole
vocabulary.

A shortlist has tokens that may always come, and for each source token the targets it is likeliest translated by. These
are IBM Model 1's (Brown et al., 1993, "The Mathematics of Statistical Machine Translation", §4.1): every target token
of a pair comes from one of the source, and how often each comes from which is estimated anew from the last estimate.
Tokens that may always come need no estimate, and they are most of a text.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError
from sightline.special import END, PAD, START, UNKNOWN
from sightline.text.tokenizer import Tokenizer

__all__ = ["Shortlist", "learn"]

Pair = tuple[Sequence[int], Sequence[int]]
Ids = NDArray[np.signedinteger]

SAMPLE = 1 << 20
"""Pairs that are learnt from. Of more, every second is taken, or every fourth, ..."""
HELD_OUT = 100
"""One pair in so many is not learnt from, but shows how much is covered."""
ENOUGH = 2000
"""Pairs that show it."""
CELLS = 1 << 22
"""Source tokens times target tokens that are looked at together."""
ROUNDS = 3
"""Estimates; later ones hardly change which targets are the likeliest."""


class Shortlist(NamedTuple):
    """The tokens a search may choose from."""

    always: Ids
    """Whatever the source is."""
    starts: Ids
    likely: Ids
    """Those of source token i are likely[starts[i] : starts[i + 1]], the likeliest first."""
    coverage: float
    """Part of the target tokens allowed by their own source, in pairs that were not learnt from."""

    def of(self, source: int) -> list[int]:
        """The likeliest targets of one source token, itself among them: names and numbers stay as they are."""
        return self.likely[self.starts[source] : self.starts[source + 1]].tolist()


def learn(pairs: Iterable[Pair], tokenizer: Tokenizer, *, often: int | None = None, likely: int = 200) -> Shortlist:
    """A shortlist from pairs of tokenised sentences (ids, without the end): the `often` most frequent targets and what
    else must never be missing, and for each source token the `likely` targets that come from it most probably. Left
    out, `often` is two fifths of the vocabulary."""
    size = tokenizer.size
    often = 2 * size // 5 if often is None else often
    if often < 1 or likely < 1:
        raise InputError(f"a shortlist of the {often} most frequent and the {likely} likeliest tokens has no words.")
    learnt, held = _sample(pairs)
    if not learnt:
        raise InputError("there are no pairs to learn a shortlist from.")
    counts = np.bincount(np.concatenate([target for _, target in learnt]), minlength=size)
    always = np.zeros(size, bool)
    always[[PAD, START, END, UNKNOWN]] = True
    always[np.argsort(-counts, kind="stable")[:often]] = True
    always |= _spelling(tokenizer, counts)
    keys, chances = _estimate(learnt, always, size)
    source = keys // size
    order = np.lexsort((-chances, source))
    rank = np.arange(len(keys)) - np.searchsorted(source, source)
    kept = keys[order[rank < likely]]
    kept = np.concatenate([kept, np.setdiff1d(_itself(tokenizer, always), kept)])
    kept = kept[np.argsort(kept // size, kind="stable")]
    starts = np.searchsorted(kept // size, np.arange(tokenizer.source.size + 1))
    found = Shortlist(np.flatnonzero(always), starts, kept % size, 1.0)
    return found._replace(coverage=_coverage(found, held, size))


def _itself(tokenizer: Tokenizer, always: NDArray[np.bool_]) -> Ids:
    """Each source token beside the same target (source * size + target), where that may not come always."""
    targets = {piece: i for i, piece in enumerate(tokenizer.all_pieces()) if not always[i]}
    sources = enumerate(tokenizer.source.all_pieces())
    return np.array([i * len(always) + targets[piece] for i, piece in sources if piece in targets], np.int64)


def _spelling(tokenizer: Tokenizer, counts: Ids) -> NDArray[np.bool_]:
    """What any word can be written with: the bytes of a vocabulary, or else the letters that were met."""
    pieces = tokenizer.all_pieces()
    is_byte = np.array([len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">") for piece in pieces])
    return is_byte if is_byte.any() else np.array([len(piece.strip("▁Ġ#")) <= 1 for piece in pieces]) & (counts > 0)


def _sample(pairs: Iterable[Pair]) -> tuple[list[tuple[Ids, Ids]], list[tuple[Ids, Ids]]]:
    """Pairs to learn from, evenly from all of a stream, and others to see how much is covered."""
    learnt: list[tuple[Ids, Ids]] = []
    held: list[tuple[Ids, Ids]] = []
    step = 1
    for number, pair in enumerate(pairs):
        source, target = (np.asarray(ids, np.int32) for ids in pair)
        if not len(source) or not len(target):
            continue
        if number % HELD_OUT == HELD_OUT - 1 and len(held) < ENOUGH:
            held.append((source, target))
        elif number % step == 0:
            learnt.append((source, target))
        if len(learnt) > SAMPLE:
            learnt, step = learnt[::2], 2 * step
    return learnt, held


def _estimate(pairs: list[tuple[Ids, Ids]], always: NDArray[np.bool_], size: int) -> tuple[Ids, NDArray[np.float64]]:
    """Source and target tokens that came together (source * size + target, in order), and how probable it is that this
    source token gives this target."""
    keys, chances = np.empty(0, np.int64), np.empty(0)
    rare = [(source, target[~always[target]]) for source, target in pairs]
    rare = [pair for pair in rare if len(pair[1])]
    for round_ in range(ROUNDS):
        counts = np.zeros(len(keys))
        for cells, tokens in _cells(rare, size):
            here, places = np.unique(cells, return_inverse=True)
            chance = chances[np.searchsorted(keys, here)][places] if round_ else np.ones(len(cells))
            begins = np.cumsum(tokens) - tokens
            chance /= np.repeat(np.add.reduceat(chance, begins), tokens)
            if not round_:
                new = np.union1d(keys, here)
                counts, old = np.zeros(len(new)), counts
                counts[np.searchsorted(new, keys)] = old
                keys = new
            counts[np.searchsorted(keys, here)] += np.bincount(places, chance)
        chances = counts / np.bincount(keys // size, counts, size)[keys // size]
    return keys, chances


def _cells(pairs: list[tuple[Ids, Ids]], size: int) -> Iterator[tuple[Ids, Ids]]:
    """For every target token the source tokens of its pair, as source * size + target, end to end; and how many these
    are for each. Some pairs at a time."""
    rest = iter(pairs)
    room = max(1, CELLS * len(pairs) // max(1, sum(len(source) * len(target) for source, target in pairs)))
    while some := list(islice(rest, room)):
        lengths = np.array([len(source) for source, _ in some])
        sources = np.concatenate([source for source, _ in some]).astype(np.int64)
        targets = np.concatenate([target for _, target in some]).astype(np.int64)
        pair = np.repeat(np.arange(len(some)), [len(target) for _, target in some])
        tokens = lengths[pair]
        begins, ends = (np.cumsum(lengths) - lengths)[pair], np.cumsum(tokens)
        places = np.arange(ends[-1]) + np.repeat(begins - ends + tokens, tokens)
        yield sources[places] * size + np.repeat(targets, tokens), tokens


def _coverage(shortlist: Shortlist, pairs: list[tuple[Ids, Ids]], size: int) -> float:
    allowed = total = 0
    for source, target in pairs:
        there = np.zeros(size, bool)
        there[shortlist.always] = True
        for token in set(source.tolist()):
            there[shortlist.of(token)] = True
        allowed, total = allowed + int(there[target].sum()), total + len(target)
    return allowed / total if total else 1.0
