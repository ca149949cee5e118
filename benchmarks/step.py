"""One training step (forward, loss, backward, Adam) of Sightline, Hugging Face Marian and torch.nn.Transformer.

The same sizes, the same tokens, the same precision, one after another in one process. Each is timed in several rounds
and its best round counts, because what disturbs a measurement only ever makes it slower.

    python benchmarks/step.py --size base            # on a GPU: bfloat16, compiled
    python benchmarks/step.py --size tiny            # on a CPU: float32, eager

Needs the development dependencies (transformers). The result goes to benchmarks/results/.
"""

import argparse
import gc
import logging
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from common import keep, where
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from sightline.config import load
from sightline.model.mask import Packing
from sightline.model.transformer import build

VOCAB = 32_768
Loss = Callable[[Tensor, Tensor], Tensor]


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with what it leaves to the user: embeddings, positions and classifier."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, config.d_model)
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

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        scale = math.sqrt(self.embedding.embedding_dim)
        x = self.dropout(self.embedding(source) * scale + self.positions[: source.shape[1]])
        y = self.dropout(self.embedding(target) * scale + self.positions[: target.shape[1]])
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        out = self.transformer(x, y, tgt_mask=mask, tgt_is_causal=True)
        return F.linear(out, self.embedding.weight)


def sightline(config: Any) -> tuple[nn.Module, Loss]:
    """Ours, a row for each sentence."""
    model = build(config)
    return model, model


def sightline_packed(config: Any, sentences: int, length: int, device: str) -> tuple[nn.Module, Loss]:
    """Ours, all sentences in one row."""
    model, packing = build(config), Packing.of([length] * sentences, device)

    def logits(source: Tensor, target: Tensor) -> Tensor:
        scores: Tensor = model(source.view(1, -1), target.view(1, -1), packing, packing)
        return scores

    return model, logits


def hugging_face(config: Any) -> tuple[nn.Module, Loss]:
    """Marian with torch's fused attention."""
    model = MarianMTModel(
        MarianConfig(
            vocab_size=VOCAB,
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
    return model, lambda source, target: model(source, decoder_input_ids=target).logits


def torch_transformer(config: Any) -> tuple[nn.Module, Loss]:
    """torch's own."""
    model = TorchTransformer(config)
    return model, model


def measure(
    model: nn.Module, logits: Loss, batch: tuple[Tensor, Tensor, Tensor], compiled: bool, rounds: int
) -> tuple[float, float]:
    """Milliseconds of the best step, and the peak of memory in GiB (on a GPU)."""
    device = batch[0].device
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def loss(source: Tensor, target: Tensor, wanted: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            scores = logits(source, target)
            return F.cross_entropy(scores.view(-1, VOCAB), wanted.view(-1), label_smoothing=0.1)

    run = torch.compile(loss) if compiled else loss

    def step() -> None:
        run(*batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def synchronised() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    for _ in range(3):
        step()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(rounds):
        started = synchronised()
        for _ in range(5 if device.type == "cuda" else 1):
            step()
        times.append((synchronised() - started) * 1e3 / (5 if device.type == "cuda" else 1))
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else math.nan
    return min(times), memory


def main() -> None:
    """Measure, print a table, keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="base", help="a preset: tiny, base, big")
    parser.add_argument("--tokens", type=int, help="tokens a step on each side; 25,600 on a GPU, 1,024 on a CPU")
    parser.add_argument("--length", type=int, default=32, help="tokens in each sentence")
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens = options.tokens or (25_600 if device == "cuda" else 1_024)
    sentences = tokens // options.length
    config = load(options.size, sets=[f"model.vocab_size={VOCAB}"]).model
    shape = (sentences, options.length)
    batch = tuple(torch.randint(1, VOCAB, shape, device=device) for _ in range(3))
    systems: dict[str, Callable[[], tuple[nn.Module, Loss]]] = {
        "Sightline, padded": lambda: sightline(config),
        "Sightline, packed": lambda: sightline_packed(config, sentences, options.length, device),
        "Hugging Face Marian": lambda: hugging_face(config),
        "torch.nn.Transformer": lambda: torch_transformer(config),
    }
    rows: dict[str, dict[str, float]] = {}
    for how in ("eager", "compiled") if device == "cuda" else ("eager",):
        for name, make in systems.items():
            torch.compiler.reset()
            gc.collect()
            milliseconds, memory = measure(*make(), batch, how == "compiled", options.rounds)  # type: ignore[arg-type]
            row = {"ms": round(milliseconds, 2), "tokens/s": round(2 * tokens / milliseconds * 1e3)}
            rows[f"{name}, {how}"] = row | ({"GiB": round(memory, 2)} if device == "cuda" else {})
            print(
                f"{name}, {how:10} {milliseconds:9.2f} ms {row['tokens/s']:>11,} tokens/s {memory:6.2f} GiB", flush=True
            )
    for name, row in rows.items():
        peer = rows[f"Hugging Face Marian, {name.rpartition(', ')[2]}"]
        row["speed against Hugging Face"] = round(peer["ms"] / row["ms"], 2)
    settings = {"size": options.size, "tokens a side": tokens, "length": options.length, "vocabulary": VOCAB}
    result = {"where": where("transformers"), "settings": settings, "results": rows}
    path = keep(f"step-{options.size}-{device}", result)
    print(f"kept in {path}")


if __name__ == "__main__":
    main()
