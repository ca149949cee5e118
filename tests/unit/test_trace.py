"""A trace shows what the model computed."""

import sys
import threading

import pytest
import torch

from sightline.errors import InputError, TraceError
from sightline.model.mask import PackedRows
from sightline.model.protocol import Inputs
from sightline.model.transformer import rotate
from sightline.trace.trace import Traced
from sightline.trace.watch import trace_pass, tracing
from support import VOCAB, difference, every_variant, hooks, ids, packed, pad, raises, reader, translator, writer


def every_model(variant):
    source, layout = pad([ids(6), ids(3)])
    rows, packing = packed([ids(4), ids(2)])
    targets, target_packing = packed([ids(3), ids(5)])
    return [
        (translator(variant), (source, ids(2, 5), layout)),
        (translator(variant), (rows, targets, packing, target_packing)),
        (writer(variant), (ids(2, 5),)),
        (writer(variant), (targets, target_packing)),
        (reader(variant), (source, layout, torch.randint(0, 2, source.shape))),
    ]


@every_variant
@torch.no_grad()
def test_outputs_are_bit_identical_and_steps_are_checked(variant):
    for model, inputs in every_model(variant):
        plain = model(*inputs)
        with tracing(model) as trace:
            traced = model(*inputs)
        assert torch.equal(plain, traced)
        assert hooks(model) == 0
        assert torch.equal(trace["logits"].values, plain)
        differences = trace.check()
        assert max(differences.values()) <= 1e-5, max(differences, key=differences.get)
        checked = {name.rpartition(".")[2] for name in differences}
        assert checked >= {"q", "k", "v", "z", "output", "inner", "units", "sum", "logits"}
        layers = sum(stack.layers for stack in model.config.stacks.values())
        attentions = layers + (model.config.decoder.layers if model.config.architecture == "encoder-decoder" else 0)
        assert sum(name.endswith("attention.z") for name in differences) == attentions
        for name in trace.names():
            assert not trace[name].values.isnan().any(), name
            one = [] if any(isinstance(part, PackedRows) for part in inputs) else [trace.sentence(0)]
            for seen in (trace, *one):
                sizes = dict(zip(seen[name].axes, seen[name].values.shape, strict=True))
                assert seen.sizes(name) == sizes, name


@torch.no_grad()
def test_the_numbers_of_equation_1():
    model = translator()
    with tracing(model) as trace:
        model(ids(1, 6), ids(1, 5))
    for path, queries, keys in (
        ("encoder.layers.1.self_attention", 6, 6),
        ("decoder.layers.2.self_attention", 5, 5),
        ("decoder.layers.0.cross_attention", 5, 6),
    ):
        one = trace.sentence(0)
        q, k, v, scores, scaled, masked, probabilities, z = (
            one[f"{path}.{name}"].values for name in ("q", "k", "v", "scores", "scaled", "masked", "probabilities", "z")
        )
        heads = model.get_submodule(path).heads
        assert probabilities.shape == (heads, queries, keys)
        assert one[f"{path}.probabilities"].axes == ("head", "query", "key")
        assert difference(scores, q @ k.mT) <= 1e-6
        assert difference(scaled, scores / (24 / heads) ** 0.5) <= 1e-6
        assert difference(probabilities.sum(-1), torch.ones(heads, queries)) <= 1e-6
        assert difference(z, probabilities @ v) <= 1e-6
        if path == "decoder.layers.2.self_attention":
            later = torch.ones(5, 5, dtype=torch.bool).triu(1)
            assert (masked[:, later] == -torch.inf).all()
            assert (probabilities[:, later] == 0).all()
            assert torch.equal(masked[:, ~later], scaled[:, ~later])
        else:
            assert torch.equal(masked, scaled)


@torch.no_grad()
def test_embeddings_norms_units_and_probabilities():
    model = translator("learned")
    source = ids(1, 6)
    with tracing(model) as trace:
        logits = model(source, ids(1, 5))
    at = "encoder.embedding"
    rows = model.encoder.embedding.tokens.weight[source]
    assert torch.equal(trace[f"{at}.tokens"].values, rows)
    assert torch.equal(trace[f"{at}.scaled"].values, rows * 24**0.5)
    assert torch.equal(trace[f"{at}.positions"].values[0], model.encoder.embedding.positions.table[:6])
    assert difference(trace[f"{at}.sum"].values, trace[f"{at}.scaled"].values + trace[f"{at}.positions"].values) == 0
    norm = "decoder.layers.1.cross_attention_residual.norm"
    x = trace[f"{norm}.input"].values
    assert torch.equal(x, trace["decoder.layers.1.cross_attention_residual.sum"].values)
    assert difference(trace[f"{norm}.mean"].values, x.mean(-1)) <= 1e-6
    assert difference(trace[f"{norm}.variance"].values, x.var(-1, correction=0)) <= 1e-6
    assert trace["decoder.layers.0.feed_forward.units"].values.shape == (1, 5, 56)
    assert trace["decoder.layers.0.feed_forward.units"].axes == ("batch", "position", "d_ff")
    assert torch.equal(trace["probabilities"].values, logits.softmax(-1))
    assert trace["logits"].values.shape == (1, 5, VOCAB)


