"""`sightline import` and `sightline export`, as people call them: out, and in again, with the same answers."""

import json
import shutil
import subprocess
import sys

import pytest

import sightline
from sightline.backends.ctranslate2 import CTranslate2Backend
from sightline.config import SearchConfig
from sightline.data.builtin import generate
from sightline.errors import InputError
from sightline.interop.export import export
from sightline.interop.onnx import OnnxModel
from sightline.model_folder import load_model, load_tokenizer
from sightline.search.find import find
from support import requests

COMMAND = [sys.executable, "-m", "sightline.cli.main"]
TEXTS = [pair.source for pair in generate("test", 12)]


def run(*arguments):
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False)


def sentence(done):
    """What it said of a mistake, in one line."""
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
def test_four_programs_say_the_same(taught, exported, beams):
    model, tokenizer = load_model(taught), load_tokenizer(taught)
    sources, config = tokenizer.encode(TEXTS), SearchConfig(beams=beams, patience=1)
    backend = CTranslate2Backend(exported / "ctranslate2")
    ours = [best.ids for best, *_ in find(model, sources, config)]
    assert [best.ids for best, *_ in backend.search(requests(sources, model.config, config), config)] == ours
    assert [best.ids for best, *_ in OnnxModel(exported / "onnx").find(sources, config)] == ours
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
def test_what_went_out_comes_in_again(taught, exported, tmp_path, kind):
    done = run("import", exported / kind, "--out", tmp_path / "again")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'again'}\n"
    assert f"{load_tokenizer(taught).size:,} entries" in done.stderr
    before, after = sightline.load(taught, engine="torch"), sightline.load(tmp_path / "again", engine="torch")
    assert [one.text for one in after.translate(TEXTS)] == [one.text for one in before.translate(TEXTS)]
    for one, other in zip(before.score(TEXTS, TEXTS), after.score(TEXTS, TEXTS), strict=True):
        assert other.log_probs == pytest.approx(one.log_probs, abs=1e-4)
    names = after.trace(TEXTS[0]).names()
    assert set(before.trace(TEXTS[0]).names()) <= set(names)


@pytest.mark.parametrize("kind", ["huggingface", "ctranslate2"])
def test_an_older_folder_of_the_kind_is_replaced_and_no_other(taught, tmp_path, kind):
    model, tokenizer = load_model(taught), load_tokenizer(taught)
    for _ in range(2):
        export(model, tokenizer, tmp_path / "out", kind, verify=False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    with pytest.raises(InputError, match="exists and is not a model (exported|converted) by"):
        export(model, tokenizer, tmp_path / "other", kind, verify=False)
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


def test_mistakes_are_told_in_a_sentence_and_leave_nothing(taught, tmp_path):
    out = tmp_path / "out"
    assert "no such folder or package" in sentence(run("import", tmp_path / "none", "--out", out))
    (tmp_path / "empty").mkdir()
    assert "no kind of model is known" in sentence(run("import", tmp_path / "empty", "--out", out))
    (tmp_path / "x.argosmodel").write_bytes(b"PK")
    assert "no package of Argos Translate" in sentence(run("import", tmp_path / "x.argosmodel", "--out", out))
    assert f"--out already contains a model: {taught}" in sentence(run("import", tmp_path / "empty", "--out", taught))
    assert "is for ctranslate2" in sentence(run("export", taught, "--to", "onnx", "--out", out, "--precision", "int8"))
    assert "exists and is not a model exported by" in sentence(run("export", taught, "--to", "onnx", "--out", taught))
    assert "no model found" in sentence(run("export", tmp_path / "empty", "--to", "onnx", "--out", out))
    assert run("export", taught, "--to", "paper", "--out", out).returncode == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "x.argosmodel"]


def test_a_model_of_ours_is_no_model_from_elsewhere(taught, tmp_path):
    assert "model_type = None" in sentence(run("import", taught, "--out", tmp_path / "out"))
