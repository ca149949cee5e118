"""Parameters that several commands have, and the files that they name. They are called as in the library, so that a
message of the library that names an option fits."""

import re
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from sightline.errors import InputError

Strings = list[str] | None

Model = Annotated[str, Argument(help="Folder or name of a model.")]
Device = Annotated[str, Option(help="cpu, cuda, cuda:1 or mps; auto chooses the fastest.")]
Backend = Annotated[str, Option(help="Search backend: auto, torch or ctranslate2.")]
Precision = Annotated[
    str, Option(help="auto, float32, int8 (CPU) or bfloat16 (GPU). The last two are faster and round.")
]
Shortlist = Annotated[
    bool, Option("--shortlist", help="Search among fewer tokens, with the file of `sightline shortlist`.")
]

Beams = Annotated[int, Option("--beams", "-b", help="Beam size; 1 is greedy search.")]
Sample = Annotated[bool, Option("--sample", help="Sample tokens from the model's distribution.")]
Temperature = Annotated[float, Option(help="Sampling temperature; lower is more conservative.")]
TopK = Annotated[int, Option(help="Sample from the k most likely tokens; 0 disables the limit.")]
Seed = Annotated[int, Option(help="Random seed of sampling.")]

Source = Annotated[Path, Option(help="Source text, one sentence per line.")]
Target = Annotated[Path, Option(help="Its translation, line by line.")]
Resume = Annotated[bool, Option("--resume", help="Continue the work in --out.")]
Plain = Annotated[bool, Option("--plain", help="Print lines instead of a progress bar.")]

Config = Annotated[str | None, Option(help="TOML file of options; overrides the preset.")]
Set = Annotated[Strings, Option(help="One option, as group.option=value; overrides preset and file.")]


def weighted(texts: Strings) -> list[tuple[str, float]]:
    """Split each FILE*WEIGHT; the weight of FILE alone is 1."""
    split = [re.fullmatch(r"(?s)(.*?)(?:\*(\d+\.?\d*|\.\d+))?", text) for text in texts or []]
    return [(found[1], float(found[2] or 1)) for found in split if found]


def check_as_many(source: Strings, target: Strings) -> None:
    """Check that each source file has its target file."""
    count, other = len(source or []), len(target or [])
    if count != other:
        raise InputError.of("source", source, f"and `target` come in pairs, got {count} and {other}.")
