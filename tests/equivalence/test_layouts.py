"""The scores of a sentence do not depend on its neighbours or on the layout of the batch."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.errors import InputError
from support import VARIANTS, difference, every_variant, ids, packed, pad, raises, reader, translator, writer

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


def test_packed_source_with_padded_target_is_refused():
    model = translator()
    row, packing = packed([ids(3), ids(2)])
    with raises(InputError, match="PackedRows"):
        model(row, ids(1, 5), packing)


def test_texts_longer_than_max_length_are_refused():
    model = writer("learned")
    with raises(InputError, option="model.positions.max_length", value=64):
        model(ids(1, 65))


UNCHECKED = """
import torch
from sightline import ModelConfig, PackedRows, build

stack = {"layers": 1, "heads": 2, "d_ff": 8}
writer = build(ModelConfig(architecture="decoder-only", vocab_size=9, d_model=8, decoder=stack))
model = build(ModelConfig(vocab_size=9, d_model=8, encoder=stack, decoder=stack))
ids = lambda *shape: torch.zeros(shape, dtype=torch.long)
for run in (
    lambda: writer(ids(2, 5), PackedRows(ids(1, 5), ids(1, 5))),
    lambda: writer(ids(2, 4), torch.ones(2, 4)),
    lambda: writer(ids(2, 4), torch.ones(2, 3, dtype=torch.bool)),
    lambda: model(ids(2, 4), ids(4, 3)),
):
    try:
        run()
        print("ran")
    except Exception as error:
        print(type(error).__name__)
"""


def test_invalid_layouts_without_checked_signatures():
    """Users do not have the shape checks of these tests; an invalid layout must raise an error."""
    done = subprocess.run([sys.executable, "-c", UNCHECKED], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["InputError"] * 4


@every_variant
def test_empty_batches_rows_and_sentences(variant):
    model = translator(variant)
    assert model(ids(0, 3), ids(0, 2)).shape == (0, 2, 41)
    assert model(ids(2, 3), ids(2, 0)).shape == (2, 0, 41)
    nothing = model(ids(2, 0), ids(2, 3))
    assert nothing.shape == (2, 3, 41)
    assert nothing.isfinite().all()
    sources, targets = [ids(3), ids(0), ids(2)], [ids(2), ids(2), ids(0)]
    (source, layout), (target, _) = pad(sources), pad(targets)
    padded = model(source, target, layout)
    packs = model(packed(sources)[0], packed(targets)[0], packed(sources)[1], packed(targets)[1])[0]
    assert difference(packs[:2], padded[0]) <= 1e-5
    assert difference(packs[2:], padded[1]) <= 1e-5
    packs.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("option", ["dropout", "attention_dropout", "activation_dropout"])
@pytest.mark.parametrize("packs", [False, True])
def test_every_dropout_is_active_in_training_only(option, packs):
    nothing = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    model = translator(**{**nothing, option: 0.5})
    sources, targets = [ids(5), ids(3)], [ids(4), ids(6)]
    lay = packed if packs else pad
    (source, layout), (target, target_layout) = lay(sources), lay(targets)

    def run():
        return model(source, target, layout, target_layout)

    assert torch.equal(run(), run())
    model.train()
    assert difference(run(), run()) > 1e-2


def test_dropout_is_at_the_places_of_the_paper():
    """On the embeddings, and on each sub-layer's output before the sum. Dropped units are 0, others are scaled."""
    model = translator(dropout=0.5).train()
    x = model.encoder.embedding(ids(1, 40), torch.arange(40)[None])
    assert 0.4 < (x == 0).float().mean() < 0.6
    for residual in (model.decoder.layers[0].cross_attention_residual, model.encoder.layers[1].feed_forward_residual):
        seen = []
        residual.norm.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))
        residual(torch.zeros(1, 40, 24), torch.ones_like)
        assert set(seen[0].unique().tolist()) == {0.0, 2.0}
        assert 0.4 < (seen[0] == 0).float().mean() < 0.6
