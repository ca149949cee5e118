"""What if a part were different? Edits from outside, through hooks that are gone when the block ends.

The model's code knows nothing of them, other threads that use the same model are not touched, and what `tracing` shows
inside the block is what really ran.
"""

import difflib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from sightline.errors import TraceError
from sightline.model.mask import Mask
from sightline.model.transformer import (
    Embedding,
    FeedForward,
    Model,
    MultiHeadAttention,
    Positions,
    Residual,
    SelfAttention,
)
from sightline.trace.steps import AttentionEdit, spell_out

__all__ = ["PARTS", "WhatIf", "active_what_if", "require_model", "what_if"]

PARTS = {
    "positions": "tokens no longer say where they stand",
    "scale": "scores are not divided by √d_k",
    "look-ahead-mask": "target positions see later ones",
    "residuals": "a sub-layer's output replaces its input instead of being added to it",
    "norms": "vectors pass unnormalised",
    "feed-forward": "the feed-forward networks add nothing",
}
"""What can be switched off."""

_active: dict[tuple[int, int], "WhatIf"] = {}  # by thread and model


def active_what_if(model: nn.Module) -> "WhatIf | None":
    """The edits of a model that are in force on this thread."""
    return _active.get((threading.get_ident(), id(model)))


class WhatIf:
    """The edits of one block: what is off where, and what is different in which attention module."""

    def __init__(self, off: Mapping[str, tuple[str, ...]], attention: Mapping[str, AttentionEdit]) -> None:
        self._off = off
        self._attention = attention
        self.positions: dict[str, Tensor] = {}  # by stack: where the tokens of the pass that runs now stand

    @property
    def empty(self) -> bool:
        """Whether nothing is different at all."""
        return not self._off and all(edit == AttentionEdit() for edit in self._attention.values())

    def is_off(self, part: str, path: str) -> bool:
        return any(f"{path}.".startswith(prefix) for prefix in self._off.get(part, ()))

    def edit(self, path: str) -> AttentionEdit | None:
        """What is different in the attention module at this path."""
        return self._attention.get(path)

    def query_positions(self, path: str, q: Tensor) -> Tensor | None:
        """Where the queries of an attention module stand; beams of one sentence follow one another."""
        positions = self.positions.get(path.partition(".")[0])
        return None if positions is None else positions.reshape(-1, q.shape[2]).expand(q.shape[0], -1)


@contextmanager
def what_if(
    model: nn.Module,
    *,
    remove_heads: Mapping[str, Iterable[int]] | None = None,
    average_heads: Mapping[str, Iterable[int]] | None = None,
    scale_heads: Mapping[str, Mapping[int, float]] | None = None,
    set_attention: Mapping[str, Mapping[tuple[int, int, int], float]] | None = None,
    without: Iterable[str] = (),
) -> Iterator[WhatIf]:
    """Run the block with parts of the model removed or changed.

    `remove_heads`, `average_heads` and `scale_heads` name attention modules by their dotted path and heads by number:
    removed heads put out zeros, averaged ones look equally at all they may see, scaled ones are multiplied, all before
    W^O. `set_attention` sets probabilities by (head, query position, key position); the other cells of the row share
    what is left. `without` switches parts off, everywhere ("norms") or below a path ("norms@encoder.layers.0").
    """
    require_model(model)
    off = _parts_off(model, without)
    edits = _attention_edits(
        model, off, remove_heads or {}, average_heads or {}, scale_heads or {}, set_attention or {}
    )
    whole, key = WhatIf(off, edits), (threading.get_ident(), id(model))
    if key in _active:
        raise TraceError("a what-if is in force for this model already; name all its edits in one what_if(...).")
    handles: list[RemovableHandle] = []
    _active[key] = whole
    try:
        for path, module in model.named_modules():
            handles += _install(whole, path, module, key[0])
        yield whole
        if not whole.positions and not whole.empty:
            raise TraceError(
                "the model did not run inside the what-if: on another thread, or compiled, it is not seen."
            )
    finally:
        del _active[key]
        for handle in handles:
            handle.remove()


