"""Tokenised once, found again, and never half there."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.data import store as stores
from sightline.data.builtin import generate
from sightline.data.corpus import Dialogue, Parallel, Table, Text
from sightline.data.store import Cleaning, Weighted, prepare, prepare_dialogues, prepare_texts
from sightline.errors import InputError
from sightline.special import END
from sightline.text.tokenizer import Tokenizer
from support import raises

PAIRS = [(p.source, p.target) for p in generate("train", 500)]
TOKENIZER = Tokenizer.train([text for pair in PAIRS for text in pair], 600)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"{s}\t{t}\n" for s, t in PAIRS))
    return Table(path)


def texts(store):
    sides = (store.source, store.target)
    return [tuple(TOKENIZER.decode(side[i]) for side in sides) for i in range(len(store))]


def test_pairs_round_trip(table, tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "CHUNK", 64)
    heard = []
    store = prepare([table], TOKENIZER, tmp_path / "cache", progress=heard.append)
    assert texts(store) == PAIRS
    assert heard == [*range(64, 500, 64), 500]
    assert store.source.lengths.tolist() == [len(ids) for ids in TOKENIZER.encode([s for s, _ in PAIRS])]
    assert store.source[0].dtype == np.uint16


def test_an_existing_store_is_used(table, tmp_path, monkeypatch):
    first = prepare([table], TOKENIZER, tmp_path / "cache")
    monkeypatch.setattr(Tokenizer, "encode", None)
    assert texts(prepare([table], TOKENIZER, tmp_path / "cache")) == PAIRS
    copy = tmp_path / "elsewhere.tsv"
    copy.write_bytes(table.path.read_bytes())
    assert prepare([Table(copy)], TOKENIZER, tmp_path / "cache").folder == first.folder  # what counts is the content


def test_all_inputs_are_in_the_key(table, tmp_path):
    cache = tmp_path / "cache"
    first = prepare([table], TOKENIZER, cache).folder
    other = Tokenizer.train([text for pair in PAIRS for text in pair], 500)
    assert prepare([table], other, cache).folder != first
    assert prepare([table], TOKENIZER, cache, Cleaning(max_length=20)).folder != first
    assert prepare([table, table], TOKENIZER, cache).folder != first
    table.path.write_text(table.path.read_text() + "The dog.\tDer Hund.\n")
    assert prepare([table], TOKENIZER, cache).folder != first


def test_filtered_pairs_are_counted(tmp_path):
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    rows = [("the dog", "der Hund"), ("", "leer"), ("the dog " * 50, "der Hund " * 50), ("the", "der Hund " * 9)]
    source.write_text("".join(f"{s}\n" for s, _ in rows))
    target.write_text("".join(f"{t}\n" for _, t in rows))
    store = prepare([Parallel(source, target)], TOKENIZER, tmp_path / "cache", Cleaning(max_length=60))
    assert store.counts == (1, 1, 1, 1)
    assert store.counts.read == 4
    assert len(store) == 1


def test_an_incomplete_store_is_not_used(table, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    bad = tmp_path / "bad.tsv"
    bad.write_text("".join(f"{s}\t{t}\n" for s, t in PAIRS) + "no tab\n")
    monkeypatch.setattr(stores, "CHUNK", 64)
    with raises(InputError, value=f"{bad}:501", match="no tab"):
        prepare([Table(bad)], TOKENIZER, cache)
    assert list(cache.iterdir()) == []
    with raises(InputError, value=1, match="filter"):
        bad.write_text("\t\n")
        prepare([Table(bad)], TOKENIZER, cache)
    assert list(cache.iterdir()) == []


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "a.tsv"
    path.write_text("".join(f"{s}\t{t}\n" for s, t in PAIRS))
    return prepare([Table(path)], TOKENIZER, path.parent)


@given(indices=st.lists(st.integers(0, 499), max_size=50), limit=st.sampled_from([0, 1 << 30]))
def test_taking_many_sentences_is_taking_each(store, indices, limit):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "IN_MEMORY", limit)
        for side in (store.source, store.target):
            ids, lengths = side.take(indices)
            alone = [side[i] for i in indices]
            assert ids.dtype == np.uint16
            assert ids.tolist() == [i for found in alone for i in found]
            assert lengths.tolist() == list(map(len, alone))


def write(path, pairs):
    path.write_text("".join(f"{s}\t{t}\n" for s, t in pairs))
    return Table(path)


def test_weights_are_repetitions_of_pairs(tmp_path, monkeypatch):
    one, two, three = (write(tmp_path / f"{n}.tsv", PAIRS[n : n + n]) for n in (100, 51, 40))
    cache = tmp_path / "cache"
    plain = prepare([one, two, three], TOKENIZER, cache)
    assert [tuple(part) for part in plain.parts] == [(0, 100, 1.0), (100, 151, 1.0), (151, 191, 1.0)]
    assert np.array_equal(plain.draw(3, 5), np.arange(191))

    monkeypatch.setattr(Tokenizer, "encode", None)  # other weights, the same ids
    store = prepare([Weighted(one, 2.5), two, Weighted(three, 0.25)], TOKENIZER, cache)
    assert store.folder == plain.folder
    drawn = [store.draw(*key) for key in ((0, 0), (0, 1), (1, 0))]
    assert np.array_equal(drawn[0], store.draw(0, 0))
    assert not np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    for epoch in drawn:
        assert np.array_equal(epoch, np.sort(epoch))
        times = np.bincount(epoch, minlength=191)
        assert np.bincount(times[:100]).tolist() == [0, 0, 50, 50]
        assert (times[100:151] == 1).all()
        assert np.bincount(times[151:]).tolist() == [30, 10]
    for weight in (0, -1.0, float("nan"), float("inf")):
        with raises(InputError, option="weight", match=r"100\.tsv"):
            prepare([Weighted(one, weight)], TOKENIZER, cache)


def test_parts_count_kept_pairs(tmp_path):
    one = write(tmp_path / "1.tsv", [("", "x"), *PAIRS[:9]])
    two = write(tmp_path / "2.tsv", [("", "x")])
    assert [tuple(p) for p in prepare([one, two, one], TOKENIZER, tmp_path).parts] == [(0, 9, 1), (9, 9, 1), (9, 18, 1)]


def test_readings_have_other_tokens_of_the_same_pairs(table, tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "CHUNK", 64)
    cleaning = Cleaning(max_length=int(np.median(prepare([table], TOKENIZER, tmp_path).target.lengths)))
    plain = prepare([table], TOKENIZER, tmp_path, cleaning)
    assert 50 < len(plain) < 450
    readings = [prepare([table], TOKENIZER, tmp_path, cleaning, dropout=0.1, reading=n) for n in range(3)]
    for reading in readings:
        assert texts(reading) == texts(plain)
        assert reading.counts == plain.counts
        assert reading.source.lengths.sum() > plain.source.lengths.sum()
    assert len({tuple(r.source.take(range(len(r)))[0].tolist()) for r in readings}) == 3
    for n, reading in enumerate(readings):  # made again, each is the same
        again = prepare([table], TOKENIZER, tmp_path / "again", cleaning, dropout=0.1, reading=n)
        assert again.folder.name == reading.folder.name
        assert (again.folder / "target.ids").read_bytes() == (reading.folder / "target.ids").read_bytes()
    assert prepare([table], TOKENIZER, tmp_path, cleaning, reading=7).folder == plain.folder


@pytest.mark.parametrize(("same", "refused"), [(9, False), (10, True), (250, False), (251, True)])
def test_equal_source_and_target_are_refused(tmp_path, same, refused):
    pairs = PAIRS[: max(same, 12)] if same < 100 else PAIRS
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text("".join(f"{s}\n" for s, _ in pairs))
    target.write_text("".join(f"{s if i < same else t}\n" for i, (s, t) in enumerate(pairs)))
    if not refused:
        assert len(prepare([Parallel(source, target)], TOKENIZER, tmp_path)) == len(pairs)
        return
    with raises(InputError, value=same, match=rf"a\.en and .*a\.de: .* equal in {same} of {len(pairs)} pairs"):
        prepare([Parallel(source, target)], TOKENIZER, tmp_path)


@pytest.mark.parametrize("context", [1, 7, 1000, 10**6])
def test_plain_text_is_a_stream_in_pieces(tmp_path, monkeypatch, context):
    monkeypatch.setattr(stores, "CHUNK", 16)
    documents = ["\n".join(pair) for pair in PAIRS[:100]]
    one, two = tmp_path / "1.txt", tmp_path / "2.txt"
    one.write_text("\n\n".join(documents[:70]))
    two.write_text("\n\n".join(documents[70:]))
    heard = []
    store = prepare_texts([Text(one), Weighted(Text(two), 2.0)], TOKENIZER, tmp_path, context, heard.append)
    assert store.source is store.loss_mask is None
    assert heard[-1] == 100
    assert len(store) == len(store.target.lengths) == store.parts[-1].last
    for part, texts in zip(store.parts, (documents[:70], documents[70:]), strict=True):
        ids, lengths = store.target.take(range(part.first, part.last))
        assert ids.tolist() == [i for text in TOKENIZER.encode(texts) for i in (*text, END)]
        assert (lengths[:-1] == context).all()
        assert 0 < lengths[-1] <= context
    assert prepare_texts([Text(one)], TOKENIZER, tmp_path, context + 1).folder != store.folder


def test_only_replies_are_in_the_loss(tmp_path):
    path = tmp_path / "a.jsonl"
    dialogues = [["the dog", "der Hund", "", "die Katze die Katze"], ["the cat", "die Katze", "the horse"]]
    path.write_text("".join(json.dumps(turns) + "\n" for turns in dialogues))
    store = prepare_dialogues([Dialogue(path)], TOKENIZER, tmp_path, 1000)
    assert store.source is None
    assert store.counts == (2, 0, 0, 0)
    for place, turns in enumerate(dialogues):
        encoded = TOKENIZER.encode(turns)
        assert store.target[place].tolist() == [i for ids in encoded for i in (*ids, END)]
        assert store.loss_mask[place].tolist() == [n % 2 for n, ids in enumerate(encoded) for _ in (*ids, END)]


def test_dialogues_without_a_reply_that_fits_are_left_out(tmp_path):
    path = tmp_path / "a.jsonl"
    dialogues = [["a", "the dog " * 30], ["the dog", "x " * 30, "y"], ["", ""], ["the dog " * 30, "der Hund"]]
    path.write_text("".join(json.dumps(turns) + "\n" for turns in dialogues))
    store = prepare_dialogues([Dialogue(path)], TOKENIZER, tmp_path, 12)
    assert store.counts == (1, 1, 2, 0)
    assert TOKENIZER.decode(store.target[0]) == "der Hund"
    with raises(InputError, value=2, match="reply"):
        prepare_dialogues([Dialogue(path)], TOKENIZER, tmp_path, 2)


FULL = """
import resource, sys
from pathlib import Path
from sightline.data.corpus import Table
from sightline.data.store import prepare
from sightline.errors import InputError
from sightline.text.tokenizer import Tokenizer

