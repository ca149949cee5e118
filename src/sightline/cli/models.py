"""`sightline models`: what comes with Sightline."""

import typer


def models() -> None:
    """List the models that come with Sightline. Every command takes such a name in place of a folder."""
    from sightline.model_folder import ModelFolder, bundled_models

    for name in bundled_models():
        folder = ModelFolder(name)
        count = folder.count_parameters()
        about = (folder.path / "README.md").read_text("utf-8").partition("\n")[0].partition(": ")[2]
        typer.echo(f"{name:8} {count / 1e6:4.1f} M parameters  {about}")
        typer.echo(f"         {folder.path / 'README.md'}")
        if states := folder.states:
            typer.echo(f"         on its way there: {name}/states/{states[0].name} to {states[-1].name}")
