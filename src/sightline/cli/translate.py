"""`sightline translate`: translate text line by line."""

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from sightline.choices import BackendName, PrecisionName, RerankName
from sightline.cli.console import bulk_progress
from sightline.cli.parameters import Model, Resume, Strings, option

if TYPE_CHECKING:
    from sightline.engine import Plan, Translation

FIELDS = ("text", "score", "tokens", "log_probs")
"""Of a line of JSON; with --align also "alignment"."""


def translate(
    model: Model,
    file: Annotated[str, Argument(help="Text to translate, plain or compressed; - is standard input.")] = "-",
    out: Annotated[Path | None, Option(help="Write to this file instead of standard output.")] = None,
    resume: Resume = False,
    beams: int = option("SearchConfig", "beams", "-b"),
    nbest: int = option("SearchConfig", "nbest"),
    length_penalty: float = option("SearchConfig", "length_penalty"),
    sample: bool = option("SearchConfig", "sample"),
    temperature: float = option("SearchConfig", "temperature"),
    top_k: int = option("SearchConfig", "top_k"),
    top_p: float = option("SearchConfig", "top_p"),
    seed: int = option("SearchConfig", "seed"),
    rerank: RerankName = option("SearchConfig", "rerank"),
    prefix: str = option("TextConstraints", "prefix"),
    forbid: list[str] = option("TextConstraints", "forbid"),
    require: list[str] = option("TextConstraints", "require"),
    set: Annotated[Strings, Option(help="Change another option of the search: patience=1.")] = None,
    vote: Annotated[Strings, Option("--with", help="Another model that votes on each token (ensemble).")] = None,
    align: Annotated[
        bool,
        Option("--align", help="Add the alignment: TEXT ||| 0-0 1-2, source word and target word, counted from 0."),
    ] = False,
    as_json: Annotated[
        bool,
        Option("--json", help="Write a JSON object per line: text, score, tokens, log_probs."),
    ] = False,
    backend: BackendName = option("LoadOptions", "backend"),
    precision: PrecisionName = option("LoadOptions", "precision"),
    shortlist: bool = option("LoadOptions", "shortlist"),
    device: str = option("LoadOptions", "device"),
) -> None:
    """Translate text line by line. Lines of standard input are answered as they arrive.

    With several answers per line (--nbest), the output is NUMBER ||| TEXT ||| SCORE, one line for each answer.
    """
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
    constraints: dict[str, Any] = {"prefix": prefix, "forbid": forbid, "require": require}

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
