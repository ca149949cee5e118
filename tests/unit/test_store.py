"""Tokenised once, found again, and never half there."""

import gzip
import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.data import examples
from sightline.data import store as stores
from sightline.data.builtin import generate
from sightline.data.corpus import Dialogue, Parallel, Table, Text
from sightline.data.examples import DialogueExamples, PairExamples, ReplyExamples, TextExamples, prepare
from sightline.data.store import Weighted
from sightline.errors import InputError
from sightline.special import END
from sightline.text.tokenizer import Tokenizer
from support import raises, store_of

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
    monkeypatch.setattr(examples, "CHUNK", 64)
    heard = []
    store = store_of([table], TOKENIZER, tmp_path / "cache", progress=heard.append)
    assert texts(store) == PAIRS
    assert heard == [*range(64, 500, 64), 500]
    assert store.source.lengths.tolist() == [len(ids) for ids in TOKENIZER.encode([s for s, _ in PAIRS])]
    assert store.source[0].dtype == np.uint16


def test_an_existing_store_is_used(table, tmp_path, monkeypatch):
    first = store_of([table], TOKENIZER, tmp_path / "cache")
    monkeypatch.setattr(Tokenizer, "encode", None)
    assert texts(store_of([table], TOKENIZER, tmp_path / "cache")) == PAIRS
    copy = tmp_path / "elsewhere.tsv"
    copy.write_bytes(table.path.read_bytes())
    assert store_of([Table(copy)], TOKENIZER, tmp_path / "cache").folder == first.folder  # what counts is the content


def test_a_compressed_copy_has_the_same_store(table, tmp_path):
    first = store_of([table], TOKENIZER, tmp_path / "cache")
    copy = tmp_path / "copy.tsv.gz"
    copy.write_bytes(gzip.compress(table.path.read_bytes()))
    assert store_of([Table(copy)], TOKENIZER, tmp_path / "cache").folder == first.folder


@pytest.mark.parametrize("count", [3, 999, 2500])
def test_a_store_keeps_a_random_sample_with_its_text(tmp_path, count):
    """The text is that of the file, even if ids cannot spell it: this vocabulary removes double spaces."""
    rows = [(f"the  dog {i}", f"der  Hund {i}") for i in range(count)]
    store = store_of([write(tmp_path / "a.tsv", [("", ""), *rows])], TOKENIZER, tmp_path)
    assert len(store.sample) == min(count, 1000)
    assert all(texts == rows[i] for i, texts in store.sample)
    indices = [i for i, _ in store.sample]
    assert len({*indices}) == len(indices)
    if count > 100:
        assert indices != sorted(indices)
        assert abs(np.mean(indices[:50]) / count - 0.5) < 0.25


def test_all_inputs_are_in_the_key(table, tmp_path):
    cache = tmp_path / "cache"
    first = store_of([table], TOKENIZER, cache).folder
    other = Tokenizer.train([text for pair in PAIRS for text in pair], 500)
    assert store_of([table], other, cache).folder != first
    assert store_of([table], TOKENIZER, cache, PairExamples(max_length=20)).folder != first
    assert store_of([table, table], TOKENIZER, cache).folder != first
    table.path.write_text(table.path.read_text() + "The dog.\tDer Hund.\n")
    assert store_of([table], TOKENIZER, cache).folder != first


def test_filtered_pairs_are_counted(tmp_path):
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    rows = [("the dog", "der Hund"), ("", "leer"), ("the dog " * 50, "der Hund " * 50), ("the", "der Hund " * 9)]
    source.write_text("".join(f"{s}\n" for s, _ in rows))
    target.write_text("".join(f"{t}\n" for _, t in rows))
    store = store_of([Parallel(source, target)], TOKENIZER, tmp_path / "cache", PairExamples(max_length=60))
    assert store.counts == (1, 1, 1, 1)
    assert store.counts.read == 4
    assert len(store) == 1


