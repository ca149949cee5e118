"""`sightline demo`: a translation at once, a model that learns before your eyes, and the page with both."""

import contextlib
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

RIDDLE = [f"The animal didn't cross the street because it was too {word}." for word in ("tired", "wide")]
SAID = {
    "en-fr": ["Hi, how are you?", "I am a student.", "Where is the nearest station?", *RIDDLE],
    "coref": RIDDLE,
}
"""What the models that come with Sightline are asked."""
SENTENCES = 30_000
RECIPE = [
    "model.encoder.layers=2",
    "model.decoder.layers=2",
    "model.dropout=0.05",
    "data.vocab_size=1200",
    "train.steps=320",
    "train.batch_tokens=1024",
    "train.learning_rate=0.007",
    "train.warmup=50",
    "train.smoothing=0.0",
    "train.ema=0.98",
    "train.validate_every=160",
    "train.report_every=10",
]
"""What differs from the preset: so regular a language needs half the layers, less dropout and fewer steps than a real
one, and as it has one right answer to every sentence, no smoothing."""


def demo(
    out: Annotated[Path | None, typer.Option(help="Keep the model that is trained in this folder.")] = None,
    serve: Annotated[bool, typer.Option(help="Open the page with all models at the end.")] = True,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the page; 0 takes one that is free.")] = 8000,
) -> None:
    """Translate, see how, train a model before your eyes (less than a minute), and open the page with all of them."""
    import tempfile

    from rich.console import Console

    _check(out, port if serve else None)
    console = Console(highlight=False)
    console.print()
    console.print("[bold]Sightline[/]  the Transformer, opened")
    translate(console)
    explain(console)
    with tempfile.TemporaryDirectory() as beside:
        folder = out or Path(beside) / "yours"
        teach(console, folder, kept=out is not None)
        if serve:
            show(console, folder, port)
        elif out:
            console.print(f"[dim]The model is in {out}. Next: docs/guides/train.md does it with your own text.[/]")


def _check(out: Path | None, port: int | None) -> None:
    """What cannot be is told at once, and not after the training."""
    import tempfile

    from sightline.cli.serve import needed
    from sightline.errors import InputError

    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            taken = any(out.iterdir())
            tempfile.TemporaryFile(dir=out).close()  # it can be written
        except FileExistsError:  # a file
            taken = True
        except OSError as error:
            raise InputError(f"{out}: cannot be written: {error.strerror}.") from None
        if taken:
            raise InputError(f"{out}: there is something here already; choose another --out.")
    if port is not None:
        with needed():
            from sightline.serve.app import bind
        bind("127.0.0.1", port).close()


def heading(console: "Console", title: str, text: str) -> None:
    """A headline and a sentence below it."""
    console.print()
    console.rule(f"[bold]{title}", align="left", style="dim")
    console.print(text)


def translate(console: "Console") -> None:
    """What the shipped models say."""
    started = time.perf_counter()
    from sightline.engine import load
    from sightline.model_folder import ModelFolder, bundled_models

    for name in (name for name in SAID if name in bundled_models()):
        engine = load(name, engine="torch")  # the same answers as by CTranslate2, and nothing to be converted first
        count = ModelFolder(name).count_parameters()
        heading(console, f"Translate with {name}", f"It comes with Sightline: {count / 1e6:.1f} million parameters.")
        for text, found in zip(SAID[name], engine.translate(SAID[name]), strict=True):
            console.print(f"  {text}")
            console.print(f"  [cyan]{found.text}[/]")
    console.print(f"[dim]{time.perf_counter() - started:.1f} s, most of them for loading.[/]")


