"""`sightline distill`: train a small model on the translations of a larger one (Kim and Rush, 2016)."""

import os
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from sightline.choices import BackendName, PrecisionName
from sightline.cli.console import bulk_progress, run_training
from sightline.cli.parameters import Config, Plain, Resume, Set, Strings, option, weighted
from sightline.errors import InputError


def distill(
    teacher: Annotated[str, Argument(help="Folder or name of the model to learn from.")],
    source: Annotated[list[Path], Option(help="Text for the teacher to translate, one sentence per line.")],
    out: Annotated[Path, Option(help="Folder of the student: the teacher's translations, model, curves.")],
    pairs: Annotated[
        Strings,
        Option(help="Real pairs in addition to those of the teacher: .tsv or .jsonl. FILE or FILE*WEIGHT."),
    ] = None,
    valid: Annotated[Strings, Option(help="Validation pairs.")] = None,
    preset: Annotated[str, Option(help="Preset of the student.")] = "fast",
    config: Config = None,
    set: Set = None,
    beams: int = option("SearchConfig", "beams", "-b"),
    backend: BackendName = option("LoadOptions", "backend"),
    precision: PrecisionName = option("LoadOptions", "precision"),
    device: str = option("LoadOptions", "device"),
    resume: Resume = False,
    plain: Plain = False,
) -> None:
    """Train a small model (student) on the translations of a larger one (teacher).

    These translations are easier to learn from than human ones.
    """
    from sightline.bulk.distill import translate_for_student
    from sightline.config import LoadOptions
    from sightline.train.run import RunOptions, TextFiles

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(
            "distill runs in one process. When its training has started, stop it, and continue it by several processes "
            f"of `sightline train --out {out} --resume`.",
            value=os.environ["WORLD_SIZE"],
        )
    inputs = TextFiles(pairs=weighted(pairs)), TextFiles(pairs=weighted(valid))
    student = RunOptions(out, *inputs, preset, config, set or [], device=device, resume=resume)
    load = LoadOptions(backend=backend, precision=precision, device=device)
    with bulk_progress(out, plain=plain) as report:
        student = translate_for_student(teacher, source, student, load, beams=beams, report=report)
    run_training(student, plain=plain)
