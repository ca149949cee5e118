"""Small training runs, in this process and by the command line."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from torch import Tensor

from sightline.data.builtin import generate
from sightline.evaluate.scores import values
from sightline.runs import Event, Metrics, tee
from sightline.train.run import RunOptions, TextFiles, train_files
from sightline.train.state import RunState, last_state, load_state

OPTIONS = """
[model]
d_model = 16
encoder = { layers = 1, heads = 2, d_ff = 24 }
decoder = { layers = 1, heads = 2, d_ff = 24 }

[data]
vocab_size = 340

[train]
steps = 12
batch_tokens = 256
schedule = "constant"
learning_rate = 0.003
warmup = 3
"""
COMMAND = [sys.executable, "-m", "sightline.cli.main"]
TIMINGS = ("tokens_per_second", "memory")
LIMIT = 600
"""Seconds after which a process counts as stuck; long, because the machine may be busy."""


def write_pairs(folder: Path, train: int = 120, test: int = 2) -> tuple[Path, Path]:
    """Write training and validation pairs as TSV, and a configuration; return the paths of the pairs."""
    (folder / "options.toml").write_text(OPTIONS)
    found = []
    for split, count in (("train", train), ("dev", test)):
        path = folder / f"{split}.tsv"
        path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in generate(split, count)))
        found.append(path)
    return found[0], found[1]


def on_pairs(folder: Path, *options: str) -> list[Any]:
    """Return the arguments to train on the pairs of a folder."""
    sets = [part for option in options for part in ("--set", option)]
    files = ["--pairs", folder / "train.tsv", "--valid", folder / "dev.tsv"]
    return ["train", *files, "--config", folder / "options.toml", "--device", "cpu", *sets]


def environment(folder: Path) -> dict[str, str]:
    """Return an environment with one thread and with caches in the folder of the test. matplotlib's list of fonts is
    shared, because building it takes seconds."""
    own = {"XDG_CACHE_HOME": str(folder / "cache"), "MPLCONFIGDIR": matplotlib.get_cachedir(), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own, "COLUMNS": "100"}


def start(folder: Path, *arguments: Any, processes: int = 1) -> subprocess.Popen[str]:
    """Start the command line; with several processes by torchrun."""
    command = COMMAND
    if processes > 1:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        command = [sys.executable, *torchrun, *COMMAND[1:]]
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment(folder),
    )


def sightline(folder: Path, *arguments: Any, processes: int = 1) -> subprocess.CompletedProcess[str]:
    """Run the command line as `start` does; return the finished process."""
    running = start(folder, *arguments, processes=processes)
    stdout, stderr = running.communicate(timeout=LIMIT)
    return subprocess.CompletedProcess(running.args, running.returncode, stdout, stderr)


def wait_for(condition: Callable[[], bool], running: subprocess.Popen[str]) -> None:
    """Wait until the condition holds or the process has ended."""
    end = time.monotonic() + LIMIT
    while not condition() and running.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.005)


def train_here(
    folder: Path,
    out: Path,
    *options: str,
    resume: bool = False,
    also: Callable[[Event], None] = lambda _: None,
    validated: bool = True,
    start: Path | None = None,
) -> RunState:
    """Run training in this process, with everything of the command line but the console."""
    inputs = TextFiles(pairs=[(str(folder / "train.tsv"), 1.0)]), TextFiles(pairs=[(str(folder / "dev.tsv"), 1.0)])
    train, valid = (TextFiles(), TextFiles()) if resume else inputs if validated else (inputs[0], TextFiles())
    run = RunOptions(out, train, valid, cache=folder / "cache", device="cpu", resume=resume)
    if not resume:
        run = run._replace(config=str(folder / "options.toml"), set=options, init_from=start and str(start))
    metrics = Metrics(out)
    try:
        return train_files(run, tee([metrics, also]), score=values)
    finally:
        metrics.close()


def metrics(out: Path) -> list[dict[str, Any]]:
    """Return the objects of metrics.jsonl, without timings."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMINGS} for line in lines]


def state(out: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the last checkpoint of a run."""
    path = last_state(out / "checkpoints")
    assert path is not None
    return load_state(path)


def files(out: Path) -> dict[str, bytes]:
    """Return the files of a run, without timings and pictures."""
    found = {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.name not in ("metrics.jsonl", "curves.png")
    }
    return {**found, "metrics": json.dumps(metrics(out)).encode()}
