"""torch.compile in a separate process, because it does not support the shape checks of the other tests.

test_compile.py runs `python tests/compiled.py cpu|cuda some|all`. Each part compiles as one graph and equals the eager
model."""

import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.config import TrainConfig
from sightline.data.batches import Batch
from sightline.data.builtin import generate
from sightline.data.corpus import Table
from sightline.data.examples import prepare
from sightline.data.feed import Feed, Place, Update
from sightline.errors import TraceError
from sightline.model.kernels.dropout import Dropout, assign_dropout_seeds, dropout_mask
from sightline.model.mask import PackedRows
from sightline.model.protocol import Inputs
from sightline.text.tokenizer import Tokenizer
from sightline.trace.watch import tracing
from sightline.train.step import Step
from sightline.train.tasks import TRANSLATE
from sightline.train.validate import Validation
from support import difference, ids, packed, pad, reader, static_cache, translator, writer

DEVICE = sys.argv[1]
torch.set_default_device(DEVICE)
ONE_LAYER = {"encoder": {"layers": 1, "heads": 4, "d_ff": 40}, "decoder": {"layers": 1, "heads": 2, "d_ff": 56}}


def forward_loss_and_gradients(packs: bool) -> None:
    torch.compiler.reset()
    model = translator("pre-norm", dropout=0.0, **ONE_LAYER)
    sources, targets = [ids(5), ids(9)], [ids(4), ids(7)]
    if packs:
        (source, layout), (target, target_layout) = packed(sources), packed(targets)
    else:
        (source, layout), (target, target_layout) = pad(sources), pad(targets)

    def loss() -> Tensor:
        logits = model(source, target, layout, target_layout)
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), label_smoothing=0.1)

    def gradients(value: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(value, list(model.parameters())))

    eager, compiled = loss(), torch.compile(loss, fullgraph=True)()
    assert difference(eager, compiled) <= 1e-5
    for a, b in zip(gradients(eager), gradients(compiled), strict=True):
        assert difference(a, b) <= 1e-5
    report(f"loss and gradients, {'packed' if packs else 'padded'}")


@torch.no_grad()
def decode_steps(static: bool) -> None:
    torch.compiler.reset()
    model = translator("paper", **ONE_LAYER)
    source, layout = pad([ids(6), ids(3)])
    target = ids(6, 5)
    expected = model(source.repeat_interleave(3, 0), target, layout.repeat_interleave(3, 0))
    start = partial(static_cache, model) if static else model.start
    cache = start(Inputs(source, source_layout=layout), capacity=5, beams=3)
    step = torch.compile(model.step, fullgraph=True)
    steps = [step(target[:, :1], cache)]
    if static:  # one shape for every step: nothing is compiled again
        torch.compiler.set_stance("fail_on_recompile")
    steps += [step(target[:, i : i + 1], cache) for i in range(1, 5)]
    torch.compiler.set_stance("default")
    assert difference(torch.stack(steps, 1), expected) <= 1e-5
    report(f"decode step with beams, {'static' if static else 'growing'} cache")


@torch.no_grad()
def whole(name: str, model: torch.nn.Module, *inputs: Tensor) -> None:
    torch.compiler.reset()
    assert difference(torch.compile(model, fullgraph=True)(*inputs), model(*inputs)) <= 1e-5
    report(name)


@torch.no_grad()
def tracing_a_compiled_function_is_an_error() -> None:
    torch.compiler.reset()
    model = writer("paper", **ONE_LAYER)
    forward, tokens = torch.compile(model.forward, fullgraph=True), ids(2, 7)
    forward(tokens)
    with pytest.raises(TraceError, match="No pass"), tracing(model):
        forward(tokens)
    report("tracing a compiled function is an error")