def explain(console: "Console") -> None:
    """Where the model looks when it has to decide what "it" is."""
    from rich.table import Table

    from sightline.data.builtin import riddle
    from sightline.engine import load

    engine, pairs = load("coref", engine="torch"), riddle()
    traces = [engine.trace(pair.source, pair.target) for pair in pairs]
    before = [trace.tokens["target"].index("▁weil") for trace in traces]  # the pronoun is written behind it
    last = f"decoder.layers.{engine.model.config.decoder.layers - 1}.cross_attention.probabilities"
    looks = [trace[last].values[:, at].mean(0) for trace, at in zip(traces, before, strict=True)]
    heading(
        console,
        "How it knows",
        "“It” is the animal, das Tier, so [bold]es[/]; or the street, die Straße, so [bold]sie[/]. Here is where the "
        "model looks just before it writes one or the other: the mean of all heads of its last cross-attention.",
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    for pair in pairs:
        table.add_column(f"too {pair.source_words[-2]}: {pair.target_words[pair.target_pronoun or 0]}", min_width=26)
    rows = zip(traces[0].tokens["source"], *(look.tolist() for look in looks), strict=True)
    for number, (piece, *weights) in enumerate(rows):
        other = traces[1].tokens["source"][number]
        word = piece if piece == other else f"{piece}/{other}"
        cells = (f"{weight:.3f} [cyan]{'━' * round(16 * weight)}[/]" for weight in weights)
        table.add_row(word.replace("▁", ""), *cells)
    console.print(table)
    differences = [difference for trace in traces for difference in trace.check().values()]
    console.print(
        f"[dim]{sum(len(trace.names()) for trace in traces)} tensors recorded; {len(differences)} steps computed again "
        f"from their inputs; largest difference to what ran: {max(differences):.0e}.[/]"
    )


def teach(console: "Console", folder: Path, *, kept: bool) -> None:
    """Train the preset `tiny` on the built-in corpus, with the riddle before and after. Where the folder is kept, so is
    the corpus, by which a run that was stopped can go on."""
    import torch

    from sightline.data.builtin import generate, riddle
    from sightline.evaluate.grammar import grammar, translations
    from sightline.evaluate.scores import values
    from sightline.model.transformer import EncoderDecoder
    from sightline.model_folder import BUNDLED, EXAMPLES, load_model, load_tokenizer
    from sightline.train.run import RunOptions, TextFiles, train_files
    from sightline.train.sinks import Lines, ProgressBar

    heading(
        console,
        "Teach one",
        f"{SENTENCES:,} English sentences and their German translations, from a grammar made for this. In German, “it” "
        "is er, sie or es by the noun it stands for; which noun that is, only the last word of the sentence tells.",
    )
    with contextlib.ExitStack() as after:
        beside = folder if kept else folder.parent
        beside.mkdir(parents=True, exist_ok=True)
        training, testing = beside / "train.tsv", beside / "dev.tsv"
        training.write_text("".join(f"{p.source}\t{p.target}\n" for p in generate("train", SENTENCES)), "utf-8")
        testing.write_text("".join(f"{p.source}\t{p.target}\n" for p in generate("dev", 200)), "utf-8")
        options = RunOptions(
            folder,
            TextFiles(pairs=[(str(training), 1.0)]),
            TextFiles(pairs=[(str(testing), 1.0)]),
            preset="tiny",
            set=RECIPE,
            cache=None if kept else beside / "cache",
        )
        tell = ProgressBar(console) if console.is_terminal else Lines(console)
        if isinstance(tell, ProgressBar):
            after.callback(tell.close)
        started = time.perf_counter()
        run = train_files(options, tell, lambda text: console.print(f"[dim]{text}[/]"), values)
    if run.stopped:
        if kept:
            console.print(f"Stopped; sightline train --out {folder} --resume goes on.")
        raise typer.Exit(128 + run.stopped)
    seconds = time.perf_counter() - started
    shutil.copy(BUNDLED / "coref" / EXAMPLES, folder)  # it has learnt the same words
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    if not isinstance(model, EncoderDecoder):
        raise TypeError(type(model))
    torch.manual_seed(0)
    fresh = EncoderDecoder(model.config).eval()
    console.print()
    for pair in riddle():
        console.print(f"  {pair.source}")
        for name, one in (("before", fresh), ("after", model)):
            (text,) = translations(one, tokenizer, [pair.source])
            right = "[green]right[/]" if text == pair.target else "[red]wrong[/]"
            shown = text if len(text) <= 60 else f"{text[:59]}…"
            console.print(f"    {name:7} {shown or '(nothing)'}  {right}")
    found = grammar(model, tokenizer)
    console.print()
    console.print(
        f"  {seconds:.0f} s of training. Of 1,000 sentences it has not seen, {found.exact:.1%} are right to the "
        f"letter, and {found.pronouns:.1%} of the pronouns."
    )


def show(console: "Console", folder: Path, port: int) -> None:
    """The page, until Ctrl-C."""
    from sightline.cli.serve import serve
    from sightline.model_folder import bundled_models

    heading(
        console,
        "Look inside",
        "The page has all of them: type your own sentence, and open any box of the figure down to its numbers. "
        "Ctrl-C ends.",
    )
    serve([*(name for name in SAID if name in bundled_models()), f"yours={folder}"], port=port, open_page=True)
