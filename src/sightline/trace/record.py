"""Looking into a model while it runs: `with tracing(model) as trace: model(...)`.

Hooks on the modules keep what went in and what came out. The steps inside attention are computed again from the q, k, v
and mask that entered it, and are never shown without being compared with what the model really put out. The model runs
exactly the code it always runs, so its output is bit for bit the same.
"""

import copy
import inspect
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from sightline.model.mask import Layout, Mask, PackedRows
from sightline.model.transformer import (
    Attend,
    CrossAttention,
    Embedding,
    Encoder,
    FeedForward,
    MultiHeadAttention,
    Residual,
    SelfAttention,
    Stack,
    rotate,
    split,
)
from sightline.trace.steps import AttentionEdit, AttentionSteps, spell_out
from sightline.trace.what_if import active_what_if, require_model

__all__ = ["Trace", "Traced", "labels", "tracing"]

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


class _Entry(NamedTuple):
    """Something that can be looked at: recorded already, or computed when it is asked for."""

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    compute: Callable[[], Tensor]
    layouts: Mapping[str, Layout]


@dataclass(repr=False)
class Trace:
    """Everything that went on in a pass, by dotted name. Where a module ran more than once, its last run is shown;
    `trace.runs(name)` gives them all."""

    tokens: dict[str, list[str]] = field(default_factory=dict)
    """The words of one sentence, where the caller gives them: "source" and "target"."""
    ids: dict[str, list[int]] = field(default_factory=dict)
    """The numbers that the model was given for them."""
    _model: nn.Module | None = None
    _entries: dict[str, list[_Entry]] = field(default_factory=dict)
    _checks: list[tuple[str, Callable[[], tuple[Tensor, Tensor]]]] = field(default_factory=list)
    _layouts: dict[str, Layout] = field(default_factory=dict)  # of the pass that runs now
    _rows: int = 0  # of the decoder pass that runs now
    _sentence: int | None = None

    def __repr__(self) -> str:
        return f"Trace({len(self._entries)} names)"

    def names(self) -> list[str]:
        return list(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> Traced:
        return self._select(name, self._found(name)[-1])

    def runs(self, name: str) -> list[Traced]:
        """One tensor for each time that the module ran."""
        return [self._select(name, entry) for entry in self._found(name)]

    def sizes(self, name: str) -> dict[str, int]:
        """How long each axis of `trace[name]` is, in order; nothing is computed to tell it."""
        entry = self._found(name)[-1]
        if self._sentence is None:
            return dict(zip(entry.axes, entry.shape, strict=True))
        _, cells = self._choose(name, entry, self._sentence)
        shape = (n if some is None else len(some) for n, some in zip(entry.shape[1:], cells, strict=True))
        return dict(zip(entry.axes[1:], shape, strict=True))

    def sentence(self, index: int) -> "Trace":
        """The same trace, of one sentence of the batch: no batch axis, no padding."""
        one = copy.copy(self)
        one._sentence = index
        return one

    def check(self) -> dict[str, float]:
        """For every step: the largest difference between what ran and the same step computed again from its inputs, by
        the weights as they are now. A number that is not finite on one side only counts as infinitely far."""
        differences: dict[str, float] = {}
        for name, both in self._checks:
            differences[name] = max(_difference(*both()), differences.get(name, 0.0))
        return differences

    def _found(self, name: str) -> list[_Entry]:
        if name not in self._entries:
            raise TraceError(f"the trace has no {name!r}; trace.names() lists what it has.")
        return self._entries[name]

    def _select(self, name: str, entry: _Entry) -> Traced:
        values = entry.compute()
        if self._sentence is None:
            return Traced(name, entry.axes, values, {})
        row, cells = self._choose(name, entry, self._sentence)
        values, axes = values[row], entry.axes[1:]
        for i, some in enumerate(cells):
            values = values if some is None else values.index_select(i, some)
        return Traced(name, axes, values, labels(name, axes, values.shape, self.tokens))

    def _choose(self, name: str, entry: _Entry, index: int) -> tuple[int, list[Tensor | None]]:
        """Where a sentence of the batch is: its row, and along each further axis its cells, if not all of them."""
        sides = _sides(name, entry.layouts)
        layouts = {axis: entry.layouts.get(sides[axis]) for axis in entry.axes if axis in sides}
        if any(isinstance(layout, PackedRows) for layout in layouts.values()):
            raise TraceError("sentences that share rows cannot be told apart in a trace; give each a row of its own.")
        sentences = entry.shape[0]
        if not 0 <= index < sentences:
            raise TraceError(f"{name} has sentences 0 to {sentences - 1}, and no sentence {index}.")
        return index, [_cells(layouts.get(axis), index) for axis in entry.axes[1:]]

    def _record(self, name: str, axes: tuple[str, ...], value: Tensor) -> None:
        self._entries.setdefault(name, []).append(_Entry(axes, tuple(value.shape), _keep(value), dict(self._layouts)))

    def _defer(self, name: str, axes: tuple[str, ...], shape: Sequence[int], compute: Callable[[], Tensor]) -> None:
        """Like `_record`, for what is computed when it is asked for."""
        self._entries.setdefault(name, []).append(_Entry(axes, tuple(shape), compute, dict(self._layouts)))

    def _check(self, name: str, ran: Tensor, again: Callable[[], Tensor]) -> None:
        ran = ran.detach()
        self._checks.append((name, lambda: (ran, again())))

    def _last(self, name: str) -> Tensor:
        return self._entries[name][-1].compute()

    def _edit(self, path: str) -> tuple[AttentionEdit | None, Callable[[Tensor], Tensor | None]]:
        """What is different in an attention module just now, and where its queries stand."""
        now = active_what_if(self._model) if self._model is not None else None
        return (None, lambda _: None) if now is None else (now.edit(path), lambda q: now.query_positions(path, q))

    def _is_off(self, part: str, path: str) -> bool:
        now = active_what_if(self._model) if self._model is not None else None
        return now is not None and now.is_off(part, path)


@contextmanager
def tracing(model: nn.Module) -> Iterator[Trace]:
    """Record what this thread runs through the model inside the block."""
    require_model(model)
    under_dropout = (m.training and (m.p if isinstance(m, nn.Dropout) else m.dropout) for m in _dropping(model))
    if any(under_dropout):
        raise TraceError(
            "a model in training mode drops units at random and cannot be checked; call model.eval() first."
        )
    trace, thread = Trace(_model=model), threading.get_ident()
    handles: list[RemovableHandle] = []
    try:
        for path, module in model.named_modules():
            if isinstance(module, Stack):
                before = _only_on(thread, _stack_begins(trace, module))
                handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            for target, watch in _watchers(trace, path, module):
                handles.append(target.register_forward_hook(_only_on(thread, watch), with_kwargs=True))
        yield trace
        if not trace.names():
            raise TraceError("nothing ran in the trace: a model on another thread, or compiled, is not seen.")
    finally:
        for handle in handles:
            handle.remove()


Watch = Callable[..., None]
"""Takes the arguments of a module's pass, all of them, in order; and its output, once there is one."""


def _only_on(thread: int, watch: Watch) -> Callable[..., None]:
    def hook(module: nn.Module, args: Sequence[Any], *rest: Any) -> None:
        # First of all whose pass it is: on other threads torch may call a hook that is just being added or removed
        # without its keyword arguments.
        if threading.get_ident() == thread:
            kwargs, *output = rest
            bound = inspect.signature(module.forward).bind(*args, **kwargs)
            bound.apply_defaults()
            with torch.no_grad():
                watch(list(bound.arguments.values()), *output)

    return hook


def _dropping(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, nn.Dropout | Attend)]


