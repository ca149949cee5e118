"""`sightline evaluate`: how good translations are, how sure that is, and whether they are better than others."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

TITLES = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER", "comet": "COMET"}
LIKELY = 0.05
"""Below this p-value a difference is put down to the systems, not to the sentences they were tried on."""


class Texts(NamedTuple):
    """What is scored, a line a sentence."""

    references: list[str]
    sources: list[str]
    systems: list[list[str]]
    """Of each system its translations; none of one that is a model and has yet to translate."""


def evaluate(
    model: Annotated[
        str,
        typer.Argument(help="The folder or the name of a model, or a text file of translations, a sentence a line."),
    ],
    reference: Annotated[Path, typer.Option(help="The right translations, line by line.")],
    source: Annotated[Path | None, typer.Option(help="The text to translate; a text file does without.")] = None,
    against: Annotated[str | None, typer.Option(help="A second model or text file, to compare with.")] = None,
    beam: Annotated[int, typer.Option(min=1, help="Hypotheses that grow side by side; 1 is greedy search.")] = 4,
    save: Annotated[Path | None, typer.Option(help="Keep the translations of MODEL in this text file.")] = None,
    comet: Annotated[bool, typer.Option("--comet", help="Also COMET; needs the package unbabel-comet.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
    precision: Annotated[
        str, typer.Option(help="auto, float32, or, faster and rounded, int8 (on a CPU) or bfloat16 (on a GPU).")
    ] = "auto",
    shortlist: Annotated[
        bool, typer.Option("--shortlist", help="Choose among fewer words, by what sightline shortlist wrote.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps; auto takes the best there is.")] = "auto",
) -> None:
    """Score translations by BLEU, chrF and TER, each with its 95 % interval; compare them with another system's."""
    import json

    from sightline.errors import InputError

    names = [model] if against is None else [model, against]
    texts = _read(names, reference, source)
    models = [name for name, text in zip(names, texts.systems, strict=True) if not text]
    if source is None and (models or comet):
        needs = f"{models[0]} is a model" if models else "COMET looks at the source too"
        raise InputError(f"{needs}; name the text to translate by --source.")
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
    """All files, as long as each other."""
    from sightline.data.corpus import lines
    from sightline.errors import InputError
    from sightline.model_folder import ModelFolder

    references = list(lines(reference))
    if not any(line.strip() for line in references):
        raise InputError(f"{reference}: the file has nothing but blank lines.")
    systems = []
    for name in names:
        path = ModelFolder(name).path
        if not path.exists() and path.suffix != ".txt":
            raise InputError(f"{name}: there is no model here, nor a text file.")
        systems.append([] if path.is_dir() else list(lines(path)))
    sources = list(lines(source)) if source else []
    for other, found in zip([source, *names], [sources, *systems], strict=True):
        if found and len(found) != len(references):
            raise InputError(
                f"{other} has {len(found):,} lines and {reference} has {len(references):,}; they must have as many."
            )
    return Texts(references, sources, systems)


def _translate(names: Sequence[str], texts: Texts, beam: int, how: dict[str, Any]) -> Texts:
    """The same, with what the models say. All are loaded first: what is wrong with the second is told at once."""
    import time

    from sightline.engine import load

    engines = [None if text else load(name, **how) for name, text in zip(names, texts.systems, strict=True)]
    systems = []
    for name, text, engine in zip(names, texts.systems, engines, strict=True):
        if engine is None:
            systems.append(text)
            continue
        typer.echo(f"{name}: translating {len(texts.sources):,} sentences, beam {beam}", err=True)
        started = time.perf_counter()
        found = engine.translate(texts.sources, beam=beam)
        # One line each, so that what is saved scores as it did.
        systems.append([" ".join(one.text.split("\n")).rstrip("\r") for one in found])
        typer.echo(f"{name}: done in {time.perf_counter() - started:.1f} s", err=True)
    return texts._replace(systems=systems)


def _check_save(save: Path, translates: bool, read: Sequence[Path | None]) -> None:
    """Said before there is anything that could be lost."""
    from sightline.errors import InputError

    if not translates:
        raise InputError("--save keeps what a model translates, and MODEL is a text file; leave out --save.")
    if any(path and path.resolve() == save.resolve() for path in read):
        raise InputError(f"{save}: the file is read here; choose another --save.")
    if save.is_dir() or not save.parent.is_dir():
        raise InputError(f"{save}: no file can be written here; choose another --save.")


def _save(save: Path, text: Sequence[str]) -> None:
    from sightline.errors import InputError

    try:
        save.write_text("".join(f"{line}\n" for line in text), "utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"{save}: cannot be written: {error.strerror}.") from None


def _warn(name: str, text: Sequence[str]) -> None:
    """What makes scores lower than they should be, and is seldom meant."""
    blank = [number for number, line in enumerate(text, start=1) if not line.strip()]
    if blank:
        typer.echo(f"WARNING: {name}:{blank[0]}: {len(blank):,} of {len(text):,} lines are blank.", err=True)
    split = sum(line.endswith(" .") for line in text)
    if split > len(text) / 2:
        typer.echo(
            f"WARNING: {name}: {split:,} of {len(text):,} lines end in “ .”; the scores are meant for text as people "
            "write it, and split it into tokens themselves.",
            err=True,
        )


def _score(names: Sequence[str], texts: Texts, comet: Any) -> dict[str, Any]:
    """The scores of each system, and what they say of the two."""
    import logging

    from sightline.evaluate.compare import compare, estimate

    logging.getLogger("sacrebleu").setLevel(logging.ERROR)  # what it warns of, _warn has told in one sentence
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
    """The report as a table."""
    from rich.console import Console
    from rich.table import Table

    # Where nobody looks, no line is broken: it is for a file, or for another program.
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
            cells.append("the less, the better" if name == "ter" else "")
        table.add_row(TITLES[name], *cells)
    console.print(table)
    if comparison:
        console.print("\np       how often exchanging translations at random gives as large a difference", style="dim")
        console.print(f"better  where p < {LIKELY}; the less TER, the better", style="dim")
    console.print()
    for name, score in (comparison or systems[0]["scores"]).items():
        console.print(f"{TITLES[name]:7}{_broken(score['signature'], console.width - 7)}", style="dim", soft_wrap=True)


def _cells(name: str, score: dict[str, Any]) -> list[str]:
    """A score and its interval. COMET is a number up to 1, and has none."""
    if name == "comet":
        return [f"{score['value']:.4f}", "–"]
    return [f"{score['value']:.2f}", f"{score['low']:.2f} – {score['high']:5.2f}"]


def _verdict(name: str, both: dict[str, Any]) -> list[str]:
    """The difference, how likely it is by chance, and who is better if it is not."""
    if name == "comet":
        return [f"{both['difference']:+.4f}", "–", ""]
    better = "A" if (both["difference"] > 0) != (name == "ter") else "B"
    return [f"{both['difference']:+.2f}", f"{both['p_value']:.4f}", better if both["p_value"] < LIKELY else "–"]


def _broken(signature: str, width: int) -> str:
    """A signature in lines that fit, broken between its parts."""
    import textwrap

    parts = textwrap.wrap(signature.replace("|", "| "), width, break_long_words=False, break_on_hyphens=False)
    return f"\n{'':7}".join(line.replace("| ", "|") for line in parts)
