"""`sightline import` and `sightline export`, as people call them: out, and in again, with the same answers."""

import json
import shutil
import subprocess
import sys

import pytest

import sightline
from searching import find
from sightline.backends.ctranslate2 import CTranslate2Backend
from sightline.config import SearchConfig
from sightline.data.builtin import generate
from sightline.errors import InputError
from sightline.interop.export import export_model
from sightline.interop.onnx import OnnxModel
from sightline.model_folder import load_model, load_tokenizer
from support import raises, requests

COMMAND = [sys.executable, "-m", "sightline.cli.main"]
TEXTS = [pair.source for pair in generate("test", 12)]


def run(*arguments):
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False)


def sentence(done):
    """Return the error message, which is one line."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def exported(taught, tmp_path_factory):
    """The same model for three programs."""
    folder = tmp_path_factory.mktemp("exported")
    for kind in ("huggingface", "ctranslate2", "onnx"):
        done = run("export", taught, "--to", kind, "--out", folder / kind)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{folder / kind}\n"
        assert done.stderr.startswith("compared with the model on 16 sentences: largest difference ")
        assert float(done.stderr.split("difference ")[1].split(",")[0]) < 1e-4
        assert done.stderr.endswith(", 0 answers differ\n")
    return folder


@pytest.mark.parametrize("beams", [1, 4])
def test_four_programs_give_the_same_answers(taught, exported, beams):
    model, tokenizer = load_model(taught), load_tokenizer(taught)
    sources, config = tokenizer.encode(TEXTS), SearchConfig(beams=beams, patience=1)
    backend = CTranslate2Backend(exported / "ctranslate2")
    ours = [best.ids for best, *_ in find(model, sources, config)]
    assert [best.ids for best, *_ in backend.search(requests(sources, model.config, config), config)] == ours
    assert [best.ids for best, *_ in find(OnnxModel(exported / "onnx"), sources, config)] == ours
    program = f"""
import json, sys
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1])
words = AutoTokenizer.from_pretrained(sys.argv[1])
given = words(json.loads(sys.argv[2]), return_tensors="pt", padding=True)
found = model.generate(**given, num_beams={beams}, early_stopping={beams > 1}, length_penalty=1.0, max_new_tokens=100)
print(json.dumps(words.batch_decode(found, skip_special_tokens=True)))
assert "sightline" not in sys.modules
"""
    command = [sys.executable, "-c", program, str(exported / "huggingface"), json.dumps(TEXTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [tokenizer.decode(ids) for ids in ours]


@pytest.mark.parametrize("kind", ["huggingface", "ctranslate2"])
def test_an_exported_model_can_be_imported(taught, exported, tmp_path, kind):
    done = run("import", exported / kind, "--out", tmp_path / "again")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'again'}\n"
    assert f"{load_tokenizer(taught).size:,} entries" in done.stderr
    before, after = sightline.load(taught, backend="torch"), sightline.load(tmp_path / "again", backend="torch")
    assert [one.text for one in after.translate(TEXTS)] == [one.text for one in before.translate(TEXTS)]
    for one, other in zip(before.score(TEXTS, TEXTS), after.score(TEXTS, TEXTS), strict=True):
        assert other.log_probs == pytest.approx(one.log_probs, abs=1e-4)
    names = after.trace(TEXTS[0]).names()
    assert set(before.trace(TEXTS[0]).names()) <= set(names)


@pytest.mark.parametrize("kind", ["huggingface", "ctranslate2"])
def test_an_older_folder_of_the_kind_is_replaced_and_no_other(taught, tmp_path, kind):
    model, tokenizer = load_model(taught), load_tokenizer(taught)
    for _ in range(2):
        export_model(model, tokenizer, tmp_path / "out", kind, verify=False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    with raises(InputError, value=tmp_path / "other", match="exists"):
        export_model(model, tokenizer, tmp_path / "other", kind, verify=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out"]


def test_int8_and_a_shortlist_for_ctranslate2(taught, tmp_path):
    shutil.copytree(taught, tmp_path / "model", ignore=shutil.ignore_patterns("checkpoints", "ctranslate2*"))
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{p.source}\t{p.target}\n" for p in generate("train", 2000)), "utf-8")
    assert run("shortlist", tmp_path / "model", "--pairs", pairs).returncode == 0
    out = tmp_path / "out"
    done = run("export", tmp_path / "model", "--to", "ctranslate2", "--out", out, "--precision", "int8")
    assert done.returncode == 0, done.stderr
    assert (out / "vmap.txt").read_bytes() == (tmp_path / "model" / "vmap.txt").read_bytes()
    small = (out / "model.bin").stat().st_size
    done = run("export", tmp_path / "model", "--to", "ctranslate2", "--out", out, "--no-verify")
    assert (done.returncode, done.stderr) == (0, "not compared with the model\n")
    assert small < 0.75 * (out / "model.bin").stat().st_size


def test_errors_are_one_line_and_leave_no_files(taught, tmp_path):
    out = tmp_path / "out"
    assert str(tmp_path / "none") in sentence(run("import", tmp_path / "none", "--out", out))
    (tmp_path / "empty").mkdir()
    assert "unknown format" in sentence(run("import", tmp_path / "empty", "--out", out))
    (tmp_path / "x.argosmodel").write_bytes(b"PK")
    assert "x.argosmodel" in sentence(run("import", tmp_path / "x.argosmodel", "--out", out))
    assert f"--out already contains a model: {taught}" in sentence(run("import", tmp_path / "empty", "--out", taught))
    message = sentence(run("export", taught, "--to", "onnx", "--out", out, "--precision", "int8"))
    assert "--precision" in message
    assert "int8" in message
    assert str(taught) in sentence(run("export", taught, "--to", "onnx", "--out", taught))
    assert "no model found" in sentence(run("export", tmp_path / "empty", "--to", "onnx", "--out", out))
    assert run("export", taught, "--to", "paper", "--out", out).returncode == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "x.argosmodel"]


def test_a_model_of_sightline_is_not_imported(taught, tmp_path):
    message = sentence(run("import", taught, "--out", tmp_path / "out"))
    assert "model_type" in message or "model-type" in message
    assert "None" in message
