"""`sightline export`: write a model in the format of other software."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sightline.errors import InputError


class Kind(StrEnum):
    """Formats."""

    huggingface = "huggingface"
    ctranslate2 = "ctranslate2"
    onnx = "onnx"


class Precision(StrEnum):
    """Precisions of exported weights."""

    float32 = "float32"
    int8 = "int8"


def export(
    model: Annotated[str, typer.Argument(help="Folder or name of a model that translates.")],
    to: Annotated[Kind, typer.Option(help="Format of the new folder.")],
    out: Annotated[Path, typer.Option(help="The new folder; an older export is replaced.")],
    precision: Annotated[
        Precision,
        typer.Option(help="Precision of the weights for ctranslate2; int8 is a quarter of the size and rounds."),
    ] = Precision.float32,
    verify: Annotated[
        bool, typer.Option(help="Load the exported model and compare its answers with the model's.")
    ] = True,
) -> None:
    """Write a model and its vocabulary for Hugging Face transformers, CTranslate2 or an ONNX runtime. The new folder
    appears when it is complete and has passed the comparison with the model."""
    from sightline.interop.export import export as write
    from sightline.model.transformer import EncoderDecoder
    from sightline.model_folder import SHORTLIST, ModelFolder

    folder = ModelFolder(model)
    ours, tokenizer = folder.load_model(), folder.load_tokenizer()
    if not isinstance(ours, EncoderDecoder):
        architecture = ours.config.architecture
        message = f"`model` must be encoder-decoder to be exported, {model} is {architecture}."
        raise InputError(message, option="model", value=model)
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
            f"compared with the model on {found.sentences} sentences: largest difference {found.numbers:.1e}, "
            f"{found.answers} answers differ",
            err=True,
        )
    typer.echo(str(out))
