"""Distillation: a small model is trained on the translations of a larger one (Kim and Rush, 2016).

The folder of the student has `distill.json`, the options; `distilled.tsv`, the translations of the teacher; and, when
these are complete, a training run.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sightline.bulk.lines import Report, check_files
from sightline.bulk.pairs import write_pairs
from sightline.config import SearchConfig, load
from sightline.data.corpus import read_pairs
from sightline.engine import LoadOptions, load_translator
from sightline.errors import InputError
from sightline.files import read_json_object, write_files
from sightline.text.tokenizer import Tokenizer
from sightline.train.run import RunOptions, TextFiles
from sightline.train.tasks import TRANSLATE, choose_task

OPTIONS, TABLE = "distill.json", "distilled.tsv"


def translate_for_student(
    teacher: str, source: Sequence[Path], student: RunOptions, options: LoadOptions, *, beams: int, report: Report
) -> RunOptions:
    """Translate text by the teacher, which is loaded with `options`, into the folder of the student; return the options
    to train the student with. `student` has other pairs to use; its options may change until the training starts."""
    out = student.out
    given = {"teacher": teacher, "source": list(map(str, source)), "beams": beams, "precision": options.precision}
    about = {name: getattr(student, name) for name in ("preset", "config", "set")}
    about |= {"pairs": student.train.pairs, "valid": student.valid.pairs}
    trained = (out / "run.json").exists()
    _check_folder(out, given | about if trained else given, student.resume)
    if trained:  # the translations are complete
        return RunOptions(out, device=student.device, resume=True)
    check_files(source, out / TABLE, resume=True)
    _check_student(student)
    search, translator = SearchConfig(beams=beams), load_translator(teacher, options)
    write_files(out, {OPTIONS: json.dumps(given | about, indent=2, ensure_ascii=False).encode() + b"\n"})
    write_pairs(translator, search, source, out / TABLE, reverse=False, report=report)
    return student._replace(train=TextFiles(pairs=[(str(out / TABLE), 1.0), *student.train.pairs]), resume=False)


def _check_folder(out: Path, options: dict[str, Any], resume: bool) -> None:
    """Refuse to overwrite a folder, or to resume it with other options."""
    if not resume:
        partial = f".{OPTIONS}.partial"  # left by a process that was killed while it wrote the options
        if out.exists() and (not out.is_dir() or any(path.name != partial for path in out.iterdir())):
            raise InputError.of("out", out, f"is not empty: {out}. Add `resume` to continue, or choose another folder.")
        return
    if not (out / OPTIONS).exists():
        raise InputError(f"`resume`: nothing to resume in {out}.", option="resume", value=out)
    started_with = read_json_object(out / OPTIONS, error=InputError)
    for name, value in json.loads(json.dumps(options)).items():
        if started_with.get(name) != value:
            before = json.dumps(started_with.get(name), ensure_ascii=False)
            problem = f"differs from the run in {out}, which has {before}. A resumed run keeps its options."
            raise InputError.of(name, value, problem)


def _check_student(student: RunOptions) -> None:
    """Check the training of the student before the teacher works for hours."""
    config = load(student.preset, student.config, student.set)
    choose_task([TRANSLATE], config)
    if config.data.tokenizer is not None:
        Tokenizer.load(config.data.tokenizer)
    for corpus, weight in [*student.train.corpora(), *student.valid.corpora()]:
        if weight <= 0:
            message = f"`pairs`: the weight of {corpus.path}*{weight:g} must be greater than 0."
            raise InputError(message, option="pairs", value=weight)
        if not sum(bool(source.strip() and target.strip()) for source, target in read_pairs(corpus)):
            raise InputError(f"{corpus.path}: the file has no pairs.", value=corpus.path)
