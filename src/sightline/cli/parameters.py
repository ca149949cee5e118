"""Parameters of commands: those that `sightline.config` declares, and those that several commands share.

They have their names in the library, so that a message of the library that names an option fits.
"""

import re
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from sightline.errors import InputError
from sightline.options import Options

Strings = list[str] | None


def option(group: type[Options], name: str, *flags: str, **more: Any) -> Any:
    """Return the parameter of a command for a declared option: its default and its help text, or `default` and `help`.
    `flags`: a short flag in addition to --name, or a long one in its place."""
    field = group.model_fields[name]
    default = more.pop("default", field.default)
    names = flags if any(flag.startswith("--") for flag in flags) else (f"--{name.replace('_', '-')}", *flags)
    default = list(default) if isinstance(default, tuple) else default
    return Option(default, *names, **{"help": field.description, **more})


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
