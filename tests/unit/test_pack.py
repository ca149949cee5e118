"""Packed traces are read as they were written."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.errors import TraceError
from sightline.trace.pack import pack_trace, read_trace
from sightline.trace.trace import Trace
from sightline.trace.watch import tracing
from support import ids, pad, raises, translator


@pytest.fixture(scope="module")
def trace() -> Trace:
    model = translator()
    source, layout = pad([ids(6), ids(3)])
    with torch.no_grad(), tracing(model) as trace:
        model(source, ids(2, 5), layout)
    trace.tokens = {"source": ["▁it", "é", "漢", "🙂", '"', "\n"], "target": ["a"] * 5}
    return trace


def test_float32_is_exact(trace, tmp_path):
    path = tmp_path / "a.trace"
    path.write_bytes(pack_trace(trace, about={"model": {"d_model": 24}}))
    again = read_trace(path)
    assert again.names() == trace.names()
    assert again.tokens == trace.tokens
    assert again.about == {"model": {"d_model": 24}}
    for name in trace.names():
        assert again[name].axes == trace[name].axes
        assert torch.equal(again[name].values, trace[name].values), name


def test_float16_is_close_and_a_quarter_of_the_size_of_json():
    model = translator()
    with torch.no_grad(), tracing(model) as trace:
        model(ids(1, 30), ids(1, 20))
    names = [name for name in trace.names() if name.endswith(".probabilities")]
    packed = pack_trace(trace, names, dtype="f16")
    again = read_trace(packed)
    assert again.names() == names
    for name in names:
        assert (again[name].values - trace[name].values).abs().max() <= 2**-11
    as_json = json.dumps({name: trace[name].values.tolist() for name in names})
    assert len(packed) < len(as_json) / 4


def test_one_sentence(trace):
    one = trace.sentence(1)
    again = read_trace(pack_trace(one))
    name = "decoder.layers.0.cross_attention.probabilities"
    assert again[name].values.shape == (2, 5, 3)
    assert torch.equal(again[name].values, one[name].values)


def test_infinity_and_values_beyond_half_precision_are_kept(trace):
    name = "decoder.layers.0.self_attention.masked"
    again = read_trace(pack_trace(trace, [name], dtype="f16"))
    assert torch.equal(again[name].values == -torch.inf, trace[name].values == -torch.inf)
    big = Trace()
    big.record("big", ("position",), torch.tensor([1e6, -torch.inf]))
    assert torch.equal(read_trace(pack_trace(big, dtype="f16"))["big"].values, torch.tensor([1e6, -torch.inf]))


@settings(max_examples=30)
@given(shape=st.lists(st.integers(0, 4), max_size=4), scale=st.floats(1e-30, 1e30), seed=st.integers(0, 999))
def test_any_shape(shape, scale, seed):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
    trace = Trace()
    trace.record("x", tuple(f"axis{i}" for i in range(len(shape))), values)
    again = read_trace(pack_trace(trace))["x"]
    assert again.axes == tuple(f"axis{i}" for i in range(len(shape)))
    assert torch.equal(again.values, values)


def test_files_are_read_lazily(trace, tmp_path):
    path = tmp_path / "a.trace"
    path.write_bytes(pack_trace(trace))
    assert isinstance(read_trace(path)._data, np.memmap)


def test_damaged_traces(trace, tmp_path):
    whole = pack_trace(trace)
    with raises(TraceError, match="not a Sightline trace"):
        read_trace(b"PK\x03\x04 something else altogether")
    with raises(TraceError, match="not a Sightline trace"):
        read_trace(b"")
    with raises(TraceError, match="version 2"):
        read_trace(b"SIGHTLN\x02" + whole[8:])
    with raises(TraceError, match="truncated"):
        read_trace(whole[:-9])
    with raises(TraceError, match="manifest"):
        read_trace(whole[:200])
    with raises(TraceError, match="manifest"):
        read_trace(whole.replace(b'"offset"', b'"offfet"'))
    with raises(TraceError, match="nothing.trace", value=tmp_path / "nothing.trace"):
        read_trace(tmp_path / "nothing.trace")
    with raises(TraceError, option="dtype", value="f64"):
        pack_trace(trace, dtype="f64")
    with raises(TraceError, value="x"):
        read_trace(whole)["x"]


def test_inconsistent_manifests():
    trace = Trace()
    trace.record("x", ("position", "d_model"), torch.zeros(3, 41))
    whole = pack_trace(trace)
    for old, new in (
        (b"[3,41]", b"[-3,-41]"),
        (b"[3,41]", b"[3,40]"),
        (b'"offset":0', b'"offset":0.5'),
        (b'"offset":0', b'"offset":-8'),
        (b'["position","d_model"]', b'["position"]'),
        (b'["position","d_model"]', b"7"),
        (b'"tokens":{}', b'"tokens":3'),
        (b'"version":1', b'"version":7'),
        (b'"dtype":"f32"', b'"dtype":"f64"'),
    ):
        length = int.from_bytes(whole[8:16], "little")
        manifest = whole[16 : 16 + length].replace(old, new)
        assert manifest != whole[16 : 16 + length]
        damaged = whole[:8] + len(manifest).to_bytes(8, "little") + manifest + whole[16 + length :]
        with raises(TraceError, match="manifest"):
            read_trace(bytearray(damaged))


def test_tokens_are_packed_and_invalid_options(trace):
    words = {"source": ["a", "b", "c"], "target": list("vwxyz")}
    one = trace.sentence(1)
    one.tokens = words
    name = "decoder.layers.0.cross_attention.probabilities"
    assert read_trace(pack_trace(one, [name]))[name].labels == {"query": words["target"], "key": words["source"]}
    with raises(TraceError, option="names", value="logits"):
        pack_trace(trace, "logits")
    with raises(TraceError, option="about"):
        pack_trace(trace, ["logits"], about={"x": torch.zeros(1)})