def require_model(model: nn.Module) -> None:
    """Only a whole model can be looked into, and only an eager one: hooks do not fire inside what is compiled."""
    for path, module in model.named_modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            name = f"its part {path!r}" if path else "it"
            raise TraceError(f"this model cannot be looked into because {name} is compiled; use the eager model.")
    if not isinstance(model, Model):
        raise TraceError(
            f"a {type(model).__name__} cannot be looked into; give the whole model, as build(...) makes it."
        )


def _attention_edits(
    model: nn.Module,
    off: Mapping[str, tuple[str, ...]],
    remove: Mapping[str, Iterable[int]],
    average: Mapping[str, Iterable[int]],
    scale: Mapping[str, Mapping[int, float]],
    cells: Mapping[str, Mapping[tuple[int, int, int], float]],
) -> dict[str, AttentionEdit]:
    modules = {path: module for path, module in model.named_modules() if isinstance(module, MultiHeadAttention)}
    for path in (*remove, *average, *scale, *cells):
        if path not in modules:
            close = difflib.get_close_matches(path, modules, n=1)
            raise TraceError(f"there is no attention module {path!r}; did you mean {(close or list(modules))[0]!r}?")
    switches, edits = WhatIf(off, {}), {}
    for path, module in modules.items():
        edit = AttentionEdit(
            unscaled=switches.is_off("scale", path),
            look_ahead=switches.is_off("look-ahead-mask", path) and _has("look-ahead-mask", path, module),
            average=frozenset(_heads(path, module, average.get(path, ()))),
            cells=_cells(path, module, cells.get(path, {})),
            factors=dict.fromkeys(_heads(path, module, remove.get(path, ())), 0.0),
        )
        scaled = scale.get(path, {})
        for head in _heads(path, module, scaled):
            if head in edit.factors:
                raise TraceError(f"{path}: head {head} is to be removed and to be scaled; choose one.")
        edits[path] = replace(edit, factors={**edit.factors, **scaled})
        if module.attend.training and module.attend.dropout and edits[path].changes_probabilities:
            raise TraceError("attention cannot be edited while it is under dropout; call model.eval() first.")
    return edits


def _heads(path: str, module: MultiHeadAttention, heads: Iterable[int]) -> list[int]:
    if not isinstance(heads, Iterable) or isinstance(heads, str):
        raise TraceError(f"{path}: heads are named in a list, for example [0, 3], and {heads!r} is none.")
    for head in (found := list(heads)):
        if head not in range(module.heads):
            raise TraceError(f"{path} has heads 0 to {module.heads - 1}, and no head {head!r}.")
    return found


def _cells(
    path: str, module: MultiHeadAttention, cells: Mapping[tuple[int, int, int], float]
) -> dict[tuple[int, int, int], float]:
    rows: dict[tuple[int, int], float] = {}
    for place, probability in cells.items():
        if not (isinstance(place, tuple) and len(place) == 3 and min(place) >= 0):
            raise TraceError(f"{path}: a cell is (head, query position, key position), and {place!r} is none.")
        if not 0 <= probability <= 1:
            raise TraceError(f"{path}: attention at {place} must be between 0 and 1, and {probability} is not.")
        _heads(path, module, place[:1])
        rows[place[:2]] = rows.get(place[:2], 0.0) + probability
        if rows[place[:2]] > 1 + 1e-6:
            raise TraceError(f"{path}: the cells of head {place[0]}, query {place[1]} add up to more than 1.")
    return dict(cells)


