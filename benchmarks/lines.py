"""A file of a million lines through `sightline translate`: its memory stays flat, and every line is answered.

    python benchmarks/lines.py MODEL --text FILE

MODEL is a folder that `sightline train` wrote, FILE text whose lines are repeated. The resident memory of the process
is read every second. Linux only. The result goes to benchmarks/results/.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import keep, where

from sightline.data.corpus import raw_lines


def main() -> None:
    """Measure, print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--beams", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text, out = Path(folder) / "text", Path(folder) / "out"
        some = [line.split(b"\t")[0].rstrip(b"\r\n") + b"\n" for line in raw_lines(options.text)]
        with text.open("wb") as file:
            file.writelines(itertools.islice(itertools.cycle(some), options.lines))
        command = [sys.executable, "-m", "sightline.cli.main", "translate", str(options.model), str(text)]
        began = time.perf_counter()
        seen: list[tuple[int, float]] = []
        with subprocess.Popen([*command, "--out", str(out), "--beams", str(options.beams)]) as process:  # noqa: S603
            while process.poll() is None:
                time.sleep(1)
                seen.append((out.stat().st_size if out.exists() else 0, resident(process.pid)))
        seconds = time.perf_counter() - began
        if process.returncode:
            sys.exit(process.returncode)
        answered, whole = sum(1 for _ in out.open("rb")), out.stat().st_size
    after = {
        f"MiB after {part:.0%} of it": round(next((mib for size, mib in seen if size >= part * whole), seen[-1][1]))
        for part in (0.01, 0.1, 0.25, 0.5, 0.75, 0.98)
    }
    result = {"lines": options.lines, "answered": answered, "lines/s": round(options.lines / seconds)}
    result |= {"seconds": round(seconds), **after, "MiB at most": round(max(mib for _, mib in seen))}
    print("  ".join(f"{key} {value}" for key, value in result.items()))
    settings = {"model": options.model.name, "of": options.text.name, "beams": options.beams}
    print(f"kept in {keep('lines-cpu', {'where': where(), 'settings': settings, 'results': result})}")


def resident(process: int) -> float:
    """Return the resident memory of a process in MiB."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")), 0.0)


if __name__ == "__main__":
    main()
