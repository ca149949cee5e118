"""One training step (forward, loss, backward, Adam) of Sightline, Hugging Face Marian and torch.nn.Transformer.

All use the same sizes, sentences and precision, in one process. Each is timed in several rounds and its best round
counts, because noise only makes a round slower. Sightline runs the step of `sightline train`: on a GPU compiled,
recorded as a CUDA graph, with the loss fused with the classifier. The others are compiled as a whole, with torch's
fused Adam.

    python benchmarks/step.py --size base                       # on a GPU: bfloat16, sentences of 32 tokens
    python benchmarks/step.py --size base --pairs PAIRS.tsv     # the lengths of real sentences
    python benchmarks/step.py --size tiny --pairs PAIRS.tsv --vocabulary 10000      # on a CPU: float32, eager

PAIRS is a TSV of sentence pairs, plain or compressed, for instance Tatoeba's English-German pairs from
manythings.org/anki. With real lengths, padding does not count as tokens; the others get batches of similar length with
one sentence per row, as their own tools make them. Needs the development dependencies (transformers). Writes the result
to benchmarks/results/.
"""

import argparse
import gc
import itertools
import logging
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import keep, where
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from sightline.config import TrainConfig, load
from sightline.data.batches import Batch
from sightline.data.corpus import Table, read_pairs
from sightline.data.examples import prepare
from sightline.data.feed import Feed, Place, Update
from sightline.model.protocol import Inputs
from sightline.model.transformer import build
from sightline.special import PAD
from sightline.text.tokenizer import Tokenizer
from sightline.train.step import Step

Logits = Callable[[Tensor, Tensor, Tensor | None], Tensor]
Go = Callable[[Batch], None]
Systems = dict[str, tuple[Callable[[], Go], list[Batch]]]


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with embeddings, positions and classifier."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = nn.Buffer(torch.randn(256, config.d_model))
        self.dropout = nn.Dropout(config.dropout)
        self.transformer = nn.Transformer(
            config.d_model,
            config.encoder.heads,
            config.encoder.layers,
            config.decoder.layers,
            config.encoder.d_ff,
            config.dropout,
            batch_first=True,
        )

    def forward(self, source: Tensor, target: Tensor, layout: Tensor | None = None) -> Tensor:
        scale = math.sqrt(self.embedding.embedding_dim)
        x = self.dropout(self.embedding(source) * scale + self.positions[: source.shape[1]])
        y = self.dropout(self.embedding(target) * scale + self.positions[: target.shape[1]])
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        padding = None if layout is None else ~layout
        out = self.transformer(
            x, y, tgt_mask=mask, tgt_is_causal=True, src_key_padding_mask=padding, memory_key_padding_mask=padding
        )
        return F.linear(out, self.embedding.weight)


def hugging_face(config: Any) -> tuple[nn.Module, Logits]:
    """Return Marian with torch's fused attention."""
    model = MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            encoder_layers=config.encoder.layers,
            decoder_layers=config.decoder.layers,
            encoder_attention_heads=config.encoder.heads,
            decoder_attention_heads=config.decoder.heads,
            encoder_ffn_dim=config.encoder.d_ff,
            decoder_ffn_dim=config.decoder.d_ff,
            activation_function="relu",
            dropout=config.dropout,
            scale_embedding=True,
            max_position_embeddings=256,
            pad_token_id=0,
            decoder_start_token_id=0,
            use_cache=False,
        )
    )
    model.set_attn_implementation("sdpa")
    return model, lambda source, target, layout: model(source, attention_mask=layout, decoder_input_ids=target).logits


def torch_transformer(config: Any) -> tuple[nn.Module, Logits]:
    """Return torch.nn.Transformer."""
    model = TorchTransformer(config)
    return model, model


def sightline(config: Any, device: torch.device) -> Go:
    """Return the step of `sightline train`."""
    cuda = device.type == "cuda"
    model = build(config).to(device).train()
    options = TrainConfig(optimizer="adamw", smoothing=0.1)
    step = Step(model, options, device, bfloat16=cuda, compiled=cuda, graphs=cuda)
    count = itertools.count(1)
    return lambda batch: step(Update([(0, batch)], batch.tokens, 0, Place(), 0.0), next(count), 1e-4)


def other(model: nn.Module, logits: Logits, device: torch.device, dynamic: bool | None) -> Go:
    """Return a training step for another model, compiled on a GPU."""
    cuda = device.type == "cuda"
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def loss(source: Tensor, target: Tensor, wanted: Tensor, layout: Tensor | None) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            scores = logits(source, target, layout)
            return F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), label_smoothing=0.1, ignore_index=PAD)

    run = torch.compile(loss, dynamic=dynamic) if cuda else loss

    def go(batch: Batch) -> None:
        given: Any = batch.to(device)
        run(given.inputs.source, given.inputs.target, given.targets, given.inputs.source_layout).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return go


