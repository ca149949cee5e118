"""`sightline distill`: a small model that learns from what a larger one says (Kim and Rush, 2016).

Its folder has `distill.json`, what it was started with; `distilled.tsv`, what the teacher said; and, from when that is
whole, a run of `sightline train`.
"""

import json
import os
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from sightline.cli.lines import check_files
from sightline.cli.pairs import write_pairs
from sightline.cli.train import Paths, train, weighted

ABOUT, TABLE = "distill.json", "distilled.tsv"


def distill(
    teacher: Annotated[str, typer.Argument(help="The folder or the name of the model to learn from.")],
    source: Annotated[
        list[Path], typer.Option(help="Text for the teacher to translate, a sentence a line; may be repeated.")
    ],
    out: Annotated[Path, typer.Option(help="The folder of the student: what the teacher said, the model, its curves.")],
    pairs: Annotated[
        Paths, typer.Option(help="Real pairs beside those of the teacher: .tsv or .jsonl. FILE or FILE*WEIGHT.")
    ] = None,
    valid: Annotated[Paths, typer.Option(help="Pairs to test on.")] = None,
    preset: Annotated[str, typer.Option(help="A named configuration, of the student.")] = "fast",
    config: Annotated[str | None, typer.Option(help="A TOML file of options; it overrides the preset.")] = None,
    set: Annotated[Paths, typer.Option(help="One option, as group.option=value; it overrides both.")] = None,
    beam: Annotated[int, typer.Option(help="Hypotheses of the teacher that grow side by side.")] = 4,
    engine: Annotated[str, typer.Option(help="auto, torch or ctranslate2: by what the teacher searches.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="The teacher's: auto, float32, or, faster and rounded, int8 (CPU) or bfloat16 (GPU).")
    ] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps; auto takes the best there is.")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the work in --out where it stopped.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines instead of a progress bar.")] = False,
) -> None:
    """Train a student on what a teacher says: the teacher translates text, and a model of any preset learns from that,
    which is easier to learn from than what people wrote."""
    from sightline.config import SearchConfig
    from sightline.engine import load

    asked: dict[str, Any] = {"teacher": teacher, "source": [str(path) for path in source], "beam": beam}
    asked |= {"precision": precision}
    about = {"pairs": pairs, "valid": valid, "preset": preset, "config": config, "set": set}
    # Until the student has begun, its options may still be others.
    _check(out, asked | (about if (out / "run.json").exists() else {}), resume)
    if (out / "run.json").exists():  # it is all said
        train(out, resume=True, device=device, plain=plain)
        return
    check_files(source)
    _check_student(about)
    options = SearchConfig(beams=beam)
    translator = load(teacher, device=device, engine=cast("Any", engine), precision=cast("Any", precision))
    _begin(out, asked | about)
    write_pairs(translator, options, source, out / TABLE, reverse=False, plain=plain)
    del translator  # its memory is the student's
    every = [str(out / TABLE), *(pairs or [])]
    train(out, pairs=every, valid=valid, preset=preset, config=config, set=set, device=device, plain=plain)


def _check(out: Path, asked: dict[str, Any], resume: bool) -> None:
    """Nothing is written over, and what is gone on with is what was begun: no file has the words of two teachers."""
    from sightline.errors import InputError

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(
            f"distill is one process; once it trains, stop it, and go on with several by train --out {out} --resume."
        )
    if not resume:
        begun = f".{ABOUT}.partial"  # killed with its very first file
        if out.exists() and (not out.is_dir() or any(path.name != begun for path in out.iterdir())):
            raise InputError(f"{out}: there is something here already; add --resume to go on, or choose another --out.")
        return
    path = out / ABOUT
    try:
        begun = json.loads(path.read_text("utf-8"))
    except OSError:
        raise InputError(f"{out}: there is nothing here to resume; leave out --resume to begin it.") from None
    except ValueError:
        raise InputError(f"{path}: this is not what a distillation was started with.") from None
    for name, value in asked.items():
        if begun.get(name) != value:
            raise InputError(
                f"{out}: this was started with {name} = {json.dumps(begun.get(name), ensure_ascii=False)}; what is "
                "resumed keeps its options."
            )


def _check_student(about: dict[str, Any]) -> None:
    """What cannot be trained is told before the teacher has worked for hours."""
    from sightline.config import load
    from sightline.data.corpus import Table, read_pairs
    from sightline.errors import InputError
    from sightline.text.tokenizer import Tokenizer
    from sightline.train.run import check_options

    config = load(about["preset"], about["config"], about["set"] or [])
    check_options(config, pairs=True)
    if config.data.tokenizer is not None:
        Tokenizer.load(config.data.tokenizer)
    for text in [*(about["pairs"] or []), *(about["valid"] or [])]:
        path, weight = weighted(text)
        if weight <= 0:
            raise InputError(f"{text}: a weight is greater than 0.")
        if not sum(bool(source.strip() and target.strip()) for source, target in read_pairs(Table(Path(path)))):
            raise InputError(f"{path}: there is not one pair in it.")


def _begin(out: Path, asked: dict[str, Any]) -> None:
    from sightline.files import write_files

    write_files(out, {ABOUT: json.dumps(asked, indent=2, ensure_ascii=False).encode() + b"\n"})
