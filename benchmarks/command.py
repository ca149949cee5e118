"""Speed of `sightline translate` next to that of the search alone: the same model, lines, precision and options.

    python benchmarks/command.py MODEL --text FILE

FILE has a sentence per line; the first column of a TSV counts. The search alone is that of benchmarks/decode.py: it
gets ids, 512 sentences at a time, in batches of the size that users get. The command is timed from the first window of
lines that it has written to the last, so that loading does not count. The result goes to benchmarks/results/.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import keep, search_sources, where

from sightline import LoadOptions
from sightline.config import SearchConfig
from sightline.data.corpus import raw_lines
from sightline.engine import Translator, load_translator

BATCH = 512


def search_alone(
    translator: Translator, lines: list[str], options: SearchConfig, rounds: int
) -> tuple[list[str], float]:
    """Return the answers and the seconds of the search; the best time of each batch counts."""
    ids = translator.tokenizer.source.encode(lines)
    answers: list[str] = []
    total = 0.0
    for first in range(0, len(ids), BATCH):
        best = float("inf")
        for _ in range(rounds):
            began = time.perf_counter()
            found = search_sources(translator.model, ids[first : first + BATCH], options)
            best = min(best, time.perf_counter() - began)
        total += best
        answers += [translator.tokenizer.decode(hypotheses[0].ids) for hypotheses in found]
    return answers, total


def command(model: Path, lines: list[str], options: SearchConfig, precision: str) -> tuple[list[str], int, float]:
    """Return the answers of the command, how many of them were in its first window, and the seconds for the others."""
    with tempfile.TemporaryDirectory() as folder:
        text, out = Path(folder) / "text", Path(folder) / "out"
        text.write_text("".join(f"{line}\n" for line in lines))
        program = [sys.executable, "-m", "sightline.cli.main", "translate", str(model), str(text), "--out", str(out)]
        program += ["--beams", str(options.beams), "--precision", precision, "--backend", "torch"]
        with subprocess.Popen(program) as process:  # noqa: S603
            while process.poll() is None and not (out.exists() and out.stat().st_size):
                time.sleep(0.001)
            first, began = out.read_bytes().count(b"\n"), time.perf_counter()
        seconds = time.perf_counter() - began
        if process.returncode:
            sys.exit(process.returncode)
        return out.read_text().splitlines(), first, seconds


def main() -> None:
    """Measure, print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), help="bfloat16 on a GPU")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    precision: Any = options.precision or ("bfloat16" if device == "cuda" else "float32")
    some = itertools.islice(raw_lines(options.text), options.lines)
    lines = [line.decode().split("\t")[0].strip() for line in some]
    search = SearchConfig(beams=options.beams)
    translator = load_translator(options.model, LoadOptions(backend="torch", precision=precision))
    alone, seconds = search_alone(translator, lines, search, options.rounds)
    count = [len(found) + 1 for found in translator.tokenizer.encode(alone)]
    answers, first, command_seconds = command(options.model, lines, search, precision)
    rows = {
        "search alone, tokens/s": round(sum(count) / seconds),
        "command, tokens/s": round(sum(count[first:]) / command_seconds),
        "command / search": round(sum(count[first:]) / command_seconds / (sum(count) / seconds), 3),
        "same answers": sum(a == b for a, b in zip(alone, answers, strict=True)),
        "lines": len(lines),
        "seconds of the command": round(command_seconds, 1),
    }
    print("  ".join(f"{key} {value}" for key, value in rows.items()), flush=True)
    settings = {"model": options.model.name, "precision": precision, "beams": options.beams, "of": options.text.name}
    settings |= {"patience": search.patience, "batch": BATCH, "rounds": options.rounds}
    print(f"kept in {keep(f'command-{device}', {'where': where(), 'settings': settings, 'results': rows})}")


if __name__ == "__main__":
    main()
