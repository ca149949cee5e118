"""Put a trained model among those that come with Sightline: half-precision weights, its vocabulary, and no more.

    python recipes/ship.py RUN NAME [--states STEP ...]

With --states, those states of a run with train.keep_tested=true go along, for looking at how it learnt.
"""

import argparse
import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from sightline.folders import SHIPPED


def ship(run: Path, name: str, states: list[int]) -> Path:
    """The folder of the shipped model. Its card, README.md, is written by hand and stays as it is."""
    folder = SHIPPED / name
    for old in ("model.safetensors", "config.json", "alignment.json", "run.json", "states"):
        path = folder / old
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("config.json", "tokenizer.model", "alignment.json"):
        if (run / file).exists():
            shutil.copy(run / file, folder / file)
    usual = json.loads((run / "run.json").read_text("utf-8"))["usual_length"]
    (folder / "run.json").write_text(json.dumps({"usual_length": usual}) + "\n", "utf-8")
    _halve(run / "model.safetensors", folder / "model.safetensors")
    for step in states:
        kept = folder / "states" / f"step-{step:08}"
        kept.mkdir(parents=True)
        for file in ("config.json", "tokenizer.model"):
            shutil.copy(run / file, kept / file)
        _halve(run / "tested" / kept.name / "model.safetensors", kept / "model.safetensors")
    return folder


def _halve(file: Path, out: Path) -> None:
    save_file({name: weight.half() for name, weight in load_file(file).items()}, out)


def main() -> None:
    """Ship one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("name", help="what the model is called")
    parser.add_argument("--states", type=int, nargs="*", default=[], help="steps of its states that go along")
    options = parser.parse_args()
    folder = ship(options.run, options.name, options.states)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
