"""Memory and time of a tokenised corpus, from small to large: `python benchmarks/store.py [--pairs 100000 1000000]`.

The memory of preparing and reading must not grow with the corpus, nor the time of an update. Each size has its own
process: first without torch, to measure the store alone; then with torch, to update a small model.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sightline.data.corpus import Table
from sightline.data.examples import prepare
from sightline.data.store import Store
from sightline.text.tokenizer import Tokenizer

READS, ROWS, UPDATES = 200, 256, 60


def main() -> None:
    """Measure every size and store the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, nargs="+", default=[100_000, 1_000_000, 5_000_000])
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)  # one size, in its own process
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return
    rows = []
    for count in arguments.pairs:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), count)
            command = [sys.executable, __file__, "--measure", folder]
            rows.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))  # noqa: S603
        print(json.dumps(rows[-1]))

    from common import keep, where  # noqa: PLC0415 (it imports torch, and a process begins with its parent's memory)

    print(keep("store", {**where("numpy", "sentencepiece"), "reads": READS, "rows_a_read": ROWS, "sizes": rows}))


def write(folder: Path, count: int) -> None:
    """Write a corpus of `count` pairs, and a vocabulary for it."""
    lines = [f"{source}\t{target}" for source, target in islice(sentences(), 50_000)]
    with (folder / "pairs.tsv").open("w") as file:
        for number in range(count):
            file.write(f"{number} {lines[number % len(lines)]} {number}\n")  # all different
    tokenizer = Tokenizer.train((side for line in lines for side in line.split("\t")), 8_000)
    (folder / "tokenizer.model").write_bytes(tokenizer.model)


def sentences() -> Iterator[tuple[str, str]]:
    """Yield pairs of sentences of invented words, with the frequencies of a language (Zipf)."""
    chance = np.random.default_rng(0)
    letters = np.array(list("eeeeaaaiioounnnrrrsssttthhlldmcgpbfwkvz"))
    words = np.array(["".join(chance.choice(letters, size)) for size in chance.integers(2, 10, 30_000)])
    odds = 1 / np.arange(1, len(words) + 1)
    while True:
        drawn = chance.choice(words, 100_000, p=odds / odds.sum())
        lengths = chance.integers(4, 20, 2 * 2_000)
        parts = np.split(drawn, lengths.cumsum())[:-1]
        texts = [" ".join(part) for part in parts]
        yield from zip(texts[::2], texts[1::2], strict=True)


def measure(folder: Path) -> dict[str, Any]:
    """Prepare a corpus twice and read it at random."""
    tokenizer = Tokenizer.load(folder / "tokenizer.model")
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        (store,) = prepare([Table(folder / "pairs.tsv")], tokenizer, folder / "cache")
        seconds.append(time.perf_counter() - start)
    prepared = peak()
    chance = np.random.default_rng(1)
    times = []
    for _ in range(READS):
        indices = chance.integers(0, len(store), ROWS)
        start = time.perf_counter()
        for side in (store.source, store.target):
            assert side is not None
            side.take(indices)
        times.append(time.perf_counter() - start)
    tokens = int(store.target.starts[-1])
    return {
        "pairs": len(store),
        "target_tokens": tokens,
        "seconds_to_prepare": round(seconds[0], 1),
        "seconds_when_found": round(seconds[1], 2),
        "milliseconds_a_read": round(1000 * float(np.median(times)), 3),
        "milliseconds_first_read": round(1000 * times[0], 1),
        "peak_mib_prepared": prepared,
        "peak_mib": peak(),
        **train(store, tokenizer.size),
    }


def train(store: Store, words: int) -> dict[str, Any]:
    """Update a small model, with batches prepared as the training command prepares them."""
    import torch  # noqa: PLC0415 - only now

    from sightline.config import load  # noqa: PLC0415
    from sightline.data.feed import Feed, Place, ahead  # noqa: PLC0415
    from sightline.model.transformer import build  # noqa: PLC0415
    from sightline.train.step import Step  # noqa: PLC0415

    config = load("tiny", sets=[f"model.vocab_size={words}", "model.d_model=32"])
    step = Step(build(config.model).train(), config.train, torch.device("cpu"))
    feed = Feed([store], batch_tokens=2048, seed=1)
    start = time.perf_counter()
    feed.plan(0)
    planned = time.perf_counter() - start
    updates, times = ahead(lambda: feed.updates(Place())), []
    for number in range(1, UPDATES + 1):
        start = time.perf_counter()
        step(next(updates), number, 1e-3)
        times.append(time.perf_counter() - start)
    updates.close()
    return {
        "seconds_to_plan_an_epoch": round(planned, 2),
        "milliseconds_an_update": round(1000 * float(np.median(times)), 1),
        "peak_mib_training": peak(),
    }


def peak() -> int:
    """Return the peak resident memory of this process in MiB. getrusage would include its parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


if __name__ == "__main__":
    main()
