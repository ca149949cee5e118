"""`sightline evaluate`, as a person runs it: a table, a JSON object, and one sentence where there can be neither."""

import json
import re
import sys
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import typer

from runs import train_here, write_pairs
from sightline import engine
from sightline.cli.evaluate import evaluate
from sightline.data.builtin import generate
from sightline.errors import CheckpointError, SightlineError
from sightline.evaluate.compare import compare, estimate
from sightline.evaluate.scores import Score

app = typer.Typer()
app.command()(evaluate)

PAIRS = list(generate("test", 60))
SOURCES = [pair.source for pair in PAIRS]
REFERENCES = [pair.target for pair in PAIRS]
GOOD = [line.replace("ie", "ei") for line in REFERENCES]
BAD = [" ".join(line.split()[::-1]) for line in REFERENCES]


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(corpus, monkeypatch, capsys):
    """The command in this process, in the folder of the texts."""
    monkeypatch.chdir(corpus)

    def run(*arguments):
        code, told = 0, ""
        try:
            app([str(argument) for argument in arguments], standalone_mode=False)
        except SightlineError as error:
            code, told = 2, str(error)
        out, err = capsys.readouterr()
        return Done(code, out, err + told)

    return run


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


@pytest.fixture
def corpus(tmp_path):
    texts = {"test.en": SOURCES, "test.de": REFERENCES, "good.txt": GOOD, "bad": BAD}
    for name, lines in texts.items():
        write(tmp_path / name, lines)
    return tmp_path


# --- Text files


def rows(out):
    """The lines of the table, by metric."""
    return {line.split()[0]: line for line in out.splitlines() if re.match(r"(BLEU|chrF2|TER|COMET) +\d", line)}


def test_a_table_of_scores_intervals_and_signatures(run):
    done = run("good.txt", "--reference", "test.de", "--source", "test.en")
    assert done.code == 0
    assert done.out.startswith("good.txt\n60 sentences of test.de\n")
    expected = estimate(GOOD, REFERENCES)
    found = rows(done.out)
    assert list(found) == ["BLEU", "chrF2", "TER"]
    for row, score in zip(found.values(), expected.values(), strict=True):
        numbers = [float(number) for number in re.findall(r" (\d+\.\d\d)\b", row)]
        assert numbers == pytest.approx(score[:3], abs=0.0051)
        assert score.signature in done.out
    assert "the less, the better" in found["TER"]
    assert done.err == "scoring 60 sentences; TER takes the longest\n"


def test_two_systems_side_by_side(run):
    done = run("bad", "--reference", "test.de", "--against", "good.txt")
    assert done.code == 0
    assert done.out.startswith("A  bad\nB  good.txt\n")
    found = rows(done.out)
    for row, both in zip(found.values(), compare(BAD, GOOD, REFERENCES).values(), strict=True):
        assert f"  {both.difference:+.2f}  {both.p_value:.4f}  B" in row
        for score in (both.one, both.other):
            assert re.search(f" {score.value:.2f} +{score.low:.2f} – +{score.high:.2f} ", row)
        assert both.signature in done.out
    same = run("bad", "--reference", "test.de", "--against", "bad")
    assert all(row.rstrip().endswith("+0.00  1.0000  –") for row in rows(same.out).values())


def test_json_has_all_the_numbers(run):
    done = run("good.txt", "--reference", "test.de", "--json")
    expected = {name: score._asdict() for name, score in estimate(GOOD, REFERENCES).items()}
    assert json.loads(done.out) == {
        "sentences": 60,
        "reference": "test.de",
        "systems": [{"name": "good.txt", "scores": expected}],
    }
    assert done.out.count("\n") == 1
    found = json.loads(run("good.txt", "--reference", "test.de", "--against", "bad", "--json").out)
    assert [system["name"] for system in found["systems"]] == ["good.txt", "bad"]
    assert found["systems"][0]["scores"] == expected
    for name, both in compare(GOOD, BAD, REFERENCES).items():
        wanted = {"difference": both.difference, "p_value": both.p_value, "signature": both.signature}
        assert found["comparison"][name] == wanted