def measure(systems: Systems, rounds: int) -> Iterator[tuple[str, float, float]]:
    """Yield the name of each system, the seconds of its best round, and its peak memory in GiB (on a GPU).

    On a GPU, systems are measured one after another, because they would share its memory. On a CPU they take turns
    round by round, so that noise affects all of them.
    """
    if torch.cuda.is_available():
        for name, system in systems.items():
            torch.compiler.reset()
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            times = _rounds({name: system}, rounds)
            yield name, min(times[name]), torch.cuda.max_memory_allocated() / 2**30
    else:
        for name, found in _rounds(systems, rounds).items():
            yield name, min(found), math.nan


def _rounds(systems: Systems, rounds: int) -> dict[str, list[float]]:
    ready = {name: (make(), batches) for name, (make, batches) in systems.items()}
    for go, batches in ready.values():
        for batch in batches * (1 if len(batches) > 2 else 3):
            go(batch)
    times: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, (go, batches) in ready.items():
            started = _now()
            for batch in batches:
                go(batch)
            times[name].append(_now() - started)
    return times


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def random_batches(tokens: int, length: int, words: int, device: torch.device, count: int) -> list[Batch]:
    """Return a batch of random sentences, `count` times."""
    source, given, wanted = (torch.randint(4, words, (tokens // length, length), device=device) for _ in range(3))
    return [Batch(Inputs(source, given), wanted, tokens)] * count


def real_batches(path: Path, tokens: int, words: int, shared: bool, count: int) -> list[Batch]:
    """Return batches of real sentences, packed into rows or padded."""
    corpus, folder = Table(path), Path(tempfile.gettempdir()) / "sightline-benchmark"
    tokenizer = Tokenizer.train((text for pair in read_pairs(corpus) for text in pair), min(words, 16_000))
    feed = Feed(
        prepare([corpus], tokenizer, folder), batch_tokens=tokens, seed=1, rows="shared" if shared else "padded"
    )
    return [feed.batch(Place(0, number)) for number in range(count)]


def useful(batches: list[Batch]) -> int:
    """Count the tokens of both sides without padding."""
    sides = [side for batch in batches for side in (batch.inputs.source, batch.inputs.target) if side is not None]
    return sum(int((side != PAD).sum()) for side in sides)


def main() -> None:
    """Measure, print a table and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="base", help="a preset: tiny, base, big")
    parser.add_argument("--tokens", type=int, help="tokens per step and side; 25,600 on a GPU, 2,048 on a CPU")
    parser.add_argument("--length", type=int, default=32, help="tokens of each random sentence")
    parser.add_argument("--pairs", type=Path, help="use the sentences of this file")
    parser.add_argument("--vocabulary", type=int, default=32_768, help="vocabulary size of the models")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--batches", type=int, default=5, help="steps per round")
    parser.add_argument("--without", nargs="*", default=[], help="systems to skip, by a part of their name")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokens = options.tokens or (25_600 if device.type == "cuda" else 2_048)
    config = load(options.size, sets=[f"model.vocab_size={options.vocabulary}"]).model
    if options.pairs:
        sharing = device.type == "cuda"
        own = real_batches(options.pairs, tokens, options.vocabulary, sharing, options.batches)
        theirs = real_batches(options.pairs, tokens, options.vocabulary, False, options.batches)
    else:
        own = theirs = random_batches(tokens, options.length, options.vocabulary, device, options.batches)
    dynamic = True if options.pairs else None
    systems: Systems = {
        "Sightline": (lambda: sightline(config, device), own),
        "Hugging Face Marian": (lambda: other(*hugging_face(config), device, dynamic), theirs),
        "torch.nn.Transformer": (lambda: other(*torch_transformer(config), device, dynamic), theirs),
    }
    settings = {"size": options.size, "tokens a side": tokens, "vocabulary": options.vocabulary}
    settings |= {"sentences of": options.pairs.name if options.pairs else f"{options.length} tokens"}
    rows: dict[str, dict[str, float]] = {}
    systems = {name: one for name, one in systems.items() if not any(part in name for part in options.without)}
    for name, seconds, memory in measure(systems, options.rounds):
        batches = systems[name][1]
        row = {"ms": round(seconds / len(batches) * 1e3, 2), "tokens/s": round(useful(batches) / seconds)}
        rows[name] = row | ({"GiB": round(memory, 2)} if device.type == "cuda" else {})
        against = ""
        if name != "Sightline" and "Sightline" in rows:
            ratio = round(rows["Sightline"]["tokens/s"] / row["tokens/s"], 2)
            rows["Sightline"][f"speed against {name}"] = ratio
            against = f"  Sightline is {ratio:.2f} × as fast"
        print(f"{name:22} {row['ms']:9.2f} ms {row['tokens/s']:>11,} tokens/s {memory:6.2f} GiB{against}", flush=True)
        result = {"where": where("transformers"), "settings": settings, "results": rows}
        path = keep(f"step-{options.size}-{device.type}{'-real' if options.pairs else ''}", result)
    print(f"kept in {path}")


if __name__ == "__main__":
    main()
