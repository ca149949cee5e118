"""The cost of a changed model in the service: seconds of a request with `what_if`, next to the same one without.

    python benchmarks/what_if.py MODEL --pairs PAIRS.tsv

MODEL is one that `sightline train` wrote, or a shipped model; PAIRS a TSV whose first column is translated. All
requests run by torch, one after another, on the worker of the service: a greedy search for each sentence, and a score
of the unchanged model's translation. Searches count seconds per token, because a changed model writes other answers.
The result goes to benchmarks/results/.
"""

import argparse
import itertools
import math
import queue
import time
from functools import partial
from pathlib import Path
from typing import Any

from common import keep, where

import sightline
from sightline.config import SearchConfig, ServeConfig
from sightline.data.corpus import Table, read_pairs
from sightline.engine import Translator
from sightline.serve.routes.shared import changed
from sightline.serve.schemas import WhatIf
from sightline.serve.worker import Job, JobResult, Worker

GREEDY = SearchConfig(beams=1)
PARTS = ["positions", "scale", "look-ahead-mask", "residuals", "feed-forward"]


def changes(engine: Translator) -> dict[str, Any]:
    """Return changes by name. Some models overflow without all of their norms, so only those of one layer are off."""
    heads: dict[str, list[int]] = {}
    config = engine.model.config
    for side, stack in config.stacks.items():
        heads |= {f"{side}.layers.{i}.self_attention": [0] for i in range(stack.layers)}
    return {
        **{part: {"without": [part]} for part in PARTS},
        "norms of a layer": {"without": ["norms@encoder.layers.0"]},
        "a head of each layer removed": {"remove_heads": heads},
        "a head of each layer averaged": {"average_heads": heads},
    }


def main() -> None:
    """Measure, print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    engine = sightline.load(options.model, device="cpu", backend="torch")
    if not isinstance(engine, Translator):
        parser.error(f"{options.model} does not translate.")
    texts = [source for source, _ in itertools.islice(read_pairs(Table(options.pairs)), options.sentences)]
    targets = [one.text for one in engine.translate(texts, beams=1)]
    worker, rows = Worker(ServeConfig()), []
    systems: dict[str, Any] = {"unchanged": None, **changes(engine)}
    best: dict[str, list[tuple[float, float]]] = {name: [(math.inf, math.inf)] * len(texts) for name in systems}
    for _ in range(options.rounds):  # in turn, and the best counts: a disturbance only makes a measurement slower
        for i, pair in enumerate(zip(texts, targets, strict=True)):
            for name, what_if in systems.items():
                one, other = search(worker, engine, pair[0], what_if), score(worker, engine, *pair, what_if)
                best[name][i] = min(one, best[name][i][0]), min(other, best[name][i][1])
    worker.stop(60)
    totals = {name: [sum(times) for times in zip(*best[name], strict=True)] for name in systems}
    for name, times in totals.items():
        ratios = [mine / plain for mine, plain in zip(times, totals["unchanged"], strict=True)]
        rows.append({"changes": name, "search": round(ratios[0], 3), "score": round(ratios[1], 3)})
        print(f"{name:32}search {ratios[0]:.2f}   score {ratios[1]:.2f}")
    about = {"model": Path(options.model).name, "sentences": len(texts), "rounds": options.rounds}
    print(keep(f"what-if-cpu-{Path(options.model).name}", {**where(), **about, "results": rows}))


def search(worker: Worker, engine: Translator, text: str, what_if: dict[str, Any] | None) -> float:
    """Return the seconds per written token of a greedy search."""
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    began = time.perf_counter()
    worker.submit(Job(engine, partial(engine.plan, [text], GREEDY), events.put, what_if=what_if))
    found = events.get(timeout=120)
    seconds = time.perf_counter() - began
    if not isinstance(found, JobResult):
        raise found
    return seconds / (len(found.result[0].ids) + 1)


def score(worker: Worker, engine: Translator, text: str, target: str, what_if: dict[str, Any] | None) -> float:
    """Return the seconds of the score of a pair."""

    def work() -> None:
        with changed(engine, WhatIf.model_validate(what_if) if what_if else None):
            engine.score([text], [target])

    began = time.perf_counter()
    worker.call(work).result(120)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
