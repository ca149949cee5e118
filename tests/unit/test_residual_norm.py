"""The fused residual norm equals the plain formula, forward and backward. Its kernels run in a separate process."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import CUDA, DEVICE, kernels, needs_triton, run_kernels
from sightline.model.kernels.dropout import dropout_mask
from sightline.model.kernels.residual_norm import fits, fused_residual_norm

on_cuda = pytest.mark.skipif(not CUDA, reason="needs a GPU")
every_width = pytest.mark.parametrize("d", [24, 128, 200, 512, 1024] if CUDA else [24, 200])  # the interpreter is slow
every_rate = pytest.mark.parametrize("p", [0.0, 0.1, 0.3])


@needs_triton
def test_kernels():
    run_kernels(__file__)


def test_kernels_do_not_support_cpu_tensors():
    x = torch.randn(2, 3, 8)
    assert not fits(x, x)


@on_cuda
@needs_triton
def test_supported_inputs():
    x = torch.randn(3, 4, 8, device="cuda")
    assert fits(x, x)
    assert fits(x.bfloat16(), x.bfloat16())
    assert not fits(x, x.bfloat16())
    assert not fits(x, x[:1])
    assert not fits(x.double(), x.double())
    assert not fits(x.transpose(0, 1), x.transpose(0, 1))
    assert not fits(x.cpu(), x.cpu())
    wide = torch.randn(1, 8193, device="cuda")
    assert not fits(wide, wide)


# --- In the separate process


def arguments(*shape: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Return x, y, weight, bias and the gradient of the output."""
    torch.manual_seed(sum(shape))
    x, y, given = (torch.randn(shape).to(DEVICE, dtype) for _ in range(3))
    weight, bias = torch.randn(2, shape[-1]).to(DEVICE).unbind()
    return [x + 1.5, 2 * y, weight, bias, given]


