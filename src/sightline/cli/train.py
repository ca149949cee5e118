"""`sightline train`: from raw text to a model."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

Paths = list[str] | None


def train(
    out: Annotated[Path, typer.Option(help="The folder of the run: the model, its checkpoints, its curves.")],
    source: Annotated[Paths, typer.Option(help="Source text, a sentence a line. FILE or FILE*WEIGHT.")] = None,
    target: Annotated[Paths, typer.Option(help="Its translation, line by line; as many as there are --source.")] = None,
    pairs: Annotated[
        Paths, typer.Option(help="Pairs: .tsv (source, tab, target) or .jsonl. FILE or FILE*WEIGHT.")
    ] = None,
    text: Annotated[Paths, typer.Option(help="Plain text for a language model or a reader.")] = None,
    dialogue: Annotated[Paths, typer.Option(help='Dialogues: .jsonl of {"turns": [...]}.')] = None,
    valid_source: Annotated[str | None, typer.Option(help="Source text to test on.")] = None,
    valid_target: Annotated[str | None, typer.Option(help="Its translation.")] = None,
    valid: Annotated[Paths, typer.Option(help="Text to test on, of the kind that is trained on.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="A named configuration; chosen from the corpus if left out.")
    ] = None,
    config: Annotated[str | None, typer.Option(help="A TOML file of options; it overrides the preset.")] = None,
    set: Annotated[Paths, typer.Option(help="One option, as group.option=value; it overrides both.")] = None,
    start: Annotated[str | None, typer.Option("--from", help="A model to go on from, instead of a new one.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out where it stopped.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps; auto takes the best there is.")] = "auto",
    cache: Annotated[Path | None, typer.Option(help="Where tokenised text is kept.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write curves for TensorBoard.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines instead of a progress bar.")] = False,
) -> None:
    """Train a model on raw text. Nothing is prepared by hand: a vocabulary is learned, the text tokenised and kept."""
    from rich.console import Console

    from sightline.errors import InputError
    from sightline.evaluate.scores import values
    from sightline.train.distributed import is_main
    from sightline.train.run import RunOptions, TextFiles, train_files
    from sightline.train.sinks import Lines, Metrics, ProgressBar, TensorBoard, tee

    if len(source or []) != len(target or []):
        raise InputError(
            f"there are {len(source or [])} --source and {len(target or [])} --target; they come in pairs."
        )
    if (valid_source is None) != (valid_target is None):
        raise InputError("--valid-source and --valid-target come in pairs.")
    if valid_source is not None and (text or dialogue):
        raise InputError("text and dialogues are tested on text of their kind; name it by --valid.")
    parallel = [
        (*weighted(s)[:1], weighted(t)[0], weighted(s)[1]) for s, t in zip(source or [], target or [], strict=True)
    ]
    training = TextFiles(parallel, _all(pairs), _all(text), _all(dialogue))
    testing = TextFiles(
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
        try:
            sinks.append(TensorBoard(out / "tensorboard"))
        except ImportError:
            raise InputError("--tensorboard needs the package tensorboard; pip install tensorboard.") from None
    options = RunOptions(out, training, testing, preset, config, set or [], start, cache, device, resume)
    try:
        run = train_files(options, tee(sinks), lambda text: console.print(text, markup=False, soft_wrap=True), values)
    finally:
        metrics.close()
        if isinstance(shown, ProgressBar):
            shown.close()
    if run.stopped:
        if is_main():
            typer.echo(
                f"Stopped by a signal at step {run.step:,}; go on with: sightline train --out {out} --resume", err=True
            )
        sys.exit(128 + run.stopped)
    if not is_main():
        return
    _plot(out)
    typer.echo(str(out))


def weighted(text: str) -> tuple[str, float]:
    """FILE or FILE*WEIGHT."""
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
    """The curves of the run as a picture, where matplotlib is installed."""
    try:
        from sightline.figures.curves import plot
    except ImportError:
        return
    plot(out / "metrics.jsonl", out / "curves.png")
