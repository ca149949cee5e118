"""Models in the format of the library CTranslate2, and their shortlists.

A folder holds the weights of the model, or the same rounded to int8. Its ids are those of our tokenizer: each token of
CTranslate2's vocabulary is our piece of the same id. Programs that use CTranslate2 without Sightline can run the
folder; they must end each source with the end token, unless the model has `source_end` = false.
"""

from collections.abc import Container
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.config import ModelConfig, StackConfig
from sightline.errors import ConfigError, InputError
from sightline.files import locked, optional_import, replacing_folder, write_files
from sightline.model.transformer import EncoderDecoder, FeedForward, MultiHeadAttention, Residual, Stack
from sightline.model_folder import SHORTLIST, ModelFolder
from sightline.special import END, START, UNKNOWN
from sightline.text.shortlist import Shortlist
from sightline.text.tokenizer import Tokenizer

Precision = Literal["float32", "int8"]

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh", "swish": "SWISH", "swiglu": "SWISH"}


def converted_folder(
    path: ModelFolder, model: EncoderDecoder, tokenizer: Tokenizer, precision: Precision = "float32"
) -> Path:
    """Return the folder of a model in this format. The model is converted at the first call, and again after its
    weights have changed."""
    folder = path.converted(precision)
    weights = path.weights.stat()
    stamp = f"{weights.st_size} {weights.st_mtime_ns}"
    mark = folder / "made-from.txt"
    if _has_text(mark, stamp):
        return folder
    with locked(folder):
        if not _has_text(mark, stamp):  # another process can have converted it meanwhile
            convert(model, tokenizer, folder, quantization=precision)
            mark.write_text(stamp, "utf-8")
    return folder


def _has_text(file: Path, text: str) -> bool:
    try:
        return file.read_text("utf-8") == text
    except OSError:
        return False


def convert(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    folder: Path | str,
    *,
    quantization: Precision = "float32",
) -> None:
    """Write a model and its vocabulary. The folder is written completely or not at all; an older one is replaced."""
    specs, folder, config = optional_import("ctranslate2", extra="fast").specs, Path(folder).absolute(), model.config
    check_exportable(config, tokenizer, "CTranslate2")
    if config.positions.kind == "rotary" and config.positions.frequencies != "paper":
        raise ConfigError(
            'With rotary positions, CTranslate2 needs `model.positions.frequencies` = "paper", got '
            f'"{config.positions.frequencies}".',
            option="model.positions.frequencies",
            value=config.positions.frequencies,
        )
    source = _names(tokenizer.source, config.source_vocab_size or config.vocab_size)
    names = _names(tokenizer, config.vocab_size)
    with replacing_folder(folder, "model.bin", "converted") as draft:
        spec = model_spec(specs, model)
        spec.register_source_vocabulary(source)
        spec.register_target_vocabulary(names)
        spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = names[UNKNOWN], names[START], names[END]
        spec.config.decoder_start_token = names[START]
        spec.config.layer_norm_epsilon = config.norm_epsilon
        about = {"max_length": config.positions.max_length, "source_end": config.source_end}
        spec.config.add_attribute("sightline", about)
        spec.validate()
        for variable in spec.variables().values():  # they are rounded in place
            variable.array = variable.array.copy()
        spec.optimize(quantization=quantization)
        spec.save(str(draft))
        for name, data in tokenizer.files.items():
            (draft / name).write_bytes(data)


def save_shortlist(shortlist: Shortlist, tokenizer: Tokenizer, folder: Path | str) -> None:
    """Write a shortlist into the folder of a model. Tokens with white space in their names are left out: the format
    cannot contain them."""
    names, path = _names(tokenizer, tokenizer.size), Path(folder) / SHORTLIST
    plain = [_plain(name) for name in names]
    rows = [("", shortlist.always.tolist())]
    sources = enumerate(_names(tokenizer.source, tokenizer.source.size))
    rows += [(name, shortlist.of(i)) for i, name in sources if _plain(name) and shortlist.of(i)]
    text = "".join(f"{name}\t{' '.join(names[i] for i in allowed if plain[i])}\n" for name, allowed in rows)
    write_files(path.parent, {path.name: text.encode()})


def _plain(name: str) -> bool:
    return name.split() == [name]


def check_exportable(config: ModelConfig, tokenizer: Tokenizer, program: str) -> None:
    """Raise an error if a model is not for translation, or too small for its vocabulary."""
    if config.architecture != "encoder-decoder":
        raise ConfigError(
            f'{program} needs `model.architecture` = "encoder-decoder", got "{config.architecture}".',
            option="model.architecture",
            value=config.architecture,
        )
    for side, size in ((tokenizer, config.vocab_size), (tokenizer.source, config.source_vocab_size)):
        if side.size > (size or config.vocab_size):
            raise InputError(
                f"The vocabulary has {side.size} tokens, the model {size or config.vocab_size}.", value=side.size
            )


