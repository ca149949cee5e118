"""`sightline distill` and `back-translate`: pairs made by a model, one row per line."""

import gzip
import json
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

import sightline as library
from runs import LIMIT, environment, files, metrics, sightline, write_pairs
from shared_fixtures import HALF_TAUGHT
from sightline.bulk.lines import Report, only_writer
from sightline.bulk.pairs import write_pairs as write_table
from sightline.config import SearchConfig
from sightline.data.builtin import generate
from sightline.data.corpus import LONGEST_LINE, Table, read_pairs
from sightline.engine import Plan
from sightline.errors import InputError
from support import raises

TEXTS = [pair.source for pair in generate("test", 120)]


def options(*given):
    return [part for option in given for part in ("--set", option)]


def write(path, texts):
    path.write_text("".join(f"{text}\n" for text in texts), "utf-8")
    return path


def rows(path):
    return [tuple(row.split("\t")) for row in path.read_text("utf-8").split("\n")[:-1]]


KILLED = """
import os, signal
from sightline.bulk import lines
from sightline.cli import main
windows, lines.FIRST, lines.LAST = lines._windows, 8, 8

def first_only(texts):
    for number, window in enumerate(windows(texts)):
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        yield window

lines._windows = first_only
main.main()
"""
"""A command that kills itself when it reads the fourth window of lines: the first is written by then."""
TERMINATED = """
import os, signal, sys
from sightline.cli import main

sent = []

def stop_at_first_checkpoint(event, arguments):
    if event == "os.rename" and "/checkpoints/step-" in str(arguments[1]) and not sent:
        sent.append(True)
        os.kill(os.getpid(), signal.SIGTERM)

sys.addaudithook(stop_at_first_checkpoint)
main.main()
"""
"""A command that gets SIGTERM when its first checkpoint is written."""


def run_code(folder, code, *command):
    """Run a command with some code around it."""
    words = [sys.executable, "-c", code, *map(str, command)]
    return subprocess.run(
        words, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False, timeout=LIMIT
    )


def kill_after_first_window(folder, out, *command):
    """Kill a command in the middle of its work, and leave half a line in its output; return the output before that."""
    done = run_code(folder, KILLED, *command)
    assert done.returncode == -signal.SIGKILL, done.stderr
    written = out.read_bytes()
    assert written
    with out.open("ab") as file:
        file.write(b"half a li")
    return written


@pytest.fixture
def within(here, monkeypatch):
    """Runs a command in this process, in a folder of its own."""

    def run(folder, *words):
        monkeypatch.chdir(folder)
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        return here(*words, "--device", "cpu")

    return run


# --- Distillation


def test_interrupted_and_resumed_equals_uninterrupted_and_train(taught, within, tmp_path):
    """Killed while the teacher translates, terminated while the student is trained."""
    sets = options("train.steps=60", "train.save_every=5", "train.validate_every=30")
    for name in ("whole", "parts", "train"):
        (tmp_path / name).mkdir()
        write_pairs(tmp_path / name)
        write(tmp_path / name / "a.en", TEXTS[:60])
        write(tmp_path / name / "b.en", ["", *TEXTS[60:120]])
    student = ["--out", "run", "--preset", "tiny", "--valid", "dev.tsv", "--config", "options.toml"]
    student += [*sets, *options("data.bpe_dropout=0.0", "train.ema=0.0", "train.r_drop=0.0")]
    teacher = ["--source", "a.en", "--source", "b.en", "--beams", "2"]
    command = ["distill", taught, *teacher, "--pairs", "train.tsv*0.5", *student]

    code, out, err = within(tmp_path / "whole", *command)
    assert (code, out) == (0, "run\n"), err
    whole = tmp_path / "whole" / "run"
    assert "run/distilled.tsv: 120 pairs; 1 of 121 lines" in err
    expected = library.load(taught).translate(TEXTS[:120], beams=2)
    assert [pair for pair in rows(whole / "distilled.tsv") if any(pair)] == [
        (text, one.text) for text, one in zip(TEXTS, expected, strict=False)
    ]

    parts = tmp_path / "parts" / "run"
    command += ["--device", "cpu"]
    begun = kill_after_first_window(tmp_path / "parts", parts / "distilled.tsv", *command)
    assert (whole / "distilled.tsv").read_bytes().startswith(begun)
    assert len(begun) < (whole / "distilled.tsv").stat().st_size
    done = run_code(tmp_path / "parts", TERMINATED, *command, "--resume")
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert metrics(parts) != metrics(whole)
    done = sightline(tmp_path / "parts", *command, "--resume")
    assert (done.returncode, done.stdout) == (0, "run\n"), done.stderr
    assert files(parts) == files(whole)

    alone = tmp_path / "train" / "run"
    alone.mkdir()
    (alone / "distilled.tsv").write_bytes((whole / "distilled.tsv").read_bytes())
    on = ["--pairs", "run/distilled.tsv", "--pairs", "train.tsv*0.5"]
    assert within(tmp_path / "train", "train", *on, *student)[0] == 0
    assert files(alone) == {name: data for name, data in files(whole).items() if name != "distill.json"}