def _watchers(trace: Trace, path: str, module: nn.Module) -> Iterator[tuple[nn.Module, Watch]]:
    """What to listen to in a module, and what to do then. Children speak before their parents."""
    if isinstance(module, Stack):
        if module.rotary is not None:
            yield module.rotary, _recorder(trace, f"{path}.rotary", ("batch", "position", "d_k"))
        yield module, _recorder(trace, f"{path}.output", VECTORS)
    elif isinstance(module, Embedding):
        parts = {"tokens": module.tokens, "positions": module.positions, "segments": module.segments}
        heard: dict[str, Tensor] = {}
        for name, part in parts.items():
            if part is not None:
                yield part, lambda _, rows, name=name: heard.update({name: rows.detach()})
        yield module, lambda _, x: _embedding(trace, path, module, heard, x)
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
    elif isinstance(module, nn.Linear) and path == "head":
        yield module, lambda args, x: _head(trace, module, args[0], x)
    elif isinstance(module, nn.Linear) and path == "classifier":
        yield module, lambda args, x: _logits(trace, module, args[0], x)


def _recorder(trace: Trace, name: str, axes: tuple[str, ...]) -> Watch:
    return lambda _, output: trace._record(name, axes, output)


def _stack_begins(trace: Trace, module: Stack) -> Watch:
    """Note the layout before anything below is recorded. With a cache, the rows are not whole sentences."""

    def note(args: Sequence[Any]) -> None:
        layout = args[1].clone() if isinstance(args[1], Tensor) else args[1]
        if isinstance(module, Encoder):
            trace._layouts["source"] = layout
        else:
            trace._layouts["target"] = layout if args[3] is None else None
            trace._rows = len(args[0])

    return note


