"""`sightline back-translate`: pairs from text of one language (Sennrich, Haddow and Birch, 2016)."""

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from sightline.cli.lines import check_files, check_new
from sightline.cli.pairs import write_pairs


def back_translate(
    model: Annotated[
        str, typer.Argument(help="The folder or name of a model from the language of --text into the other.")
    ],
    text: Annotated[list[Path], typer.Option(help="Text to learn to write, a sentence a line; may be repeated.")],
    out: Annotated[Path, typer.Option(help="The pairs, as .tsv: a machine's source, tab, a line of --text.")],
    beam: Annotated[
        int | None, typer.Option(help="Hypotheses that grow side by side, 4 if left out; samples to choose from, 1.")
    ] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw tokens by their probability.")] = False,
    temperature: Annotated[float, typer.Option(help="Of samples: below 1 they dare less, above 1 more.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw among so many of the likeliest tokens; 0: among all.")] = 0,
    seed: Annotated[int, typer.Option(help="Of samples.")] = 1,
    engine: Annotated[str, typer.Option(help="auto, torch or ctranslate2: what searches.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="auto, float32, or, faster and rounded, int8 (on a CPU) or bfloat16 (on a GPU).")
    ] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps; auto takes the best there is.")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on where --out ends.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines instead of a progress bar.")] = False,
) -> None:
    """Make pairs from text of the language one wants to translate into: a model of the other direction writes a source
    to every line. What is learnt to be written is real."""
    from sightline.config import SearchConfig
    from sightline.engine import load
    from sightline.errors import InputError

    beams = beam if beam is not None else 1 if sample else 4
    options = SearchConfig(beams=beams, sample=sample, temperature=temperature, top_k=top_k, seed=seed)
    if out.suffix != ".tsv":
        raise InputError(f"{out}: pairs are written as .tsv; choose a name for --out that ends so.")
    check_new(out, resume)
    check_files(text)
    translator = load(model, device=device, engine=cast("Any", engine), precision=cast("Any", precision))
    write_pairs(translator, options, text, out, reverse=True, plain=plain)
    typer.echo(str(out))
