"""`sightline align`: word alignments of given translations."""

import itertools
from typing import Annotated

import typer

WINDOW = 2048


def align(
    model: Annotated[str, typer.Argument(help="Folder or name of a model.")],
    source: Annotated[str, typer.Option(help="Source text, one sentence per line.")],
    target: Annotated[str, typer.Option(help="Its translation, line by line.")],
    gold: Annotated[str | None, typer.Option(help="Gold links, line by line, to compare with.")] = None,
    choose: Annotated[
        bool, typer.Option("--choose", help="Choose heads by --gold, and store the choice with the model.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")] = "auto",
) -> None:
    """Print the links of each pair as 0-0 1-2 (source word and target word, counted from 0), by the attention of the
    model. With --gold, also print the error rate of all pairs to standard error."""
    from pathlib import Path

    from sightline.data.corpus import Parallel, lines, read_pairs
    from sightline.engine import load_translator
    from sightline.errors import InputError
    from sightline.evaluate.align import agreement, choose_heads, save_choice
    from sightline.model_folder import ModelFolder
    from sightline.search.align import read_pharaoh, write_pharaoh

    if choose and gold is None:
        raise InputError.of("choose", True, "needs gold links. Name them by `gold`.")
    gold_links = None
    if gold is not None:
        gold_links = [read_pharaoh(line, f"{gold}:{i}") for i, line in enumerate(lines(Path(gold)), 1)]
    engine = load_translator(model, device=device, backend="torch")
    pairs = iter(read_pairs(Parallel(Path(source), Path(target))))
    if choose and gold_links is not None:
        sources, targets = zip(*pairs, strict=True)
        choice = choose_heads(engine, sources, targets, gold_links)
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
            found += [] if gold_links is None else [links]
    if gold_links is not None:
        error, precision, recall = agreement(found, gold_links)
        typer.echo(f"error rate {error:.4f}, precision {precision:.4f}, recall {recall:.4f}", err=True)
