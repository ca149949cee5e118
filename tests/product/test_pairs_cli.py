"""`sightline distill` and `back-translate`: pairs made by a model, a row for a line, whatever happens."""

import gzip
import json
import signal
from types import SimpleNamespace

import pytest

import sightline as library
from runs import LIMIT, files, metrics, sightline, start, wait_for, write_pairs
from sightline.cli import pairs as made
from sightline.cli.lines import only_writer
from sightline.config import SearchConfig
from sightline.data.builtin import generate
from sightline.data.corpus import LONGEST_LINE, Table, read_pairs
from sightline.errors import InputError
from taught import HALF_TAUGHT

TEXTS = [pair.source for pair in generate("test", 120)]


def options(*given):
    return [part for option in given for part in ("--set", option)]


def write(path, texts):
    path.write_text("".join(f"{text}\n" for text in texts), "utf-8")
    return path


def rows(path):
    return [tuple(row.split("\t")) for row in path.read_text("utf-8").split("\n")[:-1]]


def kill_once_begun(folder, out, *command):
    """End a command without warning once there is something in a file, and leave half a line in it."""
    running = start(folder, *command)
    wait_for(lambda: out.exists() and out.stat().st_size > 0, running)
    running.kill()
    running.communicate(timeout=LIMIT)
    assert running.returncode == -signal.SIGKILL
    begun = out.read_bytes()
    with out.open("ab") as file:
        file.write(b"half a li")
    return begun


@pytest.fixture
def within(here, monkeypatch):
    """A command in this process, in a folder of its own."""

    def run(folder, *words):
        monkeypatch.chdir(folder)
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        return here(*words, "--device", "cpu")

    return run


# --- A student


def test_killed_and_stopped_and_resumed_it_is_the_run_that_was_not_and_that_of_train(taught, within, tmp_path):
    """Killed while the teacher speaks, stopped while the student learns."""
    sets = options("train.steps=60", "train.save_every=5", "train.validate_every=30")
    for name in ("whole", "parts", "train"):
        (tmp_path / name).mkdir()
        write_pairs(tmp_path / name)
        write(tmp_path / name / "a.en", TEXTS[:60])
        write(tmp_path / name / "b.en", ["", *TEXTS[60:120]])
    student = ["--out", "run", "--preset", "tiny", "--valid", "dev.tsv", "--config", "options.toml"]
    student += [*sets, *options("data.bpe_dropout=0.0", "train.ema=0.0", "train.r_drop=0.0")]
    speaks = ["--source", "a.en", "--source", "b.en", "--beam", "2"]
    command = ["distill", taught, *speaks, "--pairs", "train.tsv*0.5", *student]

    code, out, told = within(tmp_path / "whole", *command)
    assert (code, out) == (0, "run\n"), told
    whole = tmp_path / "whole" / "run"
    assert "run/distilled.tsv: 120 pairs; 1 of 121 lines are left out" in told
    expected = library.load(taught).translate(TEXTS[:120], beam=2)
    assert [pair for pair in rows(whole / "distilled.tsv") if any(pair)] == [
        (text, one.text) for text, one in zip(TEXTS, expected, strict=False)
    ]

    parts = tmp_path / "parts" / "run"
    command += ["--device", "cpu"]
    begun = kill_once_begun(tmp_path / "parts", parts / "distilled.tsv", *command)
    assert (whole / "distilled.tsv").read_bytes().startswith(begun)
    assert len(begun) < (whole / "distilled.tsv").stat().st_size
    running = start(tmp_path / "parts", *command, "--resume")
    wait_for(lambda: (parts / "checkpoints").exists() and any((parts / "checkpoints").glob("step-*")), running)
    running.terminate()
    _, told = running.communicate(timeout=LIMIT)
    assert running.returncode == 128 + signal.SIGTERM, told
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


def test_a_student_learns_what_its_teacher_says(taught, within, tmp_path):
    write(tmp_path / "x.en", [pair.source for pair in generate("train", 2000)])
    sets = options(*HALF_TAUGHT, "train.steps=60", "train.warmup=20")
    command = ["distill", taught, "--source", "x.en", "--preset", "tiny", "--out", "run", "--beam", "1", *sets]
    code, _, told = within(tmp_path, *command)
    assert code == 0, told
    teacher, student = library.load(taught), library.load(tmp_path / "run")
    texts = TEXTS[:100]
    said = [found.text for found in teacher.translate(texts, beam=1)]
    right = [one.log_prob for one in student.score(texts, said)]
    swapped = [one.log_prob for one in student.score(texts, [said[i ^ 1] for i in range(100)])]
    # Of two texts and their translations: the same four, so that none is preferred for being short.
    assert sum(right[i] + right[i + 1] > swapped[i] + swapped[i + 1] for i in range(0, 100, 2)) > 45


