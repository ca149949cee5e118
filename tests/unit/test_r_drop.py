"""R-Drop: the fused loss and its gradients equal the written formula."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sightline.special import PAD
from sightline.train.loss import linear_cross_entropy
from support import difference


def formula(one, other, classifier, targets, smoothing, alpha):
    """(CE(p) + CE(q)) / 2 + α / 2 · (KL(p‖q) + KL(q‖p)) / 2, over the tokens that are not padding."""
    there = targets != PAD
    p, q = (classifier(x)[there].log_softmax(-1) for x in (one, other))
    both = sum(
        F.cross_entropy(classifier(x), targets, ignore_index=PAD, label_smoothing=smoothing, reduction="sum")
        for x in (one, other)
    )
    apart = F.kl_div(q, p, reduction="sum", log_target=True) + F.kl_div(p, q, reduction="sum", log_target=True)
    return both / 2 + alpha / 4 * apart


@settings(max_examples=50)
@given(
    tokens=st.integers(1, 60),
    vocab=st.integers(4, 40),
    smoothing=st.sampled_from([0.0, 0.1]),
    alpha=st.sampled_from([0.0, 1.0, 5.0]),
    bias=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_equal_to_the_formula(tokens, vocab, smoothing, alpha, bias, seed):
    torch.manual_seed(seed)
    classifier = nn.Linear(8, vocab, bias=bias)
    one = torch.randn(tokens, 8, requires_grad=True)
    other = (one.detach() + 0.5 * torch.randn(tokens, 8)).requires_grad_()
    targets = torch.randint(0, vocab, (tokens,))  # some of them padding
    leaves = [one, other, *classifier.parameters()]
    expected = formula(one, other, classifier, targets, smoothing, alpha)
    found = linear_cross_entropy([one, other], classifier, targets, smoothing, alpha)
    assert difference(found.smoothed, expected) <= 1e-5 * max(1.0, expected.item())
    plain = formula(one, other, classifier, targets, 0.0, 0.0)
    assert difference(found.nll, plain) <= 1e-5 * max(1.0, plain.item())
    ours = torch.autograd.grad(3 * found.smoothed, leaves)
    theirs = torch.autograd.grad(3 * expected, leaves)
    for a, b in zip(ours, theirs, strict=True):
        assert difference(a, b) <= 1e-5 * max(1.0, b.abs().max().item())


@pytest.mark.parametrize("alpha", [0.0, 5.0])
def test_two_equal_passes_equal_one(alpha):
    """Equal distributions have no distance, whatever its weight; each pass gets half of the gradient."""
    classifier, targets = nn.Linear(8, 20), torch.randint(0, 20, (3, 7))
    one = torch.randn(3, 7, 8, requires_grad=True)
    other = one.detach().clone().requires_grad_()
    both, single = (
        linear_cross_entropy([one, other], classifier, targets, 0.1, alpha),
        linear_cross_entropy([one], classifier, targets, 0.1, 0.0),
    )
    assert difference(both.smoothed, single.smoothed) <= 1e-5 * single.smoothed.item()
    assert difference(both.nll, single.nll) <= 1e-5 * single.nll.item()
    to_one, to_other, to_weight = torch.autograd.grad(both.smoothed, [one, other, classifier.weight])
    to_single, to_its_weight = torch.autograd.grad(single.smoothed, [one, classifier.weight])
    assert difference(to_one + to_other, to_single) <= 1e-5
    assert difference(to_weight, to_its_weight) <= 1e-5 * max(1.0, to_its_weight.abs().max().item())


def test_distance_raises_the_loss_and_is_symmetric():
    classifier, targets = nn.Linear(8, 20), torch.randint(1, 20, (9,))
    one, other = torch.randn(9, 8), torch.randn(9, 8)
    loss = [
        linear_cross_entropy([one, other], classifier, targets, 0.1, alpha).smoothed.item() for alpha in (0.0, 1.0, 2.0)
    ]
    assert loss[0] < loss[1] < loss[2]
    assert loss[2] - loss[1] == pytest.approx(loss[1] - loss[0], rel=1e-4)
    assert linear_cross_entropy([other, one], classifier, targets, 0.1, 1.0).smoothed.item() == pytest.approx(
        loss[1], rel=1e-6
    )