def _parts_off(model: nn.Module, without: Iterable[str]) -> dict[str, tuple[str, ...]]:
    if isinstance(without, str):
        raise TraceError(f"what to switch off is named in a list: without=[{without!r}].")
    modules = dict(model.named_modules())
    off: dict[str, tuple[str, ...]] = {}
    for item in without:
        part, _, path = item.partition("@")
        if part not in PARTS:
            raise TraceError(f"there is no part {part!r} to switch off; known are {', '.join(PARTS)}.")
        if path not in modules:
            raise TraceError(f"there is no module {path!r} to switch {part} off in.")
        prefix = f"{path}." if path else ""
        if not any(_has(part, name, module) for name, module in modules.items() if f"{name}.".startswith(prefix)):
            raise TraceError(f"there is nothing of {part!r} in {path or 'this model'!r} to switch off.")
        off[part] = (*off.get(part, ()), prefix)
    return off


def _has(part: str, path: str, module: nn.Module) -> bool:
    """Whether a module is one that a switch works on."""
    kinds: dict[str, type[nn.Module]] = {
        "positions": Positions,
        "scale": MultiHeadAttention,
        "look-ahead-mask": SelfAttention,
        "residuals": Residual,
        "norms": nn.LayerNorm,
        "feed-forward": FeedForward,
    }
    return isinstance(module, kinds[part]) and (part != "look-ahead-mask" or path.startswith("decoder."))


Change = Callable[[Any, Any], Any]


def _install(whole: WhatIf, path: str, module: nn.Module, thread: int) -> list[RemovableHandle]:
    """The hooks that a module needs. They run before those of a trace, which then sees what really went on."""

    def after(target: nn.Module, change: Change) -> RemovableHandle:
        def hook(_: nn.Module, args: Any, output: Any) -> Any:
            return change(args, output) if threading.get_ident() == thread else None

        return target.register_forward_hook(hook, prepend=True)

    def before(target: nn.Module, change: Callable[[Any], Any]) -> RemovableHandle:
        def hook(_: nn.Module, args: Any) -> Any:
            return change(args) if threading.get_ident() == thread else None

        return target.register_forward_pre_hook(hook, prepend=True)

    handles: list[RemovableHandle] = []
    if isinstance(module, Embedding):
        stack = path.partition(".")[0]
        handles.append(before(module, lambda args: whole.positions.update({stack: args[1]})))
    elif isinstance(module, Positions) and whole.is_off("positions", path):
        nothing = _no_turn if path.endswith("rotary") else torch.zeros_like
        handles.append(after(module, lambda _, rows: nothing(rows)))
    elif isinstance(module, FeedForward) and whole.is_off("feed-forward", path):
        handles.append(after(module, lambda _, output: torch.zeros_like(output)))
    elif isinstance(module, nn.LayerNorm) and whole.is_off("norms", path):
        handles.append(after(module, lambda args, _: args[0]))
    elif isinstance(module, Residual) and whole.is_off("residuals", path):
        kept: list[Tensor] = []  # what the sub-layer put out, between its dropout and the sum
        handles.append(after(module.dropout, lambda _, output: kept.append(output)))
        if module.pre:
            handles.append(after(module, lambda *_: kept.pop()))
        else:
            handles.append(before(module.norm, lambda _: (kept.pop(),)))
    elif isinstance(module, MultiHeadAttention):
        edit = whole.edit(path)
        if edit is not None and edit != AttentionEdit():
            handles.append(after(module.attend, lambda args, z: _attend(whole, path, edit, args, z)))
    return handles


def _attend(
    whole: WhatIf, path: str, edit: AttentionEdit, args: tuple[Tensor, Tensor, Tensor, Mask], z: Tensor
) -> Tensor:
    q, k, v, mask = args
    if not edit.changes_probabilities:
        return edit.apply_factors(z)  # the other heads stay bit for bit what they were
    return spell_out(q, k, v, mask, edit, whole.query_positions(path, q)).z.to(z.dtype)


def _no_turn(waves: Tensor) -> Tensor:
    """Sine 0 and cosine 1 in every pair of channels."""
    sine, cosine = waves.chunk(2, dim=-1)
    return torch.cat([torch.zeros_like(sine), torch.ones_like(cosine)], dim=-1)
