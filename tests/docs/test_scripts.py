"""Benchmarks and recipes run with tiny models and few sentences, from a copy, so that the repository stays as it is."""

import gzip
import lzma
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from serving import cannot
from sightline.cli.main import app
from sightline.config import ModelConfig, load
from sightline.data.builtin import generate
from sightline.interop.export import export_model
from sightline.model.transformer import build
from sightline.model_folder import save_model
from sightline.special import END
from sightline.text.tokenizer import Tokenizer
from support import random_weights

ROOT = Path(__file__).parents[2]
STACK = {"layers": 1, "heads": 2, "d_ff": 24}
NOT_RUN = {
    "common.py": "a module of the others",
    "report.py": "run by test_docs.py",
    "demo.py": "installs the dependencies",
    "stories.py": "needs a model of llama2.c",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A copy of the scripts, and next to them tiny models and corpora."""
    place = tmp_path_factory.mktemp("scripts")
    for name in ("benchmarks", "recipes"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("results", "__pycache__"))
    pairs = [f"{pair.source}\t{pair.target}" for pair in generate("train", 200)]
    for name in ("pairs.tsv", "train.tsv"):
        (place / name).write_text("\n".join(pairs) + "\n", "utf-8")
    text = "\n".join(pairs[:20]).encode()
    for name in ("multi30k/en-de.train", "multi30k/en-de.val", "multi30k/en-de.test2016", "multi30k/en-fr.test2016"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / f"{name}.tsv.gz").write_bytes(gzip.compress(text))
    (place / "tatoeba").mkdir()
    (place / "tatoeba" / "en-fr.test.tsv.gz").write_bytes(gzip.compress(text))
    (place / "tatoeba" / "en-fr.train.tsv.xz").write_bytes(lzma.compress(text))
    tokenizer = Tokenizer.train((text for line in pairs for text in line.split("\t")), 400)
    for name, architecture in (
        ("translator", "encoder-decoder"),
        ("teacher", "encoder-decoder"),
        ("writer", "decoder-only"),
    ):
        torch.manual_seed(1)
        sizes = {"vocab_size": tokenizer.size, "d_model": 16, "encoder": STACK, "decoder": STACK}
        positions = {"max_length": 40} if name == "writer" else {}
        model = random_weights(
            build(ModelConfig(**sizes, architecture=architecture, positions=positions, classifier_bias=True))
        )
        with torch.no_grad():
            model.classifier.bias[END] += 1.5
        save_model(model, place / name, tokenizer)
        if name == "translator":
            export_model(model, tokenizer, place / "marian", "huggingface")
    return place


def script(place, name, *arguments, patch=""):
    """Run a script in the copy; `patch` is code that runs first."""
    code = f"import runpy, sys; {patch}; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, name] if patch else [sys.executable, name]
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "XDG_CACHE_HOME": str(place / "cache")}
    done = subprocess.run(
        [*command, *map(str, arguments)], cwd=place, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


PAIRS = ["--pairs", "pairs.tsv"]
QUICK = ["--set", "data.vocab_size=400", "--set", "train.steps=2", "--set", "train.batch_tokens=512"]
BENCHMARKS = {
    "cpu_engines": [
        "marian",
        *PAIRS,
        "--learn",
        "train.tsv",
        "--sentences",
        4,
        "--batches",
        2,
        "--beams",
        1,
        "--runs",
        2,
    ],
    "command": ["translator", "--text", "pairs.tsv", "--lines", 40, "--rounds", 1],
    "decode": ["translator", *PAIRS, "--sentences", 4, "--batches", 2, "--beams", 2, "--rounds", 1],
    "exports": ["translator", *PAIRS, "--sentences", 2, "--batch", 2],
    "lines": ["translator", "--text", "pairs.tsv", "--lines", 20],
    "neighbours": ["translator", *PAIRS, "--sentences", 6, "--batches", 3, "--beams", 2],
    "quality": ["multi30k", "--data", ".", "--name", "tiny", *QUICK],
    "serve": ["translator", *PAIRS, "--parts", "latency", "--sentences", 128, "--rounds", 1, "--lone", 3, "--rest", 0],
    "step": ["--size", "tiny", *PAIRS, "--tokens", 128, "--vocabulary", 400, "--rounds", 1, "--batches", 1],
    "store": ["--pairs", 300],
    "what_if": ["translator", *PAIRS, "--sentences", 3, "--rounds", 1],
    "student": ["translator", "teacher", "--data", ".", "--sentences", 3, "--timed", 4, "--rounds", 1],
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmarks_run_and_keep_a_result(name, place):
    script(place, f"benchmarks/{name}.py", *BENCHMARKS[name])
    assert list((place / "benchmarks" / "results").glob("*.json"))


@pytest.mark.browser
def test_the_benchmark_of_the_page_runs(place):
    if not (shutil.which("chromium") or os.environ.get("CHROMIUM")):
        cannot("this needs Chromium")
    script(place, "benchmarks/page.py", "translator", "--rounds", 1, "--longest", 30)


def test_recipes_of_the_french_student_run(place):
    script(place, "recipes/en-fr/remarks.py", "writer", "--sentences", 3, "--rows", 8, "--out", "remarks.en")
    script(place, "recipes/en-fr/riddles.py", "translator", "--sentences", 3, "--out", "riddles.tsv")
    assert len((place / "remarks.en").read_text("utf-8").splitlines()) >= 3
    (place / "riddles.tsv").write_text("A cat.\tUn chat.\n", "utf-8")
    (place / "s.en").write_text("The dog sleeps.\nThe cat eats.\n", "utf-8")
    (place / "s.fr").write_text("Le chien dort.\nLe chat mange.\n", "utf-8")
    out = ["--riddles", "riddles.tsv", "--without", "pairs.tsv", "--out", "more.tsv"]
    script(place, "recipes/en-fr/gather.py", "--pairs", "s.en", "s.fr", *out)
    assert "Le chien dort." in (place / "more.tsv").read_text("utf-8")
    script(place, "recipes/en-fr/stories.py", "--help")


def test_recipes_of_a_bundled_model_run(place):
    (place / "web" / "src" / "trace").mkdir(parents=True)
    script(place, "recipes/coref/stored.py")
    assert (place / "web" / "src" / "trace" / "stored.bin").stat().st_size > 1000
    (place / "bundled").mkdir()
    patch = "import pathlib, sightline.model_folder as m; m.BUNDLED = pathlib.Path('bundled')"
    script(place, "recipes/ship.py", "translator", "tiny", patch=patch)
    assert (place / "bundled" / "tiny" / "model.safetensors").exists()


def test_every_script_is_run_or_has_a_reason():
    found = {path.name for name in ("benchmarks", "recipes") for path in (ROOT / name).rglob("*.py")}
    run = {f"{name}.py" for name in BENCHMARKS} | {
        "page.py",
        "remarks.py",
        "riddles.py",
        "gather.py",
        "ship.py",
        "stored.py",
    }
    assert found == run | set(NOT_RUN)


@pytest.mark.parametrize("recipe", ["coref", "en-fr"])
def test_commands_of_recipes_name_options_that_exist(recipe):
    text = (ROOT / "recipes" / recipe / "make.sh").read_text("utf-8")
    assert subprocess.run(["bash", "-n", "-c", text], check=False).returncode == 0
    if python := re.search(r"<<'PYTHON'\n(.*?)^PYTHON$", text, re.MULTILINE | re.DOTALL):
        for line in python[1].splitlines():
            if line.startswith("from sightline"):
                exec(line, {})
    from typer.main import get_command

    known = get_command(app).commands
    joined = text.replace("\\\n", " ")
    for command, rest in re.findall(r"\bsightline ([\w-]+) ([^\n]*)", joined):
        options = {option for parameter in known[command].params for option in parameter.opts}
        assert set(re.findall(r"(?<!\S)--[\w-]+", rest)) <= options, command
    trained = {option for parameter in known["train"].params for option in parameter.opts}
    for rest in re.findall(r"^ *learn ([^\n]*)", joined, re.MULTILINE):
        assert set(re.findall(r"(?<!\S)--[\w-]+", rest)) <= trained
    assignments = re.findall(r"--set '?([\w.]+=(?:\{[^}]*\}|[^\s']+))", joined)
    assert assignments
    load("tiny", sets=assignments)
