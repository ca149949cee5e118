"""Files of pairs: what can be read, and what is said of what cannot."""

import bz2
import gzip
import json
import lzma

import pytest
import zstandard

from sightline.data import corpus as module
from sightline.data.corpus import Dialogue, Parallel, Table, Text, read_dialogues, read_documents, read_pairs
from sightline.errors import InputError

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
    ("name", "data", "sentence"),
    [
        ("a.tsv", b"a\tb\nno tab\n", "a.tsv:2: the line has no tab between source and target."),
        ("a.tsv", b"a\tb\nc\t\xff\n", "a.tsv:2: byte 3 is not valid UTF-8."),
        ("a.tsv", b"", "a.tsv: the file is empty."),
        ("a.tsv", b"a\t" + b"b" * 100_001, "a.tsv:1: the line has 100,003 characters; 100,000 is the limit."),
        ("a.jsonl", b'{"source": "a"}\n', 'a.jsonl:1: the line is not a JSON object with "source" and "target".'),
        ("a.jsonl", b'{"source": "a", "target": 3}\n', 'a.jsonl:1: "source" and "target" must be texts.'),
        (
            "a.jsonl",
            b'{"source": "a\\ud800", "target": "b"}',
            "a.jsonl:1: half a character (a lone surrogate) is no text.",
        ),
        ("a.jsonl", b"[" * 90_000, 'a.jsonl:1: the line is not a JSON object with "source" and "target".'),
        ("a.jsonl", b"3\n", 'a.jsonl:1: the line is not a JSON object with "source" and "target".'),
        ("a.txt", b"a\n", "a.txt: pairs are read from .tsv or .jsonl files (or such files compressed)."),
        ("a.tsv.gz", b"not gzip", "a.tsv.gz: cannot be read: Not a gzipped file (b'no')."),
        ("a.tsv.gz", gzip.compress(TSV, mtime=0)[:-9], "cannot be read: Compressed file ended before"),
        ("a.tsv.xz", b"not xz", "a.tsv.xz: cannot be read: Input format not supported by decoder."),
        ("a.tsv.zst", b"not zstd", "a.tsv.zst: cannot be read: "),
    ],
)
def test_what_is_wrong_is_told_with_file_and_line(tmp_path, name, data, sentence):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InputError) as error:
        list(read_pairs(Table(path)))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_parallel_files_that_do_not_match(tmp_path):
    one, other = tmp_path / "a.en", tmp_path / "a.de"
    one.write_text("a\nb\nc\n")
    other.write_text("a\n")
    with pytest.raises(InputError, match=r"a\.en has 3 lines and .*a\.de has 1; they must have as many"):
        list(read_pairs(Parallel(one, other)))
    with pytest.raises(InputError, match=r"a\.de has 1 lines and .*a\.en has 3; they must have as many"):
        list(read_pairs(Parallel(other, one)))
    with pytest.raises(InputError, match="the same file is given as source and as target"):
        list(read_pairs(Parallel(one, one)))
    with pytest.raises(InputError, match="cannot be read: No such file or directory"):
        list(read_pairs(Parallel(one, tmp_path / "none")))


def test_a_blank_line_ends_a_document(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"\n\none\n  two\r\n\nthree\n \t\n\n\nfour\n"))
    assert list(read_documents(Text(path))) == ["one\n  two", "three", "four"]
    path = tmp_path / "b.txt"
    path.write_text(" \n\n")
    with pytest.raises(InputError, match=r"b\.txt: the file has nothing but blank lines\."):
        list(read_documents(Text(path)))


def test_a_document_that_never_ends_is_given_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_DOCUMENT", 50)
    text = "\n".join(f"line {i}" for i in range(100))
    path = tmp_path / "a.txt"
    path.write_text(text)
    documents = list(read_documents(Text(path)))
    assert "\n".join(documents) == text
    assert 40 < min(map(len, documents[:-1])) <= max(map(len, documents)) <= 50


def test_conversations_as_objects_and_as_lists(tmp_path):
    path = tmp_path / "a.jsonl.xz"
    path.write_bytes(lzma.compress(b'{"turns": ["Hi.", "Hello!", ""], "more": 1}\n["a", "b"]\n'))
    assert list(read_dialogues(Dialogue(path))) == [["Hi.", "Hello!", ""], ["a", "b"]]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("no", 'the line is neither a JSON list of turns nor a JSON object with "turns".'),
        ('{"turn": ["a", "b"]}', 'the line is neither a JSON list of turns nor a JSON object with "turns".'),
        ('"ab"', 'the line is neither a JSON list of turns nor a JSON object with "turns".'),
        ("[" * 90_000, 'the line is neither a JSON list of turns nor a JSON object with "turns".'),
        ('["a", "\\udfff"]', "half a character (a lone surrogate) is no text."),
        ('["a", 3]', "turn 2 is 3; a turn must be a text."),
        ('{"turns": [{"role": "user"}, "b"]}', 'turn 1 is {"role": "user"}; a turn must be a text.'),
        ('["a"]', "the conversation has only 1 of the two turns it needs: something said, and a reply."),
        ("[]", "the conversation has only 0 of the two turns it needs: something said, and a reply."),
    ],
)
def test_a_conversation_that_is_none_is_told_with_file_and_line(tmp_path, line, sentence):
    path = tmp_path / "a.jsonl"
    path.write_text(f'["a", "b"]\n{line}\n')
    with pytest.raises(InputError) as error:
        list(read_dialogues(Dialogue(path)))
    assert str(error.value) == f"{path}:2: {sentence}"
