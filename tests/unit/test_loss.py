"""The fused loss equals torch's, gradients included."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sightline.model.protocol import Inputs
from sightline.special import PAD
from sightline.train import loss as losses
from sightline.train.loss import linear_cross_entropy
from support import difference, ids, packed, pad, translator


def loss_of(hidden, classifier, targets, smoothing):
    return linear_cross_entropy([hidden], classifier, targets, smoothing, 0.0)


@settings(max_examples=40)
@given(
    tokens=st.integers(1, 100),
    vocab=st.integers(4, 40),
    chunk=st.integers(32, 120),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
    bias=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_equal_to_torch(tokens, vocab, chunk, smoothing, bias, seed):
    torch.manual_seed(seed)
    classifier = nn.Linear(8, vocab, bias=bias)
    hidden = torch.randn(tokens, 8, requires_grad=True)
    targets = torch.randint(0, vocab, (tokens,))  # some of them padding
    leaves = [hidden, *classifier.parameters()]
    expected = F.cross_entropy(
        classifier(hidden), targets, ignore_index=PAD, label_smoothing=smoothing, reduction="sum"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "CPU_LOGITS", chunk * vocab)
        found = loss_of(hidden, classifier, targets, smoothing)
    assert difference(found.smoothed, expected) <= 1e-5 * max(1.0, expected.item())
    plain = F.cross_entropy(classifier(hidden), targets, ignore_index=PAD, reduction="sum")
    assert difference(found.nll, plain) <= 1e-5 * max(1.0, plain.item())
    ours = torch.autograd.grad(3 * found.smoothed, leaves)
    theirs = torch.autograd.grad(3 * expected, leaves)
    for a, b in zip(ours, theirs, strict=True):
        assert difference(a, b) <= 1e-5 * max(1.0, b.abs().max().item())


def test_uniform_prediction_costs_the_logarithm_of_the_vocabulary():
    classifier = nn.Linear(4, 10, bias=False)
    nn.init.zeros_(classifier.weight)
    found = loss_of(torch.randn(3, 5, 4), classifier, torch.full((3, 5), 7), 0.1)
    assert found.nll.item() == pytest.approx(15 * math.log(10))
    assert found.smoothed.item() == pytest.approx(15 * math.log(10))


def test_packed_equals_padded_with_gradients():
    model = translator()
    sources, targets = [ids(5), ids(2), ids(7)], [ids(3), ids(6), ids(1)]
    answers = [torch.randint(1, 41, (len(t),)) for t in targets]
    (source, layout), (target, there) = pad(sources), pad(targets)
    answer = pad(answers)[0].masked_fill(~there, PAD)
    parameters = list(model.parameters())

    one = loss_of(model.hidden(Inputs(source, target, layout)), model.classifier, answer, 0.1)
    (source, packing), (target, target_packing) = packed(sources), packed(targets)
    hidden = model.hidden(Inputs(source, target, packing, target_packing))
    other = loss_of(hidden, model.classifier, packed(answers)[0], 0.1)
    assert difference(one.smoothed, other.smoothed) <= 1e-4
    pairs = zip(
        torch.autograd.grad(one.smoothed, parameters), torch.autograd.grad(other.smoothed, parameters), strict=True
    )
    for a, b in pairs:
        assert difference(a, b) <= 1e-4 * max(1.0, a.abs().max().item())


def test_no_gradients_under_no_grad():
    classifier = nn.Linear(4, 10)
    with torch.no_grad():
        found = loss_of(torch.randn(5, 4), classifier, torch.full((5,), 7), 0.1)
    assert not found.smoothed.requires_grad


def test_half_precision_under_autocast():
    torch.manual_seed(0)
    classifier = nn.Linear(32, 50)
    hidden, targets = torch.randn(40, 32, requires_grad=True), torch.randint(1, 50, (40,))
    exact = loss_of(hidden, classifier, targets, 0.1).smoothed
    with torch.autocast("cpu", torch.bfloat16):
        rough = loss_of(hidden, classifier, targets, 0.1).smoothed
    assert rough.dtype == torch.float32
    assert rough.item() == pytest.approx(exact.item(), rel=1e-2)
    rough.backward()
    assert hidden.grad.dtype == classifier.weight.grad.dtype == torch.float32
