"""The same numbers as Hugging Face's Marian, BERT and GPT-2, with random weights of odd configurations."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
)

from sightline.config import load
from sightline.errors import ConfigError
from sightline.interop.hugging_face import from_hugging_face, to_halves, to_hugging_face
from sightline.model.transformer import build
from support import difference, ids, raises, translator

ACTIVATIONS = st.sampled_from(["swish", "gelu", "relu", "gelu_new", "silu"])
SEEDS = st.integers(0, 10**6)


def shake(model):
    """Let no weight or bias be zero or one. (Marian's sinusoids are a frozen parameter.)"""
    with torch.no_grad():
        for parameter in filter(lambda p: p.requires_grad, model.parameters()):
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


@st.composite
def marians(draw):
    d_k = draw(st.integers(1, 8))  # of six heads, at the most
    heads = draw(st.lists(st.sampled_from([1, 2, 3, 6]), min_size=2, max_size=2))
    shared = draw(st.booleans())
    return MarianConfig(
        vocab_size=37,
        decoder_vocab_size=37 if shared else draw(st.integers(20, 50)),
        share_encoder_decoder_embeddings=shared,
        d_model=6 * d_k,
        encoder_layers=draw(st.integers(1, 4)),
        decoder_layers=draw(st.integers(1, 4)),
        encoder_attention_heads=heads[0],
        decoder_attention_heads=heads[1],
        encoder_ffn_dim=draw(st.integers(1, 70)),
        decoder_ffn_dim=draw(st.integers(1, 70)),
        activation_function=draw(ACTIVATIONS),
        scale_embedding=draw(st.booleans()),
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        forced_eos_token_id=1,
        attn_implementation="eager",
    )


@settings(max_examples=40)
@given(config=marians(), lengths=st.tuples(st.integers(1, 12), st.integers(1, 12)), seed=SEEDS)
@torch.no_grad()
def test_marian(config, lengths, seed):
    torch.manual_seed(seed)
    theirs = shake(MarianMTModel(config))
    theirs.final_logits_bias.normal_()
    ours = from_hugging_face(theirs)
    source = torch.randint(0, config.vocab_size, (3, lengths[0]))
    target = torch.randint(0, config.decoder_vocab_size, (3, lengths[1]))
    layout = torch.rand(3, lengths[0]) < 0.7
    layout[:, 0] = True
    expected = theirs(source, attention_mask=layout.long(), decoder_input_ids=target).logits
    assert difference(ours(source, target, layout), expected) <= 1e-5


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("norm", "options"),
    [
        ("post", {}),
        ("post", {"tie": "target", "source_vocab_size": 53}),
        ("post", {"tie": "none", "activation": "gelu-tanh"}),
        ("pre", {}),
        ("pre", {"activation": "swish", "scale_embedding": False}),
    ],
)
@pytest.mark.parametrize("positions", ["halves", "interleaved"])
@torch.no_grad()
def test_there_from_here_and_back(bias, norm, options, positions):
    more = {"norm": norm, "attention_bias": bias, "classifier_bias": bias, **options}
    ours = shake(translator("paper", positions={"kind": positions}, **more))
    theirs = to_hugging_face(ours)
    assert theirs.config.model_type == ("pegasus" if norm == "pre" else "marian")
    source, target = ids(3, 7), ids(3, 5)
    layout = torch.arange(7) < torch.tensor([[7], [2], [5]])
    found = theirs(source, attention_mask=layout.long(), decoder_input_ids=target).logits
    assert difference(found, ours(source, target, layout)) <= 1e-5
    assert difference(from_hugging_face(theirs)(source, target, layout), found) <= 1e-5


@pytest.mark.parametrize(
    ("options", "program", "blamed"),
    [
        ({"positions": {"start": 1}}, "Marian", {"option": "model.positions"}),
        ({"positions": {"kind": "learned"}}, "Marian", {"option": "model.positions"}),
        (
            {"positions": {"max_timescale": 500.0}},
            "Marian",
            {"option": "model.positions.max_timescale", "value": 500.0},
        ),
        ({"activation": "swiglu"}, "Marian", {"option": "model.activation", "value": "swiglu"}),
        ({"final_norm": True}, "Marian", {"option": "model.final_norm", "value": True}),
        ({"norm": "pre", "tie": "none"}, "Pegasus", {"option": "model.tie", "value": "none"}),
        ({"norm": "pre", "final_norm": False}, "Pegasus", {"option": "model.final_norm", "value": False}),
    ],
)
def test_unsupported_options_are_refused_by_export(options, program, blamed):
    with raises(ConfigError, match=program, **blamed):
        to_hugging_face(translator("paper", **options))


