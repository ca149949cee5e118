"""A training run of about half a minute: a small model learns the built-in corpus. `sightline demo` and the tour of the
page use it.

    python -m sightline.train.lesson FOLDER

writes the corpus into a folder and trains there, with a state of the model every 40 steps."""

import os
import sys
from contextlib import closing
from pathlib import Path

from sightline.data.builtin import generate
from sightline.evaluate.scores import values
from sightline.runs import Metrics
from sightline.train.run import RunOptions, TextFiles, train_files

SENTENCES = 30_000
STEPS = 320
RECIPE = [
    "model.encoder.layers=2",
    "model.decoder.layers=2",
    "model.dropout=0.05",
    "data.vocab_size=1200",
    f"train.steps={STEPS}",
    "train.batch_tokens=1024",
    "train.learning_rate=0.007",
    "train.warmup=50",
    "train.smoothing=0.0",
    "train.ema=0.98",
    "train.validate_every=160",
    "train.report_every=10",
]
"""Differences from the preset `tiny`. This language is regular, so half the layers, less dropout and fewer steps are
enough; it has one correct answer to each sentence, so label smoothing would not help."""
STATES = ["train.validate_every=40", "train.keep_tested=true"]


def write_corpus(folder: Path) -> tuple[Path, Path]:
    """Write the pairs for training and for validation; return their files."""
    examples = {folder / "train.tsv": generate("train", SENTENCES), folder / "dev.tsv": generate("dev", 200)}
    for file, pairs in examples.items():
        file.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs), "utf-8")
    train, dev = examples
    return train, dev


def main() -> None:
    """Write the corpus and train on it. SIGTERM stops the run after its update."""
    folder = Path(sys.argv[1])
    if hasattr(os, "nice"):
        os.nice(5)  # the service that started this process stays responsive
    (folder / "steps").write_text(str(STEPS))
    train, valid = (TextFiles(pairs=[(str(file), 1.0)]) for file in write_corpus(folder))
    options = RunOptions(
        folder / "run", train, valid, "tiny", set=[*RECIPE, *STATES], cache=folder / "cache", device="cpu"
    )
    with closing(Metrics(options.out)) as metrics:
        run = train_files(options, metrics, score=values)
    sys.exit(128 + run.stopped if run.stopped else 0)


if __name__ == "__main__":
    main()
