"""`sightline translate`: translate text line by line."""

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from sightline.cli import parameters as shared
from sightline.cli.console import bulk_progress

if TYPE_CHECKING:
    from sightline.engine import Plan, Translation

FIELDS = ("text", "score", "tokens", "log_probs")
"""Of a line of JSON; with --align also "alignment"."""


def translate(
    model: shared.Model,
    file: Annotated[str, Argument(help="Text to translate, plain or compressed; - is standard input.")] = "-",
    out: Annotated[Path | None, Option(help="Write to this file instead of standard output.")] = None,
    resume: shared.Resume = False,
    beams: shared.Beams = 4,
    nbest: Annotated[int, Option(help="Number of answers per line, written as NUMBER ||| TEXT ||| SCORE.")] = 1,
    length_penalty: Annotated[
        float, Option(help="Exponent of the length in the score; 0 prefers short answers.")
    ] = 1.0,
    sample: shared.Sample = False,
    temperature: shared.Temperature = 1.0,
    top_k: shared.TopK = 0,
    top_p: Annotated[float, Option(help="Sample from the most likely tokens whose probabilities add up to p.")] = 1.0,
    seed: shared.Seed = 1,
    rerank: Annotated[
        Literal["none", "mbr-chrf"],
        Option(help="mbr-chrf: sample --beams answers, and return the one most similar to the others."),
    ] = "none",
    prefix: Annotated[str, Option(help="Required beginning of every answer.")] = "",
    forbid: Annotated[shared.Strings, Option(help="A word that answers must not contain; may be repeated.")] = None,
    require: Annotated[shared.Strings, Option(help="A word that every answer must contain; may be repeated.")] = None,
    set: Annotated[shared.Strings, Option(help="Another option of the search, as option=value.")] = None,
    vote: Annotated[shared.Strings, Option("--with", help="Another model of an ensemble; may be repeated.")] = None,
    align: Annotated[
        bool,
        Option("--align", help="Add the word alignment, as TEXT ||| 0-0 1-2: source-target, counted from 0."),
    ] = False,
    as_json: Annotated[bool, Option("--json", help="Write a JSON object per line: text, score, tokens, ...")] = False,
    backend: shared.Backend = "auto",
    precision: shared.Precision = "auto",
    shortlist: shared.Shortlist = False,
    device: shared.Device = "auto",
) -> None:
    """Translate text line by line. Lines of standard input are answered as they arrive."""
    from sightline.bulk.lines import answer_lines, check_files, count_done, only_writer
    from sightline.config import SearchConfig
    from sightline.engine import load_translator
    from sightline.options import load_options

    given: dict[str, Any] = {"nbest": nbest, "length_penalty": length_penalty, "temperature": temperature}
    given |= {"top_k": top_k, "top_p": top_p, "seed": seed, "sample": sample or rerank != "none", "rerank": rerank}
    given["beams"] = max(beams, nbest) if nbest > 1 else beams
    options = load_options(SearchConfig, given, sets=set or [])
    paths = None if file == "-" else [Path(file)]
    check_files(paths or [], out, resume=resume)
    translator = load_translator(
        [model, *(vote or [])], backend=backend, precision=precision, shortlist=shortlist, device=device
    )
    several = options.nbest > 1 and not as_json
    constraints: dict[str, Any] = {"prefix": prefix, "forbid": forbid or [], "require": require or []}

    def plan(texts: list[str]) -> "Plan[list[Translation]]":
        return translator.plan(texts, options, **constraints, align=align, log_probs=as_json)

    def write(_: list[str], results: list["Translation"], first: int) -> list[bytes]:
        return [_written(found, number, several, as_json) for number, found in enumerate(results, first)]

    output = contextlib.nullcontext(sys.stdout.buffer) if out is None else only_writer(out)
    with bulk_progress(out) as report, output as into:
        done = 0 if out is None else count_done(out, several)
        answer_lines(translator, plan, write, paths, into, done=done, report=report)


def _written(found: "Translation", number: int, several: bool, as_json: bool) -> bytes:
    """Format the answers to one line. An answer never contains a line break."""
    from sightline.search.align import write_pharaoh

    every = (found, *found.alternatives)
    if as_json:
        fields = [*FIELDS, *(["alignment"] if found.alignment is not None else [])]
        values, *others = [{field: getattr(one, field) for field in fields} for one in every]
        return (json.dumps({**values, "alternatives": others}, ensure_ascii=False) + "\n").encode()
    rows = ""
    for one in every if several else every[:1]:
        row = [one.text.replace("\r", " ").replace("\n", " ")]
        if several:
            row = [str(number), *row, f"{one.score:.4f}"]
        if one.alignment is not None:
            row.append(write_pharaoh(one.alignment))
        rows += " ||| ".join(row) + "\n"
    return rows.encode()
