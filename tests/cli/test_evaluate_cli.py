"""`sightline evaluate`: its table, its JSON and its errors."""

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
from sightline.evaluate.compare import compare_systems, estimate

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
    error: SightlineError | None = None


@pytest.fixture
def run(corpus, monkeypatch, capsys):
    """Run the command in this process, in the folder of the texts."""
    monkeypatch.chdir(corpus)

    def run(*arguments):
        raised = None
        try:
            app([str(argument) for argument in arguments], standalone_mode=False)
        except SightlineError as error:
            raised = error
        out, err = capsys.readouterr()
        return Done(2, out, err + str(raised), raised) if raised else Done(0, out, err)

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
    """Return the lines of the table by metric."""
    return {line.split()[0]: line for line in out.splitlines() if re.match(r"(BLEU|chrF2|TER) +\d", line)}


def test_table_has_scores_intervals_and_signatures(run):
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
    assert "lower is better" in found["TER"]
    assert done.err == "scoring 60 sentences; TER takes the longest\n"


def test_comparison_of_two_systems(run):
    done = run("bad", "--reference", "test.de", "--against", "good.txt")
    assert done.code == 0
    assert done.out.startswith("A  bad\nB  good.txt\n")
    found = rows(done.out)
    for row, both in zip(found.values(), compare_systems(BAD, GOOD, REFERENCES).values(), strict=True):
        assert f"  {both.difference:+.2f}  {both.p_value:.4f}  B" in row
        for score in (both.one, both.other):
            assert re.search(f" {score.value:.2f} +{score.low:.2f} – +{score.high:.2f} ", row)
        assert both.signature in done.out
    same = run("bad", "--reference", "test.de", "--against", "bad")
    assert all(row.rstrip().endswith("+0.00  1.0000  –") for row in rows(same.out).values())


def test_json_has_all_numbers(run):
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
    for name, both in compare_systems(GOOD, BAD, REFERENCES).items():
        wanted = {"difference": both.difference, "p_value": both.p_value, "signature": both.signature}
        assert found["comparison"][name] == wanted


