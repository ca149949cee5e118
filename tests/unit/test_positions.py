"""The position tables of the paper, tensor2tensor and Marian, and rotary positions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

from sightline.config import PositionsConfig
from sightline.model.initialise import sinusoids
from sightline.model.transformer import rotate


def timing_signal(length, channels, min_timescale, max_timescale, start_index):
    """tensor2tensor's get_timing_signal_1d, by its definition."""
    position = np.arange(length, dtype=np.float64) + start_index
    num_timescales = channels // 2
    increment = math.log(max_timescale / min_timescale) / (num_timescales - 1)
    inverse = min_timescale * np.exp(np.arange(num_timescales) * -increment)
    scaled = position[:, None] * inverse[None]
    return np.pad(np.concatenate([np.sin(scaled), np.cos(scaled)], 1), [[0, 0], [0, channels % 2]])


@settings(max_examples=50)
@given(
    width=st.integers(4, 129),
    min_timescale=st.floats(0.5, 2),
    max_timescale=st.floats(100, 20_000),
    start=st.integers(0, 50),
)
def test_tensor2tensor(width, min_timescale, max_timescale, start):
    config = PositionsConfig(
        kind="halves",
        frequencies="tensor2tensor",
        min_timescale=min_timescale,
        max_timescale=max_timescale,
        start=start,
        max_length=600,
    )
    expected = timing_signal(600, width, min_timescale, max_timescale, start)
    assert np.abs(sinusoids(config, width).numpy() - expected).max() <= 1e-6


@pytest.mark.parametrize("width", [1, 2, 3, 8, 31, 64, 255, 512])
def test_marian(width):
    theirs = MarianSinusoidalPositionalEmbedding(600, width).create_weight()
    ours = sinusoids(PositionsConfig(kind="halves", max_length=600), width)
    assert (ours - theirs).abs().max() <= 1e-6


@pytest.mark.parametrize("width", [1, 2, 3, 8, 31, 64, 255, 512])
@pytest.mark.parametrize("start", [0, 2])
def test_paper(width, start):
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d))."""
    table = sinusoids(PositionsConfig(max_length=600, start=start), width)
    for row in (0, 1, 7, 100, 599):
        for channel in range(width):
            angle = (row + start) / 10_000 ** (2 * (channel // 2) / width)
            expected = math.cos(angle) if channel % 2 else math.sin(angle)
            assert abs(table[row, channel].item() - expected) <= 1e-6


@pytest.mark.parametrize("kind", ["interleaved", "halves"])
@pytest.mark.parametrize("frequencies", ["paper", "tensor2tensor"])
def test_products_depend_only_on_the_distance(kind, frequencies):
    table = sinusoids(PositionsConfig(kind=kind, frequencies=frequencies, max_length=300), 64).double()
    products = table @ table.T
    for distance in (0, 1, 5, 100):
        along = products.diagonal(distance)
        assert (along - along[0]).abs().max() <= 1e-5
    assert products[0, 1] < products[0, 0]


def test_rotary_products_depend_only_on_the_distance():
    table = sinusoids(PositionsConfig(kind="rotary", max_length=64), 16)[None, None]
    q, k = torch.randn(2, 1, 1, 1, 16).expand(-1, -1, -1, 64, -1)
    scores = rotate(q, table) @ rotate(k, table).mT
    for distance in (-9, 0, 3, 30):
        along = scores[0, 0].diagonal(distance)
        assert (along - along[0]).abs().max() <= 1e-4
    assert scores[0, 0].std() > 0.1


def test_rotary_equals_llama():
    table = sinusoids(PositionsConfig(kind="rotary", max_length=64), 16)[None, None]
    q, k = torch.randn(2, 3, 4, 64, 16)
    angles = torch.outer(torch.arange(64.0), 10_000 ** -(torch.arange(0, 16, 2) / 16)).repeat(1, 2)[None]
    theirs = apply_rotary_pos_emb(q, k, angles.cos(), angles.sin())
    assert (rotate(q, table) - theirs[0]).abs().max() <= 1e-5
    assert (rotate(k, table) - theirs[1]).abs().max() <= 1e-5
