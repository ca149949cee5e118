"""The lineage of a trace states how each tensor is computed, and computing it gives the tensor."""

import json
import re
from pathlib import Path
from typing import get_args

import pytest
import torch

from sightline.trace.lineage import RULES, Rule, lineage
from sightline.trace.pack import manifest, pack_trace, read_trace
from sightline.trace.watch import tracing
from sightline.trace.what_if import PARTS, what_if
from support import difference, every_variant, ids, reader, translator, writer

INPUTS = {"embedding", "segments", "positions"}


def traces(variant, without=()):
    """Yield models of every architecture, the ids of a sentence and its trace."""
    source, target = ids(1, 6), ids(1, 5)
    segments = torch.randint(0, 2, source.shape)
    for model, inputs in (
        (translator(variant), (source, target)),
        (writer(variant), (target,)),
        (reader(variant), (source, None, segments)),
    ):
        off = [part for part in without if part != "look-ahead-mask" or "decoder" in dict(model.named_children())]
        with torch.no_grad(), what_if(model, without=off), tracing(model) as trace:
            model(*inputs)
        yield model, {"encoder": source, "decoder": target, "segments": segments}, trace


def recompute(model, given, trace, name):
    """Compute a tensor from its operands in the trace; an input from the tables of the model."""
    step, stack = trace.lineage[name], name.partition(".")[0]
    if step.rule in ("embedding", "segments"):
        (weight,) = map(model.get_parameter, step.weights)
        rows = {"embedding": given[stack], "segments": given["segments"]}[step.rule]
        return weight[
            rows if model.config.architecture == "encoder-only" else given[stack] * (step.rule == "embedding")
        ]
    if step.rule == "positions":
        module = model.get_submodule(name)
        length = given[stack].shape[1]
        assert [model.get_parameter(weight) is module.table for weight in step.weights] in ([], [True])
        table = module.table[None, :length]
        if "off" in step.constants:
            sine, cosine = table.chunk(2, dim=-1)
            return torch.cat([0 * sine, 0 * cosine + name.endswith("rotary")], dim=-1)
        return table
    return step.compute(model, [trace[operand.name].values for operand in step.operands])


@every_variant
def test_every_tensor_is_an_input_or_computed_from_others(variant):
    for model, given, trace in traces(variant):
        assert set(trace.lineage) == set(trace.names()) == set(lineage(model))
        for name in trace.names():
            step = trace.lineage[name]
            assert step.rule in INPUTS | set(RULES), name
            assert (step.rule in INPUTS) == (not step.operands), name
            value = trace[name].values
            again = recompute(model, given, trace, name).detach()
            assert again.shape == value.shape, name
            finite = value.isfinite()
            assert torch.equal(finite, again.isfinite()), name
            assert difference(again[finite], value[finite]) <= 1e-5, name


@every_variant
def test_operands_come_first(variant):
    """The names of a trace are in the order in which the model computes the tensors."""
    for _, _, trace in traces(variant):
        order = {name: number for number, name in enumerate(trace.names())}
        for name, step in trace.lineage.items():
            assert all(order[operand.name] < order[name] for operand in step.operands), name


@every_variant
def test_every_computed_tensor_that_the_model_returns_is_checked(variant):
    for _, _, trace in traces(variant):
        deferred = {"scaled", "scores", "masked", "probabilities", "mean", "variance", "q_unrotated", "k_unrotated"}
        computed = {name for name, step in trace.lineage.items() if step.is_computed}
        assert set(trace.check()) == {name for name in computed if name.rpartition(".")[2] not in deferred}
        assert max(trace.check().values()) <= 1e-5


def rows_of(traced):
    """Return the axis of a tensor's rows: one for each query, position or key."""
    return next(traced.axes.index(axis) for axis in ("query", "position", "key") if axis in traced.axes)


@every_variant
def test_a_row_needs_the_stated_rows_only(variant):
    """Other numbers in the other rows of an operand do not change a row."""
    row, others = 2, torch.tensor([0, 1, 3, 4])
    for model, _, trace in traces(variant):
        for name, step in trace.lineage.items():
            before, after = [], []
            for operand in step.operands:
                traced = trace[operand.name]
                values = traced.values.masked_fill(traced.values == -torch.inf, 0)
                changed = values.index_fill(rows_of(traced), others, 0.5)
                before.append(values)
                after.append(changed if operand.rows == "same" else values)
            if step.operands:
                axis = rows_of(trace[name])
                one, other = (step.compute(model, values).select(axis, row) for values in (before, after))
                assert torch.allclose(one, other, rtol=0, atol=1e-5), name


