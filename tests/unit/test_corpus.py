"""Corpus files: pairs, documents and dialogues, and the errors of damaged files."""

import bz2
import gzip
import json
import lzma
import re

import pytest
import zstandard

from sightline.data import corpus as module
from sightline.data.corpus import Dialogue, Parallel, Table, Text, read_dialogues, read_documents, read_pairs
from sightline.errors import InputError
from support import raises

PAIRS = [("The dog.", "Der Hund."), ("Größe 漢字 🙂", "x"), ("", "leer")]
TSV = "".join(f"{s}\t{t}\n" for s, t in PAIRS).encode()
COMPRESS = {
    "": lambda b: b,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_tables_and_parallel_files_plain_and_compressed(tmp_path, suffix):
    def write(name, data):
        path = tmp_path / f"{name}{suffix}"
        path.write_bytes(COMPRESS[suffix](data))
        return path

    assert list(read_pairs(Table(write("a.tsv", TSV)))) == PAIRS
    records = "".join(json.dumps({"source": s, "target": t, "more": 1}) + "\n" for s, t in PAIRS).encode()
    assert list(read_pairs(Table(write("a.jsonl", records)))) == PAIRS
    source, target = ("".join(f"{pair[i]}\n" for pair in PAIRS).encode() for i in (0, 1))
    assert list(read_pairs(Parallel(write("a.en", source), write("a.de", target)))) == PAIRS


def test_line_ends_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(b"\xef\xbb\xbfa\tb\r\nc\td\tmore\r\ne\tf")
    assert list(read_pairs(Table(path))) == [("a", "b"), ("c", "d"), ("e", "f")]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.tsv", b"a\tb\nno tab\n", "a.tsv:2: no tab"),
        ("a.tsv", b"a\tb\nc\t\xff\n", "a.tsv:2: byte 3"),
        ("a.tsv", b"", "a.tsv: the file is empty"),
        ("a.tsv", b"a\t" + b"b" * 100_001, "a.tsv:1: the line has 100,003 characters"),
        ("a.jsonl", b'{"source": "a"}\n', "a.jsonl:1: not a JSON object"),
        ("a.jsonl", b'{"source": "a", "target": 3}\n', 'a.jsonl:1: "source" and "target" must be strings'),
        (
            "a.jsonl",
            b'{"source": "a\\ud800", "target": "b"}',
            "a.jsonl:1: the text has a lone surrogate",
        ),
        ("a.jsonl", b"[" * 90_000, "a.jsonl:1: not a JSON object"),
        ("a.jsonl", b"3\n", "a.jsonl:1: not a JSON object"),
        ("a.txt", b"a\n", "a.txt: not a .tsv or .jsonl file"),
        ("a.tsv.gz", b"not gzip", "a.tsv.gz: cannot be read: Not a gzipped file (b'no')."),
        ("a.tsv.gz", gzip.compress(TSV, mtime=0)[:-9], "cannot be read: Compressed file ended before"),
        ("a.tsv.xz", b"not xz", "a.tsv.xz: cannot be read: Input format not supported by decoder."),
        ("a.tsv.zst", b"not zstd", "a.tsv.zst: cannot be read: "),
    ],
)
def test_errors_have_file_and_line(tmp_path, name, data, message):
    path = tmp_path / name
    path.write_bytes(data)
    with raises(InputError, match=re.escape(message)) as error:
        list(read_pairs(Table(path)))
    assert str(error.value.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_parallel_files_that_do_not_match(tmp_path):
    one, other = tmp_path / "a.en", tmp_path / "a.de"
    one.write_text("a\nb\nc\n")
    other.write_text("a\n")
    with raises(InputError, value=one, match=r"a\.en has 3 lines, .*a\.de has 1"):
        list(read_pairs(Parallel(one, other)))
    with raises(InputError, value=other, match=r"a\.de has 1 lines, .*a\.en has 3"):
        list(read_pairs(Parallel(other, one)))
    with raises(InputError, value=one, match="same file"):
        list(read_pairs(Parallel(one, one)))
    with raises(InputError, value=tmp_path / "none"):
        list(read_pairs(Parallel(one, tmp_path / "none")))


def test_a_blank_line_ends_a_document(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"\n\none\n  two\r\n\nthree\n \t\n\n\nfour\n"))
    assert list(read_documents(Text(path))) == ["one\n  two", "three", "four"]
    path = tmp_path / "b.txt"
    path.write_text(" \n\n")
    with raises(InputError, value=path, match="blank lines"):
        list(read_documents(Text(path)))


def test_long_documents_are_split(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_DOCUMENT", 50)
    text = "\n".join(f"line {i}" for i in range(100))
    path = tmp_path / "a.txt"
    path.write_text(text)
    documents = list(read_documents(Text(path)))
    assert "\n".join(documents) == text
    assert 40 < min(map(len, documents[:-1])) <= max(map(len, documents)) <= 50


def test_dialogues_as_objects_and_as_lists(tmp_path):
    path = tmp_path / "a.jsonl.xz"
    path.write_bytes(lzma.compress(b'{"turns": ["Hi.", "Hello!", ""], "more": 1}\n["a", "b"]\n'))
    assert list(read_dialogues(Dialogue(path))) == [["Hi.", "Hello!", ""], ["a", "b"]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no", "not a JSON list of turns"),
        ('{"turn": ["a", "b"]}', "not a JSON list of turns"),
        ('"ab"', "not a JSON list of turns"),
        ("[" * 90_000, "not a JSON list of turns"),
        ('["a", "\\udfff"]', "lone surrogate"),
        ('["a", 3]', "turn 2 must be a string, got 3"),
        ('{"turns": [{"role": "user"}, "b"]}', 'turn 1 must be a string, got {"role": "user"}'),
        ('["a"]', "at least 2 turns, got 1"),
        ("[]", "at least 2 turns, got 0"),
    ],
)
def test_invalid_dialogues_have_file_and_line(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text(f'["a", "b"]\n{line}\n')
    with raises(InputError, value=f"{path}:2", match=re.escape(message)):
        list(read_dialogues(Dialogue(path)))
