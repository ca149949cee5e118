"""The `sightline` command: its subcommands and its error messages.

Results go to stdout, everything else to stderr. Exit code 0 is success, 2 is a user's mistake, explained in one
sentence, and 1 is a bug. This module imports no heavy package, so that `--help` is fast.
"""

import re
from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperCommand

from sightline.cli.about import doctor, explain, models, presets
from sightline.cli.back_translate import back_translate
from sightline.cli.complete import complete
from sightline.cli.convert import export, import_
from sightline.cli.demo import demo
from sightline.cli.distill import distill
from sightline.cli.evaluate import evaluate
from sightline.cli.pairs import align, score, shortlist
from sightline.cli.serve import serve
from sightline.cli.train import train
from sightline.cli.translate import translate
from sightline.errors import SightlineError

app = typer.Typer(
    name="sightline",
    help='The Transformer of "Attention Is All You Need": train it, use it, and see every number inside it.',
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config = typer.Typer(help="Explain the options and the presets.", no_args_is_help=True)

OPTION = re.compile(r"`(\w+)(?: ?= ?([^`]+))?`(?: = ([\"']?[\w.-]*\w[\"']?))?")
"""An option in a message, alone or with a value: `beams`, `beams = 1`, `beams` = 1."""


def with_flags(message: str, parameters: Iterable[Any]) -> str:
    """Replace the options in a message by the flags of the command with these parameters."""
    known = {parameter.name: parameter for parameter in parameters}

    def flag(found: re.Match[str]) -> str:
        name, value = found[1], found[2] or found[3]
        parameter = known.get(name)
        if parameter is None:
            return found[0]
        if parameter.param_type_name == "argument":
            return str(parameter.name).upper()
        if value is None or value.lower() == "true":
            return str(parameter.opts[0])
        if value.lower() == "false" and parameter.secondary_opts:
            return str(parameter.secondary_opts[0])
        return " ".join([parameter.opts[0], value.strip("'\"")])

    return OPTION.sub(flag, message)


class Command(TyperCommand):
    """A command whose help names options by their flags, and whose errors are one sentence and exit code 2."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.help = "\n\n".join(" ".join(part.split()) for part in (self.help or "").split("\n\n"))
        parameters: list[Any] = self.params
        for parameter in parameters:
            several = " May be repeated." * getattr(parameter, "multiple", False)
            parameter.help = with_flags(f"{parameter.help or ''}{several}", parameters)

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        """Read the arguments."""
        try:
            return super().make_context(*arguments, **named)
        except typer.BadParameter as error:  # a value that is invalid or missing
            message = error.format_message().replace("Value error, ", "")  # a prefix of pydantic
            typer.echo(" ".join(message.split()), err=True)
            raise typer.Exit(2) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except SightlineError as error:
            typer.echo(with_flags(str(error), self.params), err=True)
            raise typer.Exit(2) from None


COMMANDS = (demo, train, distill, translate, back_translate, shortlist, score, align, evaluate, complete, serve)
MODELS = (import_, export, models, doctor)
for group, commands in ((app, (*COMMANDS, *MODELS)), (config, (explain, presets))):
    for command in commands:
        group.command(command.__name__.strip("_").replace("_", "-"), cls=Command)(command)
app.add_typer(config, name="config")


@app.callback(invoke_without_command=True)
def _version(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
) -> None:
    if version:
        from sightline import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
