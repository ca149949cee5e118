"""Convert models of Hugging Face `transformers` to Sightline models with the same weights, and back.

Supported are Marian (the paper's encoder-decoder, the architecture of OPUS-MT), Pegasus (the same with pre-norm), BERT
and GPT-2. Unsupported options and unknown weights are refused by name.
"""

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from sightline.config import ModelConfig, PositionsConfig
from sightline.errors import CheckpointError, ConfigError
from sightline.files import optional_import
from sightline.model.transformer import EncoderDecoder, Model, build
from sightline.model_folder import set_weights
from sightline.special import END, PAD, START

Weights = dict[str, Tensor]

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "swish": "swish",
    "silu": "swish",
}
SEQ2SEQ: dict[str, tuple[str | None, Any]] = {
    "activation_function": (None, "gelu"),
    "d_model": ("d_model", 1024),
    "encoder_layers": ("encoder.layers", 12),
    "encoder_attention_heads": ("encoder.heads", 16),
    "encoder_ffn_dim": ("encoder.d_ff", 4096),
    "decoder_layers": ("decoder.layers", 12),
    "decoder_attention_heads": ("decoder.heads", 16),
    "decoder_ffn_dim": ("decoder.d_ff", 4096),
    "dropout": ("dropout", 0.1),
    "attention_dropout": ("attention_dropout", 0.0),
    "activation_dropout": ("activation_dropout", 0.0),
    "max_position_embeddings": (None, 1024),
    "scale_embedding": ("scale_embedding", False),
    "tie_word_embeddings": (None, True),
}
FIELDS: dict[str, dict[str, tuple[str | None, Any]]] = {
    "marian": {
        **SEQ2SEQ,
        "vocab_size": (None, 58101),
        "decoder_vocab_size": (None, None),
        "share_encoder_decoder_embeddings": (None, True),
        "pad_token_id": (None, 58100),
        "eos_token_id": (None, 0),
        "decoder_start_token_id": (None, 58100),
    },
    "pegasus": {
        **SEQ2SEQ,
        "vocab_size": (None, 50265),
        "pad_token_id": (None, 0),
        "eos_token_id": (None, 1),
        "decoder_start_token_id": (None, 0),
    },
    "bert": {
        "vocab_size": ("vocab_size", 30522),
        "hidden_size": ("d_model", 768),
        "num_hidden_layers": ("encoder.layers", 12),
        "num_attention_heads": ("encoder.heads", 12),
        "intermediate_size": ("encoder.d_ff", 3072),
        "hidden_act": (None, "gelu"),
        "hidden_dropout_prob": ("dropout", 0.1),
        "attention_probs_dropout_prob": ("attention_dropout", 0.1),
        "max_position_embeddings": (None, 512),
        "type_vocab_size": ("segments", 2),
        "layer_norm_eps": ("norm_epsilon", 1e-12),
        "tie_word_embeddings": (None, True),
    },
    "gpt2": {
        "vocab_size": ("vocab_size", 50257),
        "n_positions": (None, 1024),
        "n_embd": ("d_model", 768),
        "n_layer": ("decoder.layers", 12),
        "n_head": ("decoder.heads", 12),
        "n_inner": ("decoder.d_ff", None),
        "activation_function": (None, "gelu_new"),
        "resid_pdrop": ("dropout", 0.1),
        "attn_pdrop": ("attention_dropout", 0.1),
        "layer_norm_epsilon": ("norm_epsilon", 1e-5),
        "tie_word_embeddings": (None, True),
    },
}
"""The fields that the conversion reads, for each `model_type`: our option of the same value, if any, and the default
value."""
DEFAULTS = {kind: {name: default for name, (_, default) in fields.items()} for kind, fields in FIELDS.items()}


def from_hugging_face(model: Any) -> Model:
    """Return a Sightline model with the weights of a `MarianMTModel`, `BertForMaskedLM`, `GPT2LMHeadModel`, …"""
    return convert(model.config.to_dict(), dict(model.state_dict()), type(model).__name__)


def convert(config: Mapping[str, Any], theirs: Weights, where: str) -> Model:
    """Return the model of a configuration and its weights, as they are in Hugging Face's files. Tied weights may be
    given once. `where`: the file for errors."""
    converters: dict[str, Callable[[Any, Weights], tuple[ModelConfig, Weights]]]
    converters = {"marian": _marian, "pegasus": _marian, "bert": _bert, "gpt2": _gpt2}
    kind = config.get("model_type")
    if kind not in converters:
        raise ConfigError.of("model_type", kind, f"= {kind!r} cannot be imported. Supported: {', '.join(converters)}.")
    fields, left = SimpleNamespace(**{**DEFAULTS[kind], **config}), dict(theirs)
    try:
        ours, weights = converters[kind](fields, left)
    except KeyError as error:
        raise CheckpointError(f"{where}: missing weight {error.args[0]!r}.", value=error.args[0]) from None
    except (TypeError, RuntimeError, AttributeError):  # a field that is not a number, or parts of unequal sizes
        raise CheckpointError(f"{where}: the weights do not match the configuration.") from None
    if left:
        raise CheckpointError(f"{where}: unknown weight {min(left)!r}.", value=min(left))
    model = build(ours)
    set_weights(model, weights, where)
    return model.eval()


