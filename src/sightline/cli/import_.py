"""`sightline import`: convert a model of other software."""

from pathlib import Path
from typing import Annotated

import typer

from sightline.errors import InputError


def import_(
    source: Annotated[
        str,
        typer.Argument(
            help="A Hugging Face folder (Marian, Pegasus, BERT, GPT-2) or its name on the hub; a folder of Marian or "
            "CTranslate2; an Argos Translate package."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder of the new model.")],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a model on the hub.")] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not use the network: take a model of the hub from the cache.")
    ] = False,
) -> None:
    """Convert a model of other software to a Sightline model. The weights stay the same."""
    from sightline.interop.hub import find_model
    from sightline.interop.reading import detect_format
    from sightline.model_folder import count_parameters, save_model

    if (out / "config.json").exists() or (out / "model.safetensors").exists():
        message = f"`out` already contains a model: {out}. Choose another folder."
        raise InputError(message, option="out", value=out)
    path = find_model(source, revision=revision, offline=offline, log=lambda text: typer.echo(text, err=True))
    kind, read = detect_format(path)
    model, tokenizer = read(path)
    save_model(model, out, tokenizer)
    count = count_parameters(model)
    words = f"{tokenizer.size:,} entries" if tokenizer.joint else f"{tokenizer.source.size:,} and {tokenizer.size:,}"
    typer.echo(f"{kind}: {model.config.architecture}, {count:,} parameters, vocabulary of {words}", err=True)
    typer.echo(str(out))
