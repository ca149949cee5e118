"""Time from a clone to the open page: `python benchmarks/demo.py` clones the last commit of this repository into an
empty folder, runs `make demo` there as a new user would, and reports when each line was on the screen.

The page counts as open when it answers and has the model that was trained there. Needs port 8000, and a network for the
dependencies. The time of their installation depends on the network and has no goal.
"""

import argparse
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from queue import Queue
from typing import IO

import httpx
from common import keep, where

SEEN = {
    "dependencies installed": r"^Sightline  the Transformer, opened",
    "first translation": r"^  The animal|^  Hi,",
    "model trained": r"s of training\. Of ",
    "page open": r"^Serving .* at (http\S+)",
}
"""The events to wait for, in this order, and the line that shows each."""
MOST = {"page open": 240}
"""Seconds from the end of the installation, at most."""


def watch(clone: Path) -> dict[str, float]:
    """Return the seconds from `make demo` to each event."""
    began, lines = time.perf_counter(), Queue[tuple[float, str]]()  # an empty line is the end
    command = ["make", "demo"]
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    running = subprocess.Popen(  # noqa: S603
        command, cwd=clone, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )

    def read(stream: IO[str]) -> None:
        for line in stream:
            lines.put((time.perf_counter() - began, line))
        lines.put((time.perf_counter() - began, ""))

    for stream in (running.stdout, running.stderr):
        assert stream is not None
        threading.Thread(target=read, args=[stream], daemon=True).start()
    seen: dict[str, float] = {}
    try:
        for what, pattern in SEEN.items():
            while what not in seen:
                seconds, line = lines.get(timeout=1800)
                if not line:
                    raise RuntimeError(f"make demo ended before: {what}")
                print(f"{seconds:7.1f}  {line}", end="", flush=True)
                if found := re.search(pattern, line):
                    seen[what] = seconds
                    address = found[1] if found.groups() else ""
        models = httpx.get(f"{address}/v1/models", timeout=30).raise_for_status().json()["data"]
        assert "yours" in [model["name"] for model in models]
        assert "<title>Sightline</title>" in httpx.get(address).text
        seen["page open"] = time.perf_counter() - began
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGINT)
            running.wait(60)
    return seen


def main() -> None:
    """Measure and store the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "sightline"
        subprocess.run(["git", "clone", "--quiet", Path(__file__).parents[1], clone], check=True)  # noqa: S603, S607
        seen = watch(clone)
    installed = seen.pop("dependencies installed")
    results = {"seconds to install the dependencies": round(installed, 1)}
    results |= {f"seconds from there to: {what}": round(seconds - installed, 1) for what, seconds in seen.items()}
    met = {f"seconds from there to: {what}": seen[what] - installed <= most for what, most in MOST.items()}
    print(keep("demo", {"where": where(), "results": results, "goals met": met}))


if __name__ == "__main__":
    main()
