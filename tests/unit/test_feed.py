"""The stream of batches: every pair in its turn, the same from any place on and for any number of processes."""

import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.data.batches import MaskedBatches, collate, plan_shared
from sightline.data.builtin import generate
from sightline.data.corpus import Table, Text
from sightline.data.examples import PairExamples, TextExamples, prepare
from sightline.data.feed import Feed, Place, ahead
from sightline.data.store import Weighted
from sightline.errors import InputError
from sightline.special import PAD, UNKNOWN
from sightline.text.tokenizer import Tokenizer
from support import raises

PAIRS = [(pair.source, pair.target) for pair in generate("train", 80)]
TOKENIZER = Tokenizer.train([text for pair in PAIRS for text in pair], 340, ["<mask>"])
MASK = TOKENIZER.mask_id
MASKED = MaskedBatches(MASK, TOKENIZER.size)
LENGTHS = st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), min_size=1, max_size=150)


# --- Plans of shared rows


@settings(max_examples=60)
@given(lengths=LENGTHS, budget=st.integers(256, 1000), seed=st.integers(0, 99), epoch=st.integers(0, 9), data=st.data())
def test_pairs_as_often_as_drawn_within_their_rows(lengths, budget, seed, epoch, data):
    source, target = np.array(lengths, np.int32).T
    some = data.draw(st.none() | st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=100))
    pairs = None if some is None else np.array(some)
    batches = plan_shared(source, target, budget, seed, epoch, pairs)
    assert sorted(np.concatenate([batch.pairs for batch in batches])) == sorted(
        range(len(lengths)) if some is None else some
    )
    for batch in batches:
        assert batch.length >= 64
        assert batch.rows == budget // batch.length
        assert batch.row.min() >= 0
        assert batch.row.max() < batch.rows
        for side in (source, target):
            assert np.bincount(batch.row, side[batch.pairs] + 1, batch.rows).max() <= batch.length
        longest = max(source[batch.pairs].max(), target[batch.pairs].max()) + 1
        assert batch.length == 64 or longest > batch.length // 2  # no row is longer than its sentences need
    again = plan_shared(source, target, budget, seed, epoch, pairs)
    for a, b in zip(batches, again, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def realistic(count=20_000):
    chance = np.random.default_rng(0)
    target = np.clip(chance.lognormal(3.1, 0.6, count), 1, 250).astype(np.int32)
    source = np.clip(target * chance.normal(1, 0.15, count), 1, 250).astype(np.int32)
    return source, target


def test_shared_rows_are_full_and_differ_between_epochs_and_seeds():
    source, target = realistic()
    one, two, three = (plan_shared(source, target, 8192, *key) for key in ((0, 0), (0, 1), (1, 0)))
    groups = [{tuple(sorted(batch.pairs)) for batch in plan} for plan in (one, two, three)]
    assert len(groups[0] & groups[1]) == len(groups[0] & groups[2]) == 0
    for batch in one:
        assert batch.rows * batch.length == 8192
    tokens = sum(int((side + 1).sum()) for side in (source, target))
    assert tokens / (2 * 8192 * len(one)) > 0.9


def test_batches_smaller_than_the_longest_row():
    with raises(InputError, option="batch_tokens", value=100, match="128"):
        plan_shared(np.array([5], np.int32), np.array([80], np.int32), 100, 0, 0)


# --- Background thread


def worker():
    return [thread for thread in threading.enumerate() if thread.name.startswith("sightline batches")]


def gone():
    """Wait until the thread has ended; a thread that never ends fails the test after a minute."""
    for thread in worker():
        thread.join(60)
    return not worker()


@pytest.mark.parametrize("depth", [1, 8])
def test_ahead_yields_the_items_in_order_and_ends(depth):
    assert list(ahead(lambda: iter(range(100)), depth)) == list(range(100))
    assert gone()
    assert list(ahead(lambda: iter(()), depth)) == []
    assert gone()


def test_ahead_is_limited_by_its_depth():
    made, six = [], threading.Event()

    def items():
        for i in range(100):
            made.append(i)
            if i == 5:
                six.set()
            yield i

    taken = ahead(items, 4)
    next(taken)
    assert six.wait(60)
    time.sleep(0.05)  # in which a thread without a limit would make all of them
    assert len(made) == 6  # one taken, four ready, one in hand
    assert worker()
    taken.close()
    assert gone()


def test_ahead_raises_errors_after_earlier_items():
    def items():
        yield 1
        raise InputError("no more")

    taken = ahead(items)
    assert next(taken) == 1
    with pytest.raises(InputError, match="no more"):
        next(taken)
    assert gone()


# --- The stream


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("feed")
    for name, pairs in (("a", PAIRS[:50]), ("b", PAIRS[50:])):
        (folder / f"{name}.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in pairs))
    (folder / "a.txt").write_text("".join(f"{t}\n\n" for _, t in PAIRS))
    return folder


def feed_of(folder, rows="padded", **more):
    """Weighted, and read in two ways: the epochs differ in length."""
    corpora = [Weighted(Table(folder / "a.tsv"), 1.5), Weighted(Table(folder / "b.tsv"), 2.0)]
    stores = prepare(corpora, TOKENIZER, folder / "cache", PairExamples(dropout=0.2, versions=2))
    return Feed(stores, batch_tokens=512, seed=3, rows=rows, **more)


def readers_feed(folder):
    stores = prepare([Text(folder / "a.txt")], TOKENIZER, folder / "cache", TextExamples(30))
    return Feed(stores, batch_tokens=256, seed=3, make=MASKED)


def first(feed, count, *arguments):
    updates = feed.updates(*(arguments or [Place()]))
    return [next(updates) for _ in range(count)]


def same(one, other):
    assert [x[1:] for x in one] == [x[1:] for x in other]
    for a, b in zip(one, other, strict=True):
        assert [number for number, _ in a.batches] == [number for number, _ in b.batches]
        for (_, x), (_, y) in zip(a.batches, b.batches, strict=True):
            assert x.tokens == y.tokens
            assert all(torch.equal(p, q) for p, q in zip(x.tensors(), y.tensors(), strict=True))


@pytest.mark.parametrize("rows", ["padded", "shared"])
def test_the_stream_resumes_at_any_position(rows, folder):
    whole = first(feed_of(folder, rows), 30, Place(), 2)
    assert whole[-1].place.epoch >= 2
    for done in (1, 7, 18, 29):
        feed = feed_of(folder, rows)
        same(first(feed, 30 - done, whole[done - 1].place, 2), whole[done:])
        assert feed.filled() == feed_of(folder, rows).filled()


@pytest.mark.parametrize("make", [feed_of, readers_feed])
@pytest.mark.parametrize("processes", [2, 3])
def test_batches_of_all_processes_are_the_stream_of_one(make, processes, folder):
    one = first(make(folder), 8, Place(), 2 * processes)
    shares = [first(make(folder), 8, Place(), 2, rank, processes) for rank in range(processes)]
    for whole, *parts in zip(one, *shares, strict=True):
        assert all(part[1:] == whole[1:] for part in parts)  # tokens, cells, place and epoch are known to all
        together = sorted((pair for part in parts for pair in part.batches), key=lambda pair: pair[0])
        same([whole], [whole._replace(batches=together)])
        assert whole.tokens == sum(batch.tokens for _, batch in whole.batches)


def test_an_epoch_has_each_pair_as_often_as_its_weight(folder):
    feed = feed_of(folder)
    for epoch in range(3):
        counts = np.bincount(np.concatenate(feed.plan(epoch)), minlength=80)
        assert counts[50:].tolist() == [2] * 30
        assert set(counts[:50].tolist()) == {1, 2}
        assert counts[:50].sum() == 75


def test_epochs_of_updates(folder):
    feed = feed_of(folder)
    epoch = 0.0
    for update in first(feed, 40):
        assert update.epoch > epoch
        epoch = update.epoch
        expected = update.place.epoch + update.place.batch / len(feed.plan(update.place.epoch))
        assert update.epoch == pytest.approx(expected)


@pytest.mark.parametrize("rows", ["padded", "shared"])
def test_filled_is_the_fraction_of_tokens(rows, folder):
    feed = feed_of(folder, rows)
    batches = [feed.batch(Place(0, i)) for i in range(len(feed.plan(0)))]
    tokens = sum(int((side != PAD).sum()) for batch in batches for side in (batch.inputs.source, batch.inputs.target))
    cells = sum(side.numel() for batch in batches for side in (batch.inputs.source, batch.inputs.target))
    assert feed.filled() == pytest.approx(tokens / cells)
    assert sum(update.cells for update in first(feed, len(batches))) == tokens


def test_weights_that_leave_no_text(folder):
    stores = prepare([Weighted(Table(folder / "a.tsv"), 0.001)], TOKENIZER, folder / "cache")
    with raises(InputError, match="weights"):
        Feed(stores, batch_tokens=512, seed=0).plan(0)


# --- Masked tokens


def text_store(folder):
    (store,) = prepare([Text(folder / "a.txt")], TOKENIZER, folder / "cache", TextExamples(20))
    assert len(store) >= 40
    return store


@settings(max_examples=30)
@given(pairs=st.lists(st.integers(0, 39), min_size=1, max_size=40), seed=st.integers(0, 10**6))
def test_masked_tokens_are_predicted_and_others_unchanged(folder, pairs, seed):
    store = text_store(folder)
    text, masked = collate(store, pairs).inputs.target, MASKED(store, pairs, [seed, 1, 2])
    predicted, read = masked.targets != PAD, masked.inputs.source
    assert masked.tokens == int(predicted.sum()) > 0
    assert torch.equal(masked.targets[predicted], text[predicted])
    assert (text[predicted] > UNKNOWN).all()  # no padding, start or end
    assert torch.equal(read[~predicted], text[~predicted])
    assert (read[predicted] > UNKNOWN).all()
    assert (read < TOKENIZER.size).all()
    again = MASKED(store, pairs, [seed, 1, 2])
    assert all(torch.equal(a, b) for a, b in zip(masked.tensors(), again.tensors(), strict=True))


def test_masked_fractions_are_those_of_bert(folder):
    store, chosen = text_store(folder), np.arange(40).repeat(50)
    text, masked = collate(store, chosen).inputs.target, MASKED(store, chosen, [0])
    words, predicted = text > UNKNOWN, masked.targets != PAD
    assert predicted.sum() / words.sum() == pytest.approx(0.15, rel=0.05)
    hidden = (masked.inputs.source == MASK)[predicted].float().mean()
    kept = (masked.inputs.source == text)[predicted].float().mean()
    assert hidden == pytest.approx(0.8, abs=0.02)
    assert kept == pytest.approx(0.1, abs=0.02)
    assert not torch.equal(predicted, MASKED(store, chosen, [1]).targets != PAD)
