"""Shared code of the benchmarks: machine and versions, results, comparison of systems."""

import functools
import json
import math
import multiprocessing
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import torch

from sightline.backends.torch import default_batch_tokens
from sightline.config import SearchConfig
from sightline.engine.translator import translation_request
from sightline.model.protocol import Generative
from sightline.search.driver import search
from sightline.search.types import Hypothesis

T = TypeVar("T")
A = TypeVar("A")
RESULTS = Path(__file__).parent / "results"
REST = 0.02
"""Seconds after which the threads of the last system have stopped spinning."""


def where(*packages: str) -> dict[str, Any]:
    """Return the machine, the versions and the commit that a result belongs to."""
    if torch.cuda.is_available():
        machine = torch.cuda.get_device_name()
    else:
        machine = f"{_processor()}, {len(os.sched_getaffinity(0))} cores"
    return {
        "machine": machine,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", *packages)},
        "commit": _commit(),
    }


def search_sources(
    model: Generative, sources: Sequence[Sequence[int]], options: SearchConfig
) -> list[list[Hypothesis]]:
    """Search for translations of sources (ids without their end), in batches of the size that users get."""
    requests = [translation_request(ids, options, model.config) for ids in sources]
    return search(model, requests, options, batch_tokens=default_batch_tokens(model.config, model.device))


def keep(name: str, result: dict[str, Any]) -> Path:
    """Write a result to the folder of results."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    return path


def side_by_side(
    systems: Mapping[str, Callable[[T], list[A]]], batches: Sequence[T], rounds: int
) -> dict[str, tuple[float, list[A]]]:
    """Return seconds and answers of each system. The systems take turns on every batch, `rounds` times, and the best
    time of a batch counts: a disturbance makes a measurement slower, never faster."""
    best = {name: [math.inf] * len(batches) for name in systems}
    answers: dict[str, list[list[A]]] = {name: [[] for _ in batches] for name in systems}
    for _ in range(rounds):
        for i, batch in enumerate(batches):
            for name, system in systems.items():
                time.sleep(REST)
                began = time.perf_counter()
                answers[name][i] = system(batch)
                best[name][i] = min(best[name][i], time.perf_counter() - began)
    return {name: (sum(best[name]), [one for some in answers[name] for one in some]) for name in systems}


def alone(make: Callable[..., Callable[..., A]], *how: Any, **more: Any) -> Callable[..., A]:
    """Return the system that `make` makes, in its own process. Libraries in one process share its threads: if there are
    more threads than processors, they stop spinning while they wait for each other, and all get slower."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    context.Process(target=_serve, args=(there, functools.partial(make, *how, **more)), daemon=True).start()
    there.close()  # so that `recv` raises an error when the process ends

    def system(*args: Any) -> A:
        here.send(args)
        return here.recv()

    here.recv()  # it is ready; if it failed, this is an EOFError after its own message
    return system


def _serve(asked: Connection, make: Callable[[], Callable[..., Any]]) -> None:
    system = make()
    asked.send(None)
    while True:
        try:
            args = asked.recv()
        except EOFError:
            return
        asked.send(system(*args))


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    """Return the commit, from SIGHTLINE_COMMIT for a copy without its history. Code that differs from the commit gets
    "-changed"; a test refuses such a result in the repository."""
    if commit := os.environ.get("SIGHTLINE_COMMIT"):
        return commit
    try:
        changed = _git("status", "--porcelain", "--", "src", "benchmarks/*.py")
        return _git("rev-parse", "--short", "HEAD") + ("-changed" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parents[1]), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
