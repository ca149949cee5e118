"""`sightline`: its commands, and what becomes of errors.

Results go to stdout, everything else to stderr. Exit 0 is done, 2 the user's mistake in one sentence, 1 ours. Nothing
heavy is imported here, so that `--help` is there at once.
"""

import sys

import typer

from sightline.cli import (
    align,
    back_translate,
    config,
    demo,
    distill,
    doctor,
    evaluate,
    export,
    import_,
    models,
    score,
    serve,
    shortlist,
    train,
    translate,
)
from sightline.errors import SightlineError

__all__ = ["app", "main"]

app = typer.Typer(
    name="sightline",
    help='The Transformer of "Attention Is All You Need": train it, use it, and see every number inside it.',
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo.demo)
app.command()(train.train)
app.command()(distill.distill)
app.command()(translate.translate)
app.command()(back_translate.back_translate)
app.command()(shortlist.shortlist)
app.command()(score.score)
app.command()(align.align)
app.command()(evaluate.evaluate)
app.command()(serve.serve)
app.command("import")(import_.import_)
app.command()(export.export)
app.command()(models.models)
app.add_typer(config.app, name="config")
app.command()(doctor.doctor)


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
    try:
        app()
    except SightlineError as error:
        typer.echo(str(error), err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