def test_student_prefers_the_translations_of_its_teacher(taught, within, tmp_path):
    write(tmp_path / "x.en", [pair.source for pair in generate("train", 2000)])
    sets = options(*HALF_TAUGHT, "train.steps=60", "train.warmup=20")
    command = ["distill", taught, "--source", "x.en", "--preset", "tiny", "--out", "run", "--beams", "1", *sets]
    code, _, err = within(tmp_path, *command)
    assert code == 0, err
    teacher, student = library.load(taught), library.load(tmp_path / "run")
    texts = TEXTS[:100]
    translations = [found.text for found in teacher.translate(texts, beams=1)]
    right = [one.log_prob for one in student.score(texts, translations)]
    swapped = [one.log_prob for one in student.score(texts, [translations[i ^ 1] for i in range(100)])]
    # Two texts and their translations: the same four on both sides, so that lengths do not matter.
    assert sum(right[i] + right[i + 1] > swapped[i] + swapped[i + 1] for i in range(0, 100, 2)) > 45


# --- Back-translation


def test_resumed_samples_equal_those_of_the_engine(taught, tmp_path):
    text = write(tmp_path / "x.en", TEXTS)
    drawn = ["--sample", "--seed", "5", "--top-k", "40", "--temperature", "0.9"]
    command = ["back-translate", taught, "--text", text, *drawn, "--out"]
    out = tmp_path / "parts.tsv"
    kill_after_first_window(tmp_path, out, *command, out)
    done = sightline(tmp_path, *command, out, "--resume")
    assert (done.returncode, done.stdout) == (0, f"{out}\n"), done.stderr
    engine = library.load(taught)
    expected = engine.translate(TEXTS, beams=1, sample=True, seed=5, top_k=40, temperature=0.9)
    assert rows(out) == [(one.text, text) for one, text in zip(expected, TEXTS, strict=True)]
    assert list(read_pairs(Table(out))) == rows(out)


def test_invalid_lines_are_left_out_and_counted(taught, tmp_path):
    odd = [b"\xef\xbb\xbf" + TEXTS[0].encode(), b"", b" \t ", b"caf\xe9", b"x" * (LONGEST_LINE + 1), b"one\ttwo\r"]
    (tmp_path / "odd.gz").write_bytes(gzip.compress(b"\n".join(odd)))
    write(tmp_path / "more", ["\ufeff" + TEXTS[1]])
    out = tmp_path / "x.tsv"
    command = ["back-translate", taught, "--text", "odd.gz", "--text", "more", "--out", out]
    done = sightline(tmp_path, *command)
    assert done.returncode == 0, done.stderr
    assert "odd.gz:4: " in done.stderr
    assert f"{out}: 3 pairs; 4 of 7 lines" in done.stderr
    expected = library.load(taught).translate([TEXTS[0], "one two", TEXTS[1]])
    first, second, third = (
        (one.text, text) for one, text in zip(expected, [TEXTS[0], "one two", TEXTS[1]], strict=True)
    )
    assert rows(out) == [first, *[("", "")] * 4, second, third]


class FixedTranslator:
    """A translator with fixed answers."""

    def __init__(self, answers):
        self.answers = answers

    def plan(self, texts, options, **_):
        return Plan(texts, options, lambda answers: [SimpleNamespace(text=answer) for answer in answers])

    def search(self, texts, *_, **__):
        return [self.answers[text] for text in texts]


def ignore(*_):
    """Take no notice of progress."""


@pytest.mark.parametrize("reverse", [False, True])
def test_answers_that_are_not_one_line_are_left_out(reverse, tmp_path):
    answers = {
        "a": "A",
        "b": "",
        "c": " ",
        "d": "D\nD",
        "e": "E\tE",
        "f": "F\ufffd",
        "g": "G\u2028G",
        "h": "H" * LONGEST_LINE,
    }
    text, out = write(tmp_path / "x", answers), tmp_path / "x.tsv"
    logged = []
    write_table(FixedTranslator(answers), None, [text], out, reverse=reverse, report=Report(ignore, logged.append))
    assert rows(out) == [("A", "a") if reverse else ("a", "A"), *[("", "")] * 7]
    assert "1 pairs; 7 of 8 lines" in logged[-1]
    assert len(list(read_pairs(Table(out)))) == 8


# --- Errors


