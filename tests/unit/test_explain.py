"""Explanations of a trace have the properties that define them."""

import pytest
import torch

from sightline.errors import InputError, TraceError
from sightline.model.protocol import Inputs
from sightline.trace.explain import gradient_x_input, logit_lens, rollout, value_weighted
from sightline.trace.watch import tracing
from support import VOCAB, difference, every_variant, hooks, ids, pad, raises, reader, translator, writer


@every_variant
@torch.no_grad()
def test_rollout_shares_sum_to_one(variant):
    model = translator(variant)
    source, layout = pad([ids(6), ids(3)])
    with tracing(model) as trace:
        model(source, ids(2, 5), layout)
    encoder = rollout(trace, "encoder")["source"]
    assert encoder.axes == ("layer", "batch", "query", "key")
    assert encoder.values.shape == (2, 2, 6, 6)
    assert difference(encoder.values.sum(-1), torch.ones(2, 2, 6)) <= 1e-5
    assert encoder.values[:, 1, :, 3:].triu(1).abs().max() == 0  # only padding has a share of padding
    decoder = rollout(trace, "decoder")
    total = decoder["source"].values.sum(-1) + decoder["target"].values.sum(-1)
    assert difference(total, torch.ones(3, 2, 5)) <= 1e-5
    assert decoder["target"].values.triu(1).abs().max() == 0
    assert rollout(trace.sentence(0), "decoder")["source"].values.shape == (3, 5, 6)


@torch.no_grad()
def test_rollout_of_one_layer_is_half_its_mean_attention():
    model = reader(encoder={"layers": 1, "heads": 4, "d_ff": 40})
    with tracing(model) as trace:
        model(ids(1, 5))
    looks = trace["encoder.layers.0.self_attention.probabilities"].values.mean(1)
    assert difference(rollout(trace, "encoder")["source"].values[0], (looks + torch.eye(5)) / 2) <= 1e-6


@every_variant
@torch.no_grad()
def test_value_weighted_parts_sum_to_the_output(variant):
    """The output is the sum of p_j·v_j·W^O over heads and keys; `value_weighted` returns their norms."""
    model = translator(variant)
    with tracing(model) as trace:
        model(ids(2, 6), ids(2, 5))
    for path in ("encoder.layers.0.self_attention", "decoder.layers.1.cross_attention"):
        module = model.get_submodule(path)
        weighted = value_weighted(trace, model, path)
        p, v = trace[f"{path}.probabilities"].values, trace[f"{path}.v"].values
        d_k = 24 // module.heads
        total = torch.zeros_like(trace[f"{path}.output"].values)
        for head in range(module.heads):
            w_o = module.output.weight[:, head * d_k : (head + 1) * d_k]
            parts = p[:, head, :, :, None] * (v[:, head] @ w_o.T)[:, None]  # batch, query, key, d_model
            assert difference(weighted.values[:, head], parts.norm(dim=-1)) <= 1e-5
            total += parts.sum(2)
        bias = 0 if module.output.bias is None else module.output.bias
        assert difference(total + bias, trace[f"{path}.output"].values) <= 1e-5
    with raises(TraceError, option="path", value="encoder"):
        value_weighted(trace, model, "encoder")


@every_variant
@torch.no_grad()
def test_the_last_layer_of_the_lens_is_the_logits(variant):
    for model, inputs, stack in (
        (translator(variant), (ids(2, 6), ids(2, 5)), "decoder"),
        (writer(variant), (ids(2, 5),), "decoder"),
        (reader(variant), (ids(2, 5),), "encoder"),
    ):
        with tracing(model) as trace:
            logits = model(*inputs)
        lens = logit_lens(trace, model, stack)
        assert lens.axes == ("layer", "batch", "position", "vocabulary")
        assert len(lens.values) == 1 + len(model.get_submodule(stack).layers)
        assert difference(lens.values[-1], logits) <= 1e-5
        assert difference(lens.values[0], logits) > 1e-3
        assert difference(logit_lens(trace, model, stack, 3).values, lens.values[:, :, 3:4]) <= 1e-6


@torch.no_grad()
def test_the_lens_of_an_encoder_has_the_source_vocabulary():
    model = translator("halves", source_vocab_size=50)
    with tracing(model) as trace:
        model(ids(1, 6), ids(1, 5))
    lens = logit_lens(trace.sentence(0), model, "encoder")
    assert lens.values.shape == (3, 6, 50)
    with raises(TraceError, option="stack", value="classifier"):
        logit_lens(trace, model, "classifier")