tokenizer = Tokenizer.load(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]),) * 2)
try:
    prepare([Table(Path(sys.argv[2]))], tokenizer, Path(sys.argv[3]))
except InputError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize("limit", [100, 3000])  # fails while writing ids, or starts
def test_a_full_disk_leaves_no_store(table, tmp_path, limit):
    model, cache = tmp_path / "a.model", tmp_path / "cache"
    model.write_bytes(TOKENIZER.model)
    write(table.path, [("the dog", "der Hund")] * 500)
    command = [sys.executable, "-c", FULL, str(model), str(table.path), str(cache), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == f"{cache}: cannot be written: File too large.\n"
    assert list(cache.iterdir()) == []


def test_a_cache_that_is_a_file(table, tmp_path):
    cache = tmp_path / "cache"
    cache.write_text("a file")
    with raises(InputError, value=cache, match="Not a directory"):
        prepare([table], TOKENIZER, cache)


def test_a_store_written_by_another_process_is_used(table, tmp_path):
    made = prepare([table], TOKENIZER, tmp_path / "theirs").folder

    def faster(_):
        shutil.copytree(made, tmp_path / "ours" / made.name)

    assert texts(prepare([table], TOKENIZER, tmp_path / "ours", progress=faster)) == PAIRS
    assert [path.name for path in (tmp_path / "ours").iterdir()] == [made.name]


def test_readings_keep_the_maximum_length(tmp_path):
    path = tmp_path / "a.tsv"
    pairs = [(p.source, p.target) for p in generate("train", 60)]
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    tokenizer = Tokenizer.train([text for pair in pairs for text in pair], 500)
    plain = prepare([Table(path)], tokenizer, tmp_path)
    longest = int(max(plain.source.lengths.max(), plain.target.lengths.max()))
    dropped = prepare([Table(path)], tokenizer, tmp_path, Cleaning(longest, 100.0), dropout=0.5)
    assert len(dropped) == 60
    assert dropped.target.lengths.sum() > plain.target.lengths.sum()
    assert max(dropped.source.lengths.max(), dropped.target.lengths.max()) <= longest
