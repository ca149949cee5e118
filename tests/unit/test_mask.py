"""True means "attends to", and fully masked rows return zeros."""

import pytest
import torch

from sightline.model.mask import Mask, PackedRows
from sightline.model.transformer import Attend, attention_weights
from support import ids, translator

CPU = torch.device("cpu")


def qkv(keys=5):
    return torch.randn(2, 3, 4, 8), torch.randn(2, 3, keys, 8), torch.randn(2, 3, keys, 8)


def test_true_means_attends_to():
    q, k, v = qkv()
    allowed = torch.zeros(2, 1, 4, 5, dtype=torch.bool)
    allowed[..., 2] = True  # each query attends to the third key only
    z = Attend(0.0)(q, k, v, Mask(allowed))
    assert torch.allclose(z, v[:, :, 2:3].expand_as(z), atol=1e-6)


def test_false_means_masked():
    q, k, v = qkv()
    allowed = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    allowed[..., 3] = False
    z = Attend(0.0)(q, k, v, Mask(allowed))
    v[:, :, 3] = 1e6
    k[:, :, 3] = 1e6
    assert torch.equal(Attend(0.0)(q, k, v, Mask(allowed)), z)


def test_layout_true_means_token():
    layout = torch.tensor([[True, True, False]])
    assert Mask.of(layout).dense(2, 3, CPU).tolist() == [[[[True, True, False]] * 2]]


def test_the_conditions_hold_together():
    layout = torch.tensor([[False, True, True]])
    assert Mask.of(layout, causal=True).dense(3, 3, CPU)[0, 0].tolist() == [
        [False, False, False],
        [False, True, False],
        [False, True, True],
    ]
    sentence = torch.tensor([[0, 0, 1]])
    packed = PackedRows(sentence, sentence)
    assert Mask.of(packed, packed, causal=True).dense(3, 3, CPU)[0, 0].tolist() == [
        [True, False, False],
        [True, True, False],
        [False, False, True],
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("keys", [1, 5, 40, 700])
@pytest.mark.parametrize("causal", [False, True])
def test_fully_masked_rows_return_zeros_and_no_gradient(dtype, keys, causal):
    q, k, v = (x.to(dtype).requires_grad_() for x in qkv(keys))
    allowed = torch.ones(2, 1, 4, keys, dtype=torch.bool)
    allowed[0, :, 1] = False
    allowed[1] = False
    z = Attend(0.0)(q, k, v, Mask(allowed, causal))
    assert torch.equal(z[0, :, 1], torch.zeros_like(z[0, :, 1]))
    assert torch.equal(z[1], torch.zeros_like(z[1]))
    assert z[0, :, 0].abs().min() > 0
    z.square().sum().backward()
    for x in (q, k, v):
        assert x.grad.isfinite().all()
        assert torch.equal(x.grad[1], torch.zeros_like(x.grad[1]))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_weights_are_those_of_the_kernel(masked, causal):
    """Equation 1 with the mask; rows without keys are zeros."""
    q, k, v = qkv()
    allowed = torch.rand(2, 1, 4, 5) < 0.6 if masked else None
    if masked:
        allowed[0, :, 1] = False
    weights = attention_weights(q, k, Mask(allowed, causal))
    assert torch.allclose(weights @ v, Attend(0.0)(q, k, v, Mask(allowed, causal)), atol=1e-6)
    assert weights.min() >= 0
    assert torch.allclose(weights.sum(-1), Mask(allowed, causal).dense(4, 5, CPU).any(-1).float().expand(2, 3, 4))


def test_a_whole_model_survives_an_empty_sentence():
    model = translator().train()
    source, target = ids(2, 4), ids(2, 3)
    layout = torch.tensor([[True] * 4, [False] * 4])
    logits = model(source, target, layout)
    assert logits.isfinite().all()
    logits.square().mean().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_fully_masked_rows_attend_to_all_keys_on_a_gpu_and_are_set_to_zero():
    allowed = torch.tensor([[True, False], [False, False]])[None, None]
    for_kernel, empty_rows = Mask(allowed).for_kernel(2, 2, torch.device("cuda"))
    assert for_kernel.tolist() == [[[[True, False], [True, True]]]]
    assert empty_rows.tolist() == [[[[False], [True]]]]
    assert Mask(allowed).for_kernel(2, 2, CPU)[1] is None
    assert Mask(allowed, no_empty_rows=True).for_kernel(2, 2, torch.device("cuda"))[1] is None
