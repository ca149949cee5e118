"""`sightline distill`: train a small model on the translations of a larger one (Kim and Rush, 2016).

The folder has `distill.json`, the options; `distilled.tsv`, the translations of the teacher; and, when these are
complete, a run of `sightline train`.
"""

import json
import os
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from sightline.cli.lines import check_files
from sightline.cli.pairs import write_pairs
from sightline.cli.train import Paths, train, weighted
from sightline.errors import InputError

OPTIONS, TABLE = "distill.json", "distilled.tsv"


def distill(
    teacher: Annotated[str, typer.Argument(help="Folder or name of the model to learn from.")],
    source: Annotated[
        list[Path], typer.Option(help="Text for the teacher to translate, one sentence per line; may be repeated.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the student: translations of the teacher, model, curves.")],
    pairs: Annotated[
        Paths, typer.Option(help="Real pairs in addition to those of the teacher: .tsv or .jsonl. FILE or FILE*WEIGHT.")
    ] = None,
    valid: Annotated[Paths, typer.Option(help="Validation pairs.")] = None,
    preset: Annotated[str, typer.Option(help="Preset of the student.")] = "fast",
    config: Annotated[str | None, typer.Option(help="TOML file of options; overrides the preset.")] = None,
    set: Annotated[Paths, typer.Option(help="One option, as group.option=value; overrides both.")] = None,
    beam: Annotated[int, typer.Option(help="Beam size of the teacher.")] = 4,
    engine: Annotated[str, typer.Option(help="Search backend of the teacher: auto, torch or ctranslate2.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="Of the teacher: auto, float32, int8 (CPU) or bfloat16 (GPU).")
    ] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or mps; auto chooses the fastest.")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Continue the work in --out.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines instead of a progress bar.")] = False,
) -> None:
    """Distil a model: the teacher translates text, and a student of any preset is trained on these translations, which
    are easier to learn from than human ones."""
    from sightline.config import SearchConfig
    from sightline.engine import load_translator
    from sightline.files import write_files

    fixed: dict[str, Any] = {"teacher": teacher, "source": [str(path) for path in source], "beam": beam}
    fixed |= {"precision": precision}
    about = {"pairs": pairs, "valid": valid, "preset": preset, "config": config, "set": set}
    # The options of the student may change until its training starts.
    _check(out, fixed | (about if (out / "run.json").exists() else {}), resume)
    if (out / "run.json").exists():  # the translations are complete
        train(out, resume=True, device=device, plain=plain)
        return
    check_files(source)
    _check_student(about)
    options = SearchConfig(beams=beam)
    translator = load_translator(teacher, device=device, backend=cast("Any", engine), precision=cast("Any", precision))
    write_files(out, {OPTIONS: json.dumps(fixed | about, indent=2, ensure_ascii=False).encode() + b"\n"})
    write_pairs(translator, options, source, out / TABLE, reverse=False, plain=plain)
    del translator  # frees its memory
    every = [str(out / TABLE), *(pairs or [])]
    train(out, pairs=every, valid=valid, preset=preset, config=config, set=set, device=device, plain=plain)


def _check(out: Path, options: dict[str, Any], resume: bool) -> None:
    """Refuse to overwrite a folder, or to resume it with other options."""
    from sightline.files import read_json_object

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(
            "distill runs in one process. When its training has started, stop it, and continue it by several processes "
            f"of `sightline train --out {out} --resume`.",
            value=os.environ["WORLD_SIZE"],
        )
    if not resume:
        partial = f".{OPTIONS}.partial"  # left by a process that was killed while it wrote the options
        if out.exists() and (not out.is_dir() or any(path.name != partial for path in out.iterdir())):
            message = f"`out` is not empty: {out}. Add `resume` to continue, or choose another folder."
            raise InputError(message, option="out", value=out)
        return
    path = out / OPTIONS
    if not path.exists():
        raise InputError(f"`resume`: nothing to resume in {out}.", option="resume", value=out)
    started_with = read_json_object(path, error=InputError)
    for name, value in options.items():
        if started_with.get(name) != value:
            before = json.dumps(started_with.get(name), ensure_ascii=False)
            message = f"`{name}` differs from the run in {out}, which has {before}. A resumed run keeps its options."
            raise InputError(message, option=name, value=value)


def _check_student(about: dict[str, Any]) -> None:
    """Check the training of the student before the teacher works for hours."""
    from sightline.config import load
    from sightline.data.corpus import Table, read_pairs
    from sightline.text.tokenizer import Tokenizer
    from sightline.train.run import check_options

    config = load(about["preset"], about["config"], about["set"] or [])
    check_options(config, pairs=True)
    if config.data.tokenizer is not None:
        Tokenizer.load(config.data.tokenizer)
    for text in [*(about["pairs"] or []), *(about["valid"] or [])]:
        path, weight = weighted(text)
        if weight <= 0:
            raise InputError(f"`pairs`: the weight of {text} must be greater than 0.", option="pairs", value=text)
        if not sum(bool(source.strip() and target.strip()) for source, target in read_pairs(Table(Path(path)))):
            raise InputError(f"{path}: the file has no pairs.", value=path)
