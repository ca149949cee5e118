"""The model learns to reverse a sequence, a small task that needs attention.

Loss and optimiser are torch's, so this tests the model and its gradients."""

import pytest
import torch
import torch.nn.functional as F

from sightline.config import ModelConfig
from sightline.model.protocol import Inputs
from sightline.model.transformer import build

START, FIRST, SYMBOLS, LENGTH = 0, 1, 12, 6


def batch(size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.randint(FIRST, FIRST + SYMBOLS, (size, LENGTH), generator=generator)
    return source, source.flip(1)


def accuracy_after_training(steps: int, **options: object) -> float:
    """Return the share of new sequences that greedy decoding with the cache reverses without error."""
    torch.manual_seed(0)  # one run with one seed
    stack = {"layers": 2, "heads": 4, "d_ff": 128}
    config = ModelConfig(vocab_size=FIRST + SYMBOLS, d_model=64, encoder=stack, decoder=stack, dropout=0.0, **options)
    model = build(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min((step + 1) / 100, (steps - step) / steps)
        source, target = batch(128, generator)
        given = F.pad(target[:, :-1], (1, 0), value=START)
        loss = F.cross_entropy(model(source, given).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    source, target = batch(500, torch.Generator().manual_seed(2))
    with torch.no_grad():
        cache = model.start(Inputs(source), capacity=LENGTH)
        token, written = torch.full((500, 1), START), []
        for _ in range(LENGTH):
            token = model.step(token, cache).argmax(-1, keepdim=True)
            written.append(token)
    return (torch.cat(written, 1) == target).all(1).float().mean().item()


NEWER = {"norm": "pre", "activation": "swiglu", "positions": {"kind": "rotary"}}


@pytest.mark.parametrize("options", [{}, pytest.param(NEWER, marks=pytest.mark.slow)])
def test_it_learns_to_reverse(options):
    assert accuracy_after_training(600, **options) >= 0.99


def test_it_cannot_without_positions():
    """The task is word order, which a bag of words does not have."""
    assert accuracy_after_training(300, positions={"kind": "none"}) <= 0.2
