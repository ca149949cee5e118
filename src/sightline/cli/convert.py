"""`sightline import` and `export`: convert models from and to the formats of other software."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option, echo

from sightline.cli.console import log
from sightline.errors import InputError


def import_(
    source: Annotated[
        str,
        Argument(
            help="A Hugging Face folder (Marian, Pegasus, BERT, GPT-2) or its name on the hub; a folder of Marian or "
            "CTranslate2; an Argos Translate package."
        ),
    ],
    out: Annotated[Path, Option(help="The folder of the new model.")],
    revision: Annotated[str | None, Option(help="Branch, tag or commit of a model on the hub.")] = None,
    offline: Annotated[
        bool, Option("--offline", help="Do not use the network; take the model from the cache of the hub.")
    ] = False,
) -> None:
    """Convert a model of other software to a Sightline model. The weights stay the same."""
    from sightline.interop.reading import import_model

    import_model(source, out, revision=revision, offline=offline, log=log)
    echo(str(out))


def export(
    model: Annotated[str, Argument(help="Folder or name of a model that translates.")],
    to: Annotated[Literal["huggingface", "ctranslate2", "onnx"], Option(help="Format of the new folder.")],
    out: Annotated[Path, Option(help="The new folder; an older export is replaced.")],
    precision: Annotated[
        Literal["float32", "int8"],
        Option(
            help="Precision of the weights, for ctranslate2. int8 is a quarter of the size, but changes some answers."
        ),
    ] = "float32",
    verify: Annotated[bool, Option(help="Load the exported model and compare its answers with the model's.")] = True,
) -> None:
    """Write a model for Hugging Face transformers, CTranslate2 or an ONNX runtime.

    The new folder has the vocabulary, too. It appears when it is complete and has passed the comparison with the model.
    """
    from sightline.interop.export import export_model
    from sightline.model.transformer import EncoderDecoder
    from sightline.model_folder import SHORTLIST, ModelFolder

    folder = ModelFolder(model)
    ours, tokenizer = folder.load_model(), folder.load_tokenizer()
    if not isinstance(ours, EncoderDecoder):
        problem = f"must be encoder-decoder to be exported, {model} is {ours.config.architecture}."
        raise InputError.of("model", model, problem)
    shortlist = folder.file(SHORTLIST)
    mapped = {"shortlist": shortlist} if shortlist.exists() else {}
    found = export_model(ours, tokenizer, out, to, precision=precision, verify=verify, **mapped)
    if found is None:
        log("not compared with the model")
    else:
        log(
            f"compared with the model on {found.sentences} sentences: largest difference {found.numbers:.1e}, "
            f"{found.answers} answers differ"
        )
    echo(str(out))
