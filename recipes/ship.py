"""Bundle a trained model with Sightline: half-precision weights and the vocabulary.

    python recipes/ship.py RUN NAME [--states STEP ...]

With --states, these states of a run with train.keep_tested=true are bundled too, to show how it learnt.
"""

import argparse
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from sightline.model_folder import BUNDLED


def ship(run: Path, name: str, states: list[int]) -> Path:
    """Write the folder of the bundled model and return it. Its card, README.md, and its examples, examples.txt, are
    written by hand and stay."""
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
    shutil.rmtree(folder, ignore_errors=True)  # the new one is complete
    draft.rename(folder)
    return folder


def _halve(file: Path, out: Path) -> None:
    save_file({name: weight.half() for name, weight in load_file(file).items()}, out)


def main() -> None:
    """Bundle one model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("name", help="the name of the model")
    parser.add_argument("--states", type=int, nargs="*", default=[], help="steps of the states to bundle")
    options = parser.parse_args()
    folder = ship(options.run, options.name, options.states)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
