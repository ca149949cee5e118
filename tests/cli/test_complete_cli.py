"""`sightline complete` and `sightline evaluate --text`: what they print, and their errors."""

import io
import json
import math
import sys
from types import SimpleNamespace

import pytest

import sightline
from sightline.data.builtin import generate

TEXT = next(iter(generate("test", 1))).source


@pytest.fixture(scope="module")
def engine(writing):
    return sightline.load(writing, device="cpu")


@pytest.fixture
def stdin(monkeypatch):
    def give(data):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))

    return give


def test_the_continuation_is_printed_alone_or_after_the_text(here, writing, engine):
    (expected,) = engine.complete(TEXT, max_tokens=20)
    assert here("complete", writing, TEXT, "--max-tokens", 20) == (0, f"{expected.text}\n", "")
    assert here("complete", writing, TEXT, "--max-tokens", 20, "--echo")[1] == f"{TEXT}{expected.text}\n"
    (greedy,) = engine.complete(TEXT, max_tokens=20, beams=1)
    assert here("complete", writing, TEXT, "--max-tokens", 20, "-b", 1)[1] == f"{greedy.text}\n"
    assert greedy.text != expected.text


def test_several_continuations_are_separated(here, writing, engine):
    found = engine.complete(TEXT, 3, max_tokens=9, seed=4, temperature=2.0)
    options = ["--n", 3, "--max-tokens", 9, "--seed", 4, "--temperature", 2]
    assert here("complete", writing, TEXT, *options)[1] == "---\n".join(f"{one.text}\n" for one in found)


def test_a_stream_prints_the_same(here, writing, engine):
    whole = engine.complete(TEXT, max_tokens=40, repetition_penalty=1.1)[0].text
    stop = whole[7:9]
    for options in ([], ["--echo"], ["--stop", stop, "--stop", "never there"]):
        arguments = ["complete", writing, TEXT, "--max-tokens", 40, "--set", "repetition_penalty=1.1", *options]
        assert here(*arguments) == here(*arguments, "--stream")
    assert here(*arguments)[1] == f"{whole[: whole.index(stop)]}\n"


def test_json_has_tokens_and_their_log_probabilities(here, writing, engine):
    _, out, _ = here("complete", writing, TEXT, "--n", 2, "--max-tokens", 7, "--json", "--top", 2, "--echo")
    for line, one in zip(out.splitlines(), engine.complete(TEXT, 2, max_tokens=7, top=2), strict=True):
        found = json.loads(line)
        assert found["text"] == TEXT + one.text
        assert (found["tokens"], found["finish_reason"]) == (one.tokens, one.finish_reason)
        assert found["log_probs"] == pytest.approx(one.log_probs, abs=1e-4)
        assert [[pair["id"] for pair in likely] for likely in found["top"]] == [[p.id for p in at] for at in one.top]


def test_the_text_is_an_argument_a_file_or_standard_input(here, writing, engine, tmp_path, stdin):
    file = tmp_path / "text.txt"
    file.write_text(TEXT + "\n", "utf-8")
    expected = f"{engine.complete(TEXT, max_tokens=9)[0].text}\n"
    stdin(f"{TEXT}\r\n".encode())
    assert here("complete", writing, "--max-tokens", 9)[1] == expected
    assert here("complete", writing, file, "--max-tokens", 9)[1] == expected
    begun = f"{engine.complete('', max_tokens=9)[0].text}\n"
    assert here("complete", writing, "", "--max-tokens", 9)[1] == begun


def test_required_words_are_in_the_continuation(here, writing):
    code, out, _ = here("complete", writing, TEXT, "--require", "Hund", "--max-tokens", 12)
    assert (code, "Hund" in out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["x", "--n", 0], ["n", "0"]),
        (["x", "--n", 1001], ["n", "1001"]),
        (["x", "--max-tokens", 0], ["max_tokens", "0"]),
        (["x", "--stop", ""], ["--stop"]),
        (["x", "--top", 21], ["top", "21"]),
        (["x", "--stream", "--n", 2], ["--stream", "--n 1"]),
        (["x", "--stream", "--beams", 2], ["--stream", "--beams 1"]),
        (["x", "--stream", "--json"], ["--stream", "--json"]),
        (["x " * 200], ["TEXT", "128"]),
        (["x", "--set", "tempo=1"], ["tempo"]),
    ],
    ids=str,
)
def test_mistakes_are_explained_in_one_sentence(here, writing, arguments, words):
    code, out, err = here("complete", writing, *arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert all(word.replace("_", "-") in err.replace("_", "-") for word in words)


def test_files_models_and_bytes_that_cannot_be_used(here, writing, taught, tmp_path, stdin):
    broken = tmp_path / "latin.txt"
    broken.write_bytes("Müller".encode("latin-1"))
    code, _, err = here("complete", writing, broken)
    assert (code, "latin.txt" in err, "byte 2 is not valid UTF-8" in err) == (2, True, True)
    stdin(b"\xff")
    assert "Standard input: byte 1" in here("complete", writing)[2]
    assert here("complete", tmp_path / "none", "x")[0] == 2
    code, _, err = here("complete", taught, "x")
    assert (code, "does not write" in err, "translate" in err) == (2, True, True)


def test_evaluate_measures_how_well_a_text_is_predicted(here, writing, engine, tmp_path):
    documents = ["\n".join(pair.source for pair in generate("test", count)) for count in (1, 30)]
    file = tmp_path / "held-out.txt"
    file.write_text("\n\n\n".join(documents), "utf-8")
    code, out, err = here("evaluate", writing, "--text", file, "--json")
    assert code == 0, err
    found, scores = json.loads(out), [engine.score(document) for document in documents]
    assert max(len(one.ids) for one in scores) > 128, "a document is longer than the context"
    total = sum(one.log_prob for one in scores)
    assert found["log_prob"] == pytest.approx(total)
    assert (found["documents"], found["tokens"]) == (2, sum(len(one.ids) for one in scores))
    words, size = (
        sum(map(len, some)) for some in ([one.split() for one in documents], [one.encode() for one in documents])
    )
    assert found["word_perplexity"] == pytest.approx(math.exp(-total / words))
    assert found["bits_per_byte"] == pytest.approx(-total / math.log(2) / size)
    table = here("evaluate", writing, "--text", file)[1]
    assert f"{found['bits_per_byte']:.4f}" in table
    assert f"{found['word_perplexity']:.2f}" in table
    code, _, err = here("evaluate", writing, "--text", file, "--reference", file)
    assert (code, "--reference" in err, "--text" in err) == (2, True, True)
    assert here("evaluate", writing)[0] == 2
