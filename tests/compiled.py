"""torch.compile, in a process of its own: the shape checks of the other tests would stand in its way.

Run by test_compile.py: `python tests/compiled.py cpu|cuda`. Each part compiles as one whole graph and gives what the
eager model gives."""

import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.errors import TraceError
from sightline.trace.record import tracing
from support import difference, ids, packed, pad, reader, translator, writer

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
    cache = model.new_cache(model.encoder(source, layout), layout, capacity=5, beams=3, static=static)
    step = torch.compile(model.step, fullgraph=True)
    steps = [step(target[:, :1], cache)]
    if static:  # one shape for every step: nothing is compiled again
        torch.compiler.set_stance("fail_on_recompile")
    steps += [step(target[:, i : i + 1], cache) for i in range(1, 5)]
    torch.compiler.set_stance("default")
    assert difference(torch.cat(steps, 1), expected) <= 1e-5
    report(f"decode step with beams, {'static' if static else 'growing'} cache")


@torch.no_grad()
def whole(name: str, model: torch.nn.Module, *inputs: Tensor) -> None:
    torch.compiler.reset()
    assert difference(torch.compile(model, fullgraph=True)(*inputs), model(*inputs)) <= 1e-5
    report(name)


@torch.no_grad()
def a_compiled_function_is_not_traced_in_silence() -> None:
    torch.compiler.reset()
    model = writer("paper", **ONE_LAYER)
    forward, tokens = torch.compile(model.forward, fullgraph=True), ids(2, 7)
    forward(tokens)
    with pytest.raises(TraceError, match="nothing ran in the trace"), tracing(model):
        forward(tokens)
    report("a compiled function is not traced in silence")


def report(what: str) -> None:
    sys.stdout.write(f"ok: {what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    torch.manual_seed(0)
    forward_loss_and_gradients(packs=False)
    forward_loss_and_gradients(packs=True)
    decode_steps(static=True)
    decode_steps(static=False)
    whole("decoder-only, rotary, swiglu", writer("rotary", **ONE_LAYER), ids(2, 7))
    a_compiled_function_is_not_traced_in_silence()
    whole("encoder-only, learned", reader("learned", **ONE_LAYER), ids(2, 7))
