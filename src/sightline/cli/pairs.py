"""`sightline score`, `align` and `shortlist`: commands for texts and their given translations."""

import json
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, echo

from sightline.cli.console import log
from sightline.cli.parameters import Model, Source, Strings, Target, check_as_many, option
from sightline.errors import InputError


def score(
    model: Model,
    source: Source,
    target: Target,
    as_json: Annotated[bool, Option("--json", help="Print a JSON object per pair, with every token.")] = False,
    device: str = option("LoadOptions", "device"),
) -> None:
    """Print the log-probability of each pair, and the perplexity of all pairs to standard error."""
    import math

    from sightline.bulk.pairs import read_windows
    from sightline.data.corpus import Parallel
    from sightline.engine import load_translator

    engine = load_translator(model, device=device)
    total, tokens = 0.0, 0
    for first, sources, targets in read_windows([Parallel(source, target)]):
        for one in engine.score(sources, targets, first=first):
            total, tokens = total + one.log_prob, tokens + len(one.log_probs)
            echo(json.dumps(one._asdict(), ensure_ascii=False) if as_json else f"{one.log_prob:.4f}")
    log(f"{tokens:,} tokens, perplexity {math.exp(-total / max(tokens, 1)):.3f}")


def align(
    model: Model,
    source: Source,
    target: Target,
    gold: Annotated[Path | None, Option(help="Correct links, line by line, to compare with.")] = None,
    choose: Annotated[
        bool, Option("--choose", help="Choose the heads that agree best with --gold, and store them with the model.")
    ] = False,
    device: str = option("LoadOptions", "device"),
) -> None:
    """Align the words of each pair by the attention of the model.

    Print links as 0-0 1-2: source word and target word, counted from 0. With --gold, also print the error rate of all
    pairs to standard error.
    """
    from sightline.bulk.pairs import read_windows
    from sightline.data.corpus import Parallel, lines, read_pairs
    from sightline.engine import load_translator
    from sightline.evaluate.align import agreement, choose_heads, save_choice
    from sightline.model_folder import ModelFolder
    from sightline.search.align import read_pharaoh, write_pharaoh

    if choose and gold is None:
        raise InputError.of("choose", True, "needs gold links. Name them by `gold`.")
    gold_links = [read_pharaoh(line, f"{gold}:{i}") for i, line in enumerate(lines(gold), 1)] if gold else []
    engine = load_translator(model, device=device, backend="torch")
    pairs = Parallel(source, target)
    if choose:
        sources, targets = zip(*read_pairs(pairs), strict=True)
        choice = choose_heads(engine, sources, targets, gold_links)
        save_choice(ModelFolder(model).cache, choice)
        names = ", ".join(f"{layer}.{head}" for layer, head in choice.heads.heads)
        log(f"heads {names} (layer.head), at the step that {choice.heads.step} a word")
        log(f"error rate on the {choice.pairs:,} pairs they were chosen by: {choice.error:.4f}")
        return
    found = []
    for first, sources, targets in read_windows([pairs]):
        for links in engine.align(sources, targets, first=first):
            echo(write_pharaoh(links))
            found += [links] if gold else []
    if gold:
        error, precision, recall = agreement(found, gold_links)
        log(f"error rate {error:.4f}, precision {precision:.4f}, recall {recall:.4f}")


def shortlist(
    model: Annotated[str, Argument(help="Folder or name of a model; the shortlist is written there.")],
    source: Annotated[Strings, Option(help="Source text, one sentence per line.")] = None,
    target: Annotated[Strings, Option(help="Its translation, one file for each --source.")] = None,
    pairs: Annotated[Strings, Option(help="Pairs: .tsv (source, tab, target) or .jsonl.")] = None,
    often: int | None = option("ShortlistOptions", "often"),
    likely: int = option("ShortlistOptions", "likely"),
) -> None:
    """Learn which tokens a translation may need, for faster search.

    Learn from the training pairs, if possible. The option --shortlist of translate and evaluate then searches only
    among these tokens.
    """
    from sightline.bulk.pairs import learn_shortlist
    from sightline.data.corpus import Corpus, Parallel, Table

    check_as_many(source, target)
    corpora: list[Corpus] = [Parallel(Path(s), Path(t)) for s, t in zip(source or [], target or [], strict=True)]
    corpora += [Table(Path(path)) for path in pairs or []]
    if not corpora:
        raise InputError.of("pairs", pairs, "is missing. Name files with `pairs`, or with `source` and `target`.")
    file, found = learn_shortlist(model, corpora, often=often, likely=likely)
    mean = len(found.likely) / (len(found.starts) - 1)
    log(
        f"{len(found.always):,} tokens are always allowed, and {mean:.1f} for each source token on average; they cover "
        f"{100 * found.coverage:.2f} % of the target tokens in held-out pairs"
    )
    echo(str(file))
