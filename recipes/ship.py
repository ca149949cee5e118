"""Put a trained model among those that come with Sightline: half-precision weights, its vocabulary, and no more.

    python recipes/ship.py RUN NAME [--states STEP ...]

With --states, those states of a run with train.keep_tested=true go along, for looking at how it learnt.
"""

import argparse
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from sightline.model_folder import BUNDLED


def ship(run: Path, name: str, states: list[int]) -> Path:
    """The folder of the shipped model. Its card, README.md, and what to try, examples.txt, are written by hand and stay
    as they are."""
    folder, draft = BUNDLED / name, BUNDLED.parent / f"{name}.partial"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    for file in ("config.json", "tokenizer.model", "alignment.json"):
        if (run / file).exists():
            shutil.copy(run / file, draft / file)
    _halve(run / "model.safetensors", draft / "model.safetensors")
    for step in states:
        kept = draft / "states" / f"step-{step:08}"
        kept.mkdir(parents=True)
        for file in ("config.json", "tokenizer.model"):
            shutil.copy(run / file, kept / file)
        _halve(run / "tested" / kept.name / "model.safetensors", kept / "model.safetensors")
    if (folder / "README.md").exists():
        shutil.copy(folder / "README.md", draft / "README.md")
    if (folder / "examples.txt").exists():
        for place in [draft, *draft.glob("states/*")]:
            shutil.copy(folder / "examples.txt", place / "examples.txt")
    shutil.rmtree(folder, ignore_errors=True)  # all of the new one is there
    draft.rename(folder)
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