@pytest.mark.parametrize("preset", ["tiny", "small", "iwslt", "base", "big", "fast"])
def test_every_preset_that_translates_can_go_out(preset):
    few = ["model.d_model=16", "model.vocab_size=41", "model.encoder.layers=1", "model.decoder.layers=1"]
    few += [f"model.{side}.{option}" for side in ("encoder", "decoder") for option in ("heads=2", "d_ff=8")]
    assert to_hugging_face(build(load(preset, sets=few).model)).config.d_model == 16


@torch.no_grad()
def test_channels_in_another_order_say_the_same():
    ours = shake(translator("paper"))
    other = to_halves(ours)
    assert other.config.positions.kind == "halves"
    source, target = ids(3, 7), ids(3, 5)
    assert difference(other(source, target), ours(source, target)) <= 1e-5


@settings(max_examples=30)
@given(
    heads=st.sampled_from([1, 2, 3]),
    d_k=st.integers(3, 9),
    layers=st.integers(1, 4),
    d_ff=st.integers(1, 70),
    activation=ACTIVATIONS,
    tie=st.booleans(),
    length=st.integers(1, 16),
    seed=SEEDS,
)
@torch.no_grad()
def test_bert(heads, d_k, layers, d_ff, activation, tie, length, seed):
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=43,
        hidden_size=heads * d_k,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=d_ff,
        hidden_act=activation,
        max_position_embeddings=32,
        tie_word_embeddings=tie,
        attn_implementation="eager",
    )
    theirs = shake(BertForMaskedLM(config))
    ours = from_hugging_face(theirs)
    ids, segments = torch.randint(0, 43, (3, length)), torch.randint(0, 2, (3, length))
    layout = torch.rand(3, length) < 0.7
    layout[:, 0] = True
    expected = theirs(ids, attention_mask=layout.long(), token_type_ids=segments).logits
    assert difference(ours(ids, layout, segments), expected) <= 1e-5

    encoder = BertModel(config, add_pooling_layer=False).eval()
    encoder.load_state_dict(theirs.bert.state_dict())
    expected = encoder(ids, attention_mask=layout.long(), token_type_ids=segments).last_hidden_state
    assert difference(ours.encoder(ids, layout, segments), expected) <= 1e-5


@settings(max_examples=30)
@given(
    heads=st.sampled_from([1, 2, 3]),
    d_k=st.integers(3, 9),
    layers=st.integers(1, 4),
    d_ff=st.one_of(st.none(), st.integers(1, 70)),
    activation=ACTIVATIONS,
    tie=st.booleans(),
    length=st.integers(1, 16),
    seed=SEEDS,
)
@torch.no_grad()
def test_gpt2(heads, d_k, layers, d_ff, activation, tie, length, seed):
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=43,
        n_positions=32,
        n_embd=heads * d_k,
        n_layer=layers,
        n_head=heads,
        n_inner=d_ff,
        activation_function=activation,
        tie_word_embeddings=tie,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="eager",
    )
    theirs = shake(GPT2LMHeadModel(config))
    ids = torch.randint(0, 43, (3, length))
    assert difference(from_hugging_face(theirs)(ids), theirs(ids).logits) <= 1e-5


def test_unsupported_options_are_refused_by_import():
    small = {"n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 9, "bos_token_id": 0, "eos_token_id": 0}
    with raises(ConfigError, option="scale_attn_by_inverse_layer_idx", value=True):
        from_hugging_face(GPT2LMHeadModel(GPT2Config(**small, scale_attn_by_inverse_layer_idx=True)))
    with raises(ConfigError, option="activation_function", value="tanh"):
        from_hugging_face(GPT2LMHeadModel(GPT2Config(**small, activation_function="tanh")))
    t5 = T5Config(vocab_size=9, d_model=8, d_ff=8, d_kv=4, num_layers=1, num_heads=2)
    with raises(ConfigError, option="model_type", value="t5", match="marian, pegasus, bert"):
        from_hugging_face(T5ForConditionalGeneration(t5))
