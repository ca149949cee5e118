"""Fast and plain computations are equal, and dropout is random."""

import pytest
import torch
import torch.nn.functional as F

from sightline.model.kernels.attention import attention
from sightline.model.kernels.compiled import attention_by_products, column_major_weights, linear_activation, to_autocast
from sightline.model.kernels.dropout import Dropout, assign_dropout_seeds, dropout_mask, dropout_mask_cpu
from sightline.model.kernels.residual_norm import residual_norm
from support import difference, translator

CELLS = 1 << 20


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_by_products_equals_the_kernel(causal, masked):
    q, k, v = torch.randn(3, 2, 7, 8), torch.randn(3, 2, 9, 8), torch.randn(3, 2, 9, 8)
    allowed = None
    if masked:
        allowed = torch.rand(3, 1, 7, 9) < 0.5
        allowed[..., 0] = True
        causal = False
    expected = F.scaled_dot_product_attention(q, k, v, allowed, is_causal=causal)
    assert difference(attention_by_products(q, k, v, allowed, 0.0, causal), expected) <= 1e-6
    assert difference(attention(q, k, v, allowed, 0.0, causal), expected) <= 1e-6


def test_fully_masked_rows_have_finite_gradients():
    q, k, v = (torch.randn(1, 1, 2, 4, requires_grad=True) for _ in range(3))
    allowed = torch.tensor([[[[False, False], [True, False]]]])
    attention_by_products(q, k, v, allowed, 0.0, False).sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_column_major_weights_have_the_same_values():
    model = translator("paper")
    source, target = torch.randint(4, 41, (2, 5)), torch.randint(4, 41, (2, 6))
    before, weights = model(source, target), {name: weight.clone() for name, weight in model.state_dict().items()}
    column_major_weights(model)
    assert difference(model(source, target), before) <= 1e-6
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    assert model.classifier.weight.T.is_contiguous()
    assert model.decoder.embedding.tokens.weight.is_contiguous()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch 2.15 reads it in opcheck
def test_fused_linear_relu():
    x, weight, bias = (torch.randn(*shape, dtype=torch.double, requires_grad=True) for shape in ((5, 4), (7, 4), (7,)))
    assert difference(torch.ops.sightline.linear_relu(x, weight, bias), F.relu(F.linear(x, weight, bias))) <= 1e-12
    assert torch.autograd.gradcheck(torch.ops.sightline.linear_relu, (x, weight, bias))
    torch.library.opcheck(torch.ops.sightline.linear_relu, (x, weight, bias))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_linear_activation_compiled_for_a_gpu():
    linear, x = torch.nn.Linear(64, 96).cuda(), torch.randn(3, 5, 64, device="cuda", requires_grad=True)
    weights = [x, linear.weight, linear.bias]
    with torch.autocast("cuda", torch.bfloat16):
        one = torch.compile(linear_activation)(x, linear, torch.nn.ReLU())
        other = linear_activation(x, linear, torch.nn.ReLU())
    assert one.dtype == other.dtype
    assert difference(one, other) <= 1e-2
    upstream = torch.randn_like(one)
    for a, b in zip(*(torch.autograd.grad(y, weights, upstream) for y in (one, other)), strict=True):
        assert difference(a, b) <= 3e-2 * b.abs().max().item()


@pytest.mark.parametrize("p", [0.1, 0.3])
@pytest.mark.parametrize("by", ["hash", "generator"])
def test_dropped_cells_have_the_right_rate_and_are_independent(by, p):
    """Each value is in standard deviations of independent draws."""
    torch.manual_seed(0)
    before = None
    for key in torch.randint(-(2**31), 2**31 - 1, (8,), dtype=torch.int32):
        shape = torch.Size([CELLS])
        kept = (
            dropout_mask(key, shape, p, torch.device("cpu")) if by == "hash" else dropout_mask_cpu(shape, p)
        ).double()
        centred = kept - (1 - p)
        variance, root = p * (1 - p), CELLS**0.5
        assert abs(centred.mean()) * root / variance**0.5 < 5
        for lag in (1, 2, 3, 64, 128, 512, 4096):  # neighbours in a row, in a column
            assert abs((centred[lag:] * centred[:-lag]).mean()) * root / variance < 5
        columns = centred.view(-1, 512).mean(0) * (CELLS / 512) ** 0.5 / variance**0.5
        assert columns.abs().max() < 5.5
        if before is not None:  # another seed drops other cells
            assert abs((centred * before).mean()) * root / variance < 5
        before = centred


def test_dropout_keeps_the_mean_and_follows_the_seed():
    x, dropout = torch.ones(3, 5, 101, requires_grad=True), Dropout(0.25)
    torch.manual_seed(3)
    out = dropout(x)
    torch.manual_seed(3)
    assert torch.equal(out, dropout(x))
    assert not torch.equal(out, dropout(x))
    assert set(out.flatten().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    out.sum().backward()
    assert torch.equal(x.grad, out)
    assert dropout.eval()(x) is x
    assert Dropout(0.0)(x) is x
    assert torch.equal(Dropout(1.0)(x), torch.zeros_like(x))


def test_every_dropout_has_its_own_seed():
    model = translator(dropout=0.1)
    found = [module for module in model.modules() if isinstance(module, Dropout)]
    seeds = assign_dropout_seeds(model, "cpu")
    assert len(seeds) == len(found) > 10
    seeds.random_(-(2**31), 2**31 - 1)
    assert [int(module.seed) for module in found] == seeds.tolist()
    assert len(set(seeds.tolist())) == len(seeds)


def test_vectors_have_autocast_precision_under_autocast_only():
    x, y, norm = torch.randn(2, 8), torch.randn(2, 8), torch.nn.LayerNorm(8)
    assert to_autocast(x) is x
    assert torch.equal(residual_norm(x, y, Dropout(0.0), norm), norm(x + y))
    with torch.autocast("cpu", torch.bfloat16):
        assert to_autocast(x).dtype == torch.bfloat16
        assert residual_norm(to_autocast(x), to_autocast(y), Dropout(0.0), norm).dtype == torch.bfloat16
