"""Adam equals torch's; Muon's updates are orthogonal and of the expected size."""

import copy

import pytest
import torch

from sightline.config import TrainConfig
from sightline.train.optimizer import Muon, load_optimizer_state, make_optimizers, optimizer_state, orthogonalize
from support import VARIANTS, difference, every_variant, ids, reader, translator, writer


def gradients(model):
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)


def between_layers(model):
    """Return the matrices that are neither embeddings nor the classifier."""
    outer = [model.classifier.weight]
    for module in model.modules():
        if hasattr(module, "tokens"):
            outer += list(module.parameters())
    return [p for p in model.parameters() if p.dim() == 2 and not any(p is q for q in outer)]


@every_variant
@pytest.mark.parametrize("make", [translator, writer, reader])
def test_weight_decay_applies_to_matrices_between_layers(variant, make):
    model = make(variant)
    (adam,) = make_optimizers(model, TrainConfig(weight_decay=0.1), torch.tensor(0.01))
    decayed, others = (group["params"] for group in adam.param_groups)
    assert {id(p) for p in decayed} == {id(p) for p in between_layers(model)}
    assert len(decayed) + len(others) == len(list(model.parameters()))
    assert [group["weight_decay"] for group in adam.param_groups] == [0.1, 0.0]
    muon, rest = make_optimizers(model, TrainConfig(optimizer="muon", weight_decay=0.1), torch.tensor(0.01))
    assert {id(p) for p in muon.param_groups[0]["params"]} == {id(p) for p in decayed}
    assert {id(p) for p in rest.param_groups[0]["params"]} == {id(p) for p in others}
    assert rest.param_groups[0]["weight_decay"] == 0.0


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_equals_torch(name):
    torch.manual_seed(0)
    model = translator("biased")
    other = copy.deepcopy(model)
    rate = torch.tensor(0.0)
    config = TrainConfig(optimizer=name, weight_decay=0.1, betas=(0.8, 0.95), epsilon=1e-6)
    (ours,) = make_optimizers(model, config, rate)
    decayed = {id(p) for p in between_layers(other)}
    groups = [
        {"params": [p for p in other.parameters() if id(p) in decayed], "weight_decay": 0.1},
        {"params": [p for p in other.parameters() if id(p) not in decayed], "weight_decay": 0.0},
    ]
    theirs = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name](groups, betas=(0.8, 0.95), eps=1e-6)
    for step in range(1, 6):
        gradients(model)
        for a, b in zip(model.parameters(), other.parameters(), strict=True):
            b.grad = a.grad.clone()
        rate.fill_(0.01 / step)  # the training step writes into it
        for group in theirs.param_groups:
            group["lr"] = 0.01 / step
        ours.step()
        theirs.step()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert difference(a, b) <= 1e-6


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 48, 16), (4, 16, 48), (1, 128, 40)])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_orthogonal_has_singular_values_near_one(shape, size):
    """For matrices without singular values near zero, whatever their size."""
    matrices = torch.randn(shape) * size
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    if shape[1] == shape[2]:  # a random square matrix may have one near zero
        matrices = left @ torch.diag_embed(torch.linspace(0.1, 1, shape[1]).expand(shape[0], -1)) @ right * size
    found = orthogonalize(matrices)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.6
    assert values.max() < 1.3
    # the singular vectors are those of the matrix: the product with them is diagonal
    between = left.mT @ found @ right.mT
    off = between - torch.diag_embed(between.diagonal(dim1=-2, dim2=-1))
    assert off.abs().max() <= 1e-3
    assert (between.diagonal(dim1=-2, dim2=-1) > 0.6).all()


def updated(named, given, steps=1, **options):
    """Return the weights after steps of Muon with these gradients."""
    muon = Muon(named, torch.tensor(0.1), **options)
    for _ in range(steps):
        for name, weight in named.items():
            weight.grad = given[name].clone()
        muon.step()
    return {name: weight.detach().clone() for name, weight in named.items()}


