"""Files of pairs: what can be read, and what is said of what cannot."""

import bz2
import gzip
import json
import lzma

import pytest
import zstandard

from sightline.data.corpus import Parallel, Table, read_pairs
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
