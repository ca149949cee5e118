"""`sightline models`: what comes with Sightline."""

import typer


def models() -> None:
    """List the models that come with Sightline. Every command takes such a name in place of a folder."""
    from sightline.checkpoint import count_parameters, read_config
    from sightline.folders import model_folder, shipped

    for name in shipped():
        folder = model_folder(name)
        count = count_parameters(read_config(folder))
        about = (folder / "README.md").read_text("utf-8").partition("\n")[0].partition(": ")[2]
        typer.echo(f"{name:8} {count / 1e6:4.1f} M parameters  {about}")
        typer.echo(f"         {folder / 'README.md'}")
        if states := sorted(folder.glob("states/*")):
            typer.echo(f"         on its way there: {name}/states/{states[0].name} to {states[-1].name}")
