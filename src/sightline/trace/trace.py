"""The tensors of a traced pass, by name, with named axes."""

import copy
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.errors import TraceError
from sightline.files import optional_import
from sightline.model.mask import Layout, PackedRows
from sightline.trace.lineage import Step


class Traced(NamedTuple):
    """A tensor of a trace, with the names of its axes."""

    name: str
    axes: tuple[str, ...]
    values: Tensor
    labels: dict[str, list[str]]
    """The tokens along an axis, if they are known."""

    def __repr__(self) -> str:
        shape = ", ".join(f"{axis}: {size}" for axis, size in zip(self.axes, self.values.shape, strict=True))
        return f"Traced({self.name!r}, ({shape}), {str(self.values.dtype).removeprefix('torch.')})"

    def numpy(self) -> NDArray[np.float32]:
        """Return the values as a float32 array."""
        return self.values.float().cpu().numpy()

    def frame(self) -> Any:
        """Return the values as a pandas DataFrame, labelled by the tokens or the positions along each axis. The last
        axis becomes the columns, the others the index (a MultiIndex if there are several)."""
        pandas = optional_import("pandas", package="pandas")
        axes: list[str | None] = list(self.axes)
        labels = [self.labels.get(axis, range(size)) for axis, size in zip(self.axes, self.values.shape, strict=True)]
        values = self.numpy()
        while values.ndim < 2:  # one column
            axes, labels, values = [*axes, None], [*labels, [self.name]], values[..., None]
        *rows, columns = (pandas.Index(words, name=axis) for axis, words in zip(axes, labels, strict=True))
        index = rows[0] if len(rows) == 1 else pandas.MultiIndex.from_product(rows)
        return pandas.DataFrame(values.reshape(len(index), len(columns)), index=index, columns=columns)


class _Entry(NamedTuple):
    """A tensor that a trace has recorded, or computes when it is read."""

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    compute: Callable[[], Tensor]
    layouts: Mapping[str, Layout]


