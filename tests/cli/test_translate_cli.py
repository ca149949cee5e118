"""`sightline translate`, `align`, `score` and `shortlist`: every line of the input has its line in the output."""

import gzip
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

import sightline
from runs import LIMIT, wait_for
from sightline.cli.main import main
from sightline.data.builtin import generate
from sightline.evaluate.align import agreement, gold_of
from sightline.search.align import write_pharaoh

COMMAND = [sys.executable, "-m", "sightline.cli.main"]
TEXTS = [pair.source for pair in generate("test", 30)]


def run(*arguments, given=b"", **more):
    return subprocess.run([*COMMAND, *map(str, arguments)], input=given, capture_output=True, check=False, **more)


@pytest.fixture(scope="module")
def expected(taught):
    return [found.text for found in sightline.load(taught).translate(TEXTS)]


def test_files_and_standard_input(taught, expected, tmp_path):
    text = "\n".join(TEXTS)  # no line break after the last line
    done = run("translate", taught, given=text.encode())
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == "\n".join(expected) + "\n"
    (tmp_path / "x.gz").write_bytes(gzip.compress((text + "\n").encode()))
    assert run("translate", taught, tmp_path / "x.gz", "--out", tmp_path / "y").returncode == 0
    assert (tmp_path / "y").read_text() == "\n".join(expected) + "\n"


def test_unusual_lines(taught):
    strange = [
        b"",
        b"  ",
        b"\xff\xfe broken",
        "😀 👩‍👩‍👧".encode(),
        "שלום עולם".encode(),
        b"\x00\x07\x1b[31m",
        "a\u2028b\x85c\x0bd".encode(),
        b"word " * 1500,
        b"ends with a return\r",
        TEXTS[0].encode(),
    ]
    done = run("translate", taught, "--beams", "1", given=b"\n".join(strange) + b"\n")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split(b"\n")
    assert lines.pop() == b""
    assert len(lines) == len(strange)
    assert lines[0] == b""
    assert b"standard input:3: " in done.stderr
    assert lines[-1].decode() == sightline.load(taught).translate(TEXTS[0], beams=1)[0].text


