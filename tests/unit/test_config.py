"""Options: defaults in one place, mistakes named in one sentence each."""

import pytest
from pydantic import ValidationError

from sightline.config import Config, ModelConfig, load, options, presets
from sightline.errors import ConfigError
from sightline.model.transformer import build


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"d_model": 510},
            "d_model = 510 cannot be divided among encoder.heads = 8; make d_model a multiple of 8.",
        ),
        (
            {"d_model": 24, "encoder": {"heads": 2}, "decoder": {"heads": 5}},
            "d_model = 24 cannot be divided among decoder.heads = 5; make d_model a multiple of 5.",
        ),
        ({"d_modle": 512}, "d_modle: there is no such option, did you mean 'd_model'?"),
        ({"encoder": {"layer": 6}}, "encoder.layer: there is no such option, did you mean 'layers'?"),
        ({"encoder": {"xyz": 6}}, "encoder.xyz: there is no such option; known here are layers, heads, d_ff."),
        ({"d_model": -512}, "d_model: must be greater than 0, and is -512."),
        ({"decoder": {"layers": 0}}, "decoder.layers: must be greater than 0, and is 0."),
        (
            {"decoder": {"layers": 1.5}},
            "decoder.layers: must be a valid integer, and is 1.5.",
        ),
        ({"dropout": 1.0}, "dropout: must be less than 1, and is 1.0."),
        ({"dropout": float("nan")}, "dropout: must be a finite number, and is nan."),
        ({"encoder": 5}, "encoder: this is a group of options; set one of them, for example encoder.layers."),
        ({"heads": 5}, "heads: there is no such option, did you mean 'encoder.heads'?"),
        ({"d_model": True}, "d_model: must be a valid integer, and is True."),
        ({"d_model": "512"}, "d_model: must be a valid integer, and is '512'."),
        ({"scale_embedding": 1}, "scale_embedding: must be a valid boolean, and is 1."),
        (
            {"positions": {"max_length": 10**7}},
            "positions.max_length: must be less than or equal to 1000000, and is 10000000.",
        ),
        ({"norm": "batch"}, "norm: must be 'post' or 'pre', and is 'batch'."),
        (
            {"source_vocab_size": 10, "vocab_size": 20},
            'tie = "all" needs one vocabulary, but source_vocab_size = 10 and vocab_size = 20; '
            'set tie to "target" or "none".',
        ),
        (
            {"source_vocab_size": 10, "architecture": "decoder-only"},
            "source_vocab_size has no meaning in a model that is decoder-only; leave it out.",
        ),
        ({"segments": 2}, "segments has no meaning in a model that is encoder-decoder; leave it out."),
        (
            {"d_model": 24, "encoder": {"heads": 8}, "positions": {"kind": "rotary"}},
            "rotary positions turn pairs of channels, and 3 channels a head (d_model / encoder.heads) is odd; "
            "choose an even number, or another positions.kind.",
        ),
        (
            {"positions": {"min_timescale": 500.0, "max_timescale": 100.0}},
            "positions.min_timescale = 500 must be below positions.max_timescale = 100.",
        ),
    ],
)
def test_one_clear_sentence(values, sentence):
    with pytest.raises(ConfigError) as error:
        ModelConfig(**values)
    assert str(error.value) == sentence


def test_all_errors_of_a_file_are_reported_together(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[model]\nd_model = -1\nnorm = "batch"\n[model.encoder]\nhedas = 3\n[trian]\nsteps = 1\n')
    with pytest.raises(ConfigError) as error:
        load(file=file)
    assert str(error.value).splitlines() == [
        "model.d_model: must be greater than 0, and is -1.",
        "model.encoder.hedas: there is no such option, did you mean 'heads'?",
        "model.norm: must be 'post' or 'pre', and is 'batch'.",
        "trian: there is no such option, did you mean 'train'?",
    ]


def test_preset_then_file_then_set(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("[model]\nd_model = 64\ndropout = 0.3\n[model.encoder]\nlayers = 3\n")
    config = load("tiny", file, ["model.dropout=0.2", "model.norm=pre", "model.decoder.heads = 2"]).model
    tiny = load("tiny").model
    assert config.encoder == tiny.encoder.model_copy(update={"layers": 3})
    assert (config.d_model, config.dropout, config.norm, config.decoder.heads) == (64, 0.2, "pre", 2)
    assert config.decoder.d_ff == tiny.decoder.d_ff


def test_mistakes_outside_the_options(tmp_path):
    with pytest.raises(ConfigError, match="there is no preset 'tinny', did you mean 'tiny'\\?"):
        load("tinny")
    for assignment in ("model.d_model", ".=3", "model.=3", "=3"):
        with pytest.raises(ConfigError, match="write it as group.option=value"):
            load(sets=[assignment])
    with pytest.raises(ConfigError, match="d_model: there is no such option, did you mean 'model.d_model'"):
        load(sets=["d_model=512"])
    with pytest.raises(ConfigError, match="model.d_model: must be a valid integer"):
        load(sets=["model.d_model=" + "9" * 5000])
    with pytest.raises(ConfigError, match="cannot be read as TOML"):
        load(file=tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[model\n")
    with pytest.raises(ConfigError, match="cannot be read as TOML"):
        load(file=tmp_path / "bad.toml")


def test_a_key_of_any_name_is_only_a_key():
    with pytest.raises(ConfigError, match="self: there is no such option; known here are architecture"):
        ModelConfig(self=3)


def test_options_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        ModelConfig().d_model = 3


def test_every_option_has_help_and_every_group_too():
    names = [name for name, _ in options()]
    assert len(names) == len(set(names)) > 20
    assert all(field.description for _, field in options())


def test_the_defaults_are_the_papers_base_model():
    model = build(Config().model)
    # §5.4 and table 3: 65 million parameters
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) in (62, 63, 64, 65)
    base = load("base").model
    assert base == ModelConfig()


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_a_model(name):
    config = load(name, sets=["model.vocab_size=100"]).model
    model = build(config)
    assert sum(p.numel() for p in model.parameters()) > 0
