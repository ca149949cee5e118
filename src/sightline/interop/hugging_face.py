"""Models of Hugging Face `transformers` as Sightline models, and back: the same numbers, in our words.

Marian (the paper's encoder-decoder, which OPUS-MT ships), BERT and GPT-2. A configuration that means something we do
not compute is refused by name rather than half understood.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sightline.checkpoint import fill
from sightline.config import ModelConfig, PositionsConfig, StackConfig
from sightline.errors import ConfigError
from sightline.model.transformer import EncoderDecoder, Model, build
from sightline.text.tokenizer import END, PAD, START

__all__ = ["from_hugging_face", "renumbered", "to_hugging_face"]

Weights = dict[str, Tensor]

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "swish": "swish",
    "silu": "swish",
}


def from_hugging_face(model: Any) -> Model:
    """A Sightline model with the weights of a `MarianMTModel`, a `BertForMaskedLM` or a `GPT2LMHeadModel`."""
    converters: dict[str, Callable[[Any, Weights], tuple[ModelConfig, Weights]]]
    converters = {"marian": _marian, "bert": _bert, "gpt2": _gpt2}
    kind = model.config.model_type
    if kind not in converters:
        raise ConfigError(f"model_type = {kind!r} cannot be imported; known are {', '.join(converters)}.")
    config, weights = converters[kind](model.config, dict(model.state_dict()))
    ours = build(config)
    fill(ours, weights, type(model).__name__)
    return ours.eval()


def renumbered(model: EncoderDecoder, own: Sequence[int]) -> EncoderDecoder:
    """The same model with other numbers for its tokens: `own` has, for each new one, the number it had. A number may
    come twice (Marian begins with padding: it is START as well as PAD)."""
    config = model.config.model_copy(update={"vocab_size": len(own), "source_vocab_size": None})
    ours, order = EncoderDecoder(config), torch.tensor(own)
    weights = dict(model.state_dict())
    for name in ("encoder.embedding.tokens.weight", "decoder.embedding.tokens.weight", "classifier.weight"):
        weights[name] = weights[name][order]
    if "classifier.bias" in weights:
        weights["classifier.bias"] = weights["classifier.bias"][order]
    ours.load_state_dict(weights)
    return ours.eval()


def _marian(config: Any, theirs: Weights) -> tuple[ModelConfig, Weights]:
    ours: Weights = {}
    tied = "all" if config.share_encoder_decoder_embeddings else "target" if config.tie_word_embeddings else "none"
    for side in ("encoder", "decoder"):
        if side == "encoder" or tied != "all":
            ours[f"{side}.embedding.tokens.weight"] = theirs[f"model.{side}.embed_tokens.weight"]
    for there, here in _marian_names(config.encoder_layers, config.decoder_layers):
        _stack(ours, theirs, there, here)
    if tied == "none":
        ours["classifier.weight"] = theirs["lm_head.weight"]
    ours["classifier.bias"] = theirs["final_logits_bias"][0]
    return ModelConfig(
        architecture="encoder-decoder",
        vocab_size=len(theirs["lm_head.weight"]),
        source_vocab_size=config.vocab_size,
        tie=tied,
        d_model=config.d_model,
        encoder=StackConfig(
            layers=config.encoder_layers, heads=config.encoder_attention_heads, d_ff=config.encoder_ffn_dim
        ),
        decoder=StackConfig(
            layers=config.decoder_layers, heads=config.decoder_attention_heads, d_ff=config.decoder_ffn_dim
        ),
        positions=PositionsConfig(kind="halves", max_length=max(config.max_position_embeddings, 4096)),
        activation=_activation(config.activation_function, "activation_function"),
        scale_embedding=config.scale_embedding,
        attention_bias=True,
        classifier_bias=True,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
    ), ours


def _marian_names(encoder: int, decoder: int) -> Iterator[tuple[list[str], str]]:
    """What Marian calls the modules that are one of ours, for so many layers."""
    for side, layers in (("encoder", encoder), ("decoder", decoder)):
        for there, here in ((f"model.{side}.layers.{i}", f"{side}.layers.{i}") for i in range(layers)):
            yield [f"{there}.self_attn.{x}_proj" for x in "qkv"], f"{here}.self_attention.query_key_value"
            yield [f"{there}.self_attn.out_proj"], f"{here}.self_attention.output"
            yield [f"{there}.self_attn_layer_norm"], f"{here}.self_attention_residual.norm"
            if side == "decoder":
                yield [f"{there}.encoder_attn.q_proj"], f"{here}.cross_attention.query"
                yield [f"{there}.encoder_attn.{x}_proj" for x in "kv"], f"{here}.cross_attention.key_value"
                yield [f"{there}.encoder_attn.out_proj"], f"{here}.cross_attention.output"
                yield [f"{there}.encoder_attn_layer_norm"], f"{here}.cross_attention_residual.norm"
            yield [f"{there}.fc1"], f"{here}.feed_forward.inner"
            yield [f"{there}.fc2"], f"{here}.feed_forward.outer"
            yield [f"{there}.final_layer_norm"], f"{here}.feed_forward_residual.norm"


def to_hugging_face(model: EncoderDecoder) -> Any:
    """A `MarianMTModel` with the weights of a Sightline model, as far as Marian computes what it does: post-norm, one
    vocabulary, sinusoids in halves. Biases that it does not have are zeros."""
    from transformers import MarianConfig, MarianMTModel  # noqa: PLC0415 - only this needs it

    config, ours = model.config, dict(model.state_dict())
    known = {"norm": "post", "tie": "all", "embedding_norm": False, "segments": 0}
    for field, value in known.items():
        if getattr(config, field) != value:
            raise ConfigError(f"model.{field} = {getattr(config, field)!r} is nothing that Marian has; {value!r} is.")
    if (config.positions.kind, config.positions.frequencies, config.positions.start) != ("halves", "paper", 0):
        raise ConfigError("Marian has sinusoids in halves, by the paper's frequencies, from 0 on, and no others.")
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    if config.activation not in names:
        raise ConfigError(f"model.activation = {config.activation!r} is nothing that Marian has.")
    marian: Any = MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            encoder_layers=config.encoder.layers,
            encoder_attention_heads=config.encoder.heads,
            encoder_ffn_dim=config.encoder.d_ff,
            decoder_layers=config.decoder.layers,
            decoder_attention_heads=config.decoder.heads,
            decoder_ffn_dim=config.decoder.d_ff,
            activation_function=names[config.activation],
            scale_embedding=config.scale_embedding,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            activation_dropout=config.activation_dropout,
            max_position_embeddings=config.positions.max_length,
            share_encoder_decoder_embeddings=True,
            pad_token_id=PAD,
            bos_token_id=START,
            eos_token_id=END,
            decoder_start_token_id=START,
            forced_eos_token_id=None,
        )
    )
    theirs = marian.state_dict()
    for name in ("model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"):
        theirs[name] = ours["classifier.weight"]
    theirs["lm_head.weight"] = ours["classifier.weight"]
    theirs["final_logits_bias"] = ours.get("classifier.bias", torch.zeros(config.vocab_size))[None]
    for there, here in _marian_names(config.encoder.layers, config.decoder.layers):
        for kind in ("weight", "bias"):
            whole = ours.get(f"{here}.{kind}", torch.zeros(len(ours[f"{here}.weight"])))
            theirs |= {f"{name}.{kind}": part for name, part in zip(there, whole.chunk(len(there)), strict=True)}
    marian.load_state_dict(theirs)
    return marian.eval()


def _bert(config: Any, theirs: Weights) -> tuple[ModelConfig, Weights]:
    _refuse(config, is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    if "cls.predictions.decoder.bias" not in theirs:
        raise ConfigError("a BERT without its masked-word head cannot be imported; load it as BertForMaskedLM.")
    ours: Weights = {
        "encoder.embedding.tokens.weight": theirs["bert.embeddings.word_embeddings.weight"],
        "encoder.embedding.positions.table": theirs["bert.embeddings.position_embeddings.weight"],
        "encoder.embedding.segments.weight": theirs["bert.embeddings.token_type_embeddings.weight"],
        "classifier.bias": theirs["cls.predictions.decoder.bias"],
    }
    _copy(ours, theirs, "bert.embeddings.LayerNorm", "encoder.embedding.norm")
    for i in range(config.num_hidden_layers):
        there, here = f"bert.encoder.layer.{i}", f"encoder.layers.{i}"
        names = [f"{there}.attention.self.{x}" for x in ("query", "key", "value")]
        _stack(ours, theirs, names, f"{here}.self_attention.query_key_value")
        _copy(ours, theirs, f"{there}.attention.output.dense", f"{here}.self_attention.output")
        _copy(ours, theirs, f"{there}.attention.output.LayerNorm", f"{here}.self_attention_residual.norm")
        _copy(ours, theirs, f"{there}.intermediate.dense", f"{here}.feed_forward.inner")
        _copy(ours, theirs, f"{there}.output.dense", f"{here}.feed_forward.outer")
        _copy(ours, theirs, f"{there}.output.LayerNorm", f"{here}.feed_forward_residual.norm")
    _copy(ours, theirs, "cls.predictions.transform.dense", "head")
    _copy(ours, theirs, "cls.predictions.transform.LayerNorm", "head_norm")
    if not config.tie_word_embeddings:
        ours["classifier.weight"] = theirs["cls.predictions.decoder.weight"]
    return ModelConfig(
        architecture="encoder-only",
        vocab_size=config.vocab_size,
        tie="all" if config.tie_word_embeddings else "none",
        d_model=config.hidden_size,
        encoder=StackConfig(
            layers=config.num_hidden_layers, heads=config.num_attention_heads, d_ff=config.intermediate_size
        ),
        positions=PositionsConfig(kind="learned", max_length=config.max_position_embeddings),
        activation=_activation(config.hidden_act, "hidden_act"),
        norm_epsilon=config.layer_norm_eps,
        scale_embedding=False,
        embedding_norm=True,
        segments=config.type_vocab_size,
        attention_bias=True,
        classifier_bias=True,
        dropout=config.hidden_dropout_prob,
        attention_dropout=config.attention_probs_dropout_prob,
    ), ours


def _gpt2(config: Any, theirs: Weights) -> tuple[ModelConfig, Weights]:
    _refuse(config, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    ours: Weights = {
        "decoder.embedding.tokens.weight": theirs["transformer.wte.weight"],
        "decoder.embedding.positions.table": theirs["transformer.wpe.weight"],
    }
    for i in range(config.n_layer):
        there, here = f"transformer.h.{i}", f"decoder.layers.{i}"
        _copy(ours, theirs, f"{there}.ln_1", f"{here}.self_attention_residual.norm")
        _copy(ours, theirs, f"{there}.attn.c_attn", f"{here}.self_attention.query_key_value", transpose=True)
        _copy(ours, theirs, f"{there}.attn.c_proj", f"{here}.self_attention.output", transpose=True)
        _copy(ours, theirs, f"{there}.ln_2", f"{here}.feed_forward_residual.norm")
        _copy(ours, theirs, f"{there}.mlp.c_fc", f"{here}.feed_forward.inner", transpose=True)
        _copy(ours, theirs, f"{there}.mlp.c_proj", f"{here}.feed_forward.outer", transpose=True)
    _copy(ours, theirs, "transformer.ln_f", "decoder.norm")
    if not config.tie_word_embeddings:
        ours["classifier.weight"] = theirs["lm_head.weight"]
    return ModelConfig(
        architecture="decoder-only",
        vocab_size=config.vocab_size,
        tie="all" if config.tie_word_embeddings else "none",
        d_model=config.n_embd,
        decoder=StackConfig(layers=config.n_layer, heads=config.n_head, d_ff=config.n_inner or 4 * config.n_embd),
        positions=PositionsConfig(kind="learned", max_length=config.n_positions),
        activation=_activation(config.activation_function, "activation_function"),
        norm="pre",
        norm_epsilon=config.layer_norm_epsilon,
        scale_embedding=False,
        attention_bias=True,
        dropout=config.resid_pdrop,
        attention_dropout=config.attn_pdrop,
    ), ours


def _copy(ours: Weights, theirs: Mapping[str, Tensor], there: str, here: str, *, transpose: bool = False) -> None:
    weight = theirs[f"{there}.weight"]
    ours[f"{here}.weight"] = weight.T if transpose else weight
    ours[f"{here}.bias"] = theirs[f"{there}.bias"]


def _stack(ours: Weights, theirs: Mapping[str, Tensor], there: list[str], here: str) -> None:
    for kind in ("weight", "bias"):
        ours[f"{here}.{kind}"] = torch.cat([theirs[f"{name}.{kind}"] for name in there])


def _activation(name: str, field: str) -> Any:
    if name not in ACTIVATIONS:
        raise ConfigError(f"{field} = {name!r} is not supported; known are {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def _refuse(config: Any, **expected: Any) -> None:
    for field, value in expected.items():
        if getattr(config, field, value) != value:
            raise ConfigError(f"{field} = {getattr(config, field)!r} is not supported; only {value!r} is.")
