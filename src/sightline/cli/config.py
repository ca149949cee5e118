"""`sightline config`: print options and presets."""

from typing import Annotated

import typer

app = typer.Typer(help="Explain the options and the presets.", no_args_is_help=True)


@app.command()
def explain(
    preset: Annotated[str | None, typer.Option(help="Preset to start from.")] = None,
    config: Annotated[str | None, typer.Option(help="TOML file of options; overrides the preset.")] = None,
    set: Annotated[list[str] | None, typer.Option(help="One option, as group.option=value; overrides both.")] = None,
) -> None:
    """Print every option with its value and meaning, as TOML for `--config`."""
    from sightline.config import load
    from sightline.options import as_toml

    typer.echo(as_toml(load(preset, config, set or [])))


@app.command()
def presets() -> None:
    """List the presets, with the number of parameters for a vocabulary of 37,000."""
    from sightline.config import load
    from sightline.model_folder import count_parameters
    from sightline.options import presets

    for name in presets():
        model = load(name).model
        stacks = " + ".join(str(stack.layers) for stack in model.stacks.values())
        count = count_parameters(model) / 1e6
        shape = f"{stacks:>6} layers  d_model {model.d_model:<5} {count:6.1f} M parameters"
        typer.echo(f"{name:11} {model.architecture:16} {shape}")