# --- Text of one language


def test_samples_are_those_of_the_engine_and_of_no_other_run(taught, tmp_path):
    text = write(tmp_path / "x.en", TEXTS)
    drawn = ["--sample", "--seed", "5", "--top-k", "40", "--temperature", "0.9"]
    command = ["back-translate", taught, "--text", text, *drawn, "--out"]
    out = tmp_path / "parts.tsv"
    kill_once_begun(tmp_path, out, *command, out)
    done = sightline(tmp_path, *command, out, "--resume")
    assert (done.returncode, done.stdout) == (0, f"{out}\n"), done.stderr
    engine = library.load(taught)
    expected = engine.translate(TEXTS, beam=1, sample=True, seed=5, top_k=40, temperature=0.9)
    assert rows(out) == [(one.text, text) for one, text in zip(expected, TEXTS, strict=True)]
    assert list(read_pairs(Table(out))) == rows(out)


def test_lines_that_are_no_text_are_left_out_and_counted(taught, tmp_path):
    odd = [b"\xef\xbb\xbf" + TEXTS[0].encode(), b"", b" \t ", b"caf\xe9", b"x" * (LONGEST_LINE + 1), b"one\ttwo\r"]
    (tmp_path / "odd.gz").write_bytes(gzip.compress(b"\n".join(odd)))
    write(tmp_path / "more", ["\ufeff" + TEXTS[1]])
    out = tmp_path / "x.tsv"
    command = ["back-translate", taught, "--text", "odd.gz", "--text", "more", "--out", out]
    done = sightline(tmp_path, *command)
    assert done.returncode == 0, done.stderr
    assert "odd.gz:4: bytes that are not UTF-8" in done.stderr
    assert f"{out}: 3 pairs; 4 of 7 lines are left out" in done.stderr
    expected = library.load(taught).translate([TEXTS[0], "one two", TEXTS[1]])
    first, second, third = (
        (one.text, text) for one, text in zip(expected, [TEXTS[0], "one two", TEXTS[1]], strict=True)
    )
    assert rows(out) == [first, *[("", "")] * 4, second, third]


class Says:
    """A translator with an answer to every text."""

    def __init__(self, answers):
        self.answers = answers

    def search(self, texts, *_, **__):
        return [SimpleNamespace(text=self.answers[text]) for text in texts]


@pytest.mark.parametrize("reverse", [False, True])
def test_answers_that_are_no_line_are_left_out(reverse, tmp_path, capsys):
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
    made.write_pairs(Says(answers), None, [text], out, reverse=reverse, plain=True)
    assert rows(out) == [("A", "a") if reverse else ("a", "A"), *[("", "")] * 7]
    assert "1 pairs; 7 of 8 lines are left out" in capsys.readouterr().err
    assert len(list(read_pairs(Table(out)))) == 8


# --- What cannot be


@pytest.fixture
def refused(within, tmp_path):
    """What a command says when it exits with 2: one sentence. Nothing in the folder is changed."""
    write(tmp_path / "x.en", TEXTS[:2])
    write(tmp_path / "bad.tsv", ["no tab"])
    write(tmp_path / "good.tsv", ["one\tun"])
    write(tmp_path / "blank.tsv", ["\t"])
    (tmp_path / "folder.tsv").mkdir()

    def run(*words):
        before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
        code, out, told = within(tmp_path, *words)
        assert (code, out) == (2, "")
        assert len(told.splitlines()) == 1
        assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before
        return told

    return run


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--source", "none.en"], "none.en: there is no such file."),
        (["--source", "x.en", "--resume"], "there is nothing here to resume; leave out --resume to begin it."),
        (["--source", "x.en", "--set", "train.stepz=1"], "train.stepz"),
        (["--source", "x.en", "--preset", "gpt-tiny"], "this text needs a model that is encoder-decoder"),
        (["--source", "x.en", "--valid", "bad.tsv"], "bad.tsv:1: the line has no tab"),
        (["--source", "x.en", "--pairs", "none.tsv*2"], "none.tsv: cannot be read"),
        (["--source", "x.en", "--beam", "0"], "beams"),
        (["--source", "x.en", "--engine", "fast"], "there is no engine 'fast'"),
        (["--source", "x.en", "--pairs", "good.tsv*0"], "good.tsv*0: a weight is greater than 0."),
        (["--source", "x.en", "--valid", "blank.tsv"], "blank.tsv: there is not one pair in it."),
        (["--source", "x.en", "--set", "data.tokenizer=none.model"], "none.model"),
    ],
)
def test_a_student_that_cannot_be_is_refused_before_the_teacher_works(given, sentence, taught, refused, tmp_path):
    assert sentence in refused("distill", taught, *given, "--out", "run")
    assert not (tmp_path / "run").exists()


