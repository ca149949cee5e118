"""`sightline translate`: translate text line by line."""

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from sightline.cli.lines import Stages, answer_lines, check_files, check_new, count_done, only_writer
from sightline.errors import InputError

if TYPE_CHECKING:
    from sightline.engine import Plan, Translation


def translate(
    model: Annotated[str, typer.Argument(help="Folder or name of a model.")],
    file: Annotated[str, typer.Argument(help="Text to translate, plain or compressed; - is standard input.")] = "-",
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of standard output.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue --out where it ends.")] = False,
    beam: Annotated[int, typer.Option(help="Beam size; 1 is greedy search.")] = 4,
    nbest: Annotated[int, typer.Option(help="Number of answers per line, written as NUMBER ||| TEXT ||| SCORE.")] = 1,
    length_penalty: Annotated[
        float, typer.Option(help="Exponent of the length in the score; 0 prefers short answers.")
    ] = 1.0,
    sample: Annotated[bool, typer.Option("--sample", help="Sample tokens from the model's distribution.")] = False,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; lower is more conservative.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from the k most likely tokens; 0 disables the limit.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Sample from the most likely tokens whose probabilities add up to p.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Random seed of sampling.")] = 1,
    mbr: Annotated[
        bool, typer.Option("--mbr", help="Draw --beam samples and return the one most similar to the others.")
    ] = False,
    prefix: Annotated[str, typer.Option(help="Required beginning of every answer.")] = "",
    without: Annotated[
        list[str] | None, typer.Option(help="A word that answers must not contain; may be repeated.")
    ] = None,
    within: Annotated[
        list[str] | None, typer.Option(help="A word that every answer must contain; may be repeated.")
    ] = None,
    set: Annotated[list[str] | None, typer.Option(help="Another option of the search, as option=value.")] = None,
    vote: Annotated[
        list[str] | None, typer.Option("--with", help="Another model of an ensemble; may be repeated.")
    ] = None,
    align: Annotated[
        bool,
        typer.Option("--align", help="Add the word alignment, as TEXT ||| 0-0 1-2: source-target, counted from 0."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write a JSON object per line: text, score, tokens, ...")
    ] = False,
    engine: Annotated[str, typer.Option(help="Search backend: auto, torch or ctranslate2.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="auto, float32, int8 (CPU) or bfloat16 (GPU). The last two are faster and round.")
    ] = "auto",
    shortlist: Annotated[
        bool, typer.Option("--shortlist", help="Search among fewer tokens, with the file of sightline shortlist.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or mps; auto chooses the fastest.")] = "auto",
) -> None:
    """Translate text line by line. Lines of standard input are answered as they arrive."""
    from sightline.config import SearchConfig
    from sightline.engine import load_translator
    from sightline.options import load_options

    given = {"nbest": nbest, "length_penalty": length_penalty, "sample": sample or mbr, "temperature": temperature}
    given |= {"top_k": top_k, "top_p": top_p, "seed": seed}
    beams, rerank = max(beam, nbest) if nbest > 1 else beam, "mbr-chrf" if mbr else "none"
    options = load_options(SearchConfig, given | {"beams": beams, "rerank": rerank}, sets=set or [])
    if resume and out is None:
        raise InputError.of("resume", resume, "continues a file. Name the file with `out`.")
    if out is not None:
        check_new(out, resume)
    paths = None if file == "-" else [Path(file)]
    check_files(paths or [])
    chosen = {"backend": cast("Any", engine), "precision": cast("Any", precision), "shortlist": shortlist}
    translator = load_translator([model, *(vote or [])], device=device, **chosen)
    more: dict[str, Any] = {"prefix": prefix, "forbid": without or [], "require": within or []}
    more |= {"log_probs": as_json, "align": align}
    several = options.nbest > 1 and not as_json

    def search(plan: "Plan[list[Translation]]") -> Callable[[], list["Translation"]]:
        return partial(plan.assemble, translator.search(plan.requests, plan.options, log_probs=plan.log_probs))

    def write(results: Callable[[], list["Translation"]], first: int) -> Iterator[bytes]:
        for number, found in enumerate(results(), first):
            yield _written(found, number, several, as_json)

    stages = Stages(partial(translator.plan, options=options, **more), search, write)

    with only_writer(out):
        done = count_done(out, several) if resume and out is not None else 0
        answer_lines(paths, out, done, stages, "nothing" if out is None and sys.stdout.isatty() else "bar")


def _written(found: "Translation", number: int, several: bool, as_json: bool) -> bytes:
    """Format the answers to one line. An answer never contains a line break."""
    every = (found, *found.alternatives)
    if as_json:
        values, *others = [_values(one) for one in every]
        values["alternatives"] = others
        return (json.dumps(values, ensure_ascii=False) + "\n").encode()
    rows = [
        [str(number), _line(one.text), f"{one.score:.4f}"] if several else [_line(one.text)]
        for one in (every if several else every[:1])
    ]
    if found.alignment is not None:
        from sightline.search.align import write_pharaoh

        rows = [[*row, write_pharaoh(one.alignment or [])] for row, one in zip(rows, every, strict=False)]
    return "".join(" ||| ".join(row) + "\n" for row in rows).encode()


def _values(found: "Translation") -> dict[str, Any]:
    """Return the fields of a JSON line."""
    values = {"text": found.text, "score": found.score, "tokens": found.tokens, "log_probs": found.log_probs}
    return values if found.alignment is None else {**values, "alignment": found.alignment}


def _line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")
