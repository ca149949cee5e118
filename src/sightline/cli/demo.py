"""`sightline demo`: what there is to see, on one sentence, with real numbers."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from sightline.engine import Engine
    from sightline.model.transformer import EncoderDecoder, EncoderOnly

RIDDLE = "The animal didn't cross the street because it was too tired ."
ANSWER = "Das Tier überquerte die Straße nicht , weil es zu müde war ."
WORD = "it"
SENTENCES = 30_000
RECIPE = [
    "data.vocab_size=1200",
    "model.dropout=0.05",
    "train.steps=320",
    "train.batch_tokens=1024",
    "train.learning_rate=0.007",
    "train.warmup=50",
    "train.smoothing=0.0",
    "train.ema=0.98",
    "train.validate_every=160",
    "train.report_every=10",
]
"""What differs from the preset: so regular a language needs less dropout and fewer steps than a real one, and as it has
one right answer to every sentence, no smoothing."""


def demo(
    out: Annotated[Path | None, typer.Option(help="Keep the model that is trained in this folder.")] = None,
) -> None:
    """Look inside a Transformer, then train one before your eyes (about a minute), and ask it the riddle of "it"."""
    from rich.console import Console

    console = Console(highlight=False)
    show(console)
    teach(console, out)


def show(console: "Console") -> None:
    """The whole walk. Every number is computed here and now."""
    import torch

    from sightline.config import ModelConfig, load
    from sightline.model.transformer import EncoderDecoder, EncoderOnly

    torch.manual_seed(0)
    words = sorted({*RIDDLE.split(), *ANSWER.split(), "Qian", "killed", "you", "<class>"})
    ids = {word: i for i, word in enumerate(words)}
    translator = EncoderDecoder(load("tiny", sets=[f"model.vocab_size={len(words)}"]).model).eval()
    reader = EncoderOnly(ModelConfig(architecture="encoder-only", vocab_size=len(words), d_model=128)).eval()

    def tensor(text: str) -> "Tensor":
        return torch.tensor([[ids[word] for word in text.split()]])

    count = sum(parameter.numel() for parameter in translator.parameters())
    console.print()
    console.print("[bold]Sightline[/]  the Transformer, opened")
    console.print(
        f"[dim]A new encoder-decoder, {count:,} parameters drawn at random: it knows nothing yet, "
        "but everything in it already runs as it will when it is trained.[/]"
    )
    with torch.no_grad():
        attention(console, translator, tensor(RIDDLE), tensor(ANSWER))
        order(console, reader, tensor("<class> Qian killed you"), tensor("<class> you killed Qian"))
        look_ahead(console, translator, tensor(RIDDLE), tensor(ANSWER))
        cache(console, translator, tensor(RIDDLE))


def teach(console: "Console", out: Path | None) -> None:
    """Train the preset `tiny` on the built-in corpus, with the riddle before and after."""
    import tempfile

    import torch

    from sightline.checkpoint import load_model, load_tokenizer
    from sightline.data.builtin import generate, riddle
    from sightline.engine import Engine
    from sightline.evaluate.grammar import grammar, translations
    from sightline.evaluate.scores import values
    from sightline.model.transformer import EncoderDecoder
    from sightline.train.run import Inputs, Request, train_files
    from sightline.train.sinks import Lines, ProgressBar

    heading(
        console,
        "Teach one",
        f"{SENTENCES:,} English sentences and their German translations, from a grammar made for this. In German, “it” "
        "is er, sie or es by the noun it stands for; which noun that is, only the last word of the sentence tells.",
    )
    bar = ProgressBar(console) if console.is_terminal else None
    with tempfile.TemporaryDirectory() as beside:
        folder = out or Path(beside) / "model"
        training, testing = Path(beside) / "train.tsv", Path(beside) / "dev.tsv"
        training.write_text("".join(f"{p.source}\t{p.target}\n" for p in generate("train", SENTENCES)), "utf-8")
        testing.write_text("".join(f"{p.source}\t{p.target}\n" for p in generate("dev", 200)), "utf-8")
        request = Request(
            folder,
            Inputs(pairs=[(str(training), 1.0)]),
            Inputs(pairs=[(str(testing), 1.0)]),
            preset="tiny",
            sets=RECIPE,
            cache=Path(beside) / "cache",
        )
        started = time.perf_counter()
        try:
            run = train_files(request, bar or Lines(console), lambda text: console.print(f"[dim]{text}[/]"), values)
        finally:
            if bar:
                bar.close()
        if run.stopped:
            raise typer.Exit(128 + run.stopped)
        seconds = time.perf_counter() - started
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
        link_words(console, Engine([model], tokenizer), folder)
    console.print()
    kept = f"The model is in {out}. " if out else ""
    console.print(f"[dim]{kept}Next: docs/guides/train.md does it with your own text.[/]")


def heading(console: "Console", title: str, text: str) -> None:
    """A numberless headline and a sentence below it."""
    console.print()
    console.rule(f"[bold]{title}", align="left", style="dim")
    console.print(text)


def link_words(console: "Console", engine: "Engine", folder: Path) -> None:
    """Choose the heads that show best which word comes from which, and say how good they are on other sentences."""
    from sightline.data.builtin import generate
    from sightline.evaluate.align import agreement, choose_heads, gold_of, save_choice

    chosen, tested = list(generate("dev", 200)), list(generate("test", 200))
    gold = [gold_of(pair) for pair in chosen]
    choice = choose_heads(engine, [pair.source for pair in chosen], [pair.target for pair in chosen], gold)
    save_choice(folder, choice)
    engine.heads = choice.heads
    links = engine.align([pair.source for pair in tested], [pair.target for pair in tested])
    right = agreement(links, [gold_of(pair) for pair in tested]).precision
    console.print(
        f"  By where {len(choice.heads.heads)} of its heads look, {right:.0%} of the German words are linked to the "
        "English word they translate."
    )


def attention(console: "Console", model: "EncoderDecoder", source: "Tensor", target: "Tensor") -> None:
    """One row of one head, as the paper's equation 1 computes it."""
    from rich.table import Table

    from sightline.trace.record import tracing

    words = RIDDLE.split()
    with tracing(model) as trace:
        model(source, target)
    path, head, row = "encoder.layers.0.self_attention", 0, words.index(WORD)
    one = trace.sentence(0)
    scores, scaled, probabilities = (
        one[f"{path}.{name}"].values[head, row] for name in ("scores", "scaled", "probabilities")
    )
    d_k = one[f"{path}.q"].values.shape[-1]
    heading(
        console,
        f"What “{WORD}” looks at",
        f"Encoder layer 1, head 1 of 4. Its query meets every word's key; d_k is {d_k}, so √d_k is {d_k**0.5:.2f}.",
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("key")
    for column in ("q·k", "÷ √d_k", "softmax"):
        table.add_column(column, justify="right")
    table.add_column("")
    widest = probabilities.max().item()
    for word, score, divided, probability in zip(words, scores, scaled, probabilities, strict=True):
        bar = "━" * round(24 * probability.item() / widest)
        table.add_row(word, f"{score:+.3f}", f"{divided:+.3f}", f"{probability:.3f}", f"[cyan]{bar}[/]")
    table.add_row("", "", "[dim]sum[/]", f"[dim]{probabilities.sum():.3f}[/]", "")
    console.print(table)
    differences = trace.check()
    console.print(
        f"[dim]{len(trace.names())} tensors recorded; {len(differences)} steps computed again from their inputs; "
        f"largest difference to what the fused kernels gave: {max(differences.values()):.0e}.[/]"
    )


def order(console: "Console", model: "EncoderOnly", one: "Tensor", other: "Tensor") -> None:
    """Positions: what order changes, and what happens without them."""
    from sightline.trace.what_if import what_if

    def distance() -> float:
        return (model.encoder(one)[:, 0] - model.encoder(other)[:, 0]).abs().max().item()

    heading(
        console,
        "Why positions",
        "The class token reads “Qian killed you” and “you killed Qian”. How far apart are its two vectors?",
    )
    console.print(f"  with positions      {distance():.6f}")
    with what_if(model, without=["positions"]):
        console.print(f"  without positions   {distance():.6f}   the two sentences are one to it")


def look_ahead(console: "Console", model: "EncoderDecoder", source: "Tensor", target: "Tensor") -> None:
    """The look-ahead mask: nothing before a word depends on it."""
    from sightline.trace.what_if import what_if

    changed = target.clone()
    changed[0, -1] = 0

    def leak() -> float:
        return (model(source, target) - model(source, changed))[:, :-1].abs().max().item()

    heading(console, "Why the mask", "The last target word is replaced. How much do the scores before it move?")
    console.print(f"  with the look-ahead mask      {leak():.6f}")
    with what_if(model, without=["look-ahead-mask"]):
        console.print(f"  without it                    {leak():.6f}   it could read the answer off the page")


def cache(console: "Console", model: "EncoderDecoder", source: "Tensor") -> None:
    """The cache: the same numbers, each computed once."""
    import torch

    steps = 150

    def greedy(logits_of: Any) -> tuple["Tensor", float]:
        target, started = torch.zeros(1, 1, dtype=torch.long), time.perf_counter()
        for _ in range(steps):
            target = torch.cat([target, logits_of(target)[:, -1:].argmax(-1)], 1)
        return target, time.perf_counter() - started

    encoded = model.encoder(source)
    model.decode(torch.zeros(1, 1, dtype=torch.long), encoded)  # the first pass of a process is slow
    kept = model.new_cache(encoded, capacity=steps)
    slow, slow_time = greedy(lambda target: model.classifier(model.decode(target, encoded)))
    fast, fast_time = greedy(lambda target: model.step(target[:, -1:], kept))
    heading(console, "Why a cache", f"{steps} words, one after another, by the best score.")
    console.print(f"  everything again at each word   {slow_time * 1e3:6.0f} ms")
    same = "the same words" if torch.equal(slow, fast) else "OTHER WORDS"
    console.print(f"  keys and values kept            {fast_time * 1e3:6.0f} ms   {same}")
