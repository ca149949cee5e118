"""`sightline models`: list the bundled models."""

import typer


def models() -> None:
    """List the models that come with Sightline. Every command accepts these names in place of a folder."""
    from sightline.model_folder import ModelFolder, bundled_models

    for name in bundled_models():
        folder = ModelFolder(name)
        count = folder.count_parameters()
        about = (folder.path / "README.md").read_text("utf-8").partition("\n")[0].partition(": ")[2]
        typer.echo(f"{name:8} {count / 1e6:4.1f} M parameters  {about}")
        typer.echo(f"         {folder.path / 'README.md'}")
        if states := folder.states:
            typer.echo(f"         earlier states: {name}/states/{states[0].name} to {states[-1].name}")
