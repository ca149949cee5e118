"""What every benchmark shares: where it ran, and how its result is kept."""

import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch

T = TypeVar("T")
A = TypeVar("A")
RESULTS = Path(__file__).parent / "results"


def where(*packages: str) -> dict[str, Any]:
    """The machine, the versions and the commit a figure belongs to."""
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


def keep(name: str, result: dict[str, Any]) -> Path:
    """Write a result beside the others."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    return path


def side_by_side(
    systems: Mapping[str, Callable[[T], list[A]]], batches: Sequence[T], rounds: int
) -> dict[str, tuple[float, list[A]]]:
    """Seconds and answers of each system. Every batch is given to one after another, some times over, and its best time
    counts: what disturbs a measurement only makes it slower, and never a whole round."""
    best = {name: [math.inf] * len(batches) for name in systems}
    answers: dict[str, list[list[A]]] = {name: [[] for _ in batches] for name in systems}
    for _ in range(rounds):
        for i, batch in enumerate(batches):
            for name, system in systems.items():
                began = time.perf_counter()
                answers[name][i] = system(batch)
                best[name][i] = min(best[name][i], time.perf_counter() - began)
    return {name: (sum(best[name]), [one for some in answers[name] for one in some]) for name in systems}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    """A copy without its history is told by SIGHTLINE_COMMIT what it is a copy of."""
    if told := os.environ.get("SIGHTLINE_COMMIT"):
        return told
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