@torch.no_grad()
def test_one_sentence_of_a_batch_is_the_same_padded_and_alone():
    model = translator()
    sources, targets = [ids(4), ids(7)], [ids(5), ids(3)]
    (rows, layout), (columns, there) = pad(sources), pad(targets)
    with tracing(model) as padded:
        model(rows, columns, layout, there)
    for i in range(2):
        with tracing(model) as alone:
            model(sources[i][None], targets[i][None])
        for name in alone.names():
            one = alone.sentence(0)[name].values
            value = padded.sentence(i)[name].values
            assert value.shape == one.shape, name
            finite = one.isfinite()
            assert torch.equal(finite, value.isfinite()), name
            assert difference(value[finite], one[finite]) <= 1e-5 if finite.any() else True, name


@torch.no_grad()
def test_tokens_label_the_axes():
    model = translator()
    with tracing(model) as trace:
        model(ids(1, 3), ids(1, 2))
    trace.tokens = {"source": ["I", "see", "it"], "target": ["ich", "sehe"]}
    one = trace.sentence(0)["decoder.layers.0.cross_attention.probabilities"]
    assert one.labels == {"query": ["ich", "sehe"], "key": ["I", "see", "it"]}


@every_variant
@torch.no_grad()
def test_generation_step_by_step_can_be_traced(variant):
    model = translator(variant)
    source, layout = pad([ids(6), ids(3)])
    target = ids(6, 4)
    with tracing(model) as trace:
        cache = model.start(Inputs(source, source_layout=layout), capacity=4, beams=3)
        for i in range(4):
            model.step(target[:, i : i + 1], cache)
    assert max(trace.check().values()) <= 1e-5
    rows = trace.runs("decoder.layers.2.self_attention.probabilities")
    assert [row.values.shape for row in rows] == [(6, 2, 1, n) for n in (1, 2, 3, 4)]
    with tracing(model) as full:
        model(source.repeat_interleave(3, 0), target, layout.repeat_interleave(3, 0))
    whole = full["decoder.layers.2.self_attention.probabilities"].values
    for i, row in enumerate(rows):  # the attention of a step is a row of the teacher-forced pass
        assert difference(row.values[:, :, 0], whole[:, :, i, : i + 1]) <= 1e-5


@pytest.mark.parametrize("how", ["bfloat16", "autocast"])
@torch.no_grad()
def test_half_precision(how):
    model = translator("biased")
    source, layout = pad([ids(6), ids(3)])
    inputs = (source, ids(2, 5), layout)
    if how == "bfloat16":
        model = model.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        plain = model(*inputs)
        with tracing(model) as trace:
            assert torch.equal(model(*inputs), plain)
    assert trace["encoder.layers.0.self_attention.q"].values.dtype == torch.bfloat16
    for name, error in trace.check().items():
        assert error <= 2e-2 * max(1.0, trace[name].values.abs().max().item()), name


def test_no_hook_is_left_after_an_exception():
    model = translator()
    with pytest.raises(IndexError), tracing(model):
        model(torch.tensor([[VOCAB + 5]]), ids(1, 2))
    assert hooks(model) == 0
    with pytest.raises(KeyError), tracing(model):
        raise KeyError
    assert hooks(model) == 0


