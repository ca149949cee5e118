"""`sightline shortlist`: which words a translation may need, learnt from pairs, so that it is found faster."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

CHUNK = 10_000


def shortlist(
    model: Annotated[str, typer.Argument(help="The folder or the name of a trained model, with which it is kept.")],
    source: Annotated[list[str] | None, typer.Option(help="Source text, a sentence a line; may be repeated.")] = None,
    target: Annotated[list[str] | None, typer.Option(help="Its translation; as many as there are --source.")] = None,
    pairs: Annotated[
        list[str] | None, typer.Option(help="Pairs: .tsv (source, tab, target) or .jsonl; may be repeated.")
    ] = None,
    often: Annotated[
        int | None, typer.Option(help="So many of the most frequent tokens may always come; two fifths if left out.")
    ] = None,
    likely: Annotated[int, typer.Option(help="Each source token allows so many that it is likely to become.")] = 200,
) -> None:
    """Learn from pairs, best those of the training, which tokens a translation may need. With --shortlist, translate
    and evaluate then search among these alone."""
    from sightline.backends.ctranslate2_format import save_shortlist
    from sightline.data.corpus import Corpus, Parallel, Table, read_pairs
    from sightline.errors import InputError
    from sightline.model_folder import SHORTLIST, ModelFolder
    from sightline.text.shortlist import learn

    if len(source or []) != len(target or []):
        raise InputError(
            f"there are {len(source or [])} --source and {len(target or [])} --target; they come in pairs."
        )
    corpora: list[Corpus] = [Parallel(Path(s), Path(t)) for s, t in zip(source or [], target or [], strict=True)]
    corpora += [Table(Path(path)) for path in pairs or []]
    if not corpora:
        raise InputError("there is nothing to learn from; name files by --source and --target, or --pairs.")
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
        f"{len(found.always):,} tokens may always come, and {mean:.1f} for each source token (on average); these are "
        f"{100 * found.coverage:.2f} % of the target tokens in pairs that were not learnt from",
        err=True,
    )
    typer.echo(str(folder.cache / SHORTLIST))