@pytest.mark.parametrize("columns", [80, 120])
def test_table_fits_into_a_terminal(columns, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    done = run("test.de", "--reference", "test.de", "--against", "bad")  # the widest numbers
    out = re.sub(r"\x1b\[\d*m", "", done.out)
    assert max(len(line.rstrip()) for line in out.splitlines()) <= columns
    assert len(rows(out)) == 3
    unbroken = re.sub(r"\|\n +", "|", out)
    assert (unbroken == out) == (columns == 120)
    assert all(both.signature in unbroken for both in compare_systems(REFERENCES, BAD, REFERENCES).values())


def test_blank_and_tokenised_lines_are_warned_of(run, corpus):
    write(corpus / "odd.txt", [*[f"{line[:-1]} ." for line in REFERENCES[:-2]], "", " "])
    done = run("odd.txt", "--reference", "test.de")
    warnings = [line for line in done.err.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 2
    assert warnings[0].startswith("WARNING: odd.txt:59: 2 of 60 lines")
    assert warnings[1].startswith("WARNING: odd.txt: 58 of 60 lines")


# --- Models


@pytest.fixture
def models(corpus, monkeypatch):
    """Fake models: one translates well, one badly, one cannot be loaded. Return the list of their calls."""
    asked = []

    def load(path, *, device, precision, shortlist):
        if path == "broken":
            raise CheckpointError(f"{path}: no model found", value=path)
        answers = {"run": [f"{GOOD[0]}\n{GOOD[0]}", *GOOD[1:]], "other": BAD}[path]

        def translate(texts, *, beams):
            asked.append((path, list(texts), beams, device, precision, shortlist))
            return [SimpleNamespace(text=text) for text in answers]

        return SimpleNamespace(translate=translate)

    for name in ("run", "other", "broken"):
        (corpus / name).mkdir()
    monkeypatch.setitem(sys.modules, "sightline.engine", SimpleNamespace(load_translator=load))
    return asked


def test_saved_translations_of_a_model_have_the_same_scores(run, corpus, models):
    on = ["--reference", "test.de", "--source", "test.en"]
    done = run(
        "run", *on, "--beams", 2, "--device", "cpu", "--precision", "int8", "--shortlist", "--save", "out.txt", "--json"
    )
    assert done.code == 0
    assert models == [("run", SOURCES, 2, "cpu", "int8", True)]
    assert "run: translating 60 sentences, beams 2\nrun: done in " in done.err
    found = json.loads(done.out)
    assert (found["source"], found["beams"]) == ("test.en", 2)
    assert (corpus / "out.txt").read_text("utf-8").splitlines() == [f"{GOOD[0]} {GOOD[0]}", *GOOD[1:]]
    again = json.loads(run("out.txt", *on, "--json").out)
    assert again["systems"][0]["scores"] == found["systems"][0]["scores"]
    done = run("run", *on, "--against", "other")
    assert done.out.startswith("A  run\nB  other\n60 sentences of test.de, beams 4\n")
    assert [path for path, *_ in models[1:]] == ["run", "other"]


def test_scores_of_a_trained_model_are_those_of_its_translations(run, corpus):
    write_pairs(corpus, train=40)
    train_here(corpus, corpus / "run", "train.steps=2", validated=False)
    done = run("run", "--reference", "test.de", "--source", "test.en", "--device", "cpu", "--save", "out", "--json")
    assert done.code == 0
    texts = [found.text for found in engine.load("run", device="cpu").translate(SOURCES, beams=4)]
    assert (corpus / "out").read_text("utf-8") == "".join(f"{text}\n" for text in texts)
    found = json.loads(done.out)["systems"][0]["scores"]
    assert found == {name: score._asdict() for name, score in estimate(texts, REFERENCES).items()}


def test_errors_are_found_before_translating(run, corpus, models):
    write(corpus / "short.en", SOURCES[:-1])
    on = ["--reference", "test.de", "--source", "test.en"]
    for arguments, option, value in [
        (["run", "--reference", "test.de"], "source", None),
        (["run", *on[:2], "--source", "short.en"], None, "short.en"),
        (["run", *on, "--against", "broken"], None, "broken"),
        (["run", *on, "--save", "test.en"], "save", "test.en"),
        (["run", *on, "--save", "nowhere/out"], "save", "nowhere/out"),
        (["run", *on, "--save", "other"], "save", "other"),
    ]:
        refused(run(*arguments), option, value)
    assert models == []
    assert (corpus / "test.en").read_text("utf-8").splitlines() == SOURCES


# --- Errors


def refused(done, option, value):
    """Assert that the command failed and named this option and value."""
    assert (done.code, done.out) == (2, "")
    assert (done.error.option, done.error.value) == (option, value), done.error
    assert (value if option is None else f"`{option}`") in done.err


def test_invalid_input_is_refused(run, corpus):
    write(corpus / "short.txt", GOOD[:-1])
    write(corpus / "blank.de", [""] * 60)
    write(corpus / "empty.de", [])
    (corpus / "latin.txt").write_bytes(b"caf\xe9\n")
    on = ["--reference", "test.de"]
    for arguments, option, value in [
        (["short.txt", *on], None, "short.txt"),
        (["bad", *on, "--against", "short.txt"], None, "short.txt"),
        (["no.de", *on], None, "no.de"),
        (["bad", "--reference", "blank.de"], None, "blank.de"),
        (["bad", *on, "--save", "out.txt"], "save", "out.txt"),
    ]:
        refused(run(*arguments), option, value)
    for arguments, file in [
        (["no.txt", *on], "no.txt"),
        (["latin.txt", *on], "latin.txt:1"),
        (["bad", "--reference", "no.de"], "no.de"),
        (["bad", "--reference", "empty.de"], "empty.de"),
    ]:
        done = run(*arguments)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"{file}: ")
    assert not (corpus / "out.txt").exists()