def _marian(config: Any, theirs: Weights) -> tuple[ModelConfig, Weights]:
    pre = config.model_type == "pegasus"
    refused = {"normalize_before": False, "normalize_embedding": False, "add_final_layer_norm": False}
    _refuse(config, **{} if pre else {**refused, "static_position_embeddings": True})
    shared = pre or config.share_encoder_decoder_embeddings
    tied = "none" if not config.tie_word_embeddings else "all" if shared else "target"
    ours: Weights = {}
    common = theirs.pop("model.shared.weight", None)
    for side in ("encoder", "decoder"):
        theirs.pop(f"model.{side}.embed_positions.weight", None)  # sinusoids
        if shared and common is not None:
            theirs.setdefault(f"model.{side}.embed_tokens.weight", common)
        ours[f"{side}.embedding.tokens.weight"] = theirs.pop(f"model.{side}.embed_tokens.weight")
    rows = ours["decoder.embedding.tokens.weight"]
    _move_classifier(ours, theirs, "lm_head.weight", config)
    if tied == "all":
        del ours["decoder.embedding.tokens.weight"]
    ours["classifier.bias"] = theirs.pop("final_logits_bias", torch.zeros(1, len(rows)))[0]
    for there, here in _marian_names(config.encoder_layers, config.decoder_layers, pre):
        _move(ours, theirs, there, here)
    return ModelConfig(
        **_options(config),
        architecture="encoder-decoder",
        vocab_size=len(rows),
        source_vocab_size=config.vocab_size if tied != "all" else None,
        tie=tied,
        positions=PositionsConfig(kind="halves", max_length=max(config.max_position_embeddings, 4096)),
        activation=_activation(config.activation_function, "activation_function"),
        norm="pre" if pre else "post",
        attention_bias=True,
        classifier_bias=True,
    ), ours


def _marian_names(encoder: int, decoder: int, pre: bool) -> Iterator[tuple[list[str], str]]:
    """Yield the names of Marian's modules that are one module of ours, and its name. `pre`: those of Pegasus."""
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
        if pre:
            yield [f"model.{side}.layer_norm"], f"{side}.norm"


def to_hugging_face(model: EncoderDecoder, *, pad: int = PAD, start: int = START, end: int = END) -> Any:
    """Return a `MarianMTModel` with the weights of a Sightline model, or a `PegasusForConditionalGeneration` if it has
    pre-norm. Missing biases are zeros. `pad`, `start` and `end` are ids."""
    kinds = optional_import("transformers", extra="export")
    if model.config.positions.kind == "interleaved":
        model = to_halves(model)
    config, ours = model.config, dict(model.state_dict())
    pre = config.norm == "pre"
    _refuse_to_write(config, "Pegasus" if pre else "Marian")
    make_config, make = (
        (kinds.PegasusConfig, kinds.PegasusForConditionalGeneration)
        if pre
        else (kinds.MarianConfig, kinds.MarianMTModel)
    )
    separate = {} if pre else {"share_encoder_decoder_embeddings": config.tie == "all"}
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    theirs: Any = make(
        make_config(
            **{name: attrgetter(option)(config) for name, (option, _) in SEQ2SEQ.items() if option},
            vocab_size=config.source_vocab_size or config.vocab_size,
            decoder_vocab_size=config.vocab_size,
            activation_function=names[config.activation],
            max_position_embeddings=config.positions.max_length,
            tie_word_embeddings=config.tie != "none",
            pad_token_id=pad,
            bos_token_id=start,
            eos_token_id=end,
            decoder_start_token_id=start,
            forced_eos_token_id=None,
            **separate,
        )
    )
    weights = theirs.state_dict()
    rows = {side: ours[f"{side}.embedding.tokens.weight"] for side in ("encoder", "decoder")}
    weights |= {f"model.{side}.embed_tokens.weight": weight for side, weight in rows.items()}
    if "model.shared.weight" in weights:
        weights["model.shared.weight"] = rows["encoder"]
    weights["lm_head.weight"] = ours["classifier.weight"]
    weights["final_logits_bias"] = ours.get("classifier.bias", torch.zeros(config.vocab_size))[None]
    for there, here in _marian_names(config.encoder.layers, config.decoder.layers, pre):
        for kind in ("weight", "bias"):
            whole = ours.get(f"{here}.{kind}", torch.zeros(len(ours[f"{here}.weight"])))
            weights |= {f"{name}.{kind}": part for name, part in zip(there, whole.chunk(len(there)), strict=True)}
    theirs.load_state_dict(weights)
    return theirs.eval()