def _embedding(trace: Trace, path: str, module: Embedding, heard: dict[str, Tensor], x: Tensor) -> None:
    tokens, shape = heard["tokens"], heard["tokens"].shape
    added = {name: rows.expand(shape) for name, rows in heard.items() if name != "tokens"}

    def total() -> Tensor:
        return sum(added.values(), start=tokens * module.scale)

    trace._record(f"{path}.tokens", VECTORS, tokens)
    trace._defer(f"{path}.scaled", VECTORS, shape, lambda: tokens * module.scale)
    for name, rows in added.items():
        trace._record(f"{path}.{name}", VECTORS, rows)
    trace._defer(f"{path}.sum", VECTORS, shape, total)
    trace._record(f"{path}.output", VECTORS, x)
    trace._check(f"{path}.sum", trace._last(f"{path}.norm.input") if f"{path}.norm.input" in trace else x, total)


def _attend(trace: Trace, path: str, args: Sequence[Any], z: Tensor) -> None:
    # A cache goes on writing into its keys and values, and the caller's layout is the caller's: both are copied.
    q, k, v = args[0].detach(), args[1].detach().clone(), args[2].detach().clone()
    mask: Mask = args[3]
    mask = mask._replace(allowed=None if mask.allowed is None else mask.allowed.clone())
    edit, positions_of = trace._edit(path)
    z, positions = z.detach(), positions_of(q)
    beams = max(trace._rows // max(len(q), 1), 1) if ".cross_attention" in path else 1

    def steps() -> AttentionSteps:
        spelled = spell_out(q, k, v, mask, edit, positions)
        _agree(f"{path}.z", z, spelled.z)
        return spelled

    def rows(x: Tensor) -> Tensor:
        """Beams asked their sentence's keys one after another: a row for each again."""
        return x.view(len(x), x.shape[1], beams, -1, x.shape[3]).transpose(1, 2).flatten(0, 1)

    trace._record(f"{path}.q", ("batch", "head", "query", "d_k"), rows(q))
    trace._record(f"{path}.k", ("batch", "head", "key", "d_k"), k.repeat_interleave(beams, 0))
    trace._record(f"{path}.v", ("batch", "head", "key", "d_k"), v.repeat_interleave(beams, 0))
    shape = len(q) * beams, q.shape[1], q.shape[2] // beams, k.shape[2]
    trace._defer(f"{path}.scores", MATRIX, shape, lambda: rows(steps().scores))
    trace._defer(f"{path}.scaled", MATRIX, shape, lambda: rows(steps().scaled))
    trace._defer(f"{path}.masked", MATRIX, shape, lambda: rows(steps().masked))
    trace._defer(f"{path}.probabilities", MATRIX, shape, lambda: rows(steps().probabilities))
    trace._record(f"{path}.z", ("batch", "head", "query", "d_k"), rows(z))
    trace._check(f"{path}.z", z, lambda: spell_out(q, k, v, mask, edit, positions).z)


def _attention(trace: Trace, path: str, module: MultiHeadAttention, args: Sequence[Any], output: Tensor) -> None:
    x = args[0].detach()
    q, k, v, z = (trace._last(f"{path}.{name}") for name in ("q", "k", "v", "z"))
    concat = z.transpose(1, 2).flatten(2)
    trace._record(f"{path}.input", VECTORS, x)
    trace._record(f"{path}.concat", VECTORS, concat)
    trace._record(f"{path}.output", VECTORS, output)
    trace._check(f"{path}.output", output, lambda: _linear(module.output, concat))
    if isinstance(module, SelfAttention):
        _self_attention(trace, path, module, args, {"q": q, "k": k, "v": v})
    elif isinstance(module, CrossAttention):
        trace._check(f"{path}.q", q, lambda: split(_linear(module.query, x), 1, module.heads)[0])
        if "encoder.output" in trace:
            encoded = trace._last("encoder.output")
            beams = len(k) // max(len(encoded), 1)
            if (beams * len(encoded), encoded.shape[1]) == (len(k), k.shape[2]):
                trace._check(f"{path}.k", k[:: beams or 1], lambda: _projection(module, encoded, 0))
                trace._check(f"{path}.v", v[:: beams or 1], lambda: _projection(module, encoded, 1))


def _self_attention(
    trace: Trace, path: str, module: SelfAttention, args: Sequence[Any], ran: Mapping[str, Tensor]
) -> None:
    x, _, waves, cache = args
    x = x.detach()

    def projected(which: str) -> Tensor:
        return split(_linear(module.query_key_value, x), 3, module.heads)["qkv".index(which)]

    trace._check(f"{path}.q", ran["q"], lambda: rotate(projected("q"), waves))
    if cache is None:  # else keys and values are also those of earlier steps
        trace._check(f"{path}.k", ran["k"], lambda: rotate(projected("k"), waves))
        trace._check(f"{path}.v", ran["v"], lambda: projected("v"))
    if waves is not None:
        axis = ("batch", "head", "query", "d_k"), ("batch", "head", "key", "d_k")
        trace._defer(f"{path}.q_unrotated", axis[0], ran["q"].shape, lambda: projected("q"))
        trace._defer(f"{path}.k_unrotated", axis[1], ran["q"].shape, lambda: projected("k"))


def _projection(module: CrossAttention, encoded: Tensor, which: int) -> Tensor:
    return split(_linear(module.key_value, encoded), 2, module.heads)[which]


def _feed_forward(trace: Trace, path: str, module: FeedForward, x: Tensor, output: Tensor) -> None:
    inner, units = trace._last(f"{path}.inner"), trace._last(f"{path}.units")
    x, off = x.detach(), trace._is_off("feed-forward", path)
    trace._record(f"{path}.input", VECTORS, x)
    trace._record(f"{path}.output", VECTORS, output)
    trace._check(f"{path}.inner", inner, lambda: _linear(module.inner, x))
    trace._check(f"{path}.units", units, lambda: module.activation(inner))
    trace._check(f"{path}.output", output, lambda: torch.zeros_like(output) if off else _linear(module.outer, units))


def _residual(trace: Trace, path: str, module: Residual, x: Tensor, output: Tensor) -> None:
    x, sublayer = x.detach(), trace._last(f"{path}.sublayer")
    total = output if module.pre else trace._last(f"{path}.norm.input")
    off = trace._is_off("residuals", path)
    trace._record(f"{path}.input", VECTORS, x)
    trace._record(f"{path}.sum", VECTORS, total)
    trace._record(f"{path}.output", VECTORS, output)
    trace._check(f"{path}.sum", total, lambda: sublayer if off else x + sublayer)


def _norm(trace: Trace, path: str, module: nn.LayerNorm, x: Tensor, output: Tensor) -> None:
    x = x.detach()
    off = trace._is_off("norms", path)

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
    trace._defer(f"{path}.mean", ("batch", "position"), x.shape[:-1], mean)
    trace._defer(f"{path}.variance", ("batch", "position"), x.shape[:-1], variance)
    trace._record(f"{path}.output", VECTORS, output)
    trace._check(f"{path}.output", output, again)


def _head(trace: Trace, module: nn.Linear, x: Tensor, output: Tensor) -> None:
    x = x.detach()
    trace._record("head.output", VECTORS, output)
    trace._check("head.output", output, lambda: _linear(module, x))


def _logits(trace: Trace, module: nn.Linear, x: Tensor, logits: Tensor) -> None:
    x, logits = x.detach(), logits.detach().clone()  # who samples may change them in place
    axes = ("batch", "position", "vocabulary")
    trace._record("logits", axes, logits)
    trace._defer("probabilities", axes, logits.shape, lambda: logits.float().softmax(-1))
    trace._check("logits", logits, lambda: _linear(module, x))


def _linear(module: nn.Linear, x: Tensor) -> Tensor:
    """A linear layer past its hooks, in the precision of its weights (autocast may have run it in less)."""
    return F.linear(x.to(module.weight.dtype), module.weight, module.bias).detach()


def _keep(value: Tensor) -> Callable[[], Tensor]:
    kept = value.detach()
    return lambda: kept


def _difference(one: Tensor, other: Tensor) -> float:
    one, other = one.float(), other.float()
    if not one.numel():
        return 0.0
    worst = torch.where(one == other, 0.0, (one - other).abs()).max().item()
    return math.inf if math.isnan(worst) else worst


def _agree(name: str, ran: Tensor, again: Tensor) -> None:
    """What is shown must be what ran, to the precision of the numbers."""
    half = ran.dtype in (torch.bfloat16, torch.float16)
    allowed = (2e-2 if half else 1e-5) * max(1.0, ran.abs().max().item() if ran.numel() else 0.0)
    difference = _difference(ran, again)
    if difference > allowed and ran.isfinite().all():
        raise TraceError(
            f"{name}: computed step by step it differs by {difference:.1e} from what ran; please report it."
        )


def labels(
    name: str, axes: Sequence[str], shape: Sequence[int], tokens: Mapping[str, list[str]]
) -> dict[str, list[str]]:
    """The words along the axes of a tensor, where they are known and as many as the axis is long."""
    sides = _sides(name, tokens)
    found = {axis: (tokens.get(sides[axis], []), size) for axis, size in zip(axes, shape, strict=True) if axis in sides}
    return {axis: words for axis, (words, size) in found.items() if words and len(words) == size}


def _sides(name: str, known: Mapping[str, Any]) -> dict[str, str]:
    """For each axis that runs over tokens: the source's or the target's. A model that only reads has no target."""
    own = "source" if name.startswith(("encoder.", "head")) or "target" not in known else "target"
    return {"position": own, "query": own, "key": "source" if ".cross_attention." in name else own}


def _cells(layout: Layout, sentence: int) -> Tensor | None:
    return layout[sentence].nonzero()[:, 0] if isinstance(layout, Tensor) else None
