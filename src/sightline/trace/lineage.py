"""The lineage of a trace: how each tensor is computed from others, from weights and from constants.

`Trace.check` computes the tensors again by these rules, and packed traces state them for pages and other programs.
docs/reference/trace.md has a table of the rules.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.model.transformer import (
    ACTIVATIONS,
    CrossAttention,
    Decoder,
    Embedding,
    FeedForward,
    Model,
    MultiHeadAttention,
    Residual,
    Stack,
    rotate,
    split,
)
from sightline.trace.steps import AttentionEdit, set_cells
from sightline.trace.what_if import WhatIf

Steps = Iterator[tuple[str, "Step"]]
Rule = Literal[
    "embedding",
    "segments",
    "positions",
    "copy",
    "zeros",
    "scale",
    "sum",
    "residual",
    "linear",
    "projection",
    "rotation",
    "scores",
    "scaled_scores",
    "mask",
    "softmax",
    "edited_softmax",
    "weighted_sum",
    "concat",
    "activation",
    "mean",
    "variance",
    "norm",
]
"""All rules, inputs of the model first. docs/reference/trace.md explains them."""
SUBLAYERS = "self_attention", "cross_attention", "feed_forward"


class Operand(NamedTuple):
    """A tensor of the trace that another is computed from."""

    name: str
    rows: Literal["same", "all"] = "same"
    """The rows that one row of the result needs. A row is that of one token: of a position, a query or a key."""


class Step(NamedTuple):
    """How a tensor is computed. Without operands it is an input of the model: rows of tables, by ids or positions."""

    rule: Rule
    operands: tuple[Operand, ...] = ()
    weights: tuple[str, ...] = ()
    """Names of parameters."""
    constants: dict[str, Any] = {}  # noqa: RUF012 - never changed

    @property
    def is_computed(self) -> bool:
        """Whether the rule computes this tensor from its operands."""
        return self.rule in RULES

    def manifest(self) -> dict[str, Any]:
        """Return the step as JSON, without empty fields."""
        operands = [operand._asdict() for operand in self.operands]
        fields = {**self._asdict(), "operands": operands, "weights": list(self.weights)}
        return {name: value for name, value in fields.items() if value}

    @classmethod
    def read(cls, step: dict[str, Any]) -> "Step":
        """Return the step that `manifest` has written."""
        operands = tuple(Operand(**operand) for operand in step.get("operands", []))
        return cls(step["rule"], operands, tuple(step.get("weights", [])), step.get("constants", {}))

    def compute(self, model: nn.Module, operands: Sequence[Tensor]) -> Tensor:
        """Compute the tensor again with the current weights."""
        weights = [model.get_parameter(name).detach() for name in self.weights]
        return RULES[self.rule](*operands, *weights, **self.constants)


def stacks(model: nn.Module) -> list[dict[str, Any]]:
    """Describe the stacks of a model in the order of computation: the last one predicts tokens."""
    return [
        {
            "name": name,
            "side": "target" if isinstance(module, Decoder) else "source",
            "causal": isinstance(module, Decoder),  # no position attends to later ones
            "layers": len(module.layers),
            "sublayers": [part for part in SUBLAYERS if hasattr(module.layers[0], part)],
        }
        for name, module in model.named_children()
        if isinstance(module, Stack)
    ]


def lineage(model: Model, edits: WhatIf | None = None) -> dict[str, Step]:
    """Return the steps of all tensors that a trace of this model can have, with the edits of a what-if."""
    edits = edits or WhatIf(model)
    found: dict[str, Step] = {}
    top = ""
    for name, module in model.named_children():
        if isinstance(module, Stack):
            found |= _stack(name, module, model.config.activation, edits)
            top = f"{name}.output"
        elif name == "head":
            found["head.output"] = _linear(name, module, top)
            activation = model.config.activation.replace("swiglu", "swish")
            activated = Step("activation", (Operand("head.output"),), constants={"kind": activation})
            found |= _norm("head_norm", model.get_submodule("head_norm"), activated, edits)
            top = "head_norm.output"
    found["logits"] = _linear("classifier", model.classifier, top)
    found["probabilities"] = Step("softmax", (Operand("logits"),))
    return found


def _stack(path: str, stack: Stack, activation: str, edits: WhatIf) -> Steps:
    if stack.rotary is not None:
        off = edits.is_off("positions", f"{path}.rotary")
        yield f"{path}.rotary", Step("positions", constants={"off": True} if off else {})
    yield from _embedding(f"{path}.embedding", stack.embedding, edits)
    x = f"{path}.embedding.output"
    for i, layer in enumerate(stack.layers):
        for name in SUBLAYERS:
            own = f"{path}.layers.{i}.{name}"
            module = getattr(layer, name, None)
            if module is None:
                continue
            residual = getattr(layer, f"{name}_residual")
            yield from _residual(f"{own}_residual", residual, x, own, edits)
            source = f"{own}_residual.norm.output" if residual.pre else f"{own}_residual.input"
            yield f"{own}.input", _copy(source)
            if isinstance(module, FeedForward):
                yield from _feed_forward(own, module, activation, edits)
            else:
                yield from _attention(own, module, stack.rotary is not None, edits)
            x = f"{own}_residual.output"
    if isinstance(stack.norm, nn.LayerNorm):
        yield from _norm(f"{path}.norm", stack.norm, _copy(x), edits)
        x = f"{path}.norm.output"
    yield f"{path}.output", _copy(x)


def _embedding(path: str, module: Embedding, edits: WhatIf) -> Steps:
    yield f"{path}.tokens", Step("embedding", weights=_weights(f"{path}.tokens", module.tokens))
    yield f"{path}.scaled", Step("scale", (Operand(f"{path}.tokens"),), constants={"factor": module.scale})
    addends = [Operand(f"{path}.scaled")]
    tables: tuple[tuple[Literal["positions", "segments"], nn.Module | None], ...]
    tables = ("positions", module.positions), ("segments", module.segments)
    for name, table in tables:
        if table is not None:
            off = {"off": True} if edits.is_off(name, f"{path}.{name}") else {}
            yield f"{path}.{name}", Step(name, (), _weights(f"{path}.{name}", table), off)
            addends.append(Operand(f"{path}.{name}"))
    yield f"{path}.sum", Step("sum", tuple(addends))
    if isinstance(module.norm, nn.LayerNorm):
        yield from _norm(f"{path}.norm", module.norm, _copy(f"{path}.sum"), edits)
        yield f"{path}.output", _copy(f"{path}.norm.output")
    else:
        yield f"{path}.output", _copy(f"{path}.sum")


def _residual(path: str, module: Residual, x: str, sublayer: str, edits: WhatIf) -> Steps:
    yield f"{path}.input", _copy(x)
    yield f"{path}.sublayer", _copy(f"{sublayer}.output")
    addends = Operand(f"{path}.input"), Operand(f"{path}.sublayer")
    off = edits.is_off("residuals", path)
    yield f"{path}.sum", _copy(f"{path}.sublayer") if off else Step("residual", addends)
    source = _copy(f"{path}.input" if module.pre else f"{path}.sum")
    yield from _norm(f"{path}.norm", module.norm, source, edits)
    yield f"{path}.output", _copy(f"{path}.sum" if module.pre else f"{path}.norm.output")


def _norm(path: str, module: nn.Module, source: Step, edits: WhatIf) -> Steps:
    x, mean, variance = (Operand(f"{path}.{name}") for name in ("input", "mean", "variance"))
    yield f"{path}.input", source
    yield f"{path}.mean", Step("mean", (x,))
    yield f"{path}.variance", Step("variance", (x, mean))
    scaled = Step("norm", (x, mean, variance), _weights(path, module), {"epsilon": module.eps})
    yield f"{path}.output", _copy(f"{path}.input") if edits.is_off("norms", path) else scaled


def _attention(path: str, module: MultiHeadAttention, rotary: bool, edits: WhatIf) -> Steps:
    edit = edits.attention.get(path)
    cross = isinstance(module, CrossAttention)
    for which in "qkv":
        linear = "query_key_value" if not cross else "query" if which == "q" else "key_value"
        letters = {"query_key_value": "qkv", "query": "q", "key_value": "kv"}[linear]
        constants = {"part": letters.index(which), "parts": len(letters), "heads": module.heads}
        source = "encoder.output" if linear == "key_value" else f"{path}.input"
        weights = _weights(f"{path}.{linear}", getattr(module, linear))
        turned = rotary and not cross and which != "v"
        projection = Step("projection", (Operand(source),), weights, constants)
        yield f"{path}.{which}_unrotated" if turned else f"{path}.{which}", projection
        if turned:
            operands = Operand(f"{path}.{which}_unrotated"), Operand(f"{path.partition('.')[0]}.rotary")
            yield f"{path}.{which}", Step("rotation", operands)
    d_k = module.output.in_features // module.heads
    causal = path.startswith("decoder.") and not cross and not (edit and edit.look_ahead)
    yield f"{path}.scores", Step("scores", (Operand(f"{path}.q"), Operand(f"{path}.k", "all")))
    scaled = Step("scaled_scores", (Operand(f"{path}.scores"),), constants={"d_k": d_k})
    yield f"{path}.scaled", _copy(f"{path}.scores") if edit and edit.unscaled else scaled
    yield f"{path}.masked", Step("mask", (Operand(f"{path}.scaled"),), constants={"causal": causal})
    masked = (Operand(f"{path}.masked"),)
    edited = _edited(edit) if edit else {}
    yield f"{path}.probabilities", Step("edited_softmax" if edited else "softmax", masked, constants=edited)
    factors = {"factors": {str(head): factor for head, factor in edit.factors.items()}} if edit and edit.factors else {}
    operands = Operand(f"{path}.probabilities"), Operand(f"{path}.v", "all")
    yield f"{path}.z", Step("weighted_sum", operands, constants=factors)
    yield f"{path}.concat", Step("concat", (Operand(f"{path}.z"),))
    yield f"{path}.output", _linear(f"{path}.output", module.output, f"{path}.concat")


def _edited(edit: AttentionEdit) -> dict[str, Any]:
    """Return the changes of a what-if to probabilities."""
    cells = [[*at, key, value] for at, row in edit.cells.items() for key, value in row.items()]
    changes = {"average": sorted(edit.average), "cells": cells}
    return {name: value for name, value in changes.items() if value}


def _feed_forward(path: str, module: FeedForward, activation: str, edits: WhatIf) -> Steps:
    yield f"{path}.inner", _linear(f"{path}.inner", module.inner, f"{path}.input")
    yield f"{path}.units", Step("activation", (Operand(f"{path}.inner"),), constants={"kind": activation})
    off = edits.is_off("feed-forward", path)
    zeros = Step("zeros", (Operand(f"{path}.input"),))
    yield f"{path}.output", zeros if off else _linear(f"{path}.outer", module.outer, f"{path}.units")


def _copy(name: str) -> Step:
    return Step("copy", (Operand(name),))


def _linear(path: str, module: nn.Module, source: str) -> Step:
    return Step("linear", (Operand(source),), _weights(path, module))


def _weights(path: str, module: nn.Module) -> tuple[str, ...]:
    return tuple(f"{path}.{name}" for name, _ in module.named_parameters())


# --- The rules


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply a linear layer in the precision of its weights (autocast may use a lower one)."""
    return F.linear(x.to(weight.dtype), weight, bias)


