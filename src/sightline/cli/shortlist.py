"""`sightline shortlist`: learn from pairs which tokens a translation may need, for a faster search."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from sightline.errors import InputError

CHUNK = 10_000


def shortlist(
    model: Annotated[str, typer.Argument(help="Folder or name of a model; the shortlist is written there.")],
    source: Annotated[
        list[str] | None, typer.Option(help="Source text, one sentence per line; may be repeated.")
    ] = None,
    target: Annotated[list[str] | None, typer.Option(help="Its translation, one file for each --source.")] = None,
    pairs: Annotated[
        list[str] | None, typer.Option(help="Pairs: .tsv (source, tab, target) or .jsonl; may be repeated.")
    ] = None,
    often: Annotated[
        int | None,
        typer.Option(help="Number of frequent tokens that are always allowed; default two fifths of the vocabulary."),
    ] = None,
    likely: Annotated[int, typer.Option(help="Number of likely target tokens that each source token allows.")] = 200,
) -> None:
    """Learn from pairs, preferably those of the training, which tokens a translation may need. With --shortlist,
    translate and evaluate search only among these."""
    from sightline.backends.ctranslate2_format import save_shortlist
    from sightline.data.corpus import Corpus, Parallel, Table, read_pairs
    from sightline.model_folder import SHORTLIST, ModelFolder
    from sightline.text.shortlist import learn

    if len(source or []) != len(target or []):
        count = len(source or []), len(target or [])
        message = f"`source` and `target` need the same number of files, got {count[0]} and {count[1]}."
        raise InputError(message, option="target", value=count[1])
    corpora: list[Corpus] = [Parallel(Path(s), Path(t)) for s, t in zip(source or [], target or [], strict=True)]
    corpora += [Table(Path(path)) for path in pairs or []]
    if not corpora:
        message = "`pairs` is missing. Name files with `pairs`, or with `source` and `target`."
        raise InputError(message, option="pairs", value=pairs)
    folder = ModelFolder(model)
    tokenizer = folder.load_tokenizer()

    def tokenised(texts: Iterable[tuple[str, str]]) -> Iterator[tuple[list[int], list[int]]]:
        rest = iter(texts)
        while some := list(islice(rest, CHUNK)):
            sources, targets = zip(*some, strict=True)
            yield from zip(tokenizer.source.encode(sources), tokenizer.encode(targets), strict=True)

    read = (pair for corpus in corpora for pair in read_pairs(corpus))
    found = learn(tokenised(read), tokenizer, often=often, likely=likely)
    save_shortlist(found, tokenizer, folder.cache)
    mean = len(found.likely) / tokenizer.size
    typer.echo(
        f"{len(found.always):,} tokens are always allowed, and {mean:.1f} for each source token on average; they cover "
        f"{100 * found.coverage:.2f} % of the target tokens in held-out pairs",
        err=True,
    )
    typer.echo(str(folder.cache / SHORTLIST))