@torch.no_grad()
def test_nothing_leaks_between_threads():
    """Some threads trace and others run the same model. Each trace has its own pass only."""
    model = translator()
    inputs = [(ids(1, 3 + i), ids(1, 2 + i)) for i in range(6)]
    expected = [model(*both) for both in inputs]
    problems: list[str] = []

    def look(i: int, traced: bool) -> None:
        for _ in range(15):
            with torch.no_grad():
                if not traced:
                    logits = model(*inputs[i])
                else:
                    with tracing(model) as trace:
                        logits = model(*inputs[i])
                    runs = trace.runs("logits")
                    if len(runs) != 1 or not torch.equal(runs[0].values, expected[i]):
                        problems.append(f"thread {i} saw {[run.values.shape for run in runs]}")
            if not torch.equal(logits, expected[i]):
                problems.append(f"thread {i} got other logits")

    threads = [threading.Thread(target=look, args=(i, i % 2 == 0)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert hooks(model) == 0


def test_a_trace_does_not_keep_the_graph_alive():
    model = translator()
    with tracing(model) as trace:
        logits = model(ids(1, 3), ids(1, 2))
    assert logits.requires_grad
    assert not any(trace[name].values.requires_grad for name in trace.names())


@pytest.mark.parametrize("how", ["whole", "in place", "part"])
def test_a_compiled_module_is_refused(how):
    model = translator()
    if how == "whole":
        model = torch.compile(model)
    elif how == "in place":
        model.compile()
    else:
        model.decoder = torch.compile(model.decoder)
    with raises(TraceError, match="compiled"), tracing(model):
        pass
    assert hooks(model) == 0


def test_a_model_in_training_is_refused():
    with raises(TraceError, match="training mode"), tracing(translator().train()):
        pass


def test_an_unknown_name_is_refused():
    model = translator()
    with tracing(model) as trace:
        model(ids(1, 3), ids(1, 2))
    with raises(TraceError, value="encoder.probabilities"):
        trace["encoder.probabilities"]


def test_steps_that_differ_from_the_output_are_not_shown():
    model = translator()
    with tracing(model) as trace:
        handle = model.encoder.layers[0].self_attention.attend.register_forward_hook(
            lambda *a: a[2] * 1.01, prepend=True
        )
        model(ids(1, 4), ids(1, 3))
        handle.remove()
    with raises(TraceError, match=r"encoder.layers.0.self_attention.z: .* differ"):
        trace["encoder.layers.0.self_attention.probabilities"]
    assert trace["encoder.layers.1.self_attention.probabilities"].values.shape == (1, 4, 4, 4)


@torch.no_grad()
def test_a_stack_can_be_traced_by_itself():
    model = translator()
    source, layout = pad([ids(6), ids(3)])
    for run in (
        lambda: model.encoder(source),
        lambda: model.encoder(source, layout),
        lambda: model.encoder(ids=source, layout=layout),
        lambda: model.start(Inputs(source, source_layout=layout), capacity=3),
    ):
        with tracing(model) as trace:
            run()
        assert trace["encoder.output"].values.shape == (2, 6, 24)
        assert max(trace.check().values()) <= 1e-5
    assert trace.sentence(1)["encoder.output"].values.shape == (3, 24)


def test_only_a_whole_model_can_be_traced():
    model = translator()
    for part in (model.encoder, torch.nn.Sequential(model)):
        with raises(TraceError, match=type(part).__name__), tracing(part):
            pass


def test_a_block_without_a_pass_is_an_error():
    """A pass on another thread does not count."""
    model = translator()
    with raises(TraceError, match="No pass"), tracing(model):
        pass
    with raises(TraceError, match="No pass"), tracing(model):
        thread = threading.Thread(target=model, args=(ids(1, 3), ids(1, 2)))
        thread.start()
        thread.join()
    assert hooks(model) == 0


@torch.no_grad()
def test_a_part_of_the_positions_can_be_classified():
    model = translator("biased")
    with tracing(model) as trace:
        hidden = model.hidden(Inputs(ids(2, 6), ids(2, 5)))
        logits = model.classifier(hidden[:, -1:])
    assert torch.equal(trace["logits"].values, logits)
    assert max(trace.check().values()) <= 1e-5


@torch.no_grad()
def test_nan_counts_as_an_infinite_difference():
    model = translator("biased")
    model.encoder.layers[0].self_attention.output.bias[0] = torch.nan
    with tracing(model) as trace:
        model(ids(1, 4), ids(1, 3))
    assert max(trace.check().values()) == torch.inf


@torch.no_grad()
def test_later_changes_by_the_caller_do_not_change_a_trace():
    model = translator()
    source, layout = pad([ids(6), ids(3)])
    with tracing(model) as trace:
        logits = model(source, ids(2, 5), layout)
        cache = model.start(Inputs(source, source_layout=layout), capacity=4)
        model.step(ids(2, 1), cache)
    names = [
        "logits",
        "encoder.layers.0.self_attention.probabilities",
        "decoder.layers.0.self_attention.k",
        "decoder.layers.0.self_attention.probabilities",  # computed again from keys that the cache still holds
    ]
    before = [trace.runs(name)[-1].values.clone() for name in names]
    logits /= 3
    layout.fill_(True)
    cache.reorder(torch.tensor([1, 1]))
    model.step(ids(2, 1), cache)
    for name, value in zip(names, before, strict=True):
        assert torch.equal(trace.runs(name)[-1].values, value), name


@torch.no_grad()
def test_each_run_has_its_own_layout():
    model = translator()
    (one, one_layout), (two, two_layout) = pad([ids(2), ids(5)]), pad([ids(4), ids(3)])
    with tracing(model) as trace:
        model(one, ids(2, 3), one_layout)
        model(two, ids(2, 3), two_layout)
    shapes = [run.values.shape for run in trace.sentence(0).runs("encoder.output")]
    assert shapes == [(2, 24), (4, 24)]
    for index in (-1, 2):
        with raises(TraceError, value=index):
            trace.sentence(index)["encoder.output"]
    row, packing = packed([ids(2), ids(3)])
    model = reader()
    with tracing(model) as trace:
        model(row, packing)
    with raises(TraceError, match="PackedRows"):
        trace.sentence(1)["logits"]


@torch.no_grad()
def test_beams_have_separate_rows():
    model = translator()
    source, layout = pad([ids(6), ids(3)])
    with tracing(model) as trace:
        cache = model.start(Inputs(source, source_layout=layout), capacity=4, beams=3)
        model.decoder(ids(6, 2), None, cache.cross, cache)
    cross = "decoder.layers.1.cross_attention"
    assert trace[f"{cross}.probabilities"].values.shape == (6, 2, 2, 6)
    assert trace[f"{cross}.k"].values.shape == (6, 2, 6, 12)
    assert trace[f"{cross}.probabilities"].values[3:, :, :, 3:].abs().max() == 0  # the second sentence's padding
    assert trace.sentence(5)[f"{cross}.z"].values.shape == (2, 2, 12)


@torch.no_grad()
def test_rotary_positions_are_shown():
    model = writer("rotary")
    with tracing(model) as trace:
        model(ids(2, 5))
    path = "decoder.layers.0.self_attention"
    waves = trace["decoder.rotary"].values
    assert trace["decoder.rotary"].axes == ("batch", "position", "d_k")
    for name in ("q", "k"):
        turned = rotate(trace[f"{path}.{name}_unrotated"].values, waves[:, None])
        assert difference(turned, trace[f"{path}.{name}"].values) <= 1e-6
        assert difference(trace[f"{path}.{name}_unrotated"].values, trace[f"{path}.{name}"].values) > 1e-2


@pytest.mark.parametrize("make", [translator, writer, reader])
def test_trace_pass_equals_tracing_a_call(make):
    model, inputs = make(), Inputs(ids(2, 3), ids(2, 4))
    needed = {translator: (inputs.source, inputs.target), writer: (inputs.target,), reader: (inputs.source,)}[make]
    trace = trace_pass(model, inputs)
    with torch.no_grad(), tracing(model) as other:
        model(*needed)
    assert trace.names() == other.names()
    assert torch.equal(trace["logits"].values, other["logits"].values)


@torch.no_grad()
def test_numpy_and_repr():
    model = translator()
    with tracing(model) as trace:
        model(ids(1, 3), ids(1, 2))
    name = "decoder.layers.0.cross_attention.probabilities"
    assert repr(trace) == f"Trace({len(trace.names())} tensors)"
    assert repr(trace[name]) == f"Traced({name!r}, (batch: 1, head: 2, query: 2, key: 3), float32)"
    assert trace[name].numpy().shape == (1, 2, 2, 3)
    trace.tokens = {"source": ["I", "see", "it"], "target": ["ich", "sehe"]}
    assert repr(trace).endswith("tensors, source: 'I see it', target: 'ich sehe')")


@torch.no_grad()
def test_frames_are_labelled_by_the_axes():
    model = translator()
    with tracing(model) as trace:
        model(ids(1, 3), ids(1, 2))
    trace.tokens = {"source": ["I", "see", "I"], "target": ["ich", "sehe"]}
    weights = trace.sentence(0)["decoder.layers.0.cross_attention.probabilities"]
    frame = weights.frame()
    assert list(frame.index.names) == ["head", "query"]
    assert frame.columns.name == "key"
    assert list(frame.columns) == ["I", "see", "I"]
    assert list(frame.index) == [(0, "ich"), (0, "sehe"), (1, "ich"), (1, "sehe")]
    assert (frame.loc[(1, "sehe")].to_numpy() == weights.numpy()[1, 1]).all()
    assert trace["logits"].frame().shape == (2, VOCAB)
    mean = trace.sentence(0)["encoder.layers.0.feed_forward_residual.norm.mean"].frame()
    assert list(mean.columns) == ["encoder.layers.0.feed_forward_residual.norm.mean"]
    assert mean.index.name == "position"


def test_frames_without_pandas_are_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with raises(InputError, value="pandas", match="pip install"):
        Traced("x", ("position",), torch.zeros(2), {}).frame()