def test_an_incomplete_store_is_not_used(table, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    bad = tmp_path / "bad.tsv"
    bad.write_text("".join(f"{s}\t{t}\n" for s, t in PAIRS) + "no tab\n")
    monkeypatch.setattr(examples, "CHUNK", 64)
    with raises(InputError, value=f"{bad}:501", match="no tab"):
        store_of([Table(bad)], TOKENIZER, cache)
    assert list(cache.iterdir()) == []
    with raises(InputError, value=1, match="filter"):
        bad.write_text("\t\n")
        store_of([Table(bad)], TOKENIZER, cache)
    assert list(cache.iterdir()) == []


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "a.tsv"
    path.write_text("".join(f"{s}\t{t}\n" for s, t in PAIRS))
    return store_of([Table(path)], TOKENIZER, path.parent)


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
    plain = store_of([one, two, three], TOKENIZER, cache)
    assert [tuple(part) for part in plain.parts] == [(0, 100, 1.0), (100, 151, 1.0), (151, 191, 1.0)]
    assert np.array_equal(plain.draw(3, 5), np.arange(191))

    monkeypatch.setattr(Tokenizer, "encode", None)  # other weights, the same ids
    store = store_of([Weighted(one, 2.5), two, Weighted(three, 0.25)], TOKENIZER, cache)
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
            store_of([Weighted(one, weight)], TOKENIZER, cache)


def test_parts_count_kept_pairs(tmp_path):
    one = write(tmp_path / "1.tsv", [("", "x"), *PAIRS[:9]])
    two = write(tmp_path / "2.tsv", [("", "x")])
    assert [tuple(p) for p in store_of([one, two, one], TOKENIZER, tmp_path).parts] == [
        (0, 9, 1),
        (9, 9, 1),
        (9, 18, 1),
    ]


def test_readings_have_other_tokens_of_the_same_pairs(table, tmp_path, monkeypatch):
    monkeypatch.setattr(examples, "CHUNK", 64)
    half = PairExamples(max_length=int(np.median(store_of([table], TOKENIZER, tmp_path).target.lengths)))
    plain = store_of([table], TOKENIZER, tmp_path, half)
    assert 50 < len(plain) < 450
    dropped = replace(half, dropout=0.1, versions=3)
    readings = prepare([table], TOKENIZER, tmp_path, dropped)
    for reading in readings:
        assert reading.sample == plain.sample
        assert texts(reading) == texts(plain)
        assert reading.counts == plain.counts
        assert reading.source.lengths.sum() > plain.source.lengths.sum()
    assert len({tuple(r.source.take(range(len(r)))[0].tolist()) for r in readings}) == 3
    made_again = prepare([table], TOKENIZER, tmp_path / "again", dropped)
    for again, reading in zip(made_again, readings, strict=True):
        assert again.folder.name == reading.folder.name
        assert (again.folder / "target.ids").read_bytes() == (reading.folder / "target.ids").read_bytes()


@pytest.mark.parametrize(("same", "refused"), [(9, False), (10, True), (250, False), (251, True)])
def test_equal_source_and_target_are_refused(tmp_path, same, refused):
    pairs = PAIRS[: max(same, 12)] if same < 100 else PAIRS
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text("".join(f"{s}\n" for s, _ in pairs))
    target.write_text("".join(f"{s if i < same else t}\n" for i, (s, t) in enumerate(pairs)))
    if not refused:
        assert len(store_of([Parallel(source, target)], TOKENIZER, tmp_path)) == len(pairs)
        return
    with raises(InputError, value=same, match=rf"a\.en and .*a\.de: .* equal in {same} of {len(pairs)} pairs"):
        store_of([Parallel(source, target)], TOKENIZER, tmp_path)


@pytest.mark.parametrize("context", [1, 7, 1000, 10**6])
def test_plain_text_is_a_stream_in_pieces(tmp_path, monkeypatch, context):
    monkeypatch.setattr(examples, "CHUNK", 16)
    documents = ["\n".join(pair) for pair in PAIRS[:100]]
    one, two = tmp_path / "1.txt", tmp_path / "2.txt"
    one.write_text("\n\n".join(documents[:70]))
    two.write_text("\n\n".join(documents[70:]))
    heard = []
    store = store_of([Text(one), Weighted(Text(two), 2.0)], TOKENIZER, tmp_path, TextExamples(context), heard.append)
    assert store.source is store.loss_mask is None
    assert heard[-1] == 100
    assert len(store) == len(store.target.lengths) == store.parts[-1].last
    for part, texts in zip(store.parts, (documents[:70], documents[70:]), strict=True):
        ids, lengths = store.target.take(range(part.first, part.last))
        assert ids.tolist() == [i for text in TOKENIZER.encode(texts) for i in (*text, END)]
        assert (lengths[:-1] == context).all()
        assert 0 < lengths[-1] <= context
    assert store_of([Text(one)], TOKENIZER, tmp_path, TextExamples(context + 1)).folder != store.folder


def test_only_replies_are_in_the_loss(tmp_path):
    path = tmp_path / "a.jsonl"
    dialogues = [["the dog", "der Hund", "", "die Katze die Katze"], ["the cat", "die Katze", "the horse"]]
    path.write_text("".join(json.dumps(turns) + "\n" for turns in dialogues))
    store = store_of([Dialogue(path)], TOKENIZER, tmp_path, DialogueExamples(1000))
    assert store.source is None
    assert store.counts == (2, 0, 0, 0)
    for place, turns in enumerate(dialogues):
        encoded = TOKENIZER.encode(turns)
        assert store.target[place].tolist() == [i for ids in encoded for i in (*ids, END)]
        assert store.loss_mask[place].tolist() == [n % 2 for n, ids in enumerate(encoded) for _ in (*ids, END)]


def test_replies_have_their_history_as_source(tmp_path):
    path = tmp_path / "a.jsonl"
    dialogues = [["the dog", "der Hund", "the cat", "die Katze"], ["the horse", "das Pferd " * 30], ["a", "b", "c"]]
    path.write_text("".join(json.dumps(turns) + "\n" for turns in dialogues))
    store = store_of([Dialogue(path)], TOKENIZER, tmp_path, ReplyExamples(40))
    assert store.counts == (3, 0, 1, 0)
    expected = [(["the dog"], "der Hund"), (["the dog", "der Hund", "the cat"], "die Katze"), (["a"], "b")]
    for place, (history, reply) in enumerate(expected):
        source = [i for ids in TOKENIZER.encode(history) for i in (*ids, END)]
        assert store.source[place].tolist() == source[:-1]
        assert [store.target[place].tolist()] == TOKENIZER.encode([reply])
        assert store.loss_mask[place].tolist() == [1] * len(store.target[place])
    with raises(InputError, value=0, match="replies"):
        store_of([Dialogue(path)], TOKENIZER, tmp_path, ReplyExamples(0))


def test_dialogues_without_a_reply_that_fits_are_left_out(tmp_path):
    path = tmp_path / "a.jsonl"
    dialogues = [["a", "the dog " * 30], ["the dog", "x " * 30, "y"], ["", ""], ["the dog " * 30, "der Hund"]]
    path.write_text("".join(json.dumps(turns) + "\n" for turns in dialogues))
    store = store_of([Dialogue(path)], TOKENIZER, tmp_path, DialogueExamples(12))
    assert store.counts == (1, 1, 2, 0)
    assert TOKENIZER.decode(store.target[0]) == "der Hund"
    with raises(InputError, value=2, match="reply"):
        store_of([Dialogue(path)], TOKENIZER, tmp_path, DialogueExamples(2))


FULL = """
import resource, sys
from pathlib import Path
from sightline.data.corpus import Table
from sightline.data.examples import prepare
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
        store_of([table], TOKENIZER, cache)


def test_a_store_written_by_another_process_is_used(table, tmp_path):
    made = store_of([table], TOKENIZER, tmp_path / "theirs").folder

    def faster(_):
        shutil.copytree(made, tmp_path / "ours" / made.name)

    assert texts(store_of([table], TOKENIZER, tmp_path / "ours", progress=faster)) == PAIRS
    assert [path.name for path in (tmp_path / "ours").iterdir()] == [made.name]


def test_readings_keep_the_maximum_length(tmp_path):
    path = tmp_path / "a.tsv"
    pairs = [(p.source, p.target) for p in generate("train", 60)]
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    tokenizer = Tokenizer.train([text for pair in pairs for text in pair], 500)
    plain = store_of([Table(path)], tokenizer, tmp_path)
    longest = int(max(plain.source.lengths.max(), plain.target.lengths.max()))
    dropped = store_of([Table(path)], tokenizer, tmp_path, PairExamples(longest, 100.0, dropout=0.5))
    assert len(dropped) == 60
    assert dropped.target.lengths.sum() > plain.target.lengths.sum()
    assert max(dropped.source.lengths.max(), dropped.target.lengths.max()) <= longest
