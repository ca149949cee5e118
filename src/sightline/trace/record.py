"""Looking into a model while it runs: `with tracing(model) as trace: model(...)`.

Hooks on the modules keep what went in and what came out. The steps inside attention are computed again from the q, k, v
and mask that entered it, and every step is checked against what the model really put out. The model runs exactly the
code it always runs, so its output is bit for bit the same.
"""

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from sightline.errors import TraceError
from sightline.model.mask import Layout, Mask, Packing
from sightline.model.transformer import (
    Attend,
    CrossAttention,
    Embedding,
    FeedForward,
    MultiHeadAttention,
    Residual,
    SelfAttention,
    Stack,
    rotate,
)
from sightline.trace.steps import AttentionEdit, AttentionSteps, spell_out
from sightline.trace.what_if import WhatIf, active_what_if, refuse_compiled

__all__ = ["Trace", "Traced", "tracing"]

VECTORS = ("batch", "position", "d_model")
MATRIX = ("batch", "head", "query", "key")


class Traced(NamedTuple):
    """A tensor of a trace, and what its axes are."""

    name: str
    axes: tuple[str, ...]
    values: Tensor
    labels: dict[str, list[str]]
    """The words along an axis, where they are known."""

    def numpy(self) -> NDArray[np.float32]:
        return self.values.float().cpu().numpy()


@dataclass
class _Entry:
    """Something that can be looked at: recorded already, or computed when it is asked for."""

    axes: tuple[str, ...]
    compute: Callable[[], Tensor]