@pytest.fixture
def refused(within, tmp_path):
    """Runs a command that must exit with 2 and one sentence with these words. Nothing in the folder may change."""
    write(tmp_path / "x.en", TEXTS[:2])
    write(tmp_path / "bad.tsv", ["no tab"])
    write(tmp_path / "good.tsv", ["one\tun"])
    write(tmp_path / "blank.tsv", ["\t"])
    (tmp_path / "folder.tsv").mkdir()

    def run(command, *words):
        before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
        code, out, err = within(tmp_path, *command)
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1
        assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before
        for word in words:
            assert re.search(rf"(?<!\w){re.escape(word)}(?!\w)", err), (word, err)

    return run


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--source", "none.en"], ["none.en"]),
        (["--source", "x.en", "--resume"], ["--resume", "run"]),
        (["--source", "x.en", "--set", "train.stepz=1"], ["train.stepz"]),
        (["--source", "x.en", "--preset", "gpt-tiny"], ["encoder-decoder"]),
        (["--source", "x.en", "--valid", "bad.tsv"], ["bad.tsv:1"]),
        (["--source", "x.en", "--pairs", "none.tsv*2"], ["none.tsv"]),
        (["--source", "x.en", "--beams", "0"], ["--beams", "0"]),
        (["--source", "x.en", "--backend", "fast"], ["--backend", "fast"]),
        (["--source", "x.en", "--pairs", "good.tsv*0"], ["--pairs", "good.tsv*0"]),
        (["--source", "x.en", "--valid", "blank.tsv"], ["blank.tsv"]),
        (["--source", "x.en", "--set", "data.tokenizer=none.model"], ["none.model"]),
    ],
)
def test_invalid_students_are_refused_before_the_teacher_works(given, words, taught, refused, tmp_path):
    refused(["distill", taught, *given, "--out", "run"], *words)
    assert not (tmp_path / "run").exists()


def test_distill_refuses_to_overwrite_or_to_resume_with_other_options(taught, refused, tmp_path):
    (tmp_path / "run").mkdir()
    started_with = {"teacher": "other", "source": ["x.en"], "beams": 4}
    (tmp_path / "run" / "distill.json").write_text(json.dumps(started_with))
    command = ["distill", taught, "--source", "x.en", "--out", "run"]
    refused(command, "--out", "run", "--resume")
    refused([*command, "--resume"], "TEACHER", '"other"')
    (tmp_path / "run" / "distill.json").write_text("{")
    refused([*command, "--resume"], "run/distill.json")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--text", "x.en", "--out", "x.txt"], ["--out", "x.txt", "tsv"]),
        (["--text", "x.en", "--out", "bad.tsv"], ["--out", "bad.tsv", "--resume"]),
        (["--text", "none.en", "--out", "x.tsv"], ["none.en"]),
        (["--text", "x.en", "--out", "folder.tsv", "--resume"], ["--out", "folder.tsv", "folder"]),
        (["--text", "x.en", "--out", "none/x.tsv"], ["--out", "none/x.tsv"]),
        (["--text", "x.en", "--out", "x.tsv", "--sample", "--temperature", "0"], ["--temperature", "0.0"]),
    ],
)
def test_back_translate_errors(given, words, taught, refused):
    refused(["back-translate", taught, *given], *words)


def test_resume_with_another_text_is_refused(taught, refused, tmp_path):
    """Rows of another text, more rows than lines, and a file that has no pairs are errors; the file stays the same."""
    out = write(tmp_path / "x.tsv", [f"a machine's\t{TEXTS[1]}"])
    command = ["back-translate", taught, "--text", "x.en", "--out", out, "--resume"]
    refused(command, "--out", "x.tsv:1")
    out.write_text("my precious\tdata\nlast line")
    refused(command, "--out", "x.tsv:1")
    write(out, ["\t"] * 3)
    refused(command, "--out", "1")
    write(tmp_path / "all", TEXTS)
    write(tmp_path / "x", TEXTS[:3])
    refused(["translate", taught, "x.en", "--out", "x", "--resume"], "--out", "1")


def test_output_file_is_locked(taught, refused, tmp_path):
    with only_writer(tmp_path / "x.tsv"):
        for command in (["back-translate", taught, "--text", "x.en"], ["translate", taught, "x.en"]):
            refused([*command, "--out", "x.tsv", "--resume"], "--out", "x.tsv", "process")


def test_options_of_the_student_may_change_until_its_training_starts(taught, within, tmp_path):
    """The teacher has finished; then the vocabulary turns out to be too small."""
    write(tmp_path / "x.en", TEXTS)
    command = ["distill", taught, "--source", "x.en", "--preset", "tiny", "--out", "run", "--beams", "1"]
    command += options("train.steps=2", "train.batch_tokens=256")
    code, _, err = within(tmp_path, *command, *options("data.vocab_size=5"))
    assert code == 2
    assert "305" in err, "the smallest vocabulary of this text"
    translations = (tmp_path / "run" / "distilled.tsv").read_bytes()
    code, _, err = within(tmp_path, *command, *options("data.vocab_size=400"), "--resume")
    assert code == 0, err
    assert (tmp_path / "run" / "distilled.tsv").read_bytes() == translations
    code, _, err = within(tmp_path, *command, *options("data.vocab_size=500"), "--resume")
    assert code == 2
    assert "--set" in err


def test_text_without_pairs_is_an_error(taught, tmp_path):
    text, out = write(tmp_path / "x.en", ["", " "]), tmp_path / "x.tsv"
    with raises(InputError, value=2):
        write_table(library.load(taught), SearchConfig(), [text], out, reverse=True, report=Report(ignore, ignore))
    assert not out.exists()
