"""Run a model with parts changed: `with what_if(model, remove_heads={...}): model(...)`.

Hooks change the passes of this thread inside the block. `tracing` inside the block shows the changed values.
"""

import difflib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sightline.errors import TraceError
from sightline.model.hooks import After, Before, hooks
from sightline.model.protocol import Model
from sightline.model.transformer import (
    Embedding,
    FeedForward,
    MultiHeadAttention,
    Positions,
    Residual,
    SelfAttention,
    Stack,
)
from sightline.special import PAD
from sightline.trace.steps import AttentionEdit, attend_edited

PARTS: dict[str, type[nn.Module]] = {
    "positions": Positions,  # tokens carry no position
    "scale": MultiHeadAttention,  # scores are not divided by √d_k
    "look-ahead-mask": SelfAttention,  # target positions attend to later ones
    "residuals": Residual,  # a sub-layer's output replaces its input instead of being added to it
    "norms": nn.LayerNorm,  # vectors are not normalised
    "feed-forward": FeedForward,  # the feed-forward networks add nothing
}
"""The parts that `without` can switch off, with their modules."""

_active = threading.local()  # by the id of the model


def active_what_if(model: nn.Module) -> "WhatIf | None":
    """Return the edits of a model that are active on this thread."""
    found: WhatIf | None = _active.__dict__.get(str(id(model)))
    return found


