"""Models on disk."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sightline.checkpoint import load_model, save_model
from sightline.config import ModelConfig
from sightline.errors import CheckpointError
from sightline.model.kernels import for_few_rows
from sightline.model.transformer import build
from support import difference, every_variant, ids, reader, translator, writer

KEPT = Path(__file__).parents[1] / "kept"


@every_variant
@torch.no_grad()
def test_saved_and_loaded_is_the_same(variant, tmp_path):
    for make, inputs in ((translator, (ids(2, 6), ids(2, 5))), (writer, (ids(2, 5),)), (reader, (ids(2, 5),))):
        model = make(variant)
        save_model(model, tmp_path / variant)
        again = load_model(tmp_path / variant)
        assert again.config == model.config
        assert torch.equal(again(*inputs), model(*inputs))
        assert sorted(p.name for p in (tmp_path / variant).iterdir()) == ["config.json", "model.safetensors"]


@torch.no_grad()
def test_what_an_engine_has_laid_out_anew_is_saved_as_it_was(tmp_path):
    """On a CPU a classifier gets numbers of its own; on disk it shares them again, if they are the same."""
    for make, inputs in ((translator, (ids(2, 6), ids(2, 5))), (writer, (ids(2, 5),)), (reader, (ids(2, 5),))):
        model = make("paper")
        expected = model(*inputs)
        for_few_rows(model)
        save_model(model, tmp_path / "model")
        assert difference(load_model(tmp_path / "model")(*inputs), expected) <= 1e-6
        model.classifier.weight.mul_(0.5)
        with pytest.raises(CheckpointError, match="classifier.weight: the configuration ties it to '.*embedding"):
            save_model(model, tmp_path / "model")


@torch.no_grad()
def test_a_model_of_an_earlier_version_still_loads():
    """Parameter names and the folder's layout are public: this folder was written once and is never written again."""
    model = load_model(KEPT / "model")
    inputs = json.loads((KEPT / "logits.json").read_text())
    logits = model(torch.tensor(inputs["source"]), torch.tensor(inputs["target"]))
    assert difference(logits, torch.tensor(inputs["logits"])) <= 1e-5


@pytest.mark.parametrize("architecture", ["encoder-decoder", "decoder-only", "encoder-only"])
def test_parameter_names_are_public(architecture):
    """The names in the list may be added to, with a default; none may go or change its shape."""
    config = ModelConfig(
        architecture=architecture,
        vocab_size=50,
        d_model=16,
        encoder={"layers": 1, "heads": 4, "d_ff": 24},
        decoder={"layers": 1, "heads": 2, "d_ff": 40},
        positions={"kind": "learned", "max_length": 8},
        norm="pre",
        tie="none",
        segments=2 if architecture == "encoder-only" else 0,
        embedding_norm=True,
        attention_bias=True,
        classifier_bias=True,
    )
    names = [f"{name} {list(p.shape)}" for name, p in build(config).named_parameters()]
    assert names == (KEPT / f"parameters-{architecture}.txt").read_text().splitlines()


def test_damage_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="there is no model here; a model folder has a config.json"):
        load_model(tmp_path)
    save_model(translator(), tmp_path)
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    good_config, good_weights = config.read_text(), weights.read_bytes()

    config.write_text("{")
    with pytest.raises(CheckpointError, match="this is not a model's configuration"):
        load_model(tmp_path)
    config.write_text(good_config.replace('"format": 1', '"format": 99'))
    with pytest.raises(CheckpointError, match="has format 99, and this version of Sightline reads 1"):
        load_model(tmp_path)
    config.write_text(good_config.replace('"d_model"', '"d_modell"'))
    with pytest.raises(CheckpointError, match="did you mean 'd_model'"):
        load_model(tmp_path)
    config.write_text(good_config.replace('"d_model": 24', '"d_model": 48'))
    with pytest.raises(CheckpointError, match="has the shape .* where the configuration asks for"):
        load_model(tmp_path)
    config.write_text(good_config)

    weights.write_bytes(good_weights[:-100])
    with pytest.raises(CheckpointError, match="the weights cannot be read"):
        load_model(tmp_path)
    weights.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(CheckpointError, match="the weights cannot be read"):
        load_model(tmp_path)
    weights.write_bytes(good_weights)
    tensors = load_file(weights)
    del tensors["decoder.layers.0.self_attention.output.weight"]
    save_file(tensors, weights)
    with pytest.raises(CheckpointError, match="lack 'decoder.layers.0.self_attention.output.weight'"):
        load_model(tmp_path)
    weights.unlink()
    with pytest.raises(CheckpointError, match="the weights cannot be read"):
        load_model(tmp_path)


@pytest.mark.parametrize("file", [1, 2])
def test_an_interrupted_write_leaves_the_old_model(file, tmp_path, monkeypatch):
    """The disk is full at the first file, or at the second."""
    model = translator()
    save_model(model, tmp_path)
    calls = []

    def full(_: int) -> None:
        calls.append(1)
        if len(calls) == file:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CheckpointError, match="cannot be written: No space left on device"):
        save_model(translator("pre-norm"), tmp_path)
    monkeypatch.undo()
    again, inputs = load_model(tmp_path), (ids(1, 3), ids(1, 2))
    assert again.config == model.config
    assert torch.equal(again(*inputs), model(*inputs))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_the_whole_configuration_is_kept(tmp_path):
    """So that a default may change one day without changing old models."""
    save_model(translator(), tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())["model"]
    assert stored.keys() == ModelConfig.model_fields.keys()


def test_loading_draws_no_random_numbers_and_odd_folders_are_named(tmp_path):
    save_model(translator(), tmp_path)
    state = torch.get_rng_state()
    load_model(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    for text in ('{"format": 1, "model": null}', '{"format": 1, "model": [1]}', "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match="this is not a model's configuration"):
            load_model(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_model(translator(), tmp_path / "file")
