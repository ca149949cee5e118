"""`sightline back-translate`: make training pairs from monolingual text (Sennrich, Haddow and Birch, 2016)."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, echo

from sightline.cli.console import bulk_progress
from sightline.cli.parameters import Backend, Device, Plain, Precision, Resume, Sample, Seed, Temperature, TopK
from sightline.errors import InputError


def back_translate(
    model: Annotated[str, Argument(help="Folder or name of a model that translates from the language of --text.")],
    text: Annotated[list[Path], Option(help="Text in the target language, one sentence per line; may be repeated.")],
    out: Annotated[Path, Option(help="Output as .tsv: machine-translated source, tab, line of --text.")],
    beams: Annotated[int | None, Option("--beams", "-b", help="Beam size; default 4, with --sample 1.")] = None,
    sample: Sample = False,
    temperature: Temperature = 1.0,
    top_k: TopK = 0,
    seed: Seed = 1,
    backend: Backend = "auto",
    precision: Precision = "auto",
    device: Device = "auto",
    resume: Resume = False,
    plain: Plain = False,
) -> None:
    """Make pairs from text in the target language: a model of the reverse direction writes the source of every line, so
    that the training target is real text."""
    from sightline.bulk.lines import check_files
    from sightline.bulk.pairs import write_pairs
    from sightline.config import SearchConfig
    from sightline.engine import load_translator

    if beams is None:
        beams = 1 if sample else 4
    options = SearchConfig(beams=beams, sample=sample, temperature=temperature, top_k=top_k, seed=seed)
    if out.suffix != ".tsv":
        raise InputError.of("out", out, f"must be a .tsv file, got {out}.")
    check_files(text, out, resume=resume)
    translator = load_translator(model, backend=backend, precision=precision, device=device)
    with bulk_progress(out, plain=plain) as report:
        write_pairs(translator, options, text, out, reverse=True, report=report)
    echo(str(out))
