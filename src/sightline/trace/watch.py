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
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.errors import TraceError
from sightline.model.hooks import After, Before, hooks
from sightline.model.mask import Layout, Mask
from sightline.model.protocol import Inputs
from sightline.model.transformer import (
    Attend,
    CrossAttention,
    Embedding,
    FeedForward,
    Model,
    MultiHeadAttention,
    Residual,
    SelfAttention,
    Stack,
    rotate,
    split,
)
from sightline.trace.steps import AttentionSteps, spell_out
from sightline.trace.trace import Trace, difference
from sightline.trace.what_if import active_what_if, require_model

VECTORS = ("batch", "position", "d_model")
MATRIX = ("batch", "head", "query", "key")


@contextmanager
def tracing(model: nn.Module) -> Iterator[Trace]:
    """Record all passes of this thread through the model inside the block."""
    require_model(model)
    if any(module.training and _rate(module) for module in model.modules()):
        raise TraceError("The model is in training mode and drops random units. Call `model.eval()` first.")
    watch = _Watch(model)
    before, after = watch.hooks()
    with hooks(before, after):
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
    """The hooks that fill a trace. Those of a module run after those of its children."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.trace = model, Trace()
        self.layouts: dict[str, Layout] = {}  # of the pass that runs now
        self.rows = 0  # of the decoder pass that runs now
        self.parts: dict[str, dict[str, Tensor]] = {}  # of each embedding

    def hooks(self) -> tuple[list[tuple[nn.Module, Before]], list[tuple[nn.Module, After]]]:
        """Return the functions to call before and after the modules of the model."""
        modules = dict(self.model.named_modules())
        before: list[tuple[nn.Module, Before]] = []
        before += [(module, self._stack(path)) for path, module in modules.items() if isinstance(module, Stack)]
        after = [pair for path, module in modules.items() for pair in self._watched(path, module)]
        return before, [(module, _without_result(call)) for module, call in after]

    def record(
        self, name: str, axes: tuple[str, ...], value: Tensor, again: Callable[[], Tensor] | None = None
    ) -> None:
        """Add a tensor, and how the same step is computed again for `Trace.check`."""
        self.trace.record(name, axes, value, self.layouts)
        if again is not None:
            self.trace.add_check(name, again)

    def defer(self, name: str, axes: tuple[str, ...], shape: Sequence[int], compute: Callable[[], Tensor]) -> None:
        self.trace.defer(name, axes, shape, compute, self.layouts)

    def is_off(self, part: str, path: str) -> bool:
        """Return whether an active what-if has switched this part off."""
        now = active_what_if(self.model)
        return now is not None and now.is_off(part, path)

    def _watched(self, path: str, module: nn.Module) -> Iterator[tuple[nn.Module, After]]:
        if isinstance(module, Stack):
            if module.rotary is not None:
                yield module.rotary, self._recorder(f"{path}.rotary", ("batch", "position", "d_k"))
            yield module, self._recorder(f"{path}.output", VECTORS)
        elif isinstance(module, Embedding):
            parts = {"tokens": module.tokens, "positions": module.positions, "segments": module.segments}
            seen = self.parts.setdefault(path, {})
            for name, part in parts.items():
                if part is not None:
                    yield part, partial(_store, seen, name)
            yield module, lambda _, x: self._embedding(path, module, x)
        elif isinstance(module, MultiHeadAttention):
            yield module.attend, lambda args, z: self._attend(path, args, z)
            yield module, lambda args, x: self._attention(path, module, args, x)
        elif isinstance(module, FeedForward):
            inner = ("batch", "position", "inner")
            yield (
                module.inner,
                lambda args, x: self.record(f"{path}.inner", inner, x, partial(_linear, module.inner, *args)),
            )
            yield module.outer, lambda args, _: self._units(path, module, args[0])
            yield module, lambda args, x: self._feed_forward(path, module, args[0], x)
        elif isinstance(module, Residual):
            yield module.dropout, self._recorder(f"{path}.sublayer", VECTORS)
            yield module, lambda args, x: self._residual(path, module, args[0].detach(), x)
        elif isinstance(module, nn.LayerNorm):
            yield module, lambda args, x: self._norm(path, module, args[0].detach(), x)
        elif isinstance(module, nn.Linear) and path == "head":
            yield module, lambda args, x: self.record("head.output", VECTORS, x, partial(_linear, module, args[0]))
        elif isinstance(module, nn.Linear) and path == "classifier":
            yield module, lambda args, x: self._logits(module, args[0].detach(), x)

    def _recorder(self, name: str, axes: tuple[str, ...]) -> After:
        return lambda _, output: self.record(name, axes, output)

    def _stack(self, path: str) -> Before:
        """Keep the layout before anything below is recorded. With a cache, the rows are not whole sentences."""

        def keep(args: Sequence[Any]) -> None:
            ids, layout, *_, cache = args
            layout = layout.clone() if isinstance(layout, Tensor) else layout
            if path == "encoder":
                self.layouts["source"] = layout
            else:
                self.layouts["target"] = layout if cache is None else None
                self.rows = len(ids)

        return keep

    def _embedding(self, path: str, module: Embedding, x: Tensor) -> None:
        parts = dict(self.parts[path])
        tokens = parts.pop("tokens")
        added = {name: rows.expand(tokens.shape) for name, rows in parts.items()}

        def total() -> Tensor:
            return sum(added.values(), start=tokens * module.scale)

        self.record(f"{path}.tokens", VECTORS, tokens)
        self.defer(f"{path}.scaled", VECTORS, tokens.shape, lambda: tokens * module.scale)
        for name, rows in added.items():
            self.record(f"{path}.{name}", VECTORS, rows)
        ran = self.trace.last(f"{path}.norm.input") if f"{path}.norm.input" in self.trace else x
        self.record(f"{path}.sum", VECTORS, ran, total)
        self.record(f"{path}.output", VECTORS, x)

    def _attend(self, path: str, args: Sequence[Any], z: Tensor) -> None:
        # Later steps write to the keys and values of a cache, and the caller may change the layout: copy both.
        q, k, v = args[0].detach(), args[1].detach().clone(), args[2].detach().clone()
        mask: Mask = args[3]
        mask = mask._replace(allowed=None if mask.allowed is None else mask.allowed.clone())
        now = active_what_if(self.model)
        edit = None if now is None else now.attention.get(path)
        positions = None if now is None else now.query_positions(path, q)
        z = z.detach()
        beams = max(self.rows // max(len(q), 1), 1) if ".cross_attention" in path else 1

        def step(name: str) -> Tensor:
            found = spell_out(q, k, v, mask, edit, positions)
            _require_equal(f"{path}.z", z, found.z)
            return rows(getattr(found, name))

        def rows(x: Tensor) -> Tensor:
            """Split the queries of a sentence's beams, which are positions of one row, into rows."""
            return x.view(len(x), x.shape[1], beams, -1, x.shape[3]).transpose(1, 2).flatten(0, 1)

        self.record(f"{path}.q", ("batch", "head", "query", "d_k"), rows(q))
        self.record(f"{path}.k", ("batch", "head", "key", "d_k"), k.repeat_interleave(beams, 0))
        self.record(f"{path}.v", ("batch", "head", "key", "d_k"), v.repeat_interleave(beams, 0))
        shape = len(q) * beams, q.shape[1], q.shape[2] // beams, k.shape[2]
        for name in AttentionSteps._fields[:-1]:
            self.defer(f"{path}.{name}", MATRIX, shape, partial(step, name))
        self.record(f"{path}.z", ("batch", "head", "query", "d_k"), rows(z))
        self.trace.add_check(f"{path}.z", lambda: rows(spell_out(q, k, v, mask, edit, positions).z))

    def _attention(self, path: str, module: MultiHeadAttention, args: Sequence[Any], output: Tensor) -> None:
        x, k, concat = (
            args[0].detach(),
            self.trace.last(f"{path}.k"),
            self.trace.last(f"{path}.z").transpose(1, 2).flatten(2),
        )
        self.record(f"{path}.input", VECTORS, x)
        self.record(f"{path}.concat", VECTORS, concat)
        self.record(f"{path}.output", VECTORS, output, partial(_linear, module.output, concat))
        again: dict[str, Callable[[], Tensor]] = {}
        if isinstance(module, SelfAttention):
            own, (_, _, rotary, cache) = partial(_project, module.query_key_value, x, module.heads), args
            again["q"] = lambda: rotate(own(0), rotary)
            if cache is None:  # with a cache, the keys and values are also those of earlier steps
                again |= {"k": lambda: rotate(own(1), rotary), "v": lambda: own(2)}
            if rotary is not None:
                shape = self.trace.last(f"{path}.q").shape
                self.defer(f"{path}.q_unrotated", ("batch", "head", "query", "d_k"), shape, lambda: own(0))
                self.defer(f"{path}.k_unrotated", ("batch", "head", "key", "d_k"), shape, lambda: own(1))
        elif isinstance(module, CrossAttention):
            again["q"] = lambda: _project(module.query, x, module.heads, 0)
            memory = self.trace.last("encoder.output") if "encoder.output" in self.trace else x[:0]
            beams = len(k) // max(len(memory), 1)
            if (beams * len(memory), memory.shape[1]) == (len(k), k.shape[2]):
                encoded = partial(_project, module.key_value, memory, module.heads)
                again["k"] = lambda: encoded(0).repeat_interleave(beams, 0)
                again["v"] = lambda: encoded(1).repeat_interleave(beams, 0)
        for name, compute in again.items():
            self.trace.add_check(f"{path}.{name}", compute)

    def _units(self, path: str, module: FeedForward, units: Tensor) -> None:
        inner = self.trace.last(f"{path}.inner")
        self.record(f"{path}.units", ("batch", "position", "d_ff"), units, lambda: module.activation(inner))

    def _feed_forward(self, path: str, module: FeedForward, x: Tensor, output: Tensor) -> None:
        units, off = self.trace.last(f"{path}.units"), self.is_off("feed-forward", path)
        self.record(f"{path}.input", VECTORS, x)
        again = partial(torch.zeros_like, output) if off else partial(_linear, module.outer, units)
        self.record(f"{path}.output", VECTORS, output, again)

    def _residual(self, path: str, module: Residual, x: Tensor, output: Tensor) -> None:
        sublayer, off = self.trace.last(f"{path}.sublayer"), self.is_off("residuals", path)
        total = output if module.pre else self.trace.last(f"{path}.norm.input")
        self.record(f"{path}.input", VECTORS, x)
        self.record(f"{path}.sum", VECTORS, total, lambda: sublayer if off else x + sublayer)
        self.record(f"{path}.output", VECTORS, output)

    def _norm(self, path: str, module: nn.LayerNorm, x: Tensor, output: Tensor) -> None:
        off = self.is_off("norms", path)

        def again() -> Tensor:
            if off:
                return x
            variance, mean = torch.var_mean(x.float(), -1, correction=0, keepdim=True)
            scaled = (x.float() - mean) / (variance + module.eps).sqrt()
            return (scaled * module.weight + module.bias).detach()

        self.record(f"{path}.input", VECTORS, x)
        self.defer(f"{path}.mean", ("batch", "position"), x.shape[:-1], lambda: x.float().mean(-1))
        self.defer(f"{path}.variance", ("batch", "position"), x.shape[:-1], lambda: x.float().var(-1, correction=0))
        self.record(f"{path}.output", VECTORS, output, again)

    def _logits(self, module: nn.Linear, x: Tensor, logits: Tensor) -> None:
        logits = logits.detach().clone()  # sampling may change them in place
        axes = ("batch", "position", "vocabulary")
        self.record("logits", axes, logits, partial(_linear, module, x))
        self.defer("probabilities", axes, logits.shape, lambda: logits.float().softmax(-1))


