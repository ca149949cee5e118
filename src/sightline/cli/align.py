"""`sightline align`: which word of given translations comes from which word of the source."""

import itertools
from typing import Annotated

import typer

WINDOW = 2048


def align(
    model: Annotated[str, typer.Argument(help="The folder or the name of a trained model.")],
    source: Annotated[str, typer.Option(help="Source text, a sentence a line.")],
    target: Annotated[str, typer.Option(help="Its translation, line by line.")],
    gold: Annotated[str | None, typer.Option(help="The right links, line by line, to compare with.")] = None,
    choose: Annotated[
        bool, typer.Option("--choose", help="Find the heads that come nearest to --gold, and keep them with the model.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps; auto takes the best there is.")] = "auto",
) -> None:
    """Print the links of each pair as 0-0 1-2: source word and target word, counted from 0, by where the model looks.
    With --gold the error rate of all comes at the end (to standard error)."""
    from pathlib import Path

    from sightline.data.corpus import Parallel, lines, read_pairs
    from sightline.engine import load
    from sightline.errors import InputError
    from sightline.evaluate.align import agreement, choose_heads, save_choice
    from sightline.model_folder import ModelFolder
    from sightline.search.align import read_pharaoh, write_pharaoh

    if choose and gold is None:
        raise InputError("--choose needs right links to choose by; name them by --gold.")
    right = None if gold is None else [read_pharaoh(line, f"{gold}:{i}") for i, line in enumerate(lines(Path(gold)), 1)]
    engine = load(model, device=device, engine="torch")
    pairs = iter(read_pairs(Parallel(Path(source), Path(target))))
    if choose and right is not None:
        sources, targets = zip(*pairs, strict=True)
        choice = choose_heads(engine, sources, targets, right)
        save_choice(ModelFolder(model).cache, choice)
        names = ", ".join(f"{layer}.{head}" for layer, head in choice.heads.heads)
        typer.echo(f"heads {names} (layer.head), at the step that {choice.heads.step} a word", err=True)
        typer.echo(f"error rate on the {choice.pairs:,} pairs they were chosen by: {choice.error:.4f}", err=True)
        return
    found = []
    for first in itertools.count(1, WINDOW):
        if not (window := list(itertools.islice(pairs, WINDOW))):
            break
        sources, targets = zip(*window, strict=True)
        for links in engine.align(sources, targets, first=first):
            typer.echo(write_pharaoh(links))
            found += [] if right is None else [links]
    if right is not None:
        error, precision, recall = agreement(found, right)
        typer.echo(f"error rate {error:.4f}, precision {precision:.4f}, recall {recall:.4f}", err=True)
