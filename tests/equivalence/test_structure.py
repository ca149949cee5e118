"""Which positions can depend on which others."""

import pytest
import torch

from sightline.trace.watch import tracing
from support import difference, every_variant, ids, pad, reader, translator, writer


def outputs_of_layers(trace):
    return {
        name: trace[name].values
        for name in trace.names()
        if name.startswith("decoder.") and "position" in trace[name].axes
    }


@every_variant
@pytest.mark.parametrize("make", [translator, writer])
@torch.no_grad()
def test_no_position_depends_on_a_later_one(variant, make):
    """A changed token changes no vector at earlier positions, in any layer, and changes the output at its own."""
    model = make(variant)
    target = ids(1, 7)
    inputs = (ids(1, 5),) if make is translator else ()
    with tracing(model) as trace:
        model(*inputs, target)
    before = outputs_of_layers(trace)
    for changed in range(7):
        other = target.clone()
        other[0, changed] = (other[0, changed] + 1) % 41
        with tracing(model) as trace:
            model(*inputs, other)
        after = outputs_of_layers(trace)
        assert before.keys() == after.keys()
        assert len(before) > 20
        for name in before:
            assert torch.equal(before[name][:, :changed], after[name][:, :changed]), name
        assert difference(before["decoder.output"][:, changed], after["decoder.output"][:, changed]) > 1e-4


@torch.no_grad()
def test_the_encoder_is_bidirectional():
    model = reader()
    text = ids(1, 6)
    other = text.clone()
    other[0, 5] = (other[0, 5] + 1) % 41
    assert difference(model(text)[:, 0], model(other)[:, 0]) > 1e-4


@torch.no_grad()
def test_every_decoder_layer_attends_to_the_source():
    model = translator()
    source, target = ids(1, 6), ids(1, 4)
    with tracing(model) as trace:
        model(source, target)
    other = source.clone()
    other[0, 5] = (other[0, 5] + 1) % 41
    with tracing(model) as changed:
        model(other, target)
    keys = [f"decoder.layers.{i}.cross_attention.k" for i in range(3)]
    for name in keys:
        assert difference(trace[name].values, changed[name].values) > 1e-3
    first, second = (trace[name].values for name in keys[:2])  # the same memory, by each layer's own W^K
    assert difference(first, second) > 1e-3


QIAN_KILL_YOU = torch.tensor([[1, 7, 8, 9]])  # a class token, then the words
YOU_KILL_QIAN = torch.tensor([[1, 9, 8, 7]])


@torch.no_grad()
def test_the_class_token_ignores_word_order_without_positions():
    model = reader("no positions")
    a, b = model.encoder(QIAN_KILL_YOU)[:, 0], model.encoder(YOU_KILL_QIAN)[:, 0]
    assert difference(a, b) <= 1e-5


@every_variant
@torch.no_grad()
def test_the_class_token_depends_on_word_order_with_positions(variant):
    if variant == "no positions":
        return
    model = reader(variant)
    a, b = model.encoder(QIAN_KILL_YOU)[:, 0], model.encoder(YOU_KILL_QIAN)[:, 0]
    assert difference(a, b) > 1e-3


@torch.no_grad()
def test_the_three_embeddings_are_one_matrix():
    model = translator()
    assert model.encoder.embedding.tokens.weight is model.decoder.embedding.tokens.weight is model.classifier.weight
    assert model.encoder.embedding.scale == pytest.approx(24**0.5)
    half = translator("biased")
    assert half.decoder.embedding.tokens.weight is half.classifier.weight is not half.encoder.embedding.tokens.weight
    none = translator("halves", source_vocab_size=50)
    assert none.encoder.embedding.tokens.weight.shape[0] == 50
    assert none.decoder.embedding.tokens.weight is not none.classifier.weight


@torch.no_grad()
def test_bfloat16_is_close_to_float32():
    model = translator("pre-norm")
    source, layout = pad([ids(6), ids(3)])
    target = ids(2, 5)
    exact = model(source, target, layout)
    rough = model.bfloat16()(source, target, layout)
    assert rough.dtype == torch.bfloat16
    assert difference(rough.float(), exact) < 0.05 * exact.abs().max()