def _refuse_to_write(config: ModelConfig, kind: str) -> None:
    known: dict[str, Any] = {"final_norm": (None, config.norm == "pre"), "embedding_norm": (False,), "segments": (0,)}
    known |= {"activation": tuple(ACTIVATIONS.values()), "source_end": (True,)}
    known |= {"tie": ("all",)} if kind == "Pegasus" else {}
    for field, values in known.items():
        if getattr(config, field) not in values:
            raise _unsupported(f"model.{field}", getattr(config, field), f"Hugging Face's {kind}")
    positions = config.positions
    if (positions.kind, positions.frequencies, positions.start) != ("halves", "paper", 0):
        raise ConfigError(
            f"Hugging Face's {kind} supports only sinusoids with the paper's frequencies from position 0, "
            f"not `model.positions` = {positions}.",
            option="model.positions",
            value=positions,
        )
    if positions.max_timescale != 10_000:
        raise _unsupported("model.positions.max_timescale", positions.max_timescale, f"Hugging Face's {kind}")


@torch.no_grad()
def to_halves(model: EncoderDecoder) -> EncoderDecoder:
    """Return an equal model with its channels in another order: interleaved sinusoids become all sines, then all
    cosines. All matrices that read or write these channels are reordered too."""
    width, old = model.config.d_model, model.config.positions
    order = torch.tensor([*range(0, width, 2), *range(1, width, 2)])
    positions = old.model_copy(update={"kind": "halves"})
    other = EncoderDecoder(model.config.model_copy(update={"positions": positions}))
    weights = dict(model.state_dict())
    writing = [
        f"{name}."
        for name, module in model.named_modules()
        if isinstance(module, nn.LayerNorm) or name.endswith((".output", ".outer"))
    ]
    for name, weight in weights.items():
        if name.startswith(tuple(writing)):
            weights[name] = weight[order]
        elif weight.dim() == 2:  # it reads them; the other vectors are biases within sub-layers
            weights[name] = weight[:, order]
    other.load_state_dict(weights)
    return other.eval()