@pytest.mark.parametrize("columns", [80, 120])
def test_it_fits_into_a_terminal(columns, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    done = run("test.de", "--reference", "test.de", "--against", "bad")  # the widest numbers there are
    out = re.sub(r"\x1b\[\d*m", "", done.out)
    assert max(len(line.rstrip()) for line in out.splitlines()) <= columns
    assert len(rows(out)) == 3
    unbroken = re.sub(r"\|\n +", "|", out)
    assert (unbroken == out) == (columns == 120)
    assert all(both.signature in unbroken for both in compare(REFERENCES, BAD, REFERENCES).values())


def test_what_is_seldom_meant_is_warned_of(run, corpus):
    write(corpus / "odd.txt", [*[f"{line[:-1]} ." for line in REFERENCES[:-2]], "", " "])
    done = run("odd.txt", "--reference", "test.de")
    warnings = [line for line in done.err.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 2
    assert warnings[0] == "WARNING: odd.txt:59: 2 of 60 lines are blank."
    assert warnings[1].startswith("WARNING: odd.txt: 58 of 60 lines end in “ .”")


# --- Models


@pytest.fixture
def models(corpus, monkeypatch):
    """Folders that translate: one well, one badly, one not at all. What they were asked is kept."""
    asked = []

    def load(path, *, device, precision, shortlist):
        if path == "broken":
            raise CheckpointError(f"{path}: there is no model here; a model folder has a config.json.")
        answers = {"run": [f"{GOOD[0]}\n{GOOD[0]}", *GOOD[1:]], "other": BAD}[path]

        def translate(texts, *, beam):
            asked.append((path, list(texts), beam, device, precision, shortlist))
            return [SimpleNamespace(text=text) for text in answers]

        return SimpleNamespace(translate=translate)

    for name in ("run", "other", "broken"):
        (corpus / name).mkdir()
    monkeypatch.setitem(sys.modules, "sightline.engine", SimpleNamespace(load=load))
    return asked


def test_a_model_translates_and_what_is_saved_scores_as_it_did(run, corpus, models):
    on = ["--reference", "test.de", "--source", "test.en"]
    done = run(
        "run", *on, "--beam", 2, "--device", "cpu", "--precision", "int8", "--shortlist", "--save", "out.txt", "--json"
    )
    assert done.code == 0
    assert models == [("run", SOURCES, 2, "cpu", "int8", True)]
    assert "run: translating 60 sentences, beam 2\nrun: done in " in done.err
    found = json.loads(done.out)
    assert (found["source"], found["beam"]) == ("test.en", 2)
    assert (corpus / "out.txt").read_text("utf-8").splitlines() == [f"{GOOD[0]} {GOOD[0]}", *GOOD[1:]]
    again = json.loads(run("out.txt", *on, "--json").out)
    assert again["systems"][0]["scores"] == found["systems"][0]["scores"]
    done = run("run", *on, "--against", "other")
    assert done.out.startswith("A  run\nB  other\n60 sentences of test.de, beam 4\n")
    assert [path for path, *_ in models[1:]] == ["run", "other"]


def test_a_trained_model_is_scored_by_what_its_engine_says(run, corpus):
    write_pairs(corpus, train=40)
    train_here(corpus, corpus / "run", "train.steps=2", validated=False)
    done = run("run", "--reference", "test.de", "--source", "test.en", "--device", "cpu", "--save", "out", "--json")
    assert done.code == 0
    texts = [found.text for found in engine.load("run", device="cpu").translate(SOURCES, beam=4)]
    assert (corpus / "out").read_text("utf-8") == "".join(f"{text}\n" for text in texts)
    found = json.loads(done.out)["systems"][0]["scores"]
    assert found == {name: score._asdict() for name, score in estimate(texts, REFERENCES).items()}


def test_what_is_wrong_is_told_before_anything_is_translated(run, corpus, models):
    write(corpus / "short.en", SOURCES[:-1])
    on = ["--reference", "test.de", "--source", "test.en"]
    for arguments, sentence in [
        (["run", "--reference", "test.de"], "run is a model; name the text to translate by --source."),
        (["run", *on[:2], "--source", "short.en"], "short.en has 59 lines and test.de has 60; they must have as many."),
        (["run", *on, "--against", "broken"], "broken: there is no model here; a model folder has a config.json."),
        (["run", *on, "--save", "test.en"], "test.en: the file is read here; choose another --save."),
        (["run", *on, "--save", "nowhere/out"], "nowhere/out: no file can be written here; choose another --save."),
        (["run", *on, "--save", "other"], "other: no file can be written here; choose another --save."),
    ]:
        assert run(*arguments) == (2, "", sentence)
    assert models == []
    assert (corpus / "test.en").read_text("utf-8").splitlines() == SOURCES


def test_comet_is_a_row_of_its_own(run, monkeypatch):
    def scored(sources, hypotheses, references):
        assert (sources, references) == (SOURCES, REFERENCES)
        return Score(0.9 if hypotheses == GOOD else 0.25, "model:none")

    monkeypatch.setattr("sightline.evaluate.comet.load", lambda: scored)
    on = ["--reference", "test.de", "--source", "test.en", "--comet"]
    assert re.search(r"^COMET  0\.9000 +– *$", run("good.txt", *on).out, re.MULTILINE)
    done = run("good.txt", *on, "--against", "bad")
    assert re.search(r"^COMET  0\.9000 +–  0\.2500 +–  \+0\.6500 +– *$", done.out, re.MULTILINE)
    assert re.search(r"^COMET  model:none$", done.out, re.MULTILINE)


# --- What cannot be


def test_what_cannot_be_scored_is_one_sentence(run, corpus, monkeypatch):
    monkeypatch.setitem(sys.modules, "comet", None)
    write(corpus / "short.txt", GOOD[:-1])
    write(corpus / "blank.de", [""] * 60)
    write(corpus / "empty.de", [])
    (corpus / "latin.txt").write_bytes(b"caf\xe9\n")
    on = ["--reference", "test.de"]
    for arguments, sentence in [
        (["short.txt", *on], "short.txt has 59 lines and test.de has 60; they must have as many."),
        (
            ["bad", *on, "--against", "short.txt"],
            "short.txt has 59 lines and test.de has 60; they must have as many.",
        ),
        (["no.txt", *on], "no.txt: cannot be read: No such file or directory."),
        (["no.de", *on], "no.de: there is no model here, nor a text file."),
        (["latin.txt", *on], "latin.txt:1: byte 4 is not valid UTF-8."),
        (["bad", "--reference", "no.de"], "no.de: cannot be read: No such file or directory."),
        (["bad", "--reference", "empty.de"], "empty.de: the file is empty."),
        (["bad", "--reference", "blank.de"], "blank.de: the file has nothing but blank lines."),
        (
            ["bad", *on, "--save", "out.txt"],
            "--save keeps what a model translates, and MODEL is a text file; leave out --save.",
        ),
        (["bad", *on, "--comet"], "COMET looks at the source too; name the text to translate by --source."),
        (
            ["bad", *on, "--comet", "--source", "test.en"],
            "The package comet is not installed. Run `pip install unbabel-comet`.",
        ),
    ]:
        assert run(*arguments) == (2, "", sentence)
    assert not (corpus / "out.txt").exists()
