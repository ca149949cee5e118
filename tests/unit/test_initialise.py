"""The initial weights of a model."""

import math

import pytest
import torch

from sightline.config import ModelConfig
from sightline.model.transformer import build


@torch.no_grad()
def test_the_papers_initialisation():
    model = build(ModelConfig(vocab_size=500, d_model=128, attention_bias=True, positions={"kind": "learned"}))
    embedding = model.classifier.weight
    assert embedding.std().item() == pytest.approx(128**-0.5, rel=0.02)
    assert (embedding * math.sqrt(128)).std().item() == pytest.approx(1, rel=0.02)
    layer = model.decoder.layers[0]
    for matrix in (
        *layer.self_attention.query_key_value.weight.chunk(3),
        *layer.cross_attention.key_value.weight.chunk(2),
        layer.cross_attention.query.weight,
        layer.self_attention.output.weight,
        layer.feed_forward.inner.weight,
        layer.feed_forward.outer.weight,
    ):
        bound = math.sqrt(6 / sum(matrix.shape))  # Glorot, each matrix separately
        assert matrix.abs().max().item() == pytest.approx(bound, rel=0.02)
        assert matrix.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        if name.endswith("norm.weight"):
            assert (parameter == 1).all(), name
    assert model.encoder.embedding.positions.table.std().item() == pytest.approx(128**-0.5, rel=0.02)


@torch.no_grad()
def test_every_parameter_is_set_from_the_seed_alone():
    """No parameter keeps uninitialised memory."""
    for architecture in ("encoder-decoder", "decoder-only", "encoder-only"):
        segments = 2 if architecture == "encoder-only" else 0
        config = ModelConfig(
            architecture=architecture,
            vocab_size=50,
            d_model=16,
            positions={"kind": "learned"},
            segments=segments,
            tie="none",
        )
        torch.manual_seed(3)
        one = build(config)
        torch.manual_seed(3)
        two = build(config)
        for (name, a), b in zip(one.named_parameters(), two.parameters(), strict=True):
            assert torch.equal(a, b), name
            assert a.isfinite().all()