def model_spec(specs: Any, model: EncoderDecoder) -> Any:
    """Return CTranslate2's specification of a model, with its weights. If these are in float32 on the CPU, the arrays
    share their memory: writing into an array changes the model."""
    config, kinds = model.config, specs.transformer_spec
    activation = getattr(specs.Activation, ACTIVATIONS[config.activation])
    spec = specs.TransformerSpec(
        _stack(kinds.TransformerEncoderSpec, model.encoder, config, config.encoder, activation),
        _stack(kinds.TransformerDecoderSpec, model.decoder, config, config.decoder, activation),
    )
    spec.encoder.embeddings[0].weight = _array(model.encoder.embedding.tokens.weight)
    spec.decoder.embeddings.weight = _array(model.decoder.embedding.tokens.weight)
    _linear(spec.decoder.projection, model.classifier)
    for target, layer in zip(spec.decoder.layer, model.decoder.layers, strict=True):
        cross = layer.cross_attention
        _attention(target.attention, [cross.query, cross.key_value], cross, layer.cross_attention_residual)
    return spec


def _stack(make: Any, stack: Stack, config: ModelConfig, size: StackConfig, activation: Any) -> Any:
    """Return the specification of an encoder or decoder, without its token embeddings."""
    spec = make(
        size.layers,
        size.heads,
        pre_norm=True,  # the option no_final_norm has no effect otherwise
        no_final_norm=not config.has_final_norm,
        activation=activation,
        layernorm_embedding=config.embedding_norm,
        ffn_glu=config.activation == "swiglu",
        rotary_dim=config.d_model // size.heads if config.positions.kind == "rotary" else None,
        rotary_interleave=False,
        rotary_base=config.positions.max_timescale,
    )
    spec.pre_norm = config.norm == "pre"
    spec.scale_embeddings = config.scale_embedding
    if config.positions.kind != "rotary":
        positions = stack.embedding.positions  # without a table, CTranslate2 adds its own sinusoids
        zeros = np.zeros((config.positions.max_length, config.d_model), np.float32)
        spec.position_encodings.encodings = zeros if positions is None else _array(positions.table)
    if config.embedding_norm:
        _norm(spec.layernorm_embedding, stack.embedding.norm)
    if config.has_final_norm:
        _norm(spec.layer_norm, stack.norm)
    for target, layer in zip(spec.layer, stack.layers, strict=True):
        own = layer.self_attention
        _attention(target.self_attention, [own.query_key_value], own, layer.self_attention_residual)
        _feed_forward(target.ffn, layer.feed_forward, layer.feed_forward_residual)
    return spec


def _attention(spec: Any, inputs: list[nn.Linear], ours: MultiHeadAttention, residual: Residual) -> None:
    for target, linear in zip(spec.linear, [*inputs, ours.output], strict=True):
        _linear(target, linear)
    _norm(spec.layer_norm, residual.norm)


def _feed_forward(spec: Any, ours: FeedForward, residual: Residual) -> None:
    inner = [spec.linear_0, spec.linear_0_noact] if hasattr(spec, "linear_0_noact") else [spec.linear_0]
    for i, target in enumerate(inner):  # our matrix has the rows of the gate before those of the value
        target.weight = _array(ours.inner.weight.chunk(len(inner))[i])
        target.bias = _array(ours.inner.bias.chunk(len(inner))[i])
    _linear(spec.linear_1, ours.outer)
    _norm(spec.layer_norm, residual.norm)


def _linear(spec: Any, ours: nn.Linear) -> None:
    spec.weight = _array(ours.weight)
    if ours.bias is not None:
        spec.bias = _array(ours.bias)


def _norm(spec: Any, ours: Any) -> None:
    spec.gamma, spec.beta = _array(ours.weight), _array(ours.bias)


def _array(weight: Tensor) -> NDArray[np.float32]:
    return weight.detach().float().cpu().numpy()


def _names(tokenizer: Tokenizer, size: int) -> list[str]:
    """Return a distinct name for each id. GPT-2 has one piece for start and end, and some ids have no piece."""
    names: dict[str, None] = {}
    for i, piece in enumerate([*tokenizer.all_pieces(), *[""] * (size - tokenizer.size)]):
        names[new_name(piece or f"<{i}>", names)] = None
    return list(names)


def new_name(name: str, known: Container[str]) -> str:
    """Return the name, with apostrophes if it is known already."""
    while name in known:
        name += "'"
    return name