def projection(x: Tensor, *weights: Tensor, part: int, parts: int, heads: int) -> Tensor:
    """Return one of the stacked projections of a linear layer, by head."""
    return split(linear(x, *weights), parts, heads)[part]


def mask(scaled: Tensor, *, causal: bool) -> Tensor:
    """Exclude later keys. Padding is not part of the trace of one sentence."""
    return scaled + torch.full_like(scaled, -torch.inf).triu(1) if causal else scaled


def softmax(scores: Tensor) -> Tensor:
    """Compute the softmax in float32. Fully masked rows return zeros."""
    return scores.float().softmax(-1).masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0)


def edited_softmax(masked: Tensor, *, average: Sequence[int] = (), cells: Sequence[Sequence[Any]] = ()) -> Tensor:
    """Compute the softmax of the other heads. Averaged heads attend equally to all allowed keys. Each cell is head,
    query, key and probability; the other cells of its row are rescaled so that the row sums to 1."""
    probabilities, seen = softmax(masked), masked[:, 0] != -torch.inf
    for head in average:
        probabilities[:, head] = seen / seen.sum(-1, keepdim=True).clamp(min=1)
    rows: dict[tuple[int, int], dict[int, float]] = {}
    for head, query, key, value in cells:
        rows.setdefault((int(head), int(query)), {})[int(key)] = value
    for (head, query), row in rows.items():
        probabilities[:, head] = set_cells(probabilities[:, head].clone(), seen, query, row)
    return probabilities