def dropout_by_seeds() -> None:
    torch.compiler.reset()
    dropout, x = Dropout(0.3), torch.randn(4, 50, requires_grad=True)
    seeds = assign_dropout_seeds(dropout, DEVICE)
    compiled = torch.compile(dropout, fullgraph=True)
    seen = []
    for _ in range(2):
        seeds.random_(-(2**31), 2**31 - 1)
        kept = dropout_mask(seeds[0], x.shape, 0.3, x.device) / 0.7
        (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
        assert difference(compiled(x), x * kept) <= 1e-6
        assert difference(gradient, kept) <= 1e-6
        seen.append(kept)
    assert not torch.equal(*seen)
    report("dropout by seeds drops the cells of the hash, forward and backward")


def training_steps(r_drop: float, optimizer: str, tolerance: float) -> None:
    """Three updates, compiled (on a GPU also recorded) and eager, come to the same weights: of one batch without
    R-Drop, of two with it. Adam's large epsilon keeps it from making a step of full length out of a gradient that is
    rounding alone; Muon rounds to bfloat16 on a GPU, and may there differ by a step's last digit."""
    torch.compiler.reset()
    both = {"r_drop": r_drop, "accumulate": 2 if r_drop else 1}
    options = TrainConfig(
        learning_rate=1e-3, schedule="constant", optimizer=optimizer, epsilon=1e-2, clip=1.0, ema=0.9, **both
    )
    source, target = torch.randint(4, 41, (6, 16), device="cpu"), torch.randint(4, 41, (6, 16), device="cpu")
    layout = PackedRows(torch.arange(16).expand(6, 16) // 8, torch.arange(16).expand(6, 16) % 8)
    layout = PackedRows(*(part.cpu().contiguous() for part in layout))
    batch = Batch(Inputs(source, target, layout, layout), target, 96)
    weights = []
    for fast in (False, True):
        torch.manual_seed(0)
        model = translator("pre-norm" if r_drop else "paper", dropout=0.0, **ONE_LAYER).to(DEVICE).train()
        device = torch.device(DEVICE)
        step = Step(model, options, device, compiled=fast, graphs=fast and device.type == "cuda")
        for number in (1, 2, 3):
            batches = [(i, batch) for i in range(options.accumulate)]
            step(Update(batches, 96 * len(batches), 192 * len(batches), Place(), 0.0), number, 1e-3)
        weights.append([*(p.detach().clone() for p in model.parameters()), *step.average])
    furthest = max(difference(a, b) for a, b in zip(*weights, strict=True))
    assert furthest <= tolerance, f"{optimizer}: {furthest} > {tolerance}"
    report(f"updates by {optimizer}, compiled as eager, R-Drop {r_drop} ({furthest:.1e})")


def a_test_compiles_nothing() -> None:
    """Between two updates a model is tested on text of many shapes. It was compiled for one, and stays so."""
    torch.compiler.reset()
    pairs = [(pair.source, pair.target) for pair in generate("train", 60)]
    tokenizer = Tokenizer.train([text for pair in pairs for text in pair], 360)
    model = translator("pre-norm", dropout=0.0, **ONE_LAYER | {"vocab_size": tokenizer.size}).to(DEVICE).train()
    cuda = DEVICE == "cuda"
    step = Step(model, TrainConfig(), torch.device(DEVICE), compiled=True, graphs=cuda)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pairs.tsv"
        file.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")
        stores = prepare([Table(file)], tokenizer, Path(folder) / "cache")
        feed = Feed(stores, batch_tokens=256, seed=0, rows="shared")
        validation = Validation(
            stores[0],
            tokenizer,
            batch_tokens=256,
            answer=TRANSLATE.answer,
            pairs=pairs[:20],
            score=lambda *_: {"texts": 20.0},
        )
        updates = feed.updates(Place(), 1)
        step(next(updates), 1, 1e-3)
        with torch.compiler.set_stance("fail_on_recompile"):
            result = validation(model, bfloat16=False)
            step(next(updates), 2, 1e-3)
    assert result.scores == {"texts": 20.0}
    assert 0 < result.loss < 20
    report("a test between two updates compiles nothing")


def report(what: str) -> None:
    sys.stdout.write(f"ok: {what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    torch.manual_seed(0)
    decode_steps(static=True)
    tracing_a_compiled_function_is_an_error()
    dropout_by_seeds()
    training_steps(0.0, "adam", 1e-6)
    a_test_compiles_nothing()
    if sys.argv[2] == "all":
        forward_loss_and_gradients(packs=False)
        forward_loss_and_gradients(packs=True)
        decode_steps(static=False)
        training_steps(5.0, "adam", 1e-6)
        training_steps(0.0, "muon", 1e-5 if DEVICE == "cpu" else 1e-4)
        whole("decoder-only, rotary, swiglu", writer("rotary", **ONE_LAYER), ids(2, 7))
        whole("encoder-only, learned", reader("learned", **ONE_LAYER), ids(2, 7))
