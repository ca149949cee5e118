"""A sentence's numbers do not depend on its neighbours, nor on how they lie in memory."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.errors import InputError
from support import VARIANTS, difference, every_variant, ids, packed, pad, reader, translator, writer

LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5)
SEEDS = st.integers(0, 10**6)


@settings(max_examples=40)
@given(variant=st.sampled_from(list(VARIANTS)), lengths=LENGTHS, seed=SEEDS)
@torch.no_grad()
def test_padded_equals_alone_equals_packed(variant, lengths, seed):
    torch.manual_seed(seed)
    sources, targets = [ids(n) for n, _ in lengths], [ids(n) for _, n in lengths]

    model = translator(variant)
    (source, source_layout), (target, _) = pad(sources), pad(targets)
    padded = model(source, target, source_layout)
    packs = model(*(both[0] for both in (packed(sources), packed(targets))), packed(sources)[1], packed(targets)[1])[0]
    for i, whole in enumerate(packs.split([len(t) for t in targets])):
        alone = model(sources[i][None], targets[i][None])[0]
        assert difference(padded[i, : len(alone)], alone) <= 1e-5
        assert difference(whole, alone) <= 1e-5

    model = reader(variant)
    padded, packs = model(source, source_layout), model(*packed(sources))[0]
    for i, whole in enumerate(packs.split([len(s) for s in sources])):
        alone = model(sources[i][None])[0]
        assert difference(padded[i, : len(alone)], alone) <= 1e-5
        assert difference(whole, alone) <= 1e-5

    model = writer(variant)
    target, layout = pad(targets)
    padded, masked, packs = model(target), model(target, layout), model(*packed(targets))[0]
    for i, whole in enumerate(packs.split([len(t) for t in targets])):
        alone = model(targets[i][None])[0]
        assert difference(padded[i, : len(alone)], alone) <= 1e-5
        assert difference(masked[i, : len(alone)], alone) <= 1e-5
        assert difference(whole, alone) <= 1e-5


@every_variant
def test_packed_gradients_equal_padded_gradients(variant):
    sources, targets = [ids(5), ids(2), ids(7)], [ids(3), ids(6), ids(1)]
    model = translator(variant)

    def gradients(loss):
        model.zero_grad()
        loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    (source, layout), (target, there) = pad(sources), pad(targets)
    padded = gradients(model(source, target, layout)[there].square().mean())
    (source, packing), (target, target_packing) = packed(sources), packed(targets)
    packs = gradients(model(source, target, packing, target_packing)[0].square().mean())
    for a, b in zip(padded, packs, strict=True):
        assert difference(a, b) <= 1e-5 * max(1.0, a.abs().max().item())


@every_variant
@torch.no_grad()
def test_batch_order_does_not_matter(variant):
    model = translator(variant)
    source, layout = pad([ids(5), ids(2), ids(7), ids(4)])
    target = ids(4, 6)
    order = torch.tensor([2, 0, 3, 1])
    logits = model(source, target, layout)
    assert difference(model(source[order], target[order], layout[order]), logits[order]) <= 1e-6


def test_one_side_packed_and_the_other_padded_is_refused():
    model = translator()
    row, packing = packed([ids(3), ids(2)])
    with pytest.raises(InputError, match="both packed or both padded"):
        model(row, ids(1, 5), packing)


def test_too_long_a_text_is_refused():
    model = writer("learned")
    with pytest.raises(InputError, match="65 tokens are more than model.positions.max_length = 64 allows"):
        model(ids(1, 65))