@every_variant
def test_gradient_times_input_is_the_difference_quotient(variant):
    model = translator(variant).double()
    inputs = Inputs(ids(2, 4), ids(2, 3))
    found = gradient_x_input(model, inputs, position=2, token=7, sentence=1)
    assert hooks(model) == 0

    def score(stack, token, factor):
        def grow(module, args, output):
            output = output.clone()
            output[1, token] *= factor
            return output

        handle = model.get_submodule(f"{stack}.embedding").register_forward_hook(grow)
        with torch.no_grad():
            value = model(*inputs[:2])[1, 2].log_softmax(-1)[7].item()
        handle.remove()
        return value

    assert found.score == pytest.approx(score("encoder", 0, 1.0))
    for stack, length in (("encoder", 4), ("decoder", 3)):
        for token in range(length):
            quotient = (score(stack, token, 1 + 1e-5) - score(stack, token, 1 - 1e-5)) / 2e-5
            assert found.tokens[stack][token].item() == pytest.approx(quotient, abs=1e-6)


def test_invalid_positions_of_gradient_times_input():
    inputs = Inputs(ids(1, 4), ids(1, 3))
    for option, value in (("position", 9), ("token", VOCAB), ("sentence", 1)):
        with raises(InputError, option=option, value=value):
            gradient_x_input(translator(), inputs, **{"position": 0, "token": 3, option: value})


@every_variant
@torch.no_grad()
def test_every_layer_of_the_lens_by_hand(variant):
    model = translator(variant)
    with tracing(model) as trace:
        model(ids(2, 6), ids(2, 5))
        inside = logit_lens(trace, model, "decoder")  # not part of the trace
    assert len(trace.runs("logits")) == 1
    outputs = ["decoder.embedding.output", *(f"decoder.layers.{i}.feed_forward_residual.output" for i in range(3))]
    for i, name in enumerate(outputs):
        by_hand = model.classifier(model.decoder.norm(trace[name].values))
        assert difference(inside.values[i], by_hand) <= 1e-5
    encoder = logit_lens(trace, model, "encoder")
    x = model.encoder.norm(trace["encoder.layers.0.feed_forward_residual.output"].values)
    assert difference(encoder.values[1], x @ model.encoder.embedding.tokens.weight.T) <= 1e-5


@torch.no_grad()
def test_rollout_of_a_decoder_by_hand():
    stack = {"layers": 1, "heads": 2, "d_ff": 8}
    model = translator(encoder=stack, decoder=stack)
    with tracing(model) as trace:
        model(ids(1, 4), ids(1, 3))
    look = {
        name: trace[f"{name}.probabilities"].values[0].mean(0)
        for name in (
            "encoder.layers.0.self_attention",
            "decoder.layers.0.self_attention",
            "decoder.layers.0.cross_attention",
        )
    }
    encoder = (look["encoder.layers.0.self_attention"] + torch.eye(4)) / 2
    target = (look["decoder.layers.0.self_attention"] + torch.eye(3)) / 4
    source = look["decoder.layers.0.cross_attention"] @ encoder / 2
    found = rollout(trace, "decoder")
    assert difference(found["source"].values[0, 0], source) <= 1e-6
    assert difference(found["target"].values[0, 0], target) <= 1e-6


@torch.no_grad()
def test_unsupported_traces_and_models():
    model = translator()
    with tracing(model) as trace:
        cache = model.start(Inputs(ids(1, 4)), capacity=2)
        model.step(ids(1, 1), cache)
        model.step(ids(1, 1), cache)
    with raises(TraceError, match="full pass"):
        rollout(trace, "decoder")
    with raises(TraceError, option="path", value="nowhere"):
        value_weighted(trace, model, "nowhere")
    with raises(TraceError, match="training mode"):
        gradient_x_input(translator().train(), Inputs(ids(1, 4), ids(1, 3)), position=0, token=3)


def test_gradients_in_inference_mode():
    model, inputs = translator(), Inputs(ids(1, 4), ids(1, 3))
    expected = gradient_x_input(model, inputs, position=1, token=3)
    with torch.inference_mode():
        found = gradient_x_input(model, inputs, position=1, token=3)
    assert torch.equal(found.tokens["encoder"], expected.tokens["encoder"])
    assert found.score == expected.score