def _store(into: dict[str, Tensor], name: str, _: Sequence[Any], rows: Tensor) -> None:
    into[name] = rows.detach()


def _without_result(call: After) -> After:
    """Ignore the result of a function, so that it does not replace the module's output."""

    def read(args: Sequence[Any], output: Any) -> None:
        with torch.no_grad():
            call(args, output)

    return read


def _project(module: nn.Linear, x: Tensor, heads: int, part: int) -> Tensor:
    """Return one of the stacked projections of a linear layer, by head."""
    return split(_linear(module, x), module.out_features // module.in_features, heads)[part]


def _linear(module: nn.Linear, x: Tensor) -> Tensor:
    """Apply a linear layer without its hooks, in the precision of its weights (autocast may use a lower one)."""
    return F.linear(x.to(module.weight.dtype), module.weight, module.bias).detach()


def _require_equal(name: str, ran: Tensor, again: Tensor) -> None:
    """Raise an error unless the traced output and the steps computed again agree, up to the precision of the type."""
    half = ran.dtype in (torch.bfloat16, torch.float16)
    allowed = (2e-2 if half else 1e-5) * max(1.0, ran.abs().max().item() if ran.numel() else 0.0)
    found = difference(ran, again)
    if found > allowed and ran.isfinite().all():
        raise TraceError(f"{name}: the steps differ by {found:.1e} from the output of the model. Report this as a bug.")
