"""`sightline back-translate`: make training pairs from monolingual text (Sennrich, Haddow and Birch, 2016)."""

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from sightline.cli.lines import check_files, check_new
from sightline.cli.pairs import write_pairs
from sightline.errors import InputError


def back_translate(
    model: Annotated[
        str, typer.Argument(help="Folder or name of a model that translates from the language of --text.")
    ],
    text: Annotated[
        list[Path], typer.Option(help="Text in the target language, one sentence per line; may be repeated.")
    ],
    out: Annotated[Path, typer.Option(help="Output as .tsv: machine-translated source, tab, line of --text.")],
    beam: Annotated[int | None, typer.Option(help="Beam size; default 4, with --sample 1.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Sample tokens from the model's distribution.")] = False,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; lower is more conservative.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from the k most likely tokens; 0 disables the limit.")] = 0,
    seed: Annotated[int, typer.Option(help="Random seed of sampling.")] = 1,
    engine: Annotated[str, typer.Option(help="Search backend: auto, torch or ctranslate2.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="auto, float32, int8 (CPU) or bfloat16 (GPU). The last two are faster and round.")
    ] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or mps; auto chooses the fastest.")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Continue --out where it ends.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines instead of a progress bar.")] = False,
) -> None:
    """Make pairs from text in the target language: a model of the reverse direction writes the source of every line, so
    that the training target is real text."""
    from sightline.config import SearchConfig
    from sightline.engine import load_translator

    beams = beam if beam is not None else 1 if sample else 4
    options = SearchConfig(beams=beams, sample=sample, temperature=temperature, top_k=top_k, seed=seed)
    if out.suffix != ".tsv":
        raise InputError.of("out", out, f"must be a .tsv file, got {out}.")
    check_new(out, resume)
    check_files(text)
    translator = load_translator(model, device=device, backend=cast("Any", engine), precision=cast("Any", precision))
    write_pairs(translator, options, text, out, reverse=True, plain=plain)
    typer.echo(str(out))
