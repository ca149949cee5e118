"""`sightline export`: a model of ours for other software."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Kind(StrEnum):
    """What it can be written for."""

    huggingface = "huggingface"
    ctranslate2 = "ctranslate2"
    onnx = "onnx"


class Precision(StrEnum):
    """What weights are kept in."""

    float32 = "float32"
    int8 = "int8"


def export(
    model: Annotated[str, typer.Argument(help="The folder or the name of a model that translates.")],
    to: Annotated[Kind, typer.Option(help="What the new folder is for.")],
    out: Annotated[Path, typer.Option(help="The new folder; an older one of this kind is replaced.")],
    precision: Annotated[
        Precision, typer.Option(help="Of the weights for ctranslate2; int8 is a quarter of the size, and rounds.")
    ] = Precision.float32,
    verify: Annotated[
        bool, typer.Option(help="Load what was written, and compare what it says with the model.")
    ] = True,
) -> None:
    """Write a model for Hugging Face transformers, CTranslate2 or an ONNX runtime, with its vocabulary. The new folder
    is there once it has been compared with the model, and whole."""
    from sightline.errors import InputError
    from sightline.interop.export import export as write
    from sightline.model.transformer import EncoderDecoder
    from sightline.model_folder import SHORTLIST, ModelFolder

    folder = ModelFolder(model)
    ours, tokenizer = folder.load_model(), folder.load_tokenizer()
    if not isinstance(ours, EncoderDecoder):
        raise InputError(f"{model}: this model is {ours.config.architecture}; only one that translates is exported.")
    shortlist = folder.file(SHORTLIST)
    found = write(
        ours,
        tokenizer,
        out,
        to.value,
        precision=precision.value,
        shortlist=shortlist if shortlist.exists() else None,
        verify=verify,
    )
    if found is None:
        typer.echo("not compared with the model", err=True)
    else:
        typer.echo(
            f"compared with the model on {found.sentences} sentences: numbers differ by {found.numbers:.1e} at most, "
            f"{found.answers} of the answers differ",
            err=True,
        )
    typer.echo(str(out))