def test_nothing_is_written_over_and_no_teacher_goes_on_where_another_stopped(taught, refused, tmp_path):
    (tmp_path / "run").mkdir()
    begun = {"teacher": "other", "source": ["x.en"], "beam": 4}
    (tmp_path / "run" / "distill.json").write_text(json.dumps(begun))
    command = ["distill", taught, "--source", "x.en", "--out", "run"]
    assert (
        refused(*command) == "run: there is something here already; add --resume to go on, or choose another --out.\n"
    )
    assert refused(*command, "--resume") == (
        'run: this was started with teacher = "other"; what is resumed keeps its options.\n'
    )
    (tmp_path / "run" / "distill.json").write_text("{")
    assert "this is not what a distillation was started with" in refused(*command, "--resume")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--text", "x.en", "--out", "x.txt"], "x.txt: pairs are written as .tsv"),
        (["--text", "x.en", "--out", "bad.tsv"], "bad.tsv: there is such a file already; add --resume to go on"),
        (["--text", "none.en", "--out", "x.tsv"], "none.en: there is no such file."),
        (["--text", "x.en", "--out", "folder.tsv", "--resume"], "folder.tsv: this is a folder; name a file by --out."),
        (["--text", "x.en", "--out", "none/x.tsv"], "none/x.tsv: cannot be written: No such file or directory."),
        (["--text", "x.en", "--out", "x.tsv", "--sample", "--temperature", "0"], "temperature"),
    ],
)
def test_pairs_that_cannot_be_made_are_refused(given, sentence, taught, refused):
    assert sentence in refused("back-translate", taught, *given)


def test_what_is_gone_on_with_is_of_this_text(taught, refused, tmp_path):
    """Rows of another text, more rows than lines, a file that is something else: nothing of it is touched."""
    out = write(tmp_path / "x.tsv", [f"a machine's\t{TEXTS[1]}"])
    command = ["back-translate", taught, "--text", "x.en", "--out", out, "--resume"]
    assert "x.tsv:1: this row is not of the text; was it begun with another one?" in refused(*command)
    out.write_text("my precious\tdata\nlast line")
    assert "x.tsv:1: this row is not of the text" in refused(*command)
    write(out, ["\t"] * 3)
    assert "--out has 1 lines more than the text; is this the text it was begun with?" in refused(*command)
    write(tmp_path / "all", TEXTS)
    write(tmp_path / "x", TEXTS[:3])
    command = ["translate", taught, "x.en", "--out", "x", "--resume"]
    assert "--out has 1 lines more than the text" in refused(*command)


def test_two_cannot_write_one_file(taught, refused, tmp_path):
    with only_writer(tmp_path / "x.tsv"):
        for command in (["back-translate", taught, "--text", "x.en"], ["translate", taught, "x.en"]):
            told = refused(*command, "--out", "x.tsv", "--resume")
            assert "x.tsv: another process is writing it; wait for its end, or choose another --out." in told


def test_a_student_may_be_another_one_as_long_as_it_has_not_begun(taught, within, tmp_path):
    """The teacher has spoken; then it turns out that the vocabulary is too small."""
    write(tmp_path / "x.en", TEXTS)
    command = ["distill", taught, "--source", "x.en", "--preset", "tiny", "--out", "run", "--beam", "1"]
    command += options("train.steps=2", "train.batch_tokens=256")
    code, _, told = within(tmp_path, *command, *options("data.vocab_size=5"))
    assert code == 2
    assert "too small" in told
    said = (tmp_path / "run" / "distilled.tsv").read_bytes()
    code, _, told = within(tmp_path, *command, *options("data.vocab_size=400"), "--resume")
    assert code == 0, told
    assert (tmp_path / "run" / "distilled.tsv").read_bytes() == said
    code, _, told = within(tmp_path, *command, *options("data.vocab_size=500"), "--resume")
    assert code == 2
    assert "this was started with set =" in told


def test_text_that_gives_no_pair_is_told(taught, tmp_path):
    text, out = write(tmp_path / "x.en", ["", " "]), tmp_path / "x.tsv"
    with pytest.raises(
        InputError, match="not one of 2 lines became a pair; is it the right text, and the right model?"
    ):
        made.write_pairs(library.load(taught), SearchConfig(), [text], out, reverse=True, plain=True)
    assert not out.exists()
