"""Names that users rely on: commands, options and public Python names. A change needs a line in CHANGELOG."""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

from typer.main import get_command

import sightline
from sightline.cli.main import app

KEPT = Path(__file__).parents[1] / "kept" / "names.txt"


def commands(path: str, command) -> Iterator[str]:
    for parameter in command.params:
        argument = parameter.param_type_name == "argument"
        yield " ".join(
            [path, *([parameter.name.upper()] if argument else [*parameter.opts, *parameter.secondary_opts])]
        )
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(f"{path} {name}", inner)


def public() -> Iterator[str]:
    for _, name, _ in pkgutil.iter_modules(sightline.__path__, "sightline."):
        yield from (f"{name}.{one}" for one in getattr(importlib.import_module(name), "__all__", ()))
    yield from (f"sightline.{one}" for one in sightline.__all__)


def test_names_are_those_that_users_know():
    found = sorted({*commands("sightline", get_command(app)), *public()})
    assert found == KEPT.read_text().splitlines(), "if the change is meant, write it to CHANGELOG.md and tests/kept"
