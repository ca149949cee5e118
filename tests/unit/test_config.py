"""Options: defaults, loading, and errors with option and value."""

import math
import re

import pytest
from pydantic import ValidationError

from sightline.config import Config, ModelConfig, SearchConfig, load
from sightline.errors import ConfigError
from sightline.model.transformer import build
from sightline.model_folder import count_parameters
from sightline.options import option_fields, presets
from support import raises


@pytest.mark.parametrize(
    ("values", "option", "value", "hint"),
    [
        ({"d_model": 510}, "d_model", 510, "`encoder.heads` = 8"),
        ({"d_model": 24, "encoder": {"heads": 2}, "decoder": {"heads": 5}}, "d_model", 24, "`decoder.heads` = 5"),
        ({"d_modle": 512}, "d_modle", 512, "`d_model`"),
        ({"encoder": {"layer": 6}}, "encoder.layer", 6, "`encoder.layers`"),
        ({"encoder": {"xyz": 6}}, "encoder.xyz", 6, "layers, heads, d_ff"),
        ({"d_model": -512}, "d_model", -512, "greater than 0"),
        ({"decoder": {"layers": 0}}, "decoder.layers", 0, "greater than 0"),
        ({"decoder": {"layers": 1.5}}, "decoder.layers", 1.5, "integer"),
        ({"dropout": 1.0}, "dropout", 1.0, "less than 1"),
        ({"dropout": math.inf}, "dropout", math.inf, "finite"),
        ({"encoder": 5}, "encoder", 5, "`encoder.layers`"),
        ({"heads": 5}, "heads", 5, "`encoder.heads`"),
        ({"d_model": True}, "d_model", True, "integer"),
        ({"d_model": "512"}, "d_model", "512", "integer"),
        ({"scale_embedding": 1}, "scale_embedding", 1, "boolean"),
        ({"positions": {"max_length": 10**7}}, "positions.max_length", 10**7, "1000000"),
        ({"norm": "batch"}, "norm", "batch", "'post' or 'pre'"),
        ({"source_vocab_size": 10, "vocab_size": 20}, "tie", "all", "'target' or 'none'"),
        ({"source_vocab_size": 10, "architecture": "decoder-only"}, "source_vocab_size", 10, "decoder-only"),
        ({"segments": 2}, "segments", 2, "encoder-decoder"),
        (
            {"d_model": 24, "encoder": {"heads": 8}, "positions": {"kind": "rotary"}},
            "positions.kind",
            "rotary",
            "`d_model` / `encoder.heads` is 3",
        ),
        (
            {"positions": {"min_timescale": 500.0, "max_timescale": 100.0}},
            "positions.min_timescale",
            500.0,
            "`positions.max_timescale` = 100",
        ),
        ({"self": 3}, "self", 3, "Known options: architecture, vocab_size"),
    ],
)
def test_invalid_options_are_one_line_with_a_hint(values, option, value, hint):
    with raises(ConfigError, option=option, value=value, match=re.escape(hint)) as error:
        ModelConfig(**values)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "option", "value"),
    [
        ({"nbest": 5}, "nbest", 5),
        ({"groups": 3}, "groups", 3),
        ({"groups": 2, "sample": True}, "groups", 2),
        ({"rerank": "mbr-chrf"}, "rerank", "mbr-chrf"),
        ({"rerank": "chrf"}, "rerank", "chrf"),
        ({"beams": 0}, "beams", 0),
    ],
)
def test_invalid_search_options(values, option, value):
    with raises(ConfigError, option=option, value=value):
        SearchConfig(**values)


def test_types_of_a_union_are_one_error():
    with raises(ConfigError, option="train.batch_tokens", value="many", match="integer or 'auto', got 'many'") as error:
        load(sets=["train.batch_tokens=many"])
    assert "\n" not in str(error.value)


def test_all_errors_of_a_file_are_reported_together(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[model]\nd_model = -1\nnorm = "batch"\n[model.encoder]\nhedas = 3\n[trian]\nsteps = 1\n')
    with raises(ConfigError, option="model.d_model", value=-1) as error:
        load(file=file)
    lines = str(error.value).splitlines()
    options = ["`model.d_model`", "`model.encoder.hedas`", "`model.norm`", "`trian`"]
    assert [next(option for option in options if option in line) for line in lines] == options


def test_conflicts_in_a_group_have_full_names():
    with raises(ConfigError, option="model.d_model", value=3, match="`model.encoder.heads` = 8"):
        load(sets=["model.d_model=3"])


def test_preset_then_file_then_set(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("[model]\nd_model = 64\ndropout = 0.3\n[model.encoder]\nlayers = 3\n")
    config = load("tiny", file, ["model.dropout=0.2", "model.norm=pre", "model.decoder.heads = 2"]).model
    tiny = load("tiny").model
    assert config.encoder == tiny.encoder.model_copy(update={"layers": 3})
    assert (config.d_model, config.dropout, config.norm, config.decoder.heads) == (64, 0.2, "pre", 2)
    assert config.decoder.d_ff == tiny.decoder.d_ff


def test_errors_outside_the_options(tmp_path):
    with raises(ConfigError, option="preset", value="tinny", match="`tiny`"):
        load("tinny")
    for assignment in ("model.d_model", ".=3", "model.=3", "=3"):
        with raises(ConfigError, option="set", value=assignment):
            load(sets=[assignment])
    with raises(ConfigError, option="d_model", value=512, match="`model.d_model`"):
        load(sets=["d_model=512"])
    with raises(ConfigError, option="model.d_model", value="9" * 5000):
        load(sets=["model.d_model=" + "9" * 5000])
    (tmp_path / "bad.toml").write_text("[model\n")
    for name in ("none.toml", "bad.toml"):
        with raises(ConfigError, value=tmp_path / name, match="TOML"):
            load(file=tmp_path / name)


def test_options_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        ModelConfig().d_model = 3


def test_every_option_has_a_help_text():
    names = [name for name, _ in option_fields(Config)]
    assert len(names) == len(set(names)) > 20
    assert all(field.description for _, field in option_fields(Config))


def test_defaults_are_the_base_model_of_the_paper():
    model = build(Config().model)
    # §5.4 and table 3: 65 million parameters
    assert round(count_parameters(model) / 1e6) in (62, 63, 64, 65)
    base = load("base").model
    assert base == ModelConfig()


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_a_model(name):
    config = load(name, sets=["model.vocab_size=100"]).model
    model = build(config)
    assert count_parameters(model) > 0
