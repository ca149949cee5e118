"""`sightline evaluate`: score translations, with confidence intervals, and compare two systems; or measure how well a
language model predicts a text."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option, echo

from sightline.choices import PrecisionName
from sightline.cli.console import log
from sightline.cli.parameters import option
from sightline.errors import InputError

if TYPE_CHECKING:
    from sightline.engine import Translator

TITLES = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER"}
SIGNIFICANT = 0.05
"""Largest p-value of a significant difference."""


def evaluate(
    model: Annotated[
        str, Argument(help="Folder or name of a model, or a text file of translations, one sentence per line.")
    ],
    reference: Annotated[Path | None, Option(help="Reference translations, line by line.")] = None,
    text: Annotated[
        Path | None, Option(help="Text for a language model to predict; documents have blank lines between.")
    ] = None,
    source: Annotated[Path | None, Option(help="Source text; not needed for a text file.")] = None,
    against: Annotated[str | None, Option(help="Second model or text file, to compare with.")] = None,
    beams: int = option("SearchConfig", "beams", "-b"),
    save: Annotated[Path | None, Option(help="Write the translations of MODEL to this text file.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print a JSON object instead of a table.")] = False,
    precision: PrecisionName = option("LoadOptions", "precision"),
    shortlist: bool = option("LoadOptions", "shortlist"),
    device: str = option("LoadOptions", "device"),
) -> None:
    """Score translations by BLEU, chrF and TER with 95 % intervals, or compare two systems.

    With --text, print how well a language model predicts a text: perplexity per word and per token, and bits per byte.
    Each document is scored from its start; its end does not count. Long ones are read in windows that overlap by half.
    """
    import json

    from sightline.engine import load_translator

    if text is not None:
        others = {"reference": reference, "source": source, "against": against, "save": save}
        for name, value in others.items():
            if value is not None:
                raise InputError.of(
                    name, str(value), "is for translations, and `text` for language models. Leave one out."
                )
        predicted = _predict(model, text, device)
        echo(json.dumps(predicted, ensure_ascii=False) if as_json else _predicted(predicted))
        return
    if reference is None:
        raise InputError.of(
            "reference", None, "is missing. Name the reference translations, or `text` for a language model."
        )
    names = [model] if against is None else [model, against]
    references, sources, systems = _read(names, reference, source)
    models = [name for name, text in zip(names, systems, strict=True) if not text]
    if source is None and models:
        raise InputError.of("source", None, f"is missing: {models[0]} is a model. Name the source text.")
    if save:
        _check_save(save, model in models, [reference, source, *map(Path, names)])
    # All models are loaded first, so that an error in the second is found before translating.
    engines = {name: load_translator(name, device=device, precision=precision, shortlist=shortlist) for name in models}
    for i, name in enumerate(names):
        systems[i] = systems[i] or _translate(name, engines[name], sources, beams)
    if save:
        _save(save, systems[0])
    for name, written in zip([str(reference), *names], [references, *systems], strict=True):
        _warn(name, written)
    report: dict[str, Any] = {"sentences": len(references), "reference": str(reference)}
    if models:
        report |= {"source": str(source), "beams": beams}
    report |= _score(names, systems, references)
    if as_json:
        echo(json.dumps(report, ensure_ascii=False))
    else:
        _show(report)


def _predict(model: str, text: Path, device: str) -> dict[str, Any]:
    """Return how well a language model predicts the documents of a file."""
    import math

    from sightline.data.corpus import Text, read_documents
    from sightline.engine import load_writer

    writer, started = load_writer(model, device=device), time.perf_counter()
    counts = dict.fromkeys(("documents", "tokens", "words", "bytes"), 0)
    log_prob = 0.0
    for document in read_documents(Text(text)):
        one = writer.score(document)
        log_prob += one.log_prob
        for name, count in zip(counts, (1, len(one.ids), len(document.split()), len(document.encode())), strict=True):
            counts[name] += count
    log(f"{model}: {counts['tokens']:,} tokens in {time.perf_counter() - started:.1f} s")
    means = {"word_perplexity": counts["words"], "perplexity": counts["tokens"]}
    found = {name: math.exp(min(-log_prob / max(1, count), 700)) for name, count in means.items()}
    bits = -log_prob / math.log(2) / counts["bytes"]
    return {"text": str(text), "model": model, **counts, "log_prob": log_prob, **found, "bits_per_byte": bits}


def _predicted(found: dict[str, Any]) -> str:
    """Format how well a language model predicts a text."""
    counts = ", ".join(f"{found[name]:,} {name}" for name in ("documents", "words", "tokens", "bytes"))
    return (
        f"{found['model']}\n{counts} of {found['text']}\n\n"
        f"perplexity per word   {found['word_perplexity']:.2f}\n"
        f"perplexity per token  {found['perplexity']:.2f}\n"
        f"bits per byte         {found['bits_per_byte']:.4f}"
    )


def _read(names: list[str], reference: Path, source: Path | None) -> tuple[list[str], list[str], list[list[str]]]:
    """Return references, sources and the translations of each system, which are empty for a model. Check that all files
    have the same number of lines."""
    from sightline.data.corpus import lines
    from sightline.model_folder import ModelFolder

    references = list(lines(reference))
    if not any(line.strip() for line in references):
        raise InputError(f"{reference}: the file has only blank lines.", value=str(reference))
    systems = []
    for name in names:
        path = ModelFolder(name).path
        if not path.exists() and path.suffix != ".txt":
            raise InputError(f"{name}: no model or text file found.", value=name)
        systems.append([] if path.is_dir() else list(lines(path)))
    sources = list(lines(source)) if source else []
    for other, found in zip([source, *names], [sources, *systems], strict=True):
        if found and len(found) != len(references):
            counts = f"{len(found):,} and {len(references):,}"
            raise InputError(f"{other} must have as many lines as {reference}, got {counts}.", value=str(other))
    return references, sources, systems


def _translate(name: str, engine: "Translator", sources: list[str], beams: int) -> list[str]:
    """Translate by a model; one line each, so that a saved file has the same scores."""
    log(f"{name}: translating {len(sources):,} sentences, beams {beams}")
    started = time.perf_counter()
    found = engine.translate(sources, beams=beams)
    log(f"{name}: done in {time.perf_counter() - started:.1f} s")
    return [" ".join(one.text.split("\n")).rstrip("\r") for one in found]


def _check_save(save: Path, translates: bool, read: Sequence[Path | None]) -> None:
    """Raise if translations cannot be saved, before there are any."""
    if not translates:
        raise InputError.of("save", str(save), "needs a model, and MODEL is a text file. Leave it out.")
    if any(path and path.resolve() == save.resolve() for path in read):
        raise InputError.of("save", str(save), f"would overwrite an input: {save}. Choose another.")
    if save.is_dir() or not save.parent.is_dir():
        raise InputError.of("save", str(save), f"cannot be written: {save}. Choose another file.")


def _save(save: Path, text: list[str]) -> None:
    try:
        save.write_text("".join(f"{line}\n" for line in text), "utf-8", newline="\n")
    except OSError as error:
        raise InputError.of("save", str(save), f"cannot be written: {save} ({error.strerror}).") from None


def _warn(name: str, text: list[str]) -> None:
    """Warn of likely mistakes that lower the scores."""
    blank = [number for number, line in enumerate(text, start=1) if not line.strip()]
    if blank:
        log(f"WARNING: {name}:{blank[0]}: {len(blank):,} of {len(text):,} lines are blank.")
    tokenised = sum(line.endswith(" .") for line in text)
    if tokenised > len(text) / 2:
        log(
            f"WARNING: {name}: {tokenised:,} of {len(text):,} lines end in “ .”. The metrics expect text that is not "
            "tokenised, and tokenise it themselves."
        )


def _score(names: list[str], systems: list[list[str]], references: list[str]) -> dict[str, Any]:
    """Return the scores of each system, and the comparison of two."""
    import logging

    from sightline.evaluate.compare import compare_systems, estimate

    logging.getLogger("sacrebleu").setLevel(logging.ERROR)  # _warn warns of the same
    log(f"scoring {len(references):,} sentences; TER takes the longest")
    found: list[dict[str, Any]]
    comparison: dict[str, Any] = {}
    if len(systems) == 1:
        found = [dict(estimate(systems[0], references))]
    else:
        compared = compare_systems(systems[0], systems[1], references)
        found = [{name: both[i] for name, both in compared.items()} for i in (0, 1)]
        for name, both in compared.items():
            comparison[name] = {"difference": both.difference, "p_value": both.p_value, "signature": both.signature}
    reports = [
        {"name": name, "scores": {metric: score._asdict() for metric, score in scores.items()}}
        for name, scores in zip(names, found, strict=True)
    ]
    return {"systems": reports} | ({"comparison": comparison} if comparison else {})


def _show(report: dict[str, Any]) -> None:
    """Print the report as a table."""
    from rich.console import Console
    from rich.table import Table

    # Lines are wrapped only on a terminal, not in a file or a pipe.
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 1000)
    systems, comparison = report["systems"], report.get("comparison", {})
    letters = ["A", "B"] if comparison else [""]
    for letter, system in zip(letters, systems, strict=True):
        console.print(f"{letter}  {system['name']}".strip(), soft_wrap=True)
    beams = f", beams {report['beams']}" if "beams" in report else ""
    console.print(f"{report['sentences']:,} sentences of {report['reference']}{beams}\n", style="dim", soft_wrap=True)

    columns = ["", *(title for letter in letters for title in (letter or "score", "95 % interval"))]
    columns += ["A − B", "p", "better"] if comparison else [""]
    table = Table(*columns, box=None, pad_edge=False, header_style="dim")
    for column in table.columns[1:-1]:
        column.justify = "right"
    for name in systems[0]["scores"]:
        cells = [cell for system in systems for cell in _cells(system["scores"][name])]
        cells += _verdict(name, comparison[name]) if comparison else ["lower is better" if name == "ter" else ""]
        table.add_row(TITLES[name], *cells)
    console.print(table)
    if comparison:
        console.print("\np       probability of as large a difference if the systems are equally good", style="dim")
        console.print(f"better  if p < {SIGNIFICANT}; lower TER is better", style="dim")
    console.print()
    for name, score in (comparison or systems[0]["scores"]).items():
        console.print(f"{TITLES[name]:7}{_wrapped(score['signature'], console.width - 7)}", style="dim", soft_wrap=True)


def _cells(score: dict[str, Any]) -> list[str]:
    """Return a score and its interval."""
    return [f"{score['value']:.2f}", f"{score['low']:.2f} – {score['high']:5.2f}"]


def _verdict(name: str, both: dict[str, Any]) -> list[str]:
    """Return the difference, its p-value, and the better system if the difference is significant."""
    better = "A" if (both["difference"] > 0) != (name == "ter") else "B"
    return [f"{both['difference']:+.2f}", f"{both['p_value']:.4f}", better if both["p_value"] < SIGNIFICANT else "–"]


def _wrapped(signature: str, width: int) -> str:
    """Wrap a signature between its parts."""
    import textwrap

    parts = textwrap.wrap(signature.replace("|", "| "), width, break_long_words=False, break_on_hyphens=False)
    return f"\n{'':7}".join(line.replace("| ", "|") for line in parts)
