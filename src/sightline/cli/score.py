"""`sightline score`: log-probabilities of given translations."""

import itertools
import json
from typing import Annotated

import typer

WINDOW = 2048


def score(
    model: Annotated[str, typer.Argument(help="Folder or name of a model.")],
    source: Annotated[str, typer.Option(help="Source text, one sentence per line.")],
    target: Annotated[str, typer.Option(help="Its translation, line by line.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line, with every token.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")] = "auto",
) -> None:
    """Print the log-probability of each pair, and the perplexity of all pairs to standard error."""
    import math
    from pathlib import Path

    from sightline.data.corpus import Parallel, read_pairs
    from sightline.engine import load_translator

    engine = load_translator(model, device=device)
    total, tokens = 0.0, 0
    pairs = iter(read_pairs(Parallel(Path(source), Path(target))))
    for first in itertools.count(1, WINDOW):
        if not (window := list(itertools.islice(pairs, WINDOW))):
            break
        sources, targets = zip(*window, strict=True)
        for one in engine.score(sources, targets, first=first):
            total, tokens = total + one.log_prob, tokens + len(one.log_probs)
            typer.echo(json.dumps(one._asdict(), ensure_ascii=False) if as_json else f"{one.log_prob:.4f}")
    typer.echo(f"{tokens:,} tokens, perplexity {math.exp(-total / max(tokens, 1)):.3f}", err=True)
