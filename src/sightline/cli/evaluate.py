"""`sightline evaluate`: score translations, with confidence intervals, and compare two systems."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

TITLES = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER", "comet": "COMET"}
SIGNIFICANT = 0.05
"""Largest p-value of a significant difference."""


class Texts(NamedTuple):
    """The texts to score, one sentence per line."""

    references: list[str]
    sources: list[str]
    systems: list[list[str]]
    """The translations of each system; empty for a model that has not translated yet."""


def evaluate(
    model: Annotated[
        str,
        typer.Argument(help="Folder or name of a model, or a text file of translations, one sentence per line."),
    ],
    reference: Annotated[Path, typer.Option(help="Reference translations, line by line.")],
    source: Annotated[Path | None, typer.Option(help="Source text; not needed for a text file.")] = None,
    against: Annotated[str | None, typer.Option(help="Second model or text file, to compare with.")] = None,
    beam: Annotated[int, typer.Option(min=1, help="Beam size; 1 is greedy search.")] = 4,
    save: Annotated[Path | None, typer.Option(help="Write the translations of MODEL to this text file.")] = None,
    comet: Annotated[bool, typer.Option("--comet", help="Also compute COMET; needs unbabel-comet.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of a table.")] = False,
    precision: Annotated[
        str, typer.Option(help="auto, float32, int8 (faster on a CPU) or bfloat16 (faster on a GPU).")
    ] = "auto",
    shortlist: Annotated[
        bool, typer.Option("--shortlist", help="Use the shortlist that `sightline shortlist` wrote.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")] = "auto",
) -> None:
    """Score translations by BLEU, chrF and TER with 95 % intervals, or compare two systems."""
    import json

    from sightline.errors import InputError

    names = [model] if against is None else [model, against]
    texts = _read(names, reference, source)
    models = [name for name, text in zip(names, texts.systems, strict=True) if not text]
    if source is None and (models or comet):
        reason = f"{models[0]} is a model" if models else "COMET reads the source"
        raise InputError.of("source", None, f"is missing: {reason}. Name the source text.")
    if save:
        _check_save(save, model in models, [reference, source, *map(Path, names)])
    comet_of = None
    if comet:
        from sightline.evaluate.comet import load

        comet_of = load()
    if models:
        texts = _translate(names, texts, beam, {"device": device, "precision": precision, "shortlist": shortlist})
    if save:
        _save(save, texts.systems[0])
    for name, text in zip([str(reference), *names], [texts.references, *texts.systems], strict=True):
        _warn(name, text)
    report: dict[str, Any] = {"sentences": len(texts.references), "reference": str(reference)}
    if models:
        report |= {"source": str(source), "beam": beam}
    report |= _score(names, texts, comet_of)
    if as_json:
        typer.echo(json.dumps(report, ensure_ascii=False))
    else:
        _show(report)


def _read(names: Sequence[str], reference: Path, source: Path | None) -> Texts:
    """Read all files, and check that they have the same number of lines."""
    from sightline.data.corpus import lines
    from sightline.errors import InputError
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
            raise InputError(
                f"{other} must have as many lines as {reference}, got {len(found):,} and {len(references):,}.",
                value=str(other),
            )
    return Texts(references, sources, systems)


def _translate(names: Sequence[str], texts: Texts, beam: int, how: dict[str, Any]) -> Texts:
    """Translate by the models. All are loaded first, so that an error in the second is found before translating."""
    import time

    from sightline.engine import load_translator

    engines = [None if text else load_translator(name, **how) for name, text in zip(names, texts.systems, strict=True)]
    systems = []
    for name, text, engine in zip(names, texts.systems, engines, strict=True):
        if engine is None:
            systems.append(text)
            continue
        typer.echo(f"{name}: translating {len(texts.sources):,} sentences, beam {beam}", err=True)
        started = time.perf_counter()
        found = engine.translate(texts.sources, beams=beam)
        # One line each, so that the saved file has the same scores.
        systems.append([" ".join(one.text.split("\n")).rstrip("\r") for one in found])
        typer.echo(f"{name}: done in {time.perf_counter() - started:.1f} s", err=True)
    return texts._replace(systems=systems)


def _check_save(save: Path, translates: bool, read: Sequence[Path | None]) -> None:
    """Raise if translations cannot be saved, before there are any."""
    from sightline.errors import InputError

    if not translates:
        raise InputError.of("save", str(save), "needs a model, and MODEL is a text file. Leave it out.")
    if any(path and path.resolve() == save.resolve() for path in read):
        raise InputError.of("save", str(save), f"would overwrite an input: {save}. Choose another.")
    if save.is_dir() or not save.parent.is_dir():
        raise InputError.of("save", str(save), f"cannot be written: {save}. Choose another file.")


def _save(save: Path, text: Sequence[str]) -> None:
    from sightline.errors import InputError

    try:
        save.write_text("".join(f"{line}\n" for line in text), "utf-8", newline="\n")
    except OSError as error:
        raise InputError.of("save", str(save), f"cannot be written: {save} ({error.strerror}).") from None


def _warn(name: str, text: Sequence[str]) -> None:
    """Warn of likely mistakes that lower the scores."""
    blank = [number for number, line in enumerate(text, start=1) if not line.strip()]
    if blank:
        typer.echo(f"WARNING: {name}:{blank[0]}: {len(blank):,} of {len(text):,} lines are blank.", err=True)
    tokenised = sum(line.endswith(" .") for line in text)
    if tokenised > len(text) / 2:
        typer.echo(
            f"WARNING: {name}: {tokenised:,} of {len(text):,} lines end in “ .”. The metrics expect text that is not "
            "tokenised, and tokenise it themselves.",
            err=True,
        )


def _score(names: Sequence[str], texts: Texts, comet: Any) -> dict[str, Any]:
    """Return the scores of each system, and the comparison of two."""
    import logging

    from sightline.evaluate.compare import compare, estimate

    logging.getLogger("sacrebleu").setLevel(logging.ERROR)  # _warn warns of the same
    typer.echo(f"scoring {len(texts.references):,} sentences; TER takes the longest", err=True)
    found: list[dict[str, Any]]
    comparison: dict[str, Any] = {}
    if len(names) == 1:
        found = [{name: one._asdict() for name, one in estimate(texts.systems[0], texts.references).items()}]
    else:
        compared = compare(texts.systems[0], texts.systems[1], texts.references)
        found = [{}, {}]
        for name, (one, other, difference, p_value, signature) in compared.items():
            found[0][name], found[1][name] = one._asdict(), other._asdict()
            comparison[name] = {"difference": difference, "p_value": p_value, "signature": signature}
    if comet:
        for scores, text in zip(found, texts.systems, strict=True):
            scores["comet"] = comet(texts.sources, text, texts.references)._asdict()
        if comparison:
            mine, theirs = (scores["comet"] for scores in found)
            comparison["comet"] = {"difference": mine["value"] - theirs["value"], "signature": mine["signature"]}
    report: dict[str, Any] = {
        "systems": [{"name": name, "scores": scores} for name, scores in zip(names, found, strict=True)]
    }
    return report | ({"comparison": comparison} if comparison else {})


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
    beam = f", beam {report['beam']}" if "beam" in report else ""
    console.print(f"{report['sentences']:,} sentences of {report['reference']}{beam}\n", style="dim", soft_wrap=True)

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    for letter in letters:
        table.add_column(letter or "score", justify="right")
        table.add_column("95 % interval", justify="right")
    for column in ("A − B", "p") if comparison else ():
        table.add_column(column, justify="right")
    table.add_column("better" if comparison else "")
    for name in systems[0]["scores"]:
        cells = [cell for system in systems for cell in _cells(name, system["scores"][name])]
        if comparison:
            cells += _verdict(name, comparison[name])
        else:
            cells.append("lower is better" if name == "ter" else "")
        table.add_row(TITLES[name], *cells)
    console.print(table)
    if comparison:
        console.print("\np       probability of as large a difference if the systems are equally good", style="dim")
        console.print(f"better  if p < {SIGNIFICANT}; lower TER is better", style="dim")
    console.print()
    for name, score in (comparison or systems[0]["scores"]).items():
        console.print(f"{TITLES[name]:7}{_wrapped(score['signature'], console.width - 7)}", style="dim", soft_wrap=True)


def _cells(name: str, score: dict[str, Any]) -> list[str]:
    """Return a score and its interval. COMET is a number up to 1 without an interval."""
    if name == "comet":
        return [f"{score['value']:.4f}", "–"]
    return [f"{score['value']:.2f}", f"{score['low']:.2f} – {score['high']:5.2f}"]


def _verdict(name: str, both: dict[str, Any]) -> list[str]:
    """Return the difference, its p-value, and the better system if the difference is significant."""
    if name == "comet":
        return [f"{both['difference']:+.4f}", "–", ""]
    better = "A" if (both["difference"] > 0) != (name == "ter") else "B"
    return [f"{both['difference']:+.2f}", f"{both['p_value']:.4f}", better if both["p_value"] < SIGNIFICANT else "–"]


def _wrapped(signature: str, width: int) -> str:
    """Wrap a signature between its parts."""
    import textwrap

    parts = textwrap.wrap(signature.replace("|", "| "), width, break_long_words=False, break_on_hyphens=False)
    return f"\n{'':7}".join(line.replace("| ", "|") for line in parts)
