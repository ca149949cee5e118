"""Trace a model while it runs: `with tracing(model) as trace: model(...)`.

Hooks on the modules record their inputs and outputs. The steps inside attention are computed again from the q, k, v and
mask that entered it, and compared with the model's output before they are shown. The model runs its normal code, so its
output is bit for bit the same.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sightline.errors import TraceError
from sightline.model.hooks import After, Before, hooks
from sightline.model.mask import Layout, Mask
from sightline.model.protocol import Inputs
from sightline.model.transformer import (
    Attend,
    Embedding,
    FeedForward,
    Model,
    MultiHeadAttention,
    Residual,
    Stack,
)
from sightline.trace.lineage import lineage, stacks
from sightline.trace.steps import AttentionSteps, spell_out
from sightline.trace.trace import Trace, difference
from sightline.trace.what_if import WhatIf, active_what_if, require_model

Axes = tuple[str, ...]
VECTORS = ("batch", "position", "d_model")
MATRIX = ("batch", "head", "query", "key")


@contextmanager
def tracing(model: nn.Module) -> Iterator[Trace]:
    """Record all passes of this thread through the model inside the block."""
    require_model(model)
    if any(module.training and _rate(module) for module in model.modules()):
        raise TraceError("The model is in training mode and drops random units. Call `model.eval()` first.")
    watch = _Watch(model)
    with hooks(watch.before, watch.after):
        yield watch.trace
    if not watch.trace.names():
        raise TraceError("No pass was traced. A pass on another thread, or a compiled one, cannot be traced.")


def _rate(module: nn.Module) -> float:
    return module.p if isinstance(module, nn.Dropout) else module.dropout if isinstance(module, Attend) else 0.0


@torch.no_grad()
def trace_pass(model: Model, inputs: Inputs) -> Trace:
    """Return the trace of one pass over the inputs, the classifier included."""
    with tracing(model) as trace:
        model.classifier(model.hidden(inputs))
    return trace


class _Watch:
    """The hooks that fill a trace, each tensor after those that it is computed from."""

    def __init__(self, model: Any) -> None:
        self.model, self.trace = model, Trace(config=model.config.model_dump(), stacks=stacks(model))
        self.edits: WhatIf | None = None  # of the pass that runs now
        self.steps = lineage(model)
        self.layouts: dict[str, Layout] = {}
        self.rows, self.cached = 0, False  # of the decoder
        self.before: list[tuple[nn.Module, Before]] = []
        self.after: list[tuple[nn.Module, After]] = []
        for path, module in model.named_modules():
            self._watch(path, module)

    def record(self, name: str, axes: Axes, value: Tensor, *, check: bool = True) -> None:
        """Add a tensor, and `check` it if the trace has what it is computed from."""
        step = self.trace.lineage[name] = self.steps[name]
        self.trace.record(name, axes, value, self.layouts)
        if check and step.is_computed and all(operand.name in self.trace for operand in step.operands):
            self.trace.add_check(name, self._again(name))

    def defer(self, name: str, axes: Axes, shape: Sequence[int], compute: Callable[[], Tensor] | None = None) -> None:
        """Add a tensor that is computed when it is read; by default, as its lineage states."""
        self.trace.lineage[name] = self.steps[name]
        self.trace.defer(name, axes, shape, compute or self._again(name), self.layouts)

    def _again(self, name: str) -> Callable[[], Tensor]:
        """Return a function that computes a tensor from its operands, which are those of the pass that runs now."""
        step = self.steps[name]
        operands = [self.trace.last(operand.name) for operand in step.operands]
        return lambda: step.compute(self.model, [operand() for operand in operands])

    def _enter(self, module: nn.Module, call: Callable[[Tensor], object]) -> None:
        """Call a function with the first argument of a module."""
        self.before.append((module, lambda args: _without_result(call, args[0])))

    def _leave(self, module: nn.Module, call: Callable[[Tensor], object]) -> None:
        """Call a function with the output of a module."""
        self.after.append((module, lambda _, output: _without_result(call, output)))

    def _watch(self, path: str, module: nn.Module) -> None:
        def vectors(name: str, axes: Axes = VECTORS) -> Callable[[Tensor], object]:
            return partial(self.record, f"{path}.{name}", axes)

        if isinstance(module, Stack):
            self.before.append((module, partial(self._stack, path)))
            if module.rotary is not None:
                self._leave(module.rotary, vectors("rotary", ("batch", "position", "d_k")))
            self._leave(module, vectors("output"))
        elif isinstance(module, Embedding):
            self._embedding(path, module)
            self._enter(module.norm, vectors("sum"))
            self._leave(module, vectors("output"))
        elif isinstance(module, MultiHeadAttention):
            self._enter(module, lambda x: self._attention(path, module, x))
            self.after.append((module.attend, partial(self._attend, path)))
            self._enter(module.output, vectors("concat"))
            self._leave(module, vectors("output"))
        elif isinstance(module, FeedForward):
            self._enter(module, vectors("input"))
            self._leave(module.inner, vectors("inner", ("batch", "position", "inner")))
            self._enter(module.outer, vectors("units", ("batch", "position", "d_ff")))
            self._leave(module, vectors("output"))
        elif isinstance(module, Residual):
            self._enter(module, vectors("input"))
            self._leave(module.dropout, vectors("sublayer"))
            if module.pre:
                self._leave(module, vectors("sum"))
            else:
                self._enter(module.norm, vectors("sum"))
            self._leave(module, vectors("output"))
        elif isinstance(module, nn.LayerNorm):
            self._enter(module, lambda x: self._moments(path, x))
            self._leave(module, vectors("output"))
        elif path == "head":
            self._leave(module, vectors("output"))
        elif path == "classifier":
            self.after.append((module, self._logits))

    def _stack(self, path: str, args: Sequence[Any]) -> None:
        """Keep the layout before anything below is recorded. With a cache, the rows are not whole sentences."""
        edits = active_what_if(self.model)
        if edits is not self.edits:
            self.edits, self.steps = edits, lineage(self.model, edits)
        ids, layout, *_, cache = args
        layout = layout.clone() if isinstance(layout, Tensor) else layout
        if path == "encoder":
            self.layouts["source"] = layout
        else:
            self.layouts["target"] = layout if cache is None else None
            self.rows, self.cached = len(ids), cache is not None

    def _embedding(self, path: str, module: Embedding) -> None:
        def tokens(x: Tensor) -> None:
            self.record(f"{path}.tokens", VECTORS, x)
            self.defer(f"{path}.scaled", VECTORS, x.shape)

        def added(name: str, x: Tensor) -> None:
            rows = self.trace.sizes(f"{path}.tokens")["batch"]
            self.record(f"{path}.{name}", VECTORS, x.expand(rows, -1, -1))

        self._leave(module.tokens, tokens)
        for name, part in ("positions", module.positions), ("segments", module.segments):
            if part is not None:
                self._leave(part, partial(added, name))

    def _attention(self, path: str, module: MultiHeadAttention, x: Tensor) -> None:
        self.record(f"{path}.input", VECTORS, x)
        for which, axis in ("q", "query"), ("k", "key"):
            if f"{path}.{which}_unrotated" in self.steps:
                shape = len(x), module.heads, x.shape[1], x.shape[2] // module.heads
                self.defer(f"{path}.{which}_unrotated", ("batch", "head", axis, "d_k"), shape)

    def _attend(self, path: str, args: Sequence[Any], z: Tensor) -> None:
        # Later steps write to the keys and values of a cache, and the caller may change the layout: copy both.
        q, k, v = args[0].detach(), args[1].detach().clone(), args[2].detach().clone()
        mask: Mask = args[3]
        mask = mask._replace(allowed=None if mask.allowed is None else mask.allowed.clone())
        edit = None if self.edits is None else self.edits.attention.get(path)
        positions = None if self.edits is None else self.edits.query_positions(path, q)
        z = z.detach()
        cross = ".cross_attention" in path
        beams = max(self.rows // max(len(q), 1), 1) if cross else 1

        def rows(x: Tensor) -> Tensor:
            """Split the queries of a sentence's beams, which are positions of one row, into rows."""
            return x.view(len(x), x.shape[1], beams, -1, x.shape[3]).transpose(1, 2).flatten(0, 1)

        def step(name: str) -> Tensor:
            found = spell_out(q, k, v, mask, edit, positions)
            _require_equal(f"{path}.z", z, found)
            return rows(getattr(found, name))

        if cross and "encoder.output" in self.trace:
            memory = self.trace.sizes("encoder.output")
            complete = len(k) * beams % max(memory["batch"], 1) == 0 and memory["position"] == k.shape[2]
        else:
            complete = not self.cached  # the keys and values of a cache are also those of earlier steps
        self.record(f"{path}.q", ("batch", "head", "query", "d_k"), rows(q))
        self.record(f"{path}.k", ("batch", "head", "key", "d_k"), k.repeat_interleave(beams, 0), check=complete)
        self.record(f"{path}.v", ("batch", "head", "key", "d_k"), v.repeat_interleave(beams, 0), check=complete)
        shape = len(q) * beams, q.shape[1], q.shape[2] // beams, k.shape[2]
        for name in AttentionSteps._fields[:-1]:
            self.defer(f"{path}.{name}", MATRIX, shape, partial(step, name))
        self.record(f"{path}.z", ("batch", "head", "query", "d_k"), rows(z), check=False)
        self.trace.add_check(f"{path}.z", lambda: rows(spell_out(q, k, v, mask, edit, positions).z))

    def _moments(self, path: str, x: Tensor) -> None:
        self.record(f"{path}.input", VECTORS, x)
        self.defer(f"{path}.mean", ("batch", "position"), x.shape[:-1])
        self.defer(f"{path}.variance", ("batch", "position"), x.shape[:-1])

    def _logits(self, args: Sequence[Any], logits: Tensor) -> None:
        axes, x = ("batch", "position", "vocabulary"), args[0].detach()  # the caller may classify some positions only
        self.record("logits", axes, logits.clone(), check=False)  # sampling may change them in place
        self.trace.add_check("logits", partial(self.steps["logits"].compute, self.model, [x]))
        self.defer("probabilities", axes, logits.shape)


@torch.no_grad()
def _without_result(call: Callable[[Tensor], object], x: Tensor) -> None:
    """Call a function and ignore its result, so that it does not replace what the module takes or returns."""
    call(x.detach())


def _require_equal(name: str, ran: Tensor, again: AttentionSteps) -> None:
    """Raise an error unless the traced output and the steps computed again agree, up to the precision of the type.

    Rounding is relative to the scores, and softmax turns it into relative differences of its results. Scores are large
    without norms."""
    half = ran.dtype in (torch.bfloat16, torch.float16)
    largest, scores = (x.abs().max().item() if x.numel() else 0.0 for x in (ran, again.scaled))
    allowed = (2e-2 if half else 1e-5) * max(1.0, largest) * max(1.0, scores / 10)
    found = difference(ran, again.z)
    if found > allowed and ran.isfinite().all():
        raise TraceError(f"{name}: the steps differ by {found:.1e} from the output of the model. Report this as a bug.")