class WhatIf:
    """Edits of a model, checked once. They can be applied to several blocks in turn."""

    def __init__(
        self,
        model: nn.Module,
        *,
        remove_heads: Mapping[str, Iterable[int]] | None = None,
        average_heads: Mapping[str, Iterable[int]] | None = None,
        scale_heads: Mapping[str, Mapping[int, float]] | None = None,
        set_attention: Mapping[str, Mapping[tuple[int, int, int], float]] | None = None,
        without: Iterable[str] = (),
    ) -> None:
        """The options are those of `what_if`."""
        require_model(model)
        self.model, every = model, dict(model.named_modules())
        self.off: Mapping[str, tuple[str, ...]] = _parts_off(every, without)
        """By part: the prefixes of the paths where it is off."""
        self.attention: Mapping[str, AttentionEdit] = _attention_edits(
            every,
            self,
            remove_heads=remove_heads or {},
            average_heads=average_heads or {},
            scale_heads=scale_heads or {},
            set_attention=set_attention or {},
        )
        """By path: the changes to attention modules."""
        self.positions: dict[str, Tensor] = {}
        """By stack: the positions of the tokens of the pass that runs now."""
        self.writing = False
        """Whether the pass that runs now is a step of a search."""
        self._before: list[tuple[nn.Module, Before]] = []
        self._after: list[tuple[nn.Module, After]] = []
        for path, module in every.items():
            before, after = _hooks(self, path, module)
            self._before += before
            self._after += after

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Change the passes of this thread until the block ends."""
        if active_what_if(self.model) is not None:
            raise TraceError("Another what_if is active for this model. Pass all edits to one what_if(...).")
        key = str(id(self.model))
        _active.__dict__[key] = self
        try:
            with hooks(self._before, self._after, prepend=True):  # before those of a trace, which records the changes
                yield
        finally:
            del _active.__dict__[key]

    def is_off(self, part: str, path: str) -> bool:
        """Return whether a part is off in the module at this path."""
        return any(f"{path}.".startswith(prefix) for prefix in self.off.get(part, ()))

    def query_positions(self, path: str, q: Tensor) -> Tensor | None:
        """Return the positions of an attention module's queries. The beams of a sentence may share one row."""
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

    `remove_heads`, `average_heads` and `scale_heads` name attention modules by dotted path and heads by number: removed
    heads return zeros, averaged heads attend equally to all allowed keys, scaled heads are multiplied, all before W^O.
    `set_attention` sets probabilities by (head, query position, key position); the other cells of the row are rescaled
    to sum to 1. `without` switches parts off, everywhere ("norms") or below a path ("norms@encoder.layers.0").
    """
    whole = WhatIf(
        model,
        remove_heads=remove_heads,
        average_heads=average_heads,
        scale_heads=scale_heads,
        set_attention=set_attention,
        without=without,
    )
    with whole.applied():
        yield whole
    if not whole.positions and (whole.off or whole.attention):
        raise TraceError("The model did not run inside the what_if, or it ran compiled or on another thread.")


def require_model(model: nn.Module) -> None:
    """Raise an error unless this is a whole, eager model: compiled modules do not call hooks."""
    for path, module in model.named_modules():
        if "_orig_mod" in module._modules or module._compiled_call_impl is not None:
            raise TraceError(f"The module {path or 'model'!r} is compiled and calls no hooks. Use the eager model.")
    if not isinstance(model, Model):
        raise TraceError(f"{type(model).__name__} is not a whole model. Pass the model that `build` returns.")


def _attention_edits(
    every: Mapping[str, nn.Module], whole: WhatIf, **options: Mapping[str, Any]
) -> dict[str, AttentionEdit]:
    """Return the edits of attention modules, by path. The options are those of `what_if`."""
    modules = {path: module for path, module in every.items() if isinstance(module, MultiHeadAttention)}
    for option, paths in options.items():
        for path in paths:
            if path not in modules:
                close = (difflib.get_close_matches(path, modules, n=1) or list(modules))[0]
                raise _error(option, path, f"no attention module {path!r}. The closest is {close!r}.")
    edits = {}
    for path, module in modules.items():
        own = {option: paths.get(path, {}) for option, paths in options.items()}
        removed = _heads("remove_heads", path, module, own["remove_heads"])
        for head in _heads("scale_heads", path, module, own["scale_heads"]):
            if head in removed:
                raise _error("scale_heads", head, f"head {head} of {path} is also in `remove_heads`. Choose one.")
        edit = AttentionEdit(
            unscaled=whole.is_off("scale", path),
            look_ahead=whole.is_off("look-ahead-mask", path) and _has("look-ahead-mask", path, module),
            average=frozenset(_heads("average_heads", path, module, own["average_heads"])),
            cells=_cells(path, module, own["set_attention"]),
            factors={**dict.fromkeys(removed, 0.0), **own["scale_heads"]},
        )
        if module.attend.training and module.attend.dropout and edit.changes_probabilities:
            raise TraceError("Attention with dropout cannot be edited. Call `model.eval()` first.")
        if edit != AttentionEdit():
            edits[path] = edit
    return edits


def _error(option: str, value: object, message: str) -> TraceError:
    return TraceError(f"`{option}`: {message}", option=option, value=value)


def _heads(option: str, path: str, module: MultiHeadAttention, heads: Iterable[int]) -> list[int]:
    if not isinstance(heads, Iterable) or isinstance(heads, str):
        raise _error(option, heads, f"the heads of {path} must be a list, for example [0, 3], got {heads!r}.")
    for head in (found := list(heads)):
        if head not in range(module.heads):
            raise _error(option, head, f"{path} has heads 0 to {module.heads - 1}, but no head {head!r}.")
    return found


def _cells(
    path: str, module: MultiHeadAttention, cells: Mapping[tuple[int, int, int], float]
) -> dict[tuple[int, int], dict[int, float]]:
    """Return the cells by head and query."""
    option = "set_attention"
    rows: dict[tuple[int, int], dict[int, float]] = {}
    for cell, probability in cells.items():
        if not (isinstance(cell, tuple) and len(cell) == 3 and min(cell) >= 0):
            raise _error(option, cell, f"a cell of {path} is (head, query position, key position), got {cell!r}.")
        if not 0 <= probability <= 1:
            raise _error(option, probability, f"{path} {cell} must be between 0 and 1, got {probability}.")
        _heads(option, path, module, cell[:1])
        row = rows.setdefault(cell[:2], {})
        row[cell[2]] = probability
        if sum(row.values()) > 1 + 1e-6:
            raise _error(option, cell, f"the cells of head {cell[0]}, query {cell[1]} of {path} sum to more than 1.")
    return rows


def _parts_off(modules: Mapping[str, nn.Module], without: Iterable[str]) -> dict[str, tuple[str, ...]]:
    option = "without"
    if isinstance(without, str):
        raise _error(option, without, f"must be a list, [{without!r}], got a string.")
    off: dict[str, tuple[str, ...]] = {}
    for item in without:
        part, _, path = item.partition("@")
        if part not in PARTS:
            raise _error(option, item, f"invalid part {part!r}. Choose from {', '.join(PARTS)}.")
        if path not in modules:
            raise _error(option, item, f"the model has no module {path!r}.")
        prefix = f"{path}." if path else ""
        if not any(_has(part, name, module) for name, module in modules.items() if f"{name}.".startswith(prefix)):
            raise _error(option, item, f"{path or 'this model'} has no {part!r} to switch off.")
        off[part] = (*off.get(part, ()), prefix)
    return off


def _has(part: str, path: str, module: nn.Module) -> bool:
    """Return whether a switch applies to a module."""
    return isinstance(module, PARTS[part]) and (part != "look-ahead-mask" or path.startswith("decoder."))


def _hooks(
    whole: WhatIf, path: str, module: nn.Module
) -> tuple[list[tuple[nn.Module, Before]], list[tuple[nn.Module, After]]]:
    """Return the functions to call before and after a module and its parts."""
    before: list[tuple[nn.Module, Before]] = []
    after: list[tuple[nn.Module, After]] = []
    if isinstance(module, Embedding):
        stack = path.partition(".")[0]
        before.append((module, lambda args: whole.positions.update({stack: args[1]})))
    elif isinstance(module, Stack) and path == "decoder":
        before.append((module, lambda args: _enter_decoder(whole, args)))
    elif path == "classifier":
        after.append((module, lambda _, logits: _require_finite(whole, logits)))
    elif isinstance(module, Positions) and whole.is_off("positions", path):
        nothing = _no_rotation if path.endswith("rotary") else torch.zeros_like
        after.append((module, lambda _, rows: nothing(rows)))
    elif isinstance(module, FeedForward) and whole.is_off("feed-forward", path):
        after.append((module, lambda _, output: torch.zeros_like(output)))
    elif isinstance(module, nn.LayerNorm) and whole.is_off("norms", path):
        after.append((module, lambda args, _: args[0]))
    elif isinstance(module, Residual) and whole.is_off("residuals", path):
        kept: list[Tensor] = []  # the sub-layer's output, between its dropout and the sum
        after.append((module.dropout, lambda _, output: kept.append(output)))
        if module.pre:
            after.append((module, lambda *_: kept.pop()))
        else:
            before.append((module.norm, lambda _: (kept.pop(),)))
    elif isinstance(module, MultiHeadAttention) and path in whole.attention:
        after.append((module.attend, lambda args, z: _attend(whole, path, args, z)))
    return before, after


def _enter_decoder(whole: WhatIf, args: Sequence[Any]) -> Sequence[Any] | None:
    """Note whether this is a step of a search. Hide the padding on the right, which only the look-ahead mask hides if
    the caller gives no layout."""
    ids, layout, cross, cache = args
    whole.writing = cache is not None
    if "look-ahead-mask" in whole.off and layout is None and cache is None and (ids[:, -1] == PAD).any():
        return ids, (ids != PAD).flip(1).cumsum(1).flip(1) > 0, cross, cache
    return None


def _require_finite(whole: WhatIf, logits: Tensor) -> None:
    """Raise an error if a search cannot go on, because a changed model can overflow. A trace shows where."""
    if whole.writing and not logits.isfinite().all():
        raise TraceError("With these changes the numbers of the model overflow, so it cannot write. Change less.")


def _attend(whole: WhatIf, path: str, args: Sequence[Any], z: Tensor) -> Tensor:
    (q, k, v, mask), edit = args, whole.attention[path]
    if not edit.changes_probabilities:
        return edit.apply_factors(z)  # the other heads do not change by a bit
    return attend_edited(q, k, v, mask, edit, whole.query_positions(path, q)).to(z.dtype)


def _no_rotation(rotary: Tensor) -> Tensor:
    """Return sine 0 and cosine 1 for every pair of channels."""
    sine, cosine = rotary.chunk(2, dim=-1)
    return torch.cat([torch.zeros_like(sine), torch.ones_like(cosine)], dim=-1)