def rounding(trace, name, value):
    """Return the difference that rounding may make. Without norms, scores are large, and softmax turns their rounding
    into differences of the heads' outputs, which a fused kernel computes."""
    scores = trace[name.removesuffix("z") + "scaled"].values if name.endswith(".z") else torch.zeros(1)
    return 1e-5 * max(1.0, value.abs().max().item()) * max(1.0, scores.abs().max().item() / 10)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("variant", ["learned", "rotary"])
def test_lineage_of_a_what_if(variant, part):
    for model, given, trace in traces(variant, [part]):
        for name in trace.lineage:
            value = trace[name].values
            again = recompute(model, given, trace, name)
            finite = value.isfinite()
            assert torch.equal(finite, again.isfinite()), name
            assert difference(again[finite], value[finite]) <= rounding(trace, name, value[finite]), name
        if part != "look-ahead-mask" or "decoder.output" in trace:
            assert trace.lineage != lineage(model)


def test_lineage_of_edited_heads():
    model, path = translator(), "decoder.layers.1.self_attention"
    edits = {
        "scale_heads": {path: {1: 3.0}},
        "average_heads": {path: [0]},
        "set_attention": {path: {(1, 2, 0): 0.5, (1, 3, 1): 0.0}},
    }
    with torch.no_grad(), what_if(model, **edits), tracing(model) as trace:
        model(ids(1, 6), ids(1, 5))
    step = trace.lineage[f"{path}.probabilities"]
    assert step.rule == "edited_softmax"
    assert step.constants == {"average": [0], "cells": [[1, 2, 0, 0.5], [1, 3, 1, 0.0]]}
    assert trace.lineage[f"{path}.z"].constants == {"factors": {"1": 3.0}}
    for name in f"{path}.probabilities", f"{path}.z":
        step = trace.lineage[name]
        again = step.compute(model, [trace[operand.name].values for operand in step.operands])
        assert difference(again, trace[name].values) <= 1e-5


def test_every_rule_is_declared_documented_and_used():
    assert set(get_args(Rule)) == INPUTS | set(RULES)
    text = (Path(__file__).parents[2] / "docs" / "reference" / "trace.md").read_text("utf-8")
    table = text.partition("| rule | result |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.count("|") == 3]
    assert [rule for row in rows for rule in re.findall(r"`(\w+)`", row)] == list(get_args(Rule))


def test_stacks_name_their_parts_and_sides():
    for model in translator(), writer(), reader():
        with torch.no_grad(), tracing(model) as trace:
            inputs = {
                "encoder-decoder": (ids(1, 6), ids(1, 5)),
                "decoder-only": (ids(1, 5),),
                "encoder-only": (ids(1, 6),),
            }
            model(*inputs[model.config.architecture])
        one, lengths = trace.sentence(0), {"source": 6, "target": 5}
        for stack in trace.stacks:
            for layer in range(stack["layers"]):
                parts = [f"{stack['name']}.layers.{layer}.{part}" for part in stack["sublayers"]]
                own = [name for name in trace.names() if name.startswith(f"{stack['name']}.layers.{layer}.")]
                seen = dict.fromkeys(
                    name.rpartition(".")[0].replace(".norm", "").replace("_residual", "") for name in own
                )
                assert list(seen) == parts
                assert trace.lineage[f"{parts[0]}.masked"].constants["causal"] == stack["causal"]
        for name in one.names():
            sizes = one.sizes(name)
            assert one.sides(name).keys() == sizes.keys() & {"position", "query", "key"}, name
            assert all(sizes[axis] == lengths[side] for axis, side in one.sides(name).items()), name


def test_a_packed_trace_has_its_manifest():
    for model, _, trace in traces("rotary"):
        one = trace.sentence(0)
        one.model, one.parts = "toy", 2
        one.tokens = {stack["side"]: list("abcdef") for stack in one.stacks}
        one.ids = {stack["side"]: [1, 2, 3, 4, 5, 6] for stack in one.stacks}
        names = one.names()[3:30]
        data = pack_trace(one, names)
        again = read_trace(data)
        assert manifest(again) == manifest(one, names)
        assert again.lineage == {name: one.lineage[name] for name in names}
        written = json.loads(data[16 : 16 + int.from_bytes(data[8:16], "little")])
        for tensor in written["tensors"]:
            for field in "dtype", "offset", "bytes":
                del tensor[field]
        assert written == {**manifest(one, names), "about": {}}
        assert again.config == model.config.model_dump()
        assert all("lineage" in tensor for tensor in written["tensors"])
