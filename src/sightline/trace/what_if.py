"""What if a part were different? Edits from outside, through hooks that are gone when the block ends.

The model's code knows nothing of them, other threads that use the same model are not touched, and what `tracing` shows
inside the block is what really ran.
"""

import difflib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from sightline.errors import TraceError
from sightline.model.mask import Mask
from sightline.model.transformer import Embedding, FeedForward, MultiHeadAttention, Positions, Residual
from sightline.trace.steps import AttentionEdit, spell_out

__all__ = ["PARTS", "WhatIf", "active_what_if", "refuse_compiled", "what_if"]

PARTS = {
    "positions": "tokens no longer say where they stand",
    "scale": "scores are not divided by √d_k",
    "look-ahead-mask": "target positions see later ones",
    "residuals": "a sub-layer's output replaces its input instead of being added to it",
    "norms": "vectors pass unnormalised",
    "feed-forward": "the feed-forward networks add nothing",
}
"""What can be switched off."""

_active: dict[int, "WhatIf"] = {}  # by thread


def active_what_if() -> "WhatIf | None":
    """The edits in force on this thread."""
    return _active.get(threading.get_ident())


class WhatIf:
    """The edits of one block: what is off where, and what is different in which attention module."""

    def __init__(self, off: Mapping[str, tuple[str, ...]], attention: Mapping[str, AttentionEdit]) -> None:
        self._off = off
        self._attention = attention
        self.positions: dict[str, Tensor] = {}  # by stack: where the tokens of the pass that runs now stand

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
    refuse_compiled(model)
    edits = _attention_edits(model, remove_heads or {}, average_heads or {}, scale_heads or {}, set_attention or {})
    off = _parts_off(model, without)
    whole = WhatIf(off, {path: _switch(edit, path, off) for path, edit in edits.items()})
    thread = threading.get_ident()
    if thread in _active:
        raise TraceError("a what-if is in force on this thread already; name all its edits in one what_if(...).")
    handles: list[RemovableHandle] = []
    _active[thread] = whole
    try:
        for path, module in model.named_modules():
            handles += _install(whole, path, module, thread)
        yield whole
    finally:
        del _active[thread]
        for handle in handles:
            handle.remove()


def refuse_compiled(model: nn.Module) -> None:
    """Hooks do not fire inside a compiled module, so nothing could be seen or changed in it."""
    for path, module in model.named_modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            name = f"its part {path!r}" if path else "it"
            raise TraceError(f"this model cannot be looked into because {name} is compiled; use the eager model.")


def _attention_edits(
    model: nn.Module,
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
    edits = {}
    for path, module in modules.items():
        factors = {**dict.fromkeys(remove.get(path, ()), 0.0), **scale.get(path, {})}
        averaged, cell = frozenset(average.get(path, ())), dict(cells.get(path, {}))
        for head in (*factors, *averaged, *(head for head, _, _ in cell)):
            if not 0 <= head < module.heads:
                raise TraceError(f"{path} has heads 0 to {module.heads - 1}, and no head {head}.")
        for place, probability in cell.items():
            if not 0 <= probability <= 1:
                raise TraceError(f"{path}: attention at {place} must be between 0 and 1, and {probability} is not.")
        edits[path] = AttentionEdit(average=averaged, cells=cell, factors=factors)
    return edits


def _parts_off(model: nn.Module, without: Iterable[str]) -> dict[str, tuple[str, ...]]:
    paths = {path for path, _ in model.named_modules()}
    off: dict[str, tuple[str, ...]] = {}
    for item in without:
        part, _, path = item.partition("@")
        if part not in PARTS:
            raise TraceError(f"there is no part {part!r} to switch off; known are {', '.join(PARTS)}.")
        if path not in paths:
            raise TraceError(f"there is no module {path!r} to switch {part} off in.")
        off[part] = (*off.get(part, ()), f"{path}." if path else "")
    return off


def _switch(edit: AttentionEdit, path: str, off: Mapping[str, tuple[str, ...]]) -> AttentionEdit:
    whole = WhatIf(off, {})
    return AttentionEdit(
        unscaled=whole.is_off("scale", path),
        look_ahead=whole.is_off("look-ahead-mask", path),
        average=edit.average,
        cells=edit.cells,
        factors=edit.factors,
    )


Replace = Callable[[Any, Any], Any]


def _install(whole: WhatIf, path: str, module: nn.Module, thread: int) -> list[RemovableHandle]:
    """The hooks that a module needs. They run before those of a trace, which then sees what really went on."""

    def after(target: nn.Module, replace: Replace) -> RemovableHandle:
        def hook(_: nn.Module, args: Any, output: Any) -> Any:
            return replace(args, output) if threading.get_ident() == thread else None

        return target.register_forward_hook(hook, prepend=True)

    def before(target: nn.Module, replace: Callable[[Any], Any]) -> RemovableHandle:
        def hook(_: nn.Module, args: Any) -> Any:
            return replace(args) if threading.get_ident() == thread else None

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
