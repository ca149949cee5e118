"""Fixtures: a partly trained model, shared by all tests of a session, and commands in this process."""

import fcntl

import pytest
import torch

from sightline.cli.main import main
from sightline.config import ModelConfig
from sightline.data.builtin import generate
from sightline.model.transformer import build
from sightline.model_folder import save_model
from sightline.special import END
from sightline.text.tokenizer import Tokenizer
from sightline.train.run import RunOptions, TextFiles, train_files
from support import random_weights

HALF_TAUGHT = [
    "data.vocab_size=600",
    "model.d_model=64",
    "model.dropout=0.05",
    "model.encoder.layers=2",
    "model.decoder.layers=2",
    "train.steps=120",
    "train.batch_tokens=1024",
    "train.learning_rate=0.01",
    "train.warmup=30",
    "train.ema=0.9",
    "train.smoothing=0.0",
]


@pytest.fixture(scope="session")
def taught(tmp_path_factory):
    """Return the folder of a partly trained model of the built-in language, whose probabilities are spread out."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if shared.name.startswith("popen-") else shared  # one folder for all workers
    folder = shared / "taught"
    with (shared / "taught.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "model.safetensors").exists():
            text = shared / "taught.tsv"
            text.write_text("".join(f"{p.source}\t{p.target}\n" for p in generate("train", 10_000)), "utf-8")
            inputs = TextFiles(pairs=[(str(text), 1.0)])
            options = RunOptions(folder, inputs, preset="tiny", set=HALF_TAUGHT, cache=shared / "cache", device="cpu")
            train_files(options, lambda _: None)
    return folder


@pytest.fixture(scope="session")
def writing(tmp_path_factory):
    """Return the folder of a language model with random weights that ends its texts now and then."""
    torch.manual_seed(3)
    tokenizer = Tokenizer.train([text for pair in generate("train", 300) for text in (pair.source, pair.target)], 400)
    sizes = {"d_model": 32, "decoder": {"layers": 2, "heads": 4, "d_ff": 48}, "positions": {"max_length": 128}}
    options = {"architecture": "decoder-only", "classifier_bias": True, "vocab_size": tokenizer.size, **sizes}
    model = random_weights(build(ModelConfig(**options)))
    with torch.no_grad():
        model.classifier.weight.mul_(0.5)
        model.classifier.bias[END] += 1.0
    folder = tmp_path_factory.mktemp("models") / "writing"
    save_model(model, folder, tokenizer)
    return folder


@pytest.fixture
def here(monkeypatch, capfd):
    """Run a command in this process, which has loaded torch already; return exit code, stdout and stderr."""

    def run(*words):
        monkeypatch.setattr("sys.argv", ["sightline", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        printed = capfd.readouterr()
        return stopped.value.code, printed.out, printed.err

    return run
