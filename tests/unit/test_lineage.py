"""The lineage of a trace states how each tensor is computed, and computing it gives the tensor."""

import json

import pytest
import torch

from sightline.trace.lineage import RULES, lineage
from sightline.trace.pack import pack, read
from sightline.trace.watch import tracing
from sightline.trace.what_if import PARTS, what_if
from support import difference, every_variant, ids, reader, translator, writer

INPUTS = {"embedding", "positions"}


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
    step = trace.lineage[name]
    if step.rule == "embedding":
        (weight,) = map(model.get_parameter, step.weights)
        stack = name.partition(".")[0]
        segments = given["segments"] if model.config.architecture == "encoder-only" else 0 * given[stack]
        return weight[segments if name.endswith("segments") else given[stack]]
    if step.rule == "positions":
        module = model.get_submodule(name)
        length = given[name.partition(".")[0]].shape[1]
        assert [model.get_parameter(weight) is module.table for weight in step.weights] in ([], [True])
        return module.table[None, :length]
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


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("variant", ["learned", "rotary"])
def test_lineage_of_a_what_if(variant, part):
    for model, given, trace in traces(variant, [part]):
        for name, step in trace.lineage.items():
            value = trace[name].values
            again = recompute(model, given, trace, name) if step.operands else value
            finite = value.isfinite()
            assert difference(again[finite], value[finite]) <= 1e-5 * max(1.0, value[finite].abs().max().item()), name
        if part != "positions" and (part != "look-ahead-mask" or "decoder.output" in trace):
            assert trace.lineage != lineage(model)


def test_lineage_of_edited_heads():
    model, path = translator(), "decoder.layers.1.cross_attention"
    edits = {"scale_heads": {path: {1: 3.0}}, "average_heads": {path: [0]}}
    with torch.no_grad(), what_if(model, **edits), tracing(model) as trace:
        model(ids(1, 6), ids(1, 5))
    assert trace.lineage[f"{path}.probabilities"].rule == "edited"
    assert trace.lineage[f"{path}.z"].constants == {"factors": {"1": 3.0}}
    step = trace.lineage[f"{path}.z"]
    again = step.compute(model, [trace[operand.name].values for operand in step.operands])
    assert difference(again, trace[f"{path}.z"].values) <= 1e-5


def test_lineage_is_packed():
    for _, _, trace in traces("rotary"):
        names = trace.names()[3:30]
        data = pack(trace, names)
        assert read(data).lineage == {name: trace.lineage[name] for name in names}
        manifest = json.loads(data[16 : 16 + int.from_bytes(data[8:16], "little")])
        for name in names:
            step = trace.lineage[name]
            written = {"operands": [], "weights": [], "constants": {}, **manifest["lineage"][name]}
            assert written["rule"] == step.rule
            assert [(one["name"], one["rows"]) for one in written["operands"]] == list(step.operands)
            assert (written["weights"], written["constants"]) == (list(step.weights), step.constants)
