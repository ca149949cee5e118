"""Model folders: saving, loading, metadata and damage."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sightline.config import ModelConfig
from sightline.errors import CheckpointError
from sightline.model.kernels.compiled import column_major_weights
from sightline.model.transformer import build
from sightline.model_folder import (
    BUNDLED,
    ModelFolder,
    bundled_models,
    count_parameters,
    load_model,
    load_tokenizer,
    save_model,
)
from support import difference, every_variant, ids, raises, reader, translator, writer

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
def test_weights_untied_by_an_engine_are_saved_tied(tmp_path):
    """On a CPU the classifier has its own weights; in the file it shares them again if they are equal."""
    for make, inputs in ((translator, (ids(2, 6), ids(2, 5))), (writer, (ids(2, 5),)), (reader, (ids(2, 5),))):
        model = make("paper")
        expected = model(*inputs)
        column_major_weights(model)
        save_model(model, tmp_path / "model")
        assert difference(load_model(tmp_path / "model")(*inputs), expected) <= 1e-6
        model.classifier.weight.mul_(0.5)
        with raises(CheckpointError, value="classifier.weight"):
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


def test_damage_is_reported(tmp_path):
    for read in (load_model, load_tokenizer, lambda folder: ModelFolder(folder).config):
        with raises(CheckpointError, value=tmp_path, match="config.json is missing"):
            read(tmp_path)
    save_model(translator(), tmp_path)
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    good_config, good_weights = config.read_text(), weights.read_bytes()

    with raises(CheckpointError, value=tmp_path, match="tokenizer.model is missing"):
        load_tokenizer(tmp_path)
    config.write_text("{")
    with raises(CheckpointError, value=config):
        load_model(tmp_path)
    config.write_text(good_config.replace('"format": 1', '"format": 99'))
    with raises(CheckpointError, value=config, match="format 99"):
        load_model(tmp_path)
    config.write_text(good_config.replace('"d_model"', '"d_modell"'))
    with raises(CheckpointError, option="d_modell", value=24):
        load_model(tmp_path)
    config.write_text(good_config.replace('"d_model": 24', '"d_model": 48'))
    with raises(CheckpointError, match="shape"):
        load_model(tmp_path)
    config.write_text(good_config)

    weights.write_bytes(good_weights[:-100])
    with raises(CheckpointError, value=weights):
        load_model(tmp_path)
    weights.write_bytes(pickle.dumps({"a": 1}))
    with raises(CheckpointError, value=weights):
        load_model(tmp_path)
    weights.write_bytes(good_weights)
    tensors = load_file(weights)
    del tensors["decoder.layers.0.self_attention.output.weight"]
    save_file(tensors, weights)
    with raises(CheckpointError, match="'decoder.layers.0.self_attention.output.weight'"):
        load_model(tmp_path)
    weights.unlink()
    with raises(CheckpointError, value=weights):
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
    with raises(CheckpointError, value=tmp_path, match="No space left on device"):
        save_model(translator("pre-norm"), tmp_path)
    monkeypatch.undo()
    again, inputs = load_model(tmp_path), (ids(1, 3), ids(1, 2))
    assert again.config == model.config
    assert torch.equal(again(*inputs), model(*inputs))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_config_has_every_option(tmp_path):
    """A new default then does not change old models."""
    save_model(translator(), tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())["model"]
    assert stored.keys() == ModelConfig.model_fields.keys()


def test_loading_draws_no_random_numbers(tmp_path):
    save_model(translator(), tmp_path)
    state = torch.get_rng_state()
    load_model(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)


def test_invalid_configurations_are_reported(tmp_path):
    for text in ('{"format": 1, "model": null}', '{"format": 1, "model": [1]}', "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        with raises(CheckpointError, value=tmp_path / "config.json"):
            load_model(tmp_path)
    (tmp_path / "file").write_text("")
    with raises(CheckpointError, value=tmp_path / "file"):
        save_model(translator(), tmp_path / "file")


def test_task_and_trained_source_length_are_stored(tmp_path):
    for make, task in ((translator, "translate"), (writer, "write"), (reader, "read")):
        save_model(make(), tmp_path / task)
        folder = ModelFolder(tmp_path / task)
        assert (folder.task, folder.trained_source_length) == (task, None)
    save_model(writer(), tmp_path / "translate", task="read", trained_source_length=7)
    folder = ModelFolder(tmp_path / "translate")
    assert (folder.task, folder.trained_source_length) == ("read", 7)
    config = json.loads((tmp_path / "read" / "config.json").read_text())
    (tmp_path / "read" / "config.json").write_text(json.dumps(config | {"task": "sing"}))
    with raises(CheckpointError, option="task", value="sing"):
        _ = ModelFolder(tmp_path / "read").task


def test_metadata_of_version_0_1(tmp_path):
    """config.json had no task; run.json had the length of sources."""
    folder = ModelFolder(KEPT / "model")
    assert (folder.task, folder.trained_source_length) == ("translate", None)
    (tmp_path / "config.json").write_bytes((KEPT / "model" / "config.json").read_bytes())
    (tmp_path / "run.json").write_text('{"usual_length": 93}')
    assert ModelFolder(tmp_path).trained_source_length == 93


def test_bundled_models_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in (*bundled_models(), "coref/states/step-00000080"):
        folder = ModelFolder(name)
        assert folder.path == BUNDLED / name
        assert folder.cache == tmp_path / "cache" / "sightline" / "models" / name
        assert (folder.task, folder.trained_source_length) == ("translate", 1)
        assert folder.count_parameters() == count_parameters(folder.config) == count_parameters(folder.load_model())
    assert [state.name for state in ModelFolder("coref").states] == [f"step-{step:08}" for step in range(0, 161, 40)]
    assert ModelFolder(tmp_path / "mine").cache == tmp_path / "mine"


def test_files_in_the_cache_replace_those_of_a_bundled_model(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = ModelFolder("coref")
    assert folder.file("alignment.json") == BUNDLED / "coref" / "alignment.json"
    assert folder.alignment_heads() is not None
    folder.cache.mkdir(parents=True)
    own = folder.cache / "alignment.json"
    own.write_text('{"heads": [[1, 2]], "step": "reads"}')
    assert folder.file("alignment.json") == own
    assert folder.alignment_heads() == ([(1, 2)], "reads")
    for text in ("{}", "[", '{"heads": [[2, 0]], "step": "reads"}', '{"heads": [[0, 0]], "step": "never"}'):
        own.write_text(text)
        with raises(CheckpointError, value=own):
            folder.alignment_heads()
    assert folder.converted("float32") == folder.cache / "ctranslate2"
    assert folder.converted("int8") == folder.cache / "ctranslate2-int8"


def test_incomplete_weights_are_found_without_loading_them(tmp_path):
    save_model(translator(), tmp_path)
    weights = tmp_path / "model.safetensors"
    assert ModelFolder(tmp_path).count_parameters() == count_parameters(translator())
    for data in (weights.read_bytes()[:-1], weights.read_bytes()[:100], b"", None):
        weights.write_bytes(data) if data is not None else weights.unlink()
        with raises(CheckpointError, value=weights):
            ModelFolder(tmp_path).count_parameters()


def test_examples_and_comments(tmp_path):
    assert ModelFolder(tmp_path).examples() == ([], None)
    (tmp_path / "examples.txt").write_text("# Try\n# these.\nOne.\n\n Two. \n", "utf-8")
    assert ModelFolder(tmp_path).examples() == (["One.", "Two."], "Try these.")