@dataclass(repr=False)
class Trace:
    """Everything that went on in a pass, by dotted name. Where a module ran more than once, its last run is shown;
    `trace.runs(name)` gives them all."""

    tokens: dict[str, list[str]] = field(default_factory=dict)
    """The words of one sentence, where the caller gives them: "source" and "target"."""
    layouts: dict[str, Layout] = field(default_factory=dict)
    _entries: dict[str, list[_Entry]] = field(default_factory=dict)
    _checks: list[tuple[str, Callable[[], tuple[Tensor, Tensor]]]] = field(default_factory=list)
    _sentence: int | None = None

    def __repr__(self) -> str:
        return f"Trace({len(self._entries)} names)"

    def names(self) -> list[str]:
        return list(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> Traced:
        return self.runs(name)[-1]

    def runs(self, name: str) -> list[Traced]:
        """One tensor for each time that the module ran."""
        if name not in self._entries:
            raise TraceError(f"the trace has no {name!r}; trace.names() lists what it has.")
        return [self._select(name, entry) for entry in self._entries[name]]

    def sentence(self, index: int) -> "Trace":
        """The same trace, of one sentence of the batch: no batch axis, no padding."""
        one = copy.copy(self)
        one._sentence = index
        return one

    def check(self) -> dict[str, float]:
        """For every step: the largest difference between what ran and the same step computed again from its inputs."""
        differences: dict[str, float] = {}
        for name, both in self._checks:
            ran, again = both()
            difference = (ran.float() - again.float()).abs().max().item() if ran.numel() else 0.0
            differences[name] = max(difference, differences.get(name, 0.0))
        return differences

    def _select(self, name: str, entry: _Entry) -> Traced:
        values, axes = entry.compute(), entry.axes
        if self._sentence is None:
            return Traced(name, axes, values, {})
        sides = _sides(name)
        one_row = len(values) == 1 or any(isinstance(layout, Packing) for layout in self.layouts.values())
        values = values[0 if one_row else self._sentence]
        axes = axes[1:]
        labels = {}
        for i, axis in enumerate(axes):
            if axis in sides:
                cells = _cells(self.layouts.get(sides[axis]), self._sentence)
                values = values if cells is None else values.index_select(i, cells)
                words = self.tokens.get(sides[axis], [])
                labels[axis] = words if len(words) == values.shape[i] else []
        return Traced(name, axes, values, labels)

    def _record(self, name: str, axes: tuple[str, ...], value: Tensor | Callable[[], Tensor]) -> None:
        if isinstance(value, Tensor):
            kept = value.detach()
            self._entries.setdefault(name, []).append(_Entry(axes, lambda: kept))
        else:
            self._entries.setdefault(name, []).append(_Entry(axes, value))

    def _check(self, name: str, ran: Tensor, again: Callable[[], Tensor]) -> None:
        ran = ran.detach()
        self._checks.append((name, lambda: (ran, again())))

    def _last(self, name: str) -> Tensor:
        return self._entries[name][-1].compute()


@contextmanager
def tracing(model: nn.Module) -> Iterator[Trace]:
    """Record what this thread runs through the model inside the block."""
    refuse_compiled(model)
    if any(isinstance(m, nn.Dropout) and m.training and m.p for m in model.modules()) or any(
        isinstance(m, Attend) and m.training and m.dropout for m in model.modules()
    ):
        raise TraceError(
            "a model in training mode drops units at random and cannot be checked; call model.eval() first."
        )
    trace, thread = Trace(), threading.get_ident()
    handles: list[RemovableHandle] = []
    try:
        for path, module in model.named_modules():
            for target, watch in _watchers(trace, path, module):
                handles.append(target.register_forward_hook(_only_on(thread, watch)))
        yield trace
    finally:
        for handle in handles:
            handle.remove()


Watch = Callable[[Sequence[Any], Tensor], None]


def _only_on(thread: int, watch: Watch) -> Callable[..., None]:
    def hook(_: nn.Module, args: Sequence[Any], output: Tensor) -> None:
        if threading.get_ident() == thread:
            with torch.no_grad():
                watch(args, output)

    return hook


def _watchers(trace: Trace, path: str, module: nn.Module) -> Iterator[tuple[nn.Module, Watch]]:
    """What to listen to in a module, and what to do then. Children speak before their parents."""
    if isinstance(module, Stack):
        yield module, lambda args, x: _stack(trace, path, args, x)
    elif isinstance(module, Embedding):
        for name, part in {"tokens": module.tokens, "positions": module.positions, "segments": module.segments}.items():
            if part is not None:
                yield part, _recorder(trace, f"{path}.{name}", VECTORS)
        yield module, lambda _, x: _embedding(trace, path, module, x)
    elif isinstance(module, MultiHeadAttention):
        yield module.attend, lambda args, z: _attend(trace, path, args, z)
        yield module, lambda args, x: _attention(trace, path, module, args, x)
    elif isinstance(module, FeedForward):
        yield module.inner, _recorder(trace, f"{path}.inner", ("batch", "position", "inner"))
        yield module.outer, lambda args, _: trace._record(f"{path}.units", ("batch", "position", "d_ff"), args[0])
        yield module, lambda args, x: _feed_forward(trace, path, module, args[0], x)
    elif isinstance(module, Residual):
        yield module.dropout, _recorder(trace, f"{path}.sublayer", VECTORS)
        yield module, lambda args, x: _residual(trace, path, module, args[0], x)
    elif isinstance(module, nn.LayerNorm):
        yield module, lambda args, x: _norm(trace, path, module, args[0], x)
    elif path == "head":
        yield module, _recorder(trace, "head.output", VECTORS)
    elif isinstance(module, nn.Linear) and path == "classifier":
        yield module, lambda args, x: _logits(trace, module, args[0], x)


def _recorder(trace: Trace, name: str, axes: tuple[str, ...]) -> Watch:
    return lambda _, output: trace._record(name, axes, output)


def _stack(trace: Trace, path: str, args: Sequence[Any], x: Tensor) -> None:
    if path == "encoder":
        trace.layouts["source"] = args[1]
    elif args[3] is None:  # with a cache, the rows are not the sentence
        trace.layouts["target"] = args[1]
    trace._record(f"{path}.output", VECTORS, x)


def _embedding(trace: Trace, path: str, module: Embedding, x: Tensor) -> None:
    tokens = trace._last(f"{path}.tokens")
    parts = [trace._last(f"{path}.{name}") for name in ("positions", "segments") if f"{path}.{name}" in trace]

    def total() -> Tensor:
        return sum(parts, start=tokens * module.scale)

    trace._record(f"{path}.scaled", VECTORS, lambda: tokens * module.scale)
    trace._record(f"{path}.sum", VECTORS, total)
    trace._record(f"{path}.output", VECTORS, x)
    if f"{path}.norm.input" in trace:
        trace._check(f"{path}.sum", trace._last(f"{path}.norm.input"), total)
    else:
        trace._check(f"{path}.sum", x, total)


def _attend(trace: Trace, path: str, args: Sequence[Any], z: Tensor) -> None:
    # A cache goes on writing into its keys and values, so they are copied.
    q, k, v = args[0].detach(), args[1].detach().clone(), args[2].detach().clone()
    mask: Mask = args[3]
    now = active_what_if()
    edit: AttentionEdit | None = now.edit(path) if now else None
    positions = now.query_positions(path, q) if now else None

    z = z.detach()

    def steps() -> AttentionSteps:
        spelled = spell_out(q, k, v, mask, edit, positions)
        _agree(f"{path}.z", z, spelled.z)
        return spelled

    trace._record(f"{path}.q", ("batch", "head", "query", "d_k"), q)
    trace._record(f"{path}.k", ("batch", "head", "key", "d_k"), k)
    trace._record(f"{path}.v", ("batch", "head", "key", "d_k"), v)
    trace._record(f"{path}.scores", MATRIX, lambda: steps().scores)
    trace._record(f"{path}.scaled", MATRIX, lambda: steps().scaled)
    trace._record(f"{path}.masked", MATRIX, lambda: steps().masked)
    trace._record(f"{path}.probabilities", MATRIX, lambda: steps().probabilities)
    trace._record(f"{path}.z", ("batch", "head", "query", "d_k"), z)
    trace._check(f"{path}.z", z, lambda: steps().z)


def _attention(trace: Trace, path: str, module: MultiHeadAttention, args: Sequence[Any], output: Tensor) -> None:
    x, z = args[0].detach(), trace._last(f"{path}.z")
    beams = x.shape[0] // z.shape[0]  # several that looked at one memory: back to a row for each
    concat = z.view(z.shape[0], module.heads, beams, *x.shape[1:2], -1).permute(0, 2, 3, 1, 4).reshape(x.shape)
    trace._record(f"{path}.input", VECTORS, x)
    trace._record(f"{path}.concat", VECTORS, concat)
    trace._record(f"{path}.output", VECTORS, output)
    trace._check(f"{path}.output", output, lambda: _linear(module.output, concat))
    q, k, v = (trace._last(f"{path}.{name}") for name in "qkv")
    if isinstance(module, SelfAttention):
        _, _, waves, cache = args

        def projected(which: int) -> Tensor:
            heads = module.split(_linear(module.query_key_value, x), 3)[which]
            return heads if which == 2 else rotate(heads, waves)

        if cache is None:  # else keys and values are also those of earlier steps
            trace._check(f"{path}.k", k, lambda: projected(1))
            trace._check(f"{path}.v", v, lambda: projected(2))
        trace._check(f"{path}.q", q, lambda: projected(0))
    elif isinstance(module, CrossAttention):
        trace._check(f"{path}.q", q, lambda: _beams_in_line(module.split(_linear(module.query, x), 1)[0], q))
        if "encoder.output" in trace and trace._last("encoder.output").shape[:2] == (k.shape[0], k.shape[2]):
            encoded = trace._last("encoder.output")
            trace._check(f"{path}.k", k, lambda: module.split(_linear(module.key_value, encoded), 2)[0])
            trace._check(f"{path}.v", v, lambda: module.split(_linear(module.key_value, encoded), 2)[1])


def _beams_in_line(heads: Tensor, like: Tensor) -> Tensor:
    return heads.view(like.shape[0], -1, *heads.shape[1:]).transpose(1, 2).reshape(like.shape)


def _linear(module: nn.Linear, x: Tensor) -> Tensor:
    """A linear layer past its hooks, in the precision of its weights (autocast may have run it in less)."""
    return F.linear(x.to(module.weight.dtype), module.weight, module.bias).detach()


def _feed_forward(trace: Trace, path: str, module: FeedForward, x: Tensor, output: Tensor) -> None:
    inner, units = trace._last(f"{path}.inner"), trace._last(f"{path}.units")
    x, off = x.detach(), _is_off("feed-forward", path)
    trace._record(f"{path}.input", VECTORS, x)
    trace._record(f"{path}.output", VECTORS, output)
    trace._check(f"{path}.inner", inner, lambda: _linear(module.inner, x))
    trace._check(f"{path}.units", units, lambda: module.activation(inner))
    trace._check(f"{path}.output", output, lambda: torch.zeros_like(output) if off else _linear(module.outer, units))


def _residual(trace: Trace, path: str, module: Residual, x: Tensor, output: Tensor) -> None:
    x, sublayer = x.detach(), trace._last(f"{path}.sublayer")
    total = output if module.pre else trace._last(f"{path}.norm.input")
    off = _is_off("residuals", path)
    trace._record(f"{path}.input", VECTORS, x)
    trace._record(f"{path}.sum", VECTORS, total)
    trace._record(f"{path}.output", VECTORS, output)
    trace._check(f"{path}.sum", total, lambda: sublayer if off else x + sublayer)


def _norm(trace: Trace, path: str, module: nn.LayerNorm, x: Tensor, output: Tensor) -> None:
    x = x.detach()
    off = _is_off("norms", path)

    def mean() -> Tensor:
        return x.float().mean(-1)

    def variance() -> Tensor:
        return x.float().var(-1, correction=0)

    def again() -> Tensor:
        if off:
            return x
        scaled = (x.float() - mean()[..., None]) / (variance()[..., None] + module.eps).sqrt()
        return (scaled * module.weight + module.bias).detach()

    trace._record(f"{path}.input", VECTORS, x)
    trace._record(f"{path}.mean", ("batch", "position"), mean)
    trace._record(f"{path}.variance", ("batch", "position"), variance)
    trace._record(f"{path}.output", VECTORS, output)
    trace._check(f"{path}.output", output, again)


def _logits(trace: Trace, module: nn.Linear, x: Tensor, logits: Tensor) -> None:
    x, logits = x.detach(), logits.detach()
    axes = ("batch", "position", "vocabulary")
    trace._record("logits", axes, logits)
    trace._record("probabilities", axes, lambda: logits.float().softmax(-1))
    trace._check("logits", logits, lambda: _linear(module, x))


def _agree(name: str, ran: Tensor, again: Tensor) -> None:
    """What is shown must be what ran, to the precision of the numbers."""
    allowed = {torch.float32: 1e-5}.get(ran.dtype, 2e-2) * max(1.0, ran.abs().max().item() if ran.numel() else 0.0)
    difference = (ran.float() - again).abs().max().item() if ran.numel() else 0.0
    if not difference <= allowed:
        raise TraceError(
            f"{name}: computed step by step it differs by {difference:.1e} from what ran; please report it."
        )


def _is_off(part: str, path: str) -> bool:
    now: WhatIf | None = active_what_if()
    return now is not None and now.is_off(part, path)


def _sides(name: str) -> dict[str, str]:
    """For each axis that runs over tokens: the source's or the target's."""
    own = "source" if name.startswith("encoder.") else "target"
    return {"position": own, "query": own, "key": "source" if ".cross_attention." in name else own}


def _cells(layout: Layout, sentence: int) -> Tensor | None:
    if layout is None:
        return None
    if isinstance(layout, Packing):
        return (layout.sentence == sentence).nonzero()[:, 0]
    return layout[sentence].nonzero()[:, 0]
