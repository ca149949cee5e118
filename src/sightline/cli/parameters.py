"""Parameters of commands: those that `sightline.config` declares, and those that several commands share.

They have their names in the library, so that a message of the library that names an option fits.
"""

import ast
import contextlib
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from sightline.errors import InputError

Strings = list[str] | None


@cache
def declarations() -> dict[tuple[str, str], tuple[Any, str]]:
    """Return default and help text of each option of `sightline.config`, by group and name. They are read from its
    source: importing it would add 0.1 s to `--help`."""
    source = (Path(__file__).parents[1] / "config.py").read_text("utf-8")
    found = {}
    for group in [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]:
        for field, text in pairwise(group.body):
            if isinstance(field, ast.AnnAssign) and field.value and isinstance(text, ast.Expr):
                with contextlib.suppress(ValueError):  # a default that is not a literal
                    default, words = ast.literal_eval(field.value), ast.literal_eval(text.value)
                    found[group.name, ast.unparse(field.target)] = default, words
    return found


def option(group: str, name: str, *flags: str, **more: Any) -> Any:
    """Return the parameter of a command for a declared option: its default and its help text, or `default` and `help`.
    `flags`: a short flag in addition to --name, or a long one in its place."""
    declared, text = declarations()[group, name]
    default = more.pop("default", declared)
    names = flags if any(flag.startswith("--") for flag in flags) else (f"--{name.replace('_', '-')}", *flags)
    default = list(default) if isinstance(default, tuple) else default
    return Option(default, *names, **{"help": text, **more})


Model = Annotated[str, Argument(help="Folder or name of a model.")]
Port = Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")]
PORT = 8000

Source = Annotated[Path, Option(help="Source text, one sentence per line.")]
Target = Annotated[Path, Option(help="Its translation, line by line.")]
Resume = Annotated[bool, Option("--resume", help="Continue the work in --out.")]
Plain = Annotated[bool, Option("--plain", help="Print lines instead of a progress bar.")]

Config = Annotated[str | None, Option(help="TOML file of options; overrides the preset.")]
Set = Annotated[
    Strings,
    Option(help="Change an option: train.epochs=10. Overrides preset and file. `sightline config explain` lists all."),
]


def weighted(texts: Strings) -> list[tuple[str, float]]:
    """Split each FILE*WEIGHT; the weight of FILE alone is 1."""
    split = [re.fullmatch(r"(?s)(.*?)(?:\*(\d+\.?\d*|\.\d+))?", text) for text in texts or []]
    return [(found[1], float(found[2] or 1)) for found in split if found]


def check_as_many(source: Strings, target: Strings) -> None:
    """Check that each source file has its target file."""
    count, other = len(source or []), len(target or [])
    if count != other:
        raise InputError.of("source", source, f"and `target` come in pairs, got {count} and {other}.")