@pytest.mark.parametrize("command", ["score", "align"])
def test_errors_count_pairs_across_windows(command, taught, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sightline.bulk.pairs.WINDOW", 2)
    (tmp_path / "a.en").write_text("x\n" * 4 + "x " * 9000 + "\n")
    (tmp_path / "a.de").write_text("y\n" * 5)
    files = ["--source", tmp_path / "a.en", "--target", tmp_path / "a.de"]
    monkeypatch.setattr("sys.argv", ["sightline", command, *map(str, [taught, *files])])
    with pytest.raises(SystemExit) as stopped:
        main()
    output = capsys.readouterr()
    assert stopped.value.code == 2
    assert len(output.out.splitlines()) == 4
    assert "5" in output.err.split()


def test_unreadable_standard_input(taught, tmp_path):
    with (tmp_path / "only to write").open("wb") as file:
        done = subprocess.run([*COMMAND, "translate", str(taught)], stdin=file, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().splitlines()[-1].startswith("standard input: ")


def test_standard_input_is_answered_line_by_line(taught, expected):
    with subprocess.Popen(
        [*COMMAND, "translate", str(taught)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        for text, answer in zip(TEXTS[:3], expected, strict=False):
            process.stdin.write(text + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == answer + "\n"
        process.stdin.close()
        assert process.wait(timeout=LIMIT) == 0


SLOWLY = pytest.mark.slow


@pytest.mark.parametrize(
    ("how", "nbest"),
    [
        (signal.SIGTERM, 1),
        (signal.SIGKILL, 2),
        pytest.param(signal.SIGINT, 1, marks=SLOWLY),
        pytest.param(signal.SIGKILL, 1, marks=SLOWLY),
        pytest.param(signal.SIGINT, 2, marks=SLOWLY),
        pytest.param(signal.SIGTERM, 2, marks=SLOWLY),
    ],
)
def test_interrupted_and_resumed_output_equals_uninterrupted(taught, tmp_path, how, nbest):
    """The interrupted process reads a pipe that stays open, so that it cannot end before the signal."""
    many = (TEXTS * 20)[:400]
    (tmp_path / "in").write_text("\n".join(many) + "\n")
    options = ["--beams", "2", "--nbest", str(nbest), "--backend", "torch"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run("translate", taught, tmp_path / "in", "--out", whole, *options).returncode == 0
    command = ["translate", str(taught), str(tmp_path / "in"), "--out", str(parts), *options]
    from_pipe = [*COMMAND, "translate", str(taught), "-", "--out", str(parts), *options]
    with subprocess.Popen(from_pipe, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write((tmp_path / "in").read_bytes())
        process.stdin.flush()
        wait_for(lambda: parts.exists() and parts.stat().st_size > 0, process)
        process.send_signal(how)
        code = process.wait(timeout=LIMIT)
        stderr = process.stderr.read().decode()
    assert code == (-9 if how == signal.SIGKILL else 128 + how)
    if how != signal.SIGKILL:
        assert "--resume" in stderr
        assert parts.read_bytes().endswith(b"\n")
    so_far = parts.read_bytes()
    assert whole.read_bytes().startswith(so_far)
    with parts.open("ab") as file:
        file.write(b"half a li")  # as after a full disk
    assert run(*command, "--resume").returncode == 0
    assert parts.read_bytes() == whole.read_bytes()
    assert run(*command, "--resume").returncode == 0  # nothing is left
    assert parts.read_bytes() == whole.read_bytes()


def test_closed_output_pipe(taught):
    command = f"{shlex.join([*COMMAND, 'translate', str(taught)])} | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command], input="\n".join(TEXTS * 30).encode(), capture_output=True, check=False
    )
    assert done.stdout.count(b"\n") == 1
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr


def test_nbest_and_json(taught, expected):
    given = "\n".join(TEXTS[:3]).encode()
    rows = [
        row.split(" ||| ") for row in run("translate", taught, "--nbest", "3", given=given).stdout.decode().splitlines()
    ]
    assert [int(number) for number, _, _ in rows] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [text for _, text, _ in rows[::3]] == expected[:3]
    found = [
        json.loads(line) for line in run("translate", taught, "--nbest", "3", "--json", given=given).stdout.splitlines()
    ]
    assert [one["text"] for one in found] == expected[:3]
    for one in found:
        assert len(one["alternatives"]) == 2
        assert len(one["log_probs"]) == len(one["tokens"]) + 1


def test_alignments_of_translations(taught, expected, tmp_path):
    texts = ["", *TEXTS[:3]]
    given = "\n".join(texts).encode()
    links = [write_pharaoh(one.alignment) for one in sightline.load(taught).translate(texts, align=True)]
    rows = [row.split(" ||| ") for row in run("translate", taught, "--align", given=given).stdout.decode().split("\n")]
    assert rows == [[text, each] for text, each in zip(["", *expected[:3]], links, strict=True)] + [[""]]
    done = run("translate", taught, "--align", "--nbest", "2", given=given)
    rows = [row.split(" ||| ") for row in done.stdout.decode().splitlines()]
    assert [(row[0], row[3]) for row in rows[1::2]] == [(str(i), each) for i, each in enumerate(links[1:], 2)]
    done = run("translate", taught, "--align", "--json", "--nbest", "2", given=given)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [" ".join(f"{s}-{t}" for s, t in one["alignment"]) for one in found] == links
    assert all(other["alignment"] for one in found[1:] for other in one["alternatives"])
    assert "alignment" not in json.loads(run("translate", taught, "--json", given=TEXTS[0].encode()).stdout)


def test_align_command(taught, here, tmp_path):
    pairs = list(generate("dev", 40))
    model = shutil.copytree(taught, tmp_path / "model")
    for name, rows in (
        ("en", [pair.source for pair in pairs]),
        ("de", [pair.target for pair in pairs]),
        ("gold", [write_pharaoh(gold_of(pair)) for pair in pairs]),
    ):
        (tmp_path / name).write_text("".join(f"{row}\n" for row in rows))
    command = ["align", model, "--source", tmp_path / "en", "--target", tmp_path / "de"]
    expected = sightline.load(taught).align([pair.source for pair in pairs], [pair.target for pair in pairs])
    code, out, err = here(*command)
    assert (code, err) == (0, "")
    assert out.splitlines() == [write_pharaoh(links) for links in expected]
    _, _, err = here(*command, "--gold", tmp_path / "gold")
    error = agreement(expected, [gold_of(pair) for pair in pairs]).error
    assert err.startswith(f"error rate {error:.4f}, precision ")
    code, out, err = here(*command, "--gold", tmp_path / "gold", "--choose")
    assert (code, out) == (0, "")
    chosen = json.loads((model / "alignment.json").read_text())
    assert chosen["pairs"] == 40
    assert chosen["error"] <= round(error, 4)
    assert f"chosen by: {chosen['error']:.4f}" in err
    assert f"error rate {chosen['error']:.4f}" in here(*command, "--gold", tmp_path / "gold")[2]


def test_search_options(taught, here, tmp_path):
    engine = sightline.load(taught)
    (tmp_path / "in").write_text(TEXTS[0])
    for arguments, options in (
        (["--beams", "1"], {"beams": 1}),
        (["--sample", "--seed", "5", "--top-p", "0.9"], {"sample": True, "seed": 5, "top_p": 0.9}),
        (["--prefix", "Gestern"], {"prefix": "Gestern"}),
        (["--set", "min_ratio=2.0", "--set", "max_ratio=3"], {"min_ratio": 2.0, "max_ratio": 3.0}),
        (["--length-penalty", "0"], {"length_penalty": 0.0}),
        (["--require", "heute", "--require", "Wal"], {"require": ["heute", "Wal"]}),
        (["--rerank", "mbr-chrf", "--beams", "16"], {"sample": True, "rerank": "mbr-chrf", "beams": 16}),
        (["--sample", "-b", "16", "--set", "rerank=mbr-chrf"], {"sample": True, "rerank": "mbr-chrf", "beams": 16}),
    ):  # fmt: skip
        code, out, err = here("translate", taught, tmp_path / "in", *arguments)
        assert (code, out) == (0, engine.translate(TEXTS[0], **options)[0].text + "\n"), err


def test_shortlist(taught, expected, tmp_path):
    pytest.importorskip("ctranslate2")
    model = tmp_path / "model"
    shutil.copytree(taught, model, ignore=shutil.ignore_patterns("ctranslate2*", "checkpoints"))
    text = "\n".join(TEXTS).encode()
    done = run("translate", model, "--shortlist", given=text)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"--shortlist" in done.stderr
    assert b"vmap.txt" in done.stderr
    pairs = list(generate("train", 3000))
    (tmp_path / "x.tsv").write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs[:2000]))
    (tmp_path / "x.en").write_text("".join(f"{pair.source}\n" for pair in pairs[2000:]))
    (tmp_path / "x.de").write_text("".join(f"{pair.target}\n" for pair in pairs[2000:]))
    on = ["--pairs", tmp_path / "x.tsv", "--source", tmp_path / "x.en", "--target", tmp_path / "x.de"]
    done = run("shortlist", model, *on, "--often", 50, "--likely", 30)
    assert (done.returncode, done.stdout.decode()) == (0, f"{model / 'vmap.txt'}\n"), done.stderr
    assert re.search(r"(9\d|100)\.\d\d % of the target tokens", done.stderr.decode())
    for more in ([], ["--precision", "int8"], ["--beams", "1", "--prefix", "Gestern"]):
        done = run("translate", model, "--shortlist", *more, given=text)
        assert done.returncode == 0, done.stderr
        found = done.stdout.decode().splitlines()
        assert len(found) == len(TEXTS)
        if not more:
            assert sum(one == other for one, other in zip(found, expected, strict=True)) > 20
        assert all(line.startswith("Gestern") for line in found) or "--prefix" not in more


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["translate", "{tmp}/none"], ["{tmp}/none"]),
        (["translate", "{model}", "{tmp}/none"], ["{tmp}/none"]),
        (["translate", "{model}", "--resume"], ["--resume", "--out"]),
        (["translate", "{model}", "--out", "{tmp}/there"], ["--out", "{tmp}/there", "--resume"]),
        (["translate", "{model}", "--beams", "0"], ["--beams", "0"]),
        (["translate", "{model}", "--backend", "fast"], ["--backend", "fast"]),
        (["translate", "{model}", "--precision", "half"], ["--precision", "half"]),
        (["translate", "{model}", "--precision", "int8", "--backend", "torch"], ["--precision", "int8"]),
        (["shortlist", "{model}"], ["--pairs", "--source", "--target"]),
        (["shortlist", "{model}", "--source", "{tmp}/there"], ["--source", "--target", "1", "0"]),
        (["shortlist", "{tmp}/none", "--pairs", "{tmp}/there.tsv"], ["{tmp}/none"]),
        (["shortlist", "{model}", "--pairs", "{tmp}/there.tsv"], ["{tmp}/there.tsv"]),
        (["translate", "{model}", "--set", "temprature=1"], ["temprature", "--temperature"]),
        (["translate", "{model}", "--beams", "2", "--set", "groups=3"], ["groups", "3"]),
        (["translate", "{model}", "--set", "rerank=mbr-chrf"], ["rerank", "--sample"]),
        (["translate", "{model}", "{tmp}/there", "--rerank", "mbr-chrf", "--require", "x"], ["--require"]),
        (["translate", "{model}", "{tmp}/there", "--require", "x", "--forbid", "x"], ["--require", "--forbid"]),
        (["score", "{model}", "--source", "{tmp}/there", "--target", "{tmp}/longer"], ["lines"]),
        (
            ["align", "{model}", "--source", "{tmp}/there", "--target", "{tmp}/other", "--choose"],
            ["--choose", "--gold"],
        ),
        (
            ["align", "{model}", "--source", "{tmp}/there", "--target", "{tmp}/other", "--gold", "{tmp}/there"],
            ["{tmp}/there:1"],
        ),
    ],
)
def test_user_errors(taught, here, tmp_path, arguments, words):
    (tmp_path / "there").write_text("one\n")
    (tmp_path / "other").write_text("eins\n")
    (tmp_path / "longer").write_text("one\ntwo\n")
    names = {"tmp": tmp_path, "model": taught}
    code, out, err = here(*(part.format(**names) for part in arguments))
    assert (code, out) == (2, ""), err
    assert len(err.splitlines()) == 1
    for word in words:
        assert re.search(rf"(?<!\w){re.escape(word.format(**names))}(?!\w)", err), (word, err)


def test_scores_of_given_translations(taught, tmp_path):
    pairs = list(generate("test", 5))
    (tmp_path / "en").write_text("".join(f"{pair.source}\n" for pair in pairs))
    (tmp_path / "de").write_text("".join(f"{pair.target}\n" for pair in pairs))
    expected = sightline.load(taught).score([pair.source for pair in pairs], [pair.target for pair in pairs])
    done = run("score", taught, "--source", tmp_path / "en", "--target", tmp_path / "de")
    assert [float(line) for line in done.stdout.splitlines()] == pytest.approx(
        [one.log_prob for one in expected], abs=1e-3
    )
    assert b"perplexity" in done.stderr
    done = run("score", taught, "--source", tmp_path / "en", "--target", tmp_path / "de", "--json")
    for line, one in zip(done.stdout.splitlines(), expected, strict=True):
        assert json.loads(line)["tokens"] == one.tokens