@dataclass(repr=False)
class Trace:
    """The tensors of all passes inside a `tracing` block, by dotted name. `trace[name]` is of the module's last run;
    `trace.runs(name)` has all of them."""

    tokens: dict[str, list[str]] = field(default_factory=dict)
    """The tokens of one sentence, "source" and "target", if the caller sets them."""
    ids: dict[str, list[int]] = field(default_factory=dict)
    """Their ids, as the model read them."""
    lineage: dict[str, Step] = field(default_factory=dict)
    """How each tensor is computed from others."""
    model: str = ""
    """The name of the model, if the caller sets it."""
    config: dict[str, Any] = field(default_factory=dict)
    """The options of the model, as in docs/reference/config.md."""
    stacks: list[dict[str, Any]] = field(default_factory=list)
    """The stacks of the model: name, side of the tokens that it reads, layers and their sub-layers."""
    parts: int = 1
    """Number of segments of the text that the model translates separately, if the caller sets it."""
    _entries: dict[str, list[_Entry]] = field(default_factory=dict)
    _checks: list[tuple[str, Tensor, Callable[[], Tensor]]] = field(default_factory=list)
    _sentence: int | None = None

    def __repr__(self) -> str:
        sides = (f"{side}: {' '.join(tokens)!r}" for side, tokens in self.tokens.items())
        return f"Trace({', '.join([f'{len(self._entries)} tensors', *sides])})"

    def names(self) -> list[str]:
        """Return the names of all tensors."""
        return list(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> Traced:
        return self._select(name, self._found(name)[-1])

    def runs(self, name: str) -> list[Traced]:
        """Return one tensor for each time that the module ran."""
        return [self._select(name, entry) for entry in self._found(name)]

    def sizes(self, name: str) -> dict[str, int]:
        """Return the length of each axis of `trace[name]`, in order, without computing the tensor."""
        entry = self._found(name)[-1]
        if self._sentence is None:
            return dict(zip(entry.axes, entry.shape, strict=True))
        cells = self._cells(name, entry, self._sentence)
        shape = (n if some is None else len(some) for n, some in zip(entry.shape[1:], cells, strict=True))
        return dict(zip(entry.axes[1:], shape, strict=True))

    def sides(self, name: str) -> dict[str, str]:
        """Return the side, "source" or "target", whose tokens are along each axis of tokens of `trace[name]`."""
        sides, axes = _sides(name, [stack["side"] for stack in self.stacks]), self._found(name)[-1].axes
        return {axis: side for axis, side in sides.items() if axis in axes and self.stacks}

    def sentence(self, index: int) -> "Trace":
        """Return the trace of one sentence of the batch, without the batch axis and without padding."""
        one = copy.copy(self)
        one._sentence = index
        return one

    def check(self) -> dict[str, float]:
        """Return, for every step, the largest difference between the traced output and the same step computed from the
        traced input with the current weights. A value that is NaN or infinite on one side only counts as infinite."""
        differences: dict[str, float] = {}
        for name, ran, compute in self._checks:
            again = compute()
            beams = len(ran) // max(len(again), 1)  # may share keys and values
            found = difference(ran, again.repeat_interleave(beams, 0))
            differences[name] = max(found, differences.get(name, 0.0))
        return differences

    def record(
        self, name: str, axes: tuple[str, ...], value: Tensor, layouts: Mapping[str, Layout] | None = None
    ) -> None:
        """Add a tensor."""
        value = value.detach()
        self.defer(name, axes, value.shape, lambda: value, layouts)

    def defer(
        self,
        name: str,
        axes: tuple[str, ...],
        shape: Sequence[int],
        compute: Callable[[], Tensor],
        layouts: Mapping[str, Layout] | None = None,
    ) -> None:
        """Add a tensor that is computed when it is read."""
        self._entries.setdefault(name, []).append(_Entry(axes, tuple(shape), compute, dict(layouts or {})))

    def add_check(self, name: str, compute: Callable[[], Tensor]) -> None:
        """Let `check` compare the last tensor of this name with the same step computed again."""
        self._checks.append((name, self.last(name)(), compute))

    def last(self, name: str) -> Callable[[], Tensor]:
        """Return a function that returns the tensor of the last run, of the whole batch."""
        return self._entries[name][-1].compute

    def _found(self, name: str) -> list[_Entry]:
        if name not in self._entries:
            raise TraceError(f"The trace has no tensor {name!r}. See `trace.names()`.", value=name)
        return self._entries[name]

    def _select(self, name: str, entry: _Entry) -> Traced:
        values, axes = entry.compute(), entry.axes
        if self._sentence is not None:
            cells = self._cells(name, entry, self._sentence)
            values, axes = values[self._sentence], axes[1:]
            for i, some in enumerate(cells):
                values = values if some is None else values.index_select(i, some)
        labels = {} if "batch" in axes else _labels(name, axes, values.shape, self.tokens)
        return Traced(name, axes, values, labels)

    def _cells(self, name: str, entry: _Entry, sentence: int) -> list[Tensor | None]:
        """Return the cells of a sentence along each axis but the first, or None for all cells."""
        sides = _sides(name, entry.layouts)
        layouts = [entry.layouts.get(sides[axis]) if axis in sides else None for axis in entry.axes]
        if any(isinstance(layout, PackedRows) for layout in layouts):
            raise TraceError("The trace cannot select a sentence of `PackedRows`. Trace one sentence per row.")
        if not 0 <= sentence < entry.shape[0]:
            message = f"{name} has sentences 0 to {entry.shape[0] - 1}, but no sentence {sentence}."
            raise TraceError(message, value=sentence)
        return [layout[sentence].nonzero()[:, 0] if isinstance(layout, Tensor) else None for layout in layouts[1:]]


def difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference; infinite if only one side is NaN or infinite."""
    one, other = one.float(), other.float()
    if not one.numel():
        return 0.0
    worst = torch.where(one == other, 0.0, (one - other).abs()).max().item()
    return math.inf if math.isnan(worst) else worst


def _labels(
    name: str, axes: Sequence[str], shape: Sequence[int], tokens: Mapping[str, list[str]]
) -> dict[str, list[str]]:
    """Return the tokens along the axes of a tensor, if they are known and have the length of the axis."""
    sides = _sides(name, tokens)
    found = {axis: (tokens.get(sides[axis], []), size) for axis, size in zip(axes, shape, strict=True) if axis in sides}
    return {axis: words for axis, (words, size) in found.items() if words and len(words) == size}


def _sides(name: str, known: Container[str]) -> dict[str, str]:
    """Return the side, source or target, of each axis of tokens. A model without a decoder has a source only."""
    own = "source" if name.startswith(("encoder.", "head")) or "target" not in known else "target"
    return {"position": own, "query": own, "key": "source" if ".cross_attention." in name else own}