def draw(seed: int = 1) -> Tensor:
    """Return one of several dropout seeds, as in a model, with 32 random bits."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (5,), generator=generator).to(DEVICE, torch.int32)[3]


def plain(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, p: float, key: Tensor | None) -> Tensor:
    if key is not None:
        y = y * (dropout_mask(key, y.shape, p, y.device).to(y.dtype) / (1 - p))
    return F.layer_norm(x + y, x.shape[-1:], weight, bias, 1e-5)


def fused(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, p: float, key: Tensor | None) -> Tensor:
    return fused_residual_norm(x, y, weight, bias, 1e-5, p, key)


def with_gradients(function, inputs: list[Tensor], given: Tensor, p: float, key: Tensor | None) -> list[Tensor]:
    """Return the output and the gradients of x, y, weight and bias."""
    inputs = [value.detach().requires_grad_() for value in inputs]
    out = function(*inputs, p, key)
    return [out.detach(), *torch.autograd.grad(out, inputs, given)]


def far(a: Tensor, b: Tensor) -> float:
    """Return the largest difference, relative to the largest value if that exceeds 1."""
    assert a.shape == b.shape, (a.shape, b.shape)
    return ((a.float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1)).item()


@kernels
@every_rate
@pytest.mark.parametrize(
    "rows_d", [(1, 24), (301, 24), (133, 128), (97, 200), (1, 512), (37, 512), (19, 1024), (5, 8192)]
)
def test_float32_equals_the_plain_formula(rows_d, p):
    *inputs, given = arguments(*rows_d)
    expected = with_gradients(plain, inputs, given, p, draw())
    found = with_gradients(fused, inputs, given, p, draw())
    for name, a, b in zip(["out", "x", "y", "weight", "bias"], found, expected, strict=True):
        assert a.dtype == torch.float32
        assert far(a, b) <= 1e-5, name


@kernels
@every_width
@every_rate
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_only_the_results(d, p, dtype):
    """Compared with float32 on the same inputs: half a last place if only the result is rounded, one if the saved sum
    is rounded too."""
    *inputs, given = arguments(3, 11, d, dtype=dtype)
    found = with_gradients(fused, inputs, given, p, draw())
    wide = [value.float() for value in [*inputs, given]]
    expected = with_gradients(plain, wide[:4], wide[4], p, draw())
    place = torch.finfo(dtype).eps
    for name, a, b in zip(["out", "x", "y"], found, expected, strict=False):
        assert a.dtype == dtype
        assert far(a, b) <= place, name
    for name, a, b in zip(["weight", "bias"], found[3:], expected[3:], strict=True):
        assert a.dtype == torch.float32
        assert far(a, b) <= place, name
    assert far(found[4], expected[4]) <= 1e-5  # the bias has no rounded inputs


@kernels
@pytest.mark.parametrize("p", [0.1, 0.3])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_forward_and_backward_drop_the_same_cells(p, seed):
    *inputs, given = arguments(5, 41, 24)
    _, dx, dy, _, _ = with_gradients(fused, inputs, given, p, draw(seed))
    kept = dropout_mask(draw(seed), dx.shape, p, dx.device)
    assert torch.equal(dy != 0, kept)
    assert 0.5 < (1 - kept.float().mean().item()) / p < 1.5
    assert far(dy[kept], dx[kept] / (1 - p)) <= 1e-6


@kernels
def test_no_dropout_without_a_seed():
    *inputs, given = arguments(7, 24)
    found = with_gradients(fused, inputs, given, 0.1, None)
    for a, b in zip(found, with_gradients(plain, inputs, given, 0.0, None), strict=True):
        assert far(a, b) <= 1e-5
    assert torch.equal(found[1], found[2])


@kernels
def test_large_means():
    *inputs, _ = arguments(9, 512)
    inputs[0] = inputs[0] + 1000
    expected = plain(*(value.double() for value in inputs), 0.0, None)
    assert far(fused(*inputs, 0.0, None), expected) <= 3e-4  # float32 has about 7 digits


@kernels
def test_any_layout_and_no_rows():
    *inputs, given = arguments(6, 5, 24)
    turned = [value.transpose(0, 1) for value in [*inputs[:2], given]]
    found = with_gradients(fused, [*turned[:2], *inputs[2:]], turned[2], 0.1, draw())
    expected = with_gradients(plain, [*turned[:2], *inputs[2:]], turned[2], 0.1, draw())
    summed = inputs[0].requires_grad_()
    fused(*inputs, 0.1, draw()).sum().backward()  # an expanded gradient
    assert summed.grad is not None
    for a, b in zip(found, expected, strict=True):
        assert far(a, b) <= 1e-5
    *inputs, given = arguments(0, 24)
    assert [value.abs().sum().item() for value in with_gradients(fused, inputs, given, 0.1, draw())] == [0] * 5


@kernels
def test_runs_are_deterministic_and_do_not_change_arguments():
    *inputs, given = arguments(300, 128, dtype=torch.bfloat16)
    before = [value.clone() for value in [*inputs, given]]
    runs = [with_gradients(fused, inputs, given, 0.1, draw()) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    assert all(torch.equal(a, b) for a, b in zip([*inputs, given], before, strict=True))


@kernels
@pytest.mark.parametrize("drops", [True, False])
def test_operators_pass_opcheck(drops):
    *inputs, given = arguments(3, 5, 24)
    key = draw() if drops else None
    for value in inputs:
        value.requires_grad_()
    torch.library.opcheck(torch.ops.sightline.residual_norm.default, (*inputs, 1e-5, 0.1, key))
    _, *saved = torch.ops.sightline.residual_norm(*(value.detach() for value in inputs), 1e-5, 0.1, key)
    backward = (given, *saved, inputs[2].detach(), 0.1, key)
    torch.library.opcheck(torch.ops.sightline.residual_norm_backward.default, backward)


@kernels
@every_rate
def test_compiled_whole_it_gives_the_same(p):
    *inputs, given = arguments(4, 9, 128)

    def block(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, p: float, key: Tensor | None) -> Tensor:
        return fused(x.sin(), 2 * y, weight, bias, p, key).cos()

    torch.compiler.reset()
    compiled = torch.compile(block, fullgraph=True, backend="inductor" if CUDA else "aot_eager")
    expected = with_gradients(block, inputs, given, p, draw())
    for a, b in zip(with_gradients(compiled, inputs, given, p, draw()), expected, strict=True):
        assert far(a, b) <= 1e-5


@kernels
@on_cuda
def test_captured_in_a_graph_it_sees_new_keys():
    *inputs, given = arguments(333, 512, dtype=torch.bfloat16)
    key = draw().clone()

    def run() -> list[Tensor]:
        return with_gradients(fused, inputs, given, 0.1, key)

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    for seed in (4, 5):
        key.copy_(draw(seed))
        graph.replay()
        for a, b in zip(results, with_gradients(fused, inputs, given, 0.1, draw(seed)), strict=True):
            assert torch.equal(a, b)
