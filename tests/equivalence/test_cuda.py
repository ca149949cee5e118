"""On a GPU, torch's fused kernels equal the steps of equation 1."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from sightline.model.mask import Mask, PackedRows
from sightline.model.protocol import Inputs
from sightline.model.transformer import Attend
from sightline.trace.steps import spell_out
from sightline.trace.watch import tracing
from support import difference, every_variant, ids, packed, pad, translator, writer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PRECISION = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def _exact():
    torch.set_float32_matmul_precision("highest")


@every_variant
@pytest.mark.parametrize("dtype", PRECISION)
@torch.no_grad()
def test_padded_packed_cached_and_alone(variant, dtype):
    """They are equal in float32. In bfloat16 they round differently, and none has a larger error than the others,
    compared with the same model in float32."""
    model = translator(variant).cuda()
    sources, targets = [ids(n).cuda() for n in (5, 2, 9)], [ids(n).cuda() for n in (3, 8, 1)]
    source, layout, target, there = (part.cuda() for side in (sources, targets) for part in pad(side))
    exact = torch.cat([model(s[None], t[None])[0] for s, t in zip(sources, targets, strict=True)])
    model = model.to(dtype)
    alone = torch.cat([model(s[None], t[None])[0] for s, t in zip(sources, targets, strict=True)])
    (row, packing), (target_row, target_packing) = packed(sources), packed(targets)
    layouts = (PackedRows(*(part.cuda() for part in both)) for both in (packing, target_packing))
    packs = model(row, target_row, *layouts)[0]
    padded = model(source, target, layout)[there]
    cache = model.start(Inputs(source, source_layout=layout), capacity=8)
    cached = torch.stack([model.step(target[:, i : i + 1], cache) for i in range(8)], 1)[there]
    if dtype is torch.float32:
        for other in (alone, padded, cached, packs):
            assert difference(other, exact) <= 1e-5 * max(1.0, exact.abs().max().item())
        return

    def error(logits):
        return (logits.float() - exact).square().mean().sqrt().item()

    for other in (padded, cached, packs):
        assert error(other) <= 2 * error(alone)


@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_and_its_gradients(dtype, causal):
    lengths = [5, 17, 1, 40]
    sentence = torch.arange(len(lengths), device="cuda").repeat_interleave(torch.tensor(lengths, device="cuda"))[None]
    q, k, v = (torch.randn(1, 4, sum(lengths), 64, device="cuda", dtype=dtype).requires_grad_() for _ in range(3))
    layout = PackedRows(sentence, sentence)
    mask = Mask.of(layout, layout, causal=causal)
    exact = spell_out(q.double().float(), k.float(), v.float(), mask).z
    upstream = torch.randn_like(exact)
    expected = torch.autograd.grad(exact, (q, k, v), upstream)
    z = Attend(0.0)(q, k, v, mask)
    assert difference(z.float(), exact) <= PRECISION[dtype]
    for gradient, other in zip(torch.autograd.grad(z, (q, k, v), upstream.to(dtype)), expected, strict=True):
        assert difference(gradient.float(), other.float()) <= PRECISION[dtype] * max(1.0, other.abs().max().item())


@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize("keys", [1, 5, 40, 700])
@pytest.mark.parametrize("backend", [None, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION])
def test_fully_masked_rows_return_zeros_and_no_gradient(dtype, keys, backend):
    if backend is SDPBackend.CUDNN_ATTENTION and (dtype is torch.float32 or keys == 1):
        return  # not supported
    q = torch.randn(2, 3, 4, 64, device="cuda", dtype=dtype, requires_grad=True)
    k, v = (torch.randn(2, 3, keys, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(2))
    allowed = torch.ones(2, 1, 4, keys, dtype=torch.bool, device="cuda")
    allowed[0, :, 1] = False
    allowed[1] = False
    every = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION]
    with sdpa_kernel(every if backend is None else backend):
        z = Attend(0.0)(q, k, v, Mask(allowed))
        z.square().sum().backward()
    assert torch.equal(z[0, :, 1], torch.zeros_like(z[0, :, 1]))
    assert torch.equal(z[1], torch.zeros_like(z[1]))
    for x in (q, k, v):
        assert x.grad.isfinite().all()
        assert torch.equal(x.grad[1], torch.zeros_like(x.grad[1]))


@pytest.mark.parametrize("dtype", PRECISION)
@torch.no_grad()
def test_traced_is_bit_identical(dtype):
    model = writer().cuda().to(dtype)
    row, packing = packed([ids(4).cuda(), ids(5).cuda()])
    packing = PackedRows(*(part.cuda() for part in packing))
    plain = model(row, packing)
    with tracing(model) as trace:
        assert torch.equal(model(row, packing), plain)
    assert max(trace.check().values()) <= PRECISION[dtype] * max(1.0, plain.abs().max().item())
