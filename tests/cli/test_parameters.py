"""Each option is declared once, in `sightline.config`: the command line takes its type, default and help from there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import sightline
from sightline.cli.main import app, with_flags
from sightline.config import (
    CompletionOptions,
    LoadOptions,
    SearchConfig,
    ServeConfig,
    ShortlistOptions,
    TextConstraints,
)

GROUPS = (SearchConfig, TextConstraints, LoadOptions, ShortlistOptions, ServeConfig)
OTHERS = {("export", "precision"), ("back-translate", "beams"), ("complete", "beams")}
"""Parameters of another meaning or with another default."""
COMMANDS = {name: command for name, command in get_command(app).commands.items() if command.callback}


def declared(command: str) -> Iterator[tuple]:
    """Yield the parameters of a command that are declared options, with their fields and types."""
    groups = (*GROUPS, CompletionOptions) if command == "complete" else GROUPS
    fields = {name: field for group in groups for name, field in group.model_fields.items()}
    types = {name: kind for group in groups for name, kind in get_type_hints(group).items()}
    for parameter in COMMANDS[command].params:
        if parameter.name in fields and (command, parameter.name) not in OTHERS:
            yield parameter, fields[parameter.name], types[parameter.name]


def test_names_of_declared_options_are_distinct():
    """Except for those that mean something else to the service."""
    found = [name for group in GROUPS for name in group.model_fields]
    assert {name for name in found if found.count(name) > 1} == {"max_ratio", "max_extra", "batch_tokens"}


@pytest.mark.parametrize("command", COMMANDS)
def test_parameters_are_those_declared(command):
    types = get_type_hints(COMMANDS[command].callback)
    for parameter, field, kind in declared(command):
        several = isinstance(field.default, tuple)
        assert parameter.default == (list(field.default) if several else field.default)
        assert types[parameter.name] == (list[str] if several else kind)


@pytest.mark.parametrize("command", ["translate", "complete", "serve", "shortlist", "evaluate", "distill"])
def test_help_shows_every_declared_option(command):
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "1000"}).output
    rows = {row.split()[0]: " ".join(row.split()) for row in re.findall(r"^│ +(--.*?) *│$", shown, re.MULTILINE)}
    options = list(declared(command))
    assert options
    for parameter, field, _ in options:
        text = with_flags(" ".join(field.description.split()), COMMANDS[command].params)
        default = f" [default: {field.default}]" if str(field.default) not in ("None", "False", "", "()") else ""
        several = " May be repeated." if isinstance(field.default, tuple) else ""
        assert rows[parameter.opts[0]].endswith(f"> {text}{several}{default}")


def test_the_defaults_of_a_search_are_written_once():
    """No other signature repeats them."""
    for file in sorted(Path(sightline.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args]
                defaults = [None] * (len(arguments) - len(node.args.defaults)) + node.args.defaults
                both = zip([*arguments, *node.args.kwonlyargs], [*defaults, *node.args.kw_defaults], strict=True)
                for argument, default in both:
                    field = SearchConfig.model_fields.get(argument.arg)
                    repeated = isinstance(default, ast.Constant) and field and default.value == field.default
                    assert not repeated, f"{file.name}: {node.name}({argument.arg}={field.default})"
