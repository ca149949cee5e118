"""`sightline train`: train a model on raw text."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

Paths = list[str] | None


def train(
    out: Annotated[Path, typer.Option(help="Folder of the run: model, checkpoints, metrics.")],
    source: Annotated[Paths, typer.Option(help="Source text, one sentence per line. FILE or FILE*WEIGHT.")] = None,
    target: Annotated[Paths, typer.Option(help="Its translation, line by line; one for each --source.")] = None,
    pairs: Annotated[
        Paths, typer.Option(help="Pairs: .tsv (source, tab, target) or .jsonl. FILE or FILE*WEIGHT.")
    ] = None,
    text: Annotated[Paths, typer.Option(help="Plain text, for decoder-only and encoder-only models.")] = None,
    dialogue: Annotated[Paths, typer.Option(help='Dialogues: .jsonl of {"turns": [...]}.')] = None,
    valid_source: Annotated[str | None, typer.Option(help="Source text for validation.")] = None,
    valid_target: Annotated[str | None, typer.Option(help="Its translation.")] = None,
    valid: Annotated[Paths, typer.Option(help="Validation text, of the same kind as the training text.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="A named configuration. Default: chosen by the size of the corpus.")
    ] = None,
    config: Annotated[str | None, typer.Option(help="TOML file of options; overrides the preset.")] = None,
    set: Annotated[Paths, typer.Option(help="One option, as group.option=value; overrides preset and file.")] = None,
    init_from: Annotated[str | None, typer.Option("--from", help="Start from a trained model.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")] = "auto",
    cache: Annotated[Path | None, typer.Option(help="Folder for tokenised text.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write curves for TensorBoard.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines instead of a progress bar.")] = False,
) -> None:
    """Train a model on raw text. The vocabulary is learned from it, and the tokenised text is cached."""
    from rich.console import Console

    from sightline.errors import InputError
    from sightline.evaluate.scores import values
    from sightline.train.distributed import is_main
    from sightline.train.run import RunOptions, TextFiles, train_files
    from sightline.train.sinks import Lines, Metrics, ProgressBar, TensorBoard, tee

    if len(source or []) != len(target or []):
        raise InputError.of(
            "source", source, f"and `target` come in pairs, got {len(source or [])} and {len(target or [])}."
        )
    if (valid_source is None) != (valid_target is None):
        raise InputError.of("valid_source", valid_source, "and `valid_target` come in pairs.")
    if valid_source is not None and (text or dialogue):
        raise InputError.of("valid_source", valid_source, "is for pairs. Name other validation text by `valid`.")
    parallel = [
        (*weighted(s)[:1], weighted(t)[0], weighted(s)[1]) for s, t in zip(source or [], target or [], strict=True)
    ]
    training = TextFiles(parallel, _all(pairs), _all(text), _all(dialogue))
    validation = TextFiles(
        [(valid_source, valid_target, 1.0)] if valid_source and valid_target else [],
        _all(valid) if not text and not dialogue else [],
        _all(valid) if text else [],
        _all(valid) if dialogue else [],
    )
    console = Console(stderr=True, highlight=False, quiet=not is_main())
    shown: Any = Lines(console) if plain or not console.is_terminal else ProgressBar(console)
    metrics = Metrics(out / "metrics.jsonl")
    sinks = [shown, metrics]
    if tensorboard:
        sinks.append(TensorBoard(out / "tensorboard"))
    options = RunOptions(out, training, validation, preset, config, set or [], init_from, cache, device, resume)
    try:
        run = train_files(options, tee(sinks), lambda text: console.print(text, markup=False, soft_wrap=True), values)
    finally:
        metrics.close()
        if isinstance(shown, ProgressBar):
            shown.close()
    if run.stopped:
        if is_main():
            typer.echo(
                f"Stopped by a signal at step {run.step:,}. Resume with: sightline train --out {out} --resume", err=True
            )
        sys.exit(128 + run.stopped)
    if not is_main():
        return
    _plot(out)
    typer.echo(str(out))


def weighted(text: str) -> tuple[str, float]:
    """Split FILE*WEIGHT; the weight of FILE alone is 1."""
    path, star, weight = text.rpartition("*")
    if not star:
        return text, 1.0
    try:
        return path, float(weight)
    except ValueError:
        return text, 1.0


def _all(texts: Paths) -> list[tuple[str, float]]:
    return [weighted(text) for text in texts or []]


def _plot(out: Path) -> None:
    """Plot the curves of the run, if matplotlib is installed."""
    try:
        from sightline.figures.curves import plot
    except ImportError:
        return
    plot(out / "metrics.jsonl", out / "curves.png")
