"""`sightline demo`: translate, train a small model in a minute, and open the page with both."""

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option

from sightline.cli.console import console_sink
from sightline.cli.parameters import PORT, Port
from sightline.cli.serve import import_packages, run_service
from sightline.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

RIDDLE = [f"The animal didn't cross the street because it was too {word}." for word in ("tired", "wide")]
SENTENCES_TO_TRY = {
    "en-fr": ["Hi, how are you?", "I am a student.", "Where is the nearest station?", *RIDDLE],
    "coref": RIDDLE,
}
"""Sentences for the bundled models."""


def demo(
    out: Annotated[Path | None, Option(help="Keep the trained model in this folder.")] = None,
    serve: Annotated[bool, Option(help="Open the page with all models at the end.")] = True,
    port: Port = PORT,
) -> None:
    """See it work: translate, trace, train a small model in less than a minute, and open the page."""
    from rich.console import Console

    from sightline.config import ServeConfig

    _check(out, port if serve else None)
    console = Console(highlight=False)
    console.print("\n[bold]Sightline[/]  the Transformer, opened")
    translate(console)
    explain(console)
    with tempfile.TemporaryDirectory() as temporary:
        folder = out or Path(temporary) / "yours"
        teach(console, folder, kept=out is not None)
        if serve:
            heading(
                console,
                "Look inside",
                "The page shows all models: type a sentence and open any box of the figure down to its numbers. Press "
                "Ctrl-C to stop.",
            )
            run_service([*SENTENCES_TO_TRY, f"yours={folder}"], "127.0.0.1", port, ServeConfig(), open_page=True)
        elif out:
            console.print(f"[dim]The model is in {out}. To train on your own text, see docs/guides/train.md.[/]")


def _check(out: Path | None, port: int | None) -> None:
    """Check folder and port before the training."""
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=out).close()
        except OSError as error:
            raise InputError.of("out", out, f"cannot be written: {out}: {error.strerror}.") from None
        if any(out.iterdir()):
            raise InputError.of("out", out, f"is not empty: {out}. Choose another folder.")
    if port is not None:
        import_packages()
        from sightline.serve.app import bind

        bind("127.0.0.1", port).close()


def heading(console: "Console", title: str, text: str) -> None:
    """Print a heading and a sentence."""
    console.print()
    console.rule(f"[bold]{title}", align="left", style="dim")
    console.print(text)


def translate(console: "Console") -> None:
    """Translate with the bundled models."""
    started = time.perf_counter()
    from sightline.engine import load_translator
    from sightline.model_folder import ModelFolder

    for name, sentences in SENTENCES_TO_TRY.items():
        engine = load_translator(name, backend="torch")  # CTranslate2 would convert the model first
        count = ModelFolder(name).count_parameters() / 1e6
        heading(console, f"Translate with {name}", f"A bundled model with {count:.1f} million parameters.")
        for text, found in zip(sentences, engine.translate(sentences), strict=True):
            console.print(f"  {text}\n  [cyan]{found.text}[/]")
    console.print(f"[dim]{time.perf_counter() - started:.1f} s, mostly loading.[/]")


def explain(console: "Console") -> None:
    """Show the attention of the model when it translates "it"."""
    from rich.table import Table

    from sightline.data.builtin import riddle
    from sightline.engine import load_translator

    engine, pairs = load_translator("coref", backend="torch"), riddle()
    traces = [engine.trace(pair.source, pair.target) for pair in pairs]
    before = [trace.tokens["target"].index("▁weil") for trace in traces]  # the pronoun follows it
    last = f"decoder.layers.{engine.model.config.decoder.layers - 1}.cross_attention.probabilities"
    attention = [trace[last].values[:, at].mean(0) for trace, at in zip(traces, before, strict=True)]
    heading(
        console,
        "How the model chooses",
        "“It” is the animal (das Tier), so [bold]es[/], or the street (die Straße), so [bold]sie[/]. The table shows "
        "the cross-attention of the last layer, the mean of its heads, at the step that writes the pronoun.",
    )
    table = Table("", box=None, pad_edge=False, header_style="dim")
    for pair in pairs:
        table.add_column(f"too {pair.source_words[-2]}: {pair.target_words[pair.target_pronoun or 0]}", min_width=26)
    pieces = [trace.tokens["source"] for trace in traces]
    for piece, other, *weights in zip(*pieces, *(each.tolist() for each in attention), strict=True):
        word = piece if piece == other else f"{piece}/{other}"
        cells = (f"{weight:.3f} [cyan]{'━' * round(16 * weight)}[/]" for weight in weights)
        table.add_row(word.replace("▁", ""), *cells)
    console.print(table)
    differences = [difference for trace in traces for difference in trace.check().values()]
    console.print(
        f"[dim]{sum(len(trace.names()) for trace in traces)} tensors recorded; {len(differences)} steps recomputed "
        f"from their inputs; largest difference: {max(differences):.0e}.[/]"
    )


def teach(console: "Console", folder: Path, *, kept: bool) -> None:
    """Train the preset `tiny` on the built-in corpus, and translate the riddle before and after. `kept`: also keep the
    corpus, so that an interrupted run can be resumed."""
    import torch

    from sightline.data.builtin import riddle
    from sightline.engine import Translator
    from sightline.evaluate.grammar import grammar
    from sightline.evaluate.scores import values
    from sightline.model.transformer import build
    from sightline.model_folder import BUNDLED, EXAMPLES, load_model, load_tokenizer
    from sightline.train.lesson import RECIPE, SENTENCES, write_corpus
    from sightline.train.run import RunOptions, TextFiles, train_files

    heading(
        console,
        "Train a model",
        f"{SENTENCES:,} English sentences and their German translations, generated by a grammar. In German, “it” is "
        "er, sie or es, depending on its noun; only the last word of the sentence shows which noun that is.",
    )
    data = folder if kept else folder.parent
    training, validation = (TextFiles(pairs=[(str(file), 1.0)]) for file in write_corpus(data))
    cache = None if kept else data / "cache"
    options = RunOptions(folder, training, validation, preset="tiny", set=RECIPE, cache=cache)
    started = time.perf_counter()
    with console_sink(console) as sink:
        run = train_files(options, sink, lambda text: console.print(f"[dim]{text}[/]"), values)
    if run.stopped:
        if kept:
            console.print(f"Stopped. To continue: sightline train --out {folder} --resume")
        raise Exit(128 + run.stopped)
    seconds = time.perf_counter() - started
    shutil.copy(BUNDLED / "coref" / EXAMPLES, folder)  # both know the same words
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    torch.manual_seed(0)
    untrained, trained = Translator(build(model.config), tokenizer), Translator(model, tokenizer)
    console.print()
    for pair in riddle():
        console.print(f"  {pair.source}")
        for name, translator in (("before", untrained), ("after", trained)):
            text = translator.translate(pair.source, beams=1)[0].text
            right = "[green]right[/]" if text == pair.target else "[red]wrong[/]"
            shown = text if len(text) <= 60 else f"{text[:59]}…"
            console.print(f"    {name:7} {shown or '(nothing)'}  {right}")
    found = grammar(trained)
    console.print(
        f"\n  {seconds:.0f} s of training. Of 1,000 unseen sentences, {found.exact:.1%} are translated exactly, and "
        f"{found.pronouns:.1%} of their pronouns are right."
    )
