"""Tokenised once, found again, and never half there."""

import numpy as np
import pytest

from sightline.data import store as stores
from sightline.data.builtin import generate
from sightline.data.corpus import Parallel, Table
from sightline.data.store import Cleaning, prepare
from sightline.errors import InputError
from sightline.text.tokenizer import Tokenizer

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


def test_every_pair_comes_back(table, tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "CHUNK", 64)
    heard = []
    store = prepare([table], TOKENIZER, tmp_path / "cache", progress=heard.append)
    assert texts(store) == PAIRS
    assert heard == [*range(64, 500, 64), 500]
    assert store.source.lengths.tolist() == [len(ids) for ids in TOKENIZER.encode([s for s, _ in PAIRS])]
    assert store.source[0].dtype == np.uint16


def test_a_second_time_nothing_is_tokenised(table, tmp_path, monkeypatch):
    first = prepare([table], TOKENIZER, tmp_path / "cache")
    monkeypatch.setattr(Tokenizer, "encode", None)
    assert texts(prepare([table], TOKENIZER, tmp_path / "cache")) == PAIRS
    copy = tmp_path / "elsewhere.tsv"
    copy.write_bytes(table.path.read_bytes())
    assert prepare([Table(copy)], TOKENIZER, tmp_path / "cache").folder == first.folder  # what counts is the content


def test_whatever_changes_the_ids_changes_the_store(table, tmp_path):
    cache = tmp_path / "cache"
    first = prepare([table], TOKENIZER, cache).folder
    other = Tokenizer.train([text for pair in PAIRS for text in pair], 500)
    assert prepare([table], other, cache).folder != first
    assert prepare([table], TOKENIZER, cache, Cleaning(max_length=20)).folder != first
    assert prepare([table, table], TOKENIZER, cache).folder != first
    table.path.write_text(table.path.read_text() + "The dog.\tDer Hund.\n")
    assert prepare([table], TOKENIZER, cache).folder != first


def test_cleaning_is_counted(tmp_path):
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    rows = [("the dog", "der Hund"), ("", "leer"), ("the dog " * 50, "der Hund " * 50), ("the", "der Hund " * 9)]
    source.write_text("".join(f"{s}\n" for s, _ in rows))
    target.write_text("".join(f"{t}\n" for _, t in rows))
    store = prepare([Parallel(source, target)], TOKENIZER, tmp_path / "cache", Cleaning(max_length=60))
    assert store.counts == (1, 1, 1, 1)
    assert store.counts.read == 4
    assert len(store) == 1


def test_a_store_that_was_not_finished_is_never_used(table, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    bad = tmp_path / "bad.tsv"
    bad.write_text("".join(f"{s}\t{t}\n" for s, t in PAIRS) + "no tab\n")
    monkeypatch.setattr(stores, "CHUNK", 64)
    with pytest.raises(InputError, match="bad.tsv:501: the line has no tab"):
        prepare([Table(bad)], TOKENIZER, cache)
    assert list(cache.iterdir()) == []
    with pytest.raises(InputError, match="none of the 1 pairs is left after cleaning"):
        bad.write_text("\t\n")
        prepare([Table(bad)], TOKENIZER, cache)
    assert list(cache.iterdir()) == []