def _bert(config: Any, theirs: Weights) -> tuple[ModelConfig, Weights]:
    _refuse(config, is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    _update_names(theirs, "bert.", ("embeddings.", "encoder.", "pooler."))
    if not any(name.startswith("cls.predictions.") for name in theirs):
        theirs |= _plain_head(config)
    ours: Weights = {
        "encoder.embedding.tokens.weight": theirs.pop("bert.embeddings.word_embeddings.weight"),
        "encoder.embedding.positions.table": theirs.pop("bert.embeddings.position_embeddings.weight"),
        "encoder.embedding.segments.weight": theirs.pop("bert.embeddings.token_type_embeddings.weight"),
    }
    head = "cls.predictions"  # two names of one bias if the classifier is tied; older files have one
    ours["classifier.bias"] = theirs.get(f"{head}.decoder.bias", theirs.get(f"{head}.bias", torch.empty(0)))
    for name in (f"{head}.decoder.bias", f"{head}.bias"):
        theirs.pop(name, None)
    for name in [name for name in theirs if name.startswith(("bert.pooler.", "cls.seq_relationship."))]:
        del theirs[name]  # next-sentence prediction
    theirs.pop("bert.embeddings.position_ids", None)
    _move(ours, theirs, ["bert.embeddings.LayerNorm"], "encoder.embedding.norm")
    for i in range(config.num_hidden_layers):
        there, here = f"bert.encoder.layer.{i}", f"encoder.layers.{i}"
        names = [f"{there}.attention.self.{x}" for x in ("query", "key", "value")]
        _move(ours, theirs, names, f"{here}.self_attention.query_key_value")
        _move(ours, theirs, [f"{there}.attention.output.dense"], f"{here}.self_attention.output")
        _move(ours, theirs, [f"{there}.attention.output.LayerNorm"], f"{here}.self_attention_residual.norm")
        _move(ours, theirs, [f"{there}.intermediate.dense"], f"{here}.feed_forward.inner")
        _move(ours, theirs, [f"{there}.output.dense"], f"{here}.feed_forward.outer")
        _move(ours, theirs, [f"{there}.output.LayerNorm"], f"{here}.feed_forward_residual.norm")
    _move(ours, theirs, ["cls.predictions.transform.dense"], "head")
    _move(ours, theirs, ["cls.predictions.transform.LayerNorm"], "head_norm")
    _move_classifier(ours, theirs, "cls.predictions.decoder.weight", config)
    return ModelConfig(
        **_options(config),
        architecture="encoder-only",
        tie="all" if config.tie_word_embeddings else "none",
        positions=PositionsConfig(kind="learned", max_length=config.max_position_embeddings),
        activation=_activation(config.hidden_act, "hidden_act"),
        scale_embedding=False,
        embedding_norm=True,
        attention_bias=True,
        classifier_bias=True,
    ), ours


def _gpt2(config: Any, theirs: Weights) -> tuple[ModelConfig, Weights]:
    _refuse(config, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    _update_names(theirs, "transformer.", ("wte.", "wpe.", "h.", "ln_f."))
    for name in [name for name in theirs if name.endswith((".attn.bias", ".attn.masked_bias"))]:
        del theirs[name]  # masks, in older files
    ours: Weights = {
        "decoder.embedding.tokens.weight": theirs.pop("transformer.wte.weight"),
        "decoder.embedding.positions.table": theirs.pop("transformer.wpe.weight"),
    }
    for i in range(config.n_layer):
        there, here = f"transformer.h.{i}", f"decoder.layers.{i}"
        _move(ours, theirs, [f"{there}.ln_1"], f"{here}.self_attention_residual.norm")
        _move(ours, theirs, [f"{there}.attn.c_attn"], f"{here}.self_attention.query_key_value", transpose=True)
        _move(ours, theirs, [f"{there}.attn.c_proj"], f"{here}.self_attention.output", transpose=True)
        _move(ours, theirs, [f"{there}.ln_2"], f"{here}.feed_forward_residual.norm")
        _move(ours, theirs, [f"{there}.mlp.c_fc"], f"{here}.feed_forward.inner", transpose=True)
        _move(ours, theirs, [f"{there}.mlp.c_proj"], f"{here}.feed_forward.outer", transpose=True)
    _move(ours, theirs, ["transformer.ln_f"], "decoder.norm")
    _move_classifier(ours, theirs, "lm_head.weight", config)
    config.n_inner = config.n_inner or 4 * config.n_embd
    return ModelConfig(
        **_options(config),
        architecture="decoder-only",
        tie="all" if config.tie_word_embeddings else "none",
        positions=PositionsConfig(kind="learned", max_length=config.n_positions),
        activation=_activation(config.activation_function, "activation_function"),
        norm="pre",
        scale_embedding=False,
        attention_bias=True,
    ), ours


def _options(config: Any) -> dict[str, Any]:
    """Return the options that have the value of a field."""
    found: dict[str, Any] = {}
    for name, (option, _) in FIELDS[config.model_type].items():
        if option:
            group, _, last = option.rpartition(".")
            (found.setdefault(group, {}) if group else found)[last] = getattr(config, name)
    return found


def _move_classifier(ours: Weights, theirs: Weights, name: str, config: Any) -> None:
    """Move the weights of the classifier; if they are tied, the file may have them too."""
    if config.tie_word_embeddings:
        theirs.pop(name, None)
    else:
        ours["classifier.weight"] = theirs.pop(name)


def _update_names(theirs: Weights, prefix: str, bare: tuple[str, ...]) -> None:
    """Update names in place: a model without a head has no prefix, and old files have gamma and beta of norms."""
    for name in list(theirs):
        today = prefix + name if name.startswith(bare) else name
        theirs[today.replace(".gamma", ".weight").replace(".beta", ".bias")] = theirs.pop(name)


def _plain_head(config: Any) -> Weights:
    """Return an identity head for a BERT without one; it can be trained."""
    width, head = config.hidden_size, "cls.predictions"
    weights = {f"{head}.transform.dense.weight": torch.eye(width), f"{head}.transform.dense.bias": torch.zeros(width)}
    weights |= {f"{head}.transform.LayerNorm.weight": torch.ones(width)}
    weights |= {f"{head}.transform.LayerNorm.bias": torch.zeros(width)}
    weights |= {f"{head}.bias": torch.zeros(config.vocab_size)}
    return weights


def _move(ours: Weights, theirs: Weights, there: list[str], here: str, *, transpose: bool = False) -> None:
    """Move the weights and biases of modules that are one module of ours."""
    for kind in ("weight", "bias"):
        weight = torch.cat([theirs.pop(f"{name}.{kind}") for name in there])
        ours[f"{here}.{kind}"] = weight.t() if transpose else weight


def _activation(name: str, field: str) -> Any:
    if name not in ACTIVATIONS:
        raise _unsupported(field, name, "Sightline")
    return ACTIVATIONS[name]


def _refuse(config: Any, **expected: Any) -> None:
    for field, value in expected.items():
        if getattr(config, field, value) != value:
            raise _unsupported(field, getattr(config, field), "Sightline")


def _unsupported(option: str, value: object, program: str) -> ConfigError:
    return ConfigError(f"{program} does not support `{option}` = {value!r}.", option=option, value=value)
