"""`sightline back-translate`: make training pairs from monolingual text (Sennrich, Haddow and Birch, 2016)."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, echo

from sightline.choices import BackendName, PrecisionName
from sightline.cli.console import bulk_progress
from sightline.cli.parameters import Plain, Resume, declarations, option
from sightline.errors import InputError

BEAMS = declarations()["SearchConfig", "beams"][0]


def back_translate(
    model: Annotated[str, Argument(help="Folder or name of a model that translates from the language of --text.")],
    text: Annotated[list[Path], Option(help="Text in the target language, one sentence per line.")],
    out: Annotated[Path, Option(help="File to write, .tsv: translated source, tab, line of --text.")],
    beams: int | None = option(
        "SearchConfig", "beams", "-b", default=None, help=f"Beam size. Default: {BEAMS}, or 1 with `sample`."
    ),
    sample: bool = option("SearchConfig", "sample"),
    temperature: float = option("SearchConfig", "temperature"),
    top_k: int = option("SearchConfig", "top_k"),
    seed: int = option("SearchConfig", "seed"),
    backend: BackendName = option("LoadOptions", "backend"),
    precision: PrecisionName = option("LoadOptions", "precision"),
    device: str = option("LoadOptions", "device"),
    resume: Resume = False,
    plain: Plain = False,
) -> None:
    """Make training pairs from text in the target language.

    A model of the reverse direction writes the source of every line, so that the target is real text.
    """
    from sightline.bulk.lines import check_files
    from sightline.bulk.pairs import write_pairs
    from sightline.config import SearchConfig
    from sightline.engine import load_translator

    if beams is None:
        beams = 1 if sample else BEAMS
    options = SearchConfig(beams=beams, sample=sample, temperature=temperature, top_k=top_k, seed=seed)
    if out.suffix != ".tsv":
        raise InputError.of("out", out, f"must be a .tsv file, got {out}.")
    check_files(text, out, resume=resume)
    translator = load_translator(model, backend=backend, precision=precision, device=device)
    with bulk_progress(out, plain=plain) as report:
        write_pairs(translator, options, text, out, reverse=True, report=report)
    echo(str(out))