def test_stacked_matrices_are_updated_one_by_one():
    torch.manual_seed(0)
    stacked = {"a.query_key_value.weight": 3, "a.key_value.weight": 2, "a.output.weight": 1}
    weights = {name: torch.randn(parts * 16, 16) for name, parts in stacked.items()}
    given = {name: torch.randn_like(weight) for name, weight in weights.items()}
    apart, given_apart = {}, {}
    for name, parts in stacked.items():
        for i, (weight, gradient) in enumerate(zip(weights[name].chunk(parts), given[name].chunk(parts), strict=True)):
            apart[f"{name}.{i}.weight"], given_apart[f"{name}.{i}.weight"] = weight.clone(), gradient
    together = updated(weights, given, steps=3, weight_decay=0.1)
    one_by_one = updated(apart, given_apart, steps=3, weight_decay=0.1)
    for name, parts in stacked.items():
        expected = torch.cat([one_by_one[f"{name}.{i}.weight"] for i in range(parts)])
        assert difference(together[name], expected) <= 1e-6


@pytest.mark.parametrize("shape", [(32, 32), (64, 16), (16, 64)])
def test_muon_update_has_the_size_of_an_adam_update(shape):
    """The root mean square is 0.2 times the rate, whatever the size of the gradient: min(shape) singular values of
    about 0.2·√max(shape), spread over all entries."""
    torch.manual_seed(0)
    for size in (1e-3, 1e3):
        weight = torch.zeros(shape)
        after = updated({"a.inner.weight": weight}, {"a.inner.weight": size * torch.randn(shape)})["a.inner.weight"]
        assert after.square().mean().sqrt().item() == pytest.approx(0.1 * 0.2, rel=0.3)
        values = torch.linalg.svdvals(after) / (0.1 * 0.2 * max(shape) ** 0.5)
        assert values.max() < 1.3


def test_weight_decay_of_muon_is_decoupled_from_the_gradient():
    torch.manual_seed(0)
    start, given = torch.randn(16, 16), {"a.inner.weight": torch.randn(16, 16)}
    plain = updated({"a.inner.weight": start.clone()}, given)["a.inner.weight"]
    decayed = updated({"a.inner.weight": start.clone()}, given, weight_decay=0.5)["a.inner.weight"]
    assert difference(decayed, plain - 0.1 * 0.5 * start) <= 1e-6


@pytest.mark.parametrize("variant", list(VARIANTS)[:3])
@pytest.mark.parametrize("name", ["adam", "adamw", "muon"])
def test_loaded_state_continues_exactly(name, variant):
    torch.manual_seed(0)
    model = translator(variant)
    config, rate = TrainConfig(optimizer=name, weight_decay=0.1), torch.tensor(0.01)
    optimizers = make_optimizers(model, config, rate)
    for _ in range(3):
        gradients(model)
        for optimizer in optimizers:
            optimizer.step()
    names = {parameter: parameter_name for parameter_name, parameter in model.named_parameters()}
    saved = {key: value.clone() for key, value in optimizer_state(optimizers, names).items()}
    assert {key.rpartition(".")[0] for key in saved} == set(names.values())

    other = copy.deepcopy(model)
    others = make_optimizers(other, config, rate)
    other_names = {parameter: parameter_name for parameter_name, parameter in other.named_parameters()}
    before = {key: value.clone() for key, value in saved.items()}
    load_optimizer_state(others, other_names, saved)
    again = optimizer_state(others, other_names)
    assert again.keys() == saved.keys()
    assert all(torch.equal(again[key], saved[key]) for key in saved)
    gradients(model)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        b.grad = a.grad.clone()
    for optimizer in (*optimizers, *others):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(saved[key], before[key]) for key in saved)  # the loaded state is a copy


def test_model_learns_with_each_optimizer():
    for name, peak in (("adam", 0.01), ("adamw", 0.01), ("muon", 0.01)):
        torch.manual_seed(0)
        model, source, target = translator(dropout=0.0), ids(4, 6), ids(4, 5)
        optimizers = make_optimizers(model, TrainConfig(optimizer=name), torch.tensor(peak))
        losses = []
        for _ in range(30):
            loss = torch.nn.functional.cross_entropy(model(source, target).flatten(0, 1), target.flatten())
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        assert losses[-1] < 0.5 * losses[0]