def weighted_sum(probabilities: Tensor, v: Tensor, *, factors: dict[str, float] | None = None) -> Tensor:
    """Sum the values, weighted by the probabilities; a what-if may multiply heads."""
    z = probabilities @ v.float()
    for head, factor in (factors or {}).items():
        z[..., int(head), :, :] *= factor
    return z


def norm(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, *, epsilon: float) -> Tensor:
    """Normalise each vector, then scale and shift its channels."""
    return (x.float() - mean[..., None]) / (variance[..., None] + epsilon).sqrt() * weight + bias


RULES: dict[Rule, Callable[..., Tensor]] = {
    "copy": lambda x: x,
    "zeros": torch.zeros_like,
    "scale": lambda x, *, factor: x * factor,
    "sum": lambda *addends: sum(addends[1:], start=addends[0]),
    "residual": torch.add,
    "linear": linear,
    "projection": projection,
    "rotation": lambda x, rotary: rotate(x, rotary[:, None]),
    "scores": lambda q, k: q.float() @ k.float().mT,
    "scaled_scores": lambda scores, *, d_k: scores / math.sqrt(d_k),
    "mask": mask,
    "softmax": softmax,
    "edited_softmax": edited_softmax,
    "weighted_sum": weighted_sum,
    "concat": lambda z: z.transpose(1, 2).flatten(2),
    "activation": lambda x, *, kind: ACTIVATIONS[kind]()(x),
    "mean": lambda x: x.float().mean(-1),
    "variance": lambda x, mean: (x.float() - mean[..., None]).square().mean(-1),
    "norm": norm,
}
"""How tensors are computed from operands, weights and constants. Tensors have a batch axis."""
