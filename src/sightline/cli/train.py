"""`sightline train`: train a model on raw text."""

from pathlib import Path
from typing import Annotated

from typer import Option

from sightline.cli.console import run_training
from sightline.cli.parameters import Config, Plain, Resume, Set, Strings, check_as_many, option, weighted


def train(
    out: Annotated[Path, Option(help="Folder of the run: model, checkpoints, metrics.")],
    source: Annotated[Strings, Option(help="Source text, one sentence per line. FILE or FILE*WEIGHT.")] = None,
    target: Annotated[Strings, Option(help="Its translation, line by line; one for each --source.")] = None,
    pairs: Annotated[Strings, Option(help="Pairs: .tsv (source, tab, target) or .jsonl. FILE or FILE*WEIGHT.")] = None,
    text: Annotated[Strings, Option(help="Plain text, for decoder-only and encoder-only models.")] = None,
    dialogue: Annotated[Strings, Option(help='Dialogues: .jsonl of {"turns": [...]}.')] = None,
    valid_source: Annotated[str | None, Option(help="Source text for validation.")] = None,
    valid_target: Annotated[str | None, Option(help="Its translation.")] = None,
    valid: Annotated[Strings, Option(help="Validation text, of the same kind as the training text.")] = None,
    preset: Annotated[
        str | None,
        Option(help="Named configuration of `sightline config presets`. Default: by the size of the text."),
    ] = None,
    config: Config = None,
    set: Set = None,
    init_from: Annotated[str | None, Option("--from", help="Start from this trained model.")] = None,
    resume: Resume = False,
    device: str = option("LoadOptions", "device"),
    cache: Annotated[Path | None, Option(help="Folder for tokenised text. Default: in the user's cache.")] = None,
    tensorboard: Annotated[bool, Option("--tensorboard", help="Also write curves for TensorBoard.")] = False,
    plain: Plain = False,
) -> None:
    """Train a model on raw text. The vocabulary is learned from it, and the tokenised text is cached."""
    from sightline.errors import InputError
    from sightline.train.run import RunOptions, TextFiles

    check_as_many(source, target)
    if (valid_source is None) != (valid_target is None):
        raise InputError.of("valid_source", valid_source, "and `valid_target` come in pairs.")
    if valid_source is not None and (text or dialogue):
        raise InputError.of("valid_source", valid_source, "is for pairs. Name other validation text by `valid`.")
    sides = zip(weighted(source), weighted(target), strict=True)
    parallel = [(file, other, weight) for (file, weight), (other, _) in sides]
    training = TextFiles(parallel, weighted(pairs), weighted(text), weighted(dialogue))
    validation = TextFiles(
        [(valid_source, valid_target, 1.0)] if valid_source and valid_target else [],
        [] if text or dialogue else weighted(valid),
        weighted(valid) if text else [],
        weighted(valid) if dialogue else [],
    )
    options = RunOptions(out, training, validation, preset, config, set or [], init_from, cache, device, resume)
    run_training(options, plain=plain, tensorboard=tensorboard)
