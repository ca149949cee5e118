"""Read models in the format of Marian (marian-nmt.github.io), as OPUS-MT releases them.

The imported model computes the same as Marian's program. Hugging Face's port, which `hugging_face` reads, differs in
two details: Marian's timescales end at exactly 10000 (as in tensor2tensor), and the epsilon of its norms is 1e-6.
Unsupported options are refused by name. Among these are pre-norm (Marian normalises the keys and values of earlier
tokens in training, but not in search) and gelu (which changed between versions).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.config import ModelConfig, PositionsConfig, StackConfig
from sightline.errors import CheckpointError, ConfigError
from sightline.files import optional_import, read_file
from sightline.interop.native_order import to_internal_order
from sightline.model.transformer import EncoderDecoder
from sightline.model_folder import set_weights
from sightline.special import START
from sightline.text.tokenizer import NAMES, SentencePiece, Tokenizer

Weights = dict[str, Tensor]

OPTIONS = "special:model.yml"
"""An entry that is not a weight: the options of the model, as the bytes of a YAML text that ends in a zero."""
KNOWN: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "right-left": (False,),
    "ulr": (False,),
    "lemma-dim-emb": (0,),
    "lemma-dependency": ("",),
    "factors-dim-emb": (0,),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-preprocess": ("", "d"),
    "transformer-postprocess": ("dan", "an"),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-postprocess-top": ("", "d"),
    "transformer-ffn-activation": ("swish", "relu"),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
}
"""Supported values of options, the default first. `d` is dropout, which has an effect in training only."""
FREE = {
    "transformer-heads",
    "transformer-dim-ffn",
    "transformer-decoder-dim-ffn",
    "transformer-depth-scaling",  # initialisation
    "transformer-guided-alignment-layer",  # training
    "transformer-dropout",
    "transformer-dropout-attention",
    "transformer-dropout-ffn",
    "transformer-dim-aan",  # this and the next three: average attention, which is refused
    "transformer-aan-depth",
    "transformer-aan-activation",
    "transformer-aan-nogate",
}
"""Options of Transformers that may have any value. All others must be false."""
RENAMED_START = "<marian:s>"
"""The name of an entry <s>. Marian's answers begin with a zero vector, not with this token."""


@torch.no_grad()
def read_marian(folder: Path | str) -> tuple[EncoderDecoder, Tokenizer]:
    """Return the model and the tokenizer in a folder, such as an unpacked archive of OPUS-MT, in evaluation mode.

    The weights are the only file `*.npz` apart from `*.optimizer.npz`, or the one with `best` in its name. The
    vocabulary is `*vocab.yml`, or `*src.vocab.yml` and `*trg.vocab.yml`; without these, ids are those of sentencepiece.
    `source.spm` and `target.spm` split the text, or one `*.spm` both sides.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder.", value=folder)
    parameters = Parameters(_weights_file(folder))
    options = _options(parameters)
    source, target = _vocabularies(folder)
    config, weights = _converted(parameters, options, source, target)
    tokenizer = _tokenizer(source, target)
    model = EncoderDecoder(config)
    set_weights(model, weights, parameters.where)
    return to_internal_order(model, tokenizer), tokenizer


# --- Weights


def _weights_file(folder: Path) -> Path:
    found = sorted(path for path in folder.glob("*.npz") if not path.name.endswith(".optimizer.npz"))
    if len(found) > 1:
        found = [path for path in found if "best" in path.name] or found
    if not found:
        raise CheckpointError(f"{folder}: no Marian model found: *.npz is missing.", value=folder)
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise CheckpointError(f"{folder}: several models: {names}. Keep one, or name it *best*.", value=folder)
    return found[0]


class Parameters:
    """The arrays of an npz file. Each is taken once, by its name and shape."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        try:
            with path.open("rb") as file:  # numpy leaves the file open after an error
                archive = np.load(file, allow_pickle=False)
                self._left: dict[str, NDArray[Any]] = {name: archive[name] for name in archive.files}
        except Exception as error:  # zipfile, zlib and numpy raise many classes for damaged files
            reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise CheckpointError(f"{path}: cannot be read: {reason}.", value=path) from None

    def options(self) -> bytes:
        if OPTIONS not in self._left:
            raise self._error(OPTIONS, "not found")
        return self._left.pop(OPTIONS).tobytes().rstrip(b"\0")

    def has(self, name: str) -> bool:
        return name in self._left

    def rows(self, name: str) -> int:
        """Return the number of rows of a matrix; 0 for anything else."""
        return len(self._left[name]) if name in self._left and self._left[name].ndim == 2 else 0

    def take(self, name: str, *shape: int) -> Tensor:
        """Remove and return an array. Marian writes a vector as a matrix of one row."""
        if name not in self._left:
            raise self._error(name, "missing weight")
        found = self._left.pop(name)
        if found.shape not in (shape, (1, *shape)):
            raise self._error(name, f"expected shape {shape}, got {found.shape}")
        if not np.issubdtype(found.dtype, np.floating):
            raise self._error(name, f"expected floats, got {found.dtype}")
        return torch.from_numpy(np.ascontiguousarray(found, dtype=np.float32).reshape(shape))

    def done(self) -> None:
        if self._left:
            raise self._error(min(self._left), "unknown weight")

    def _error(self, name: str, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {name!r}: {problem}.", value=name)


# --- Options


def _options(parameters: Parameters) -> dict[str, Any]:
    """Return the options of a model, all of them supported."""
    where, yaml = parameters.where, optional_import("yaml", extra="export")
    try:
        options = yaml.safe_load(parameters.options().decode())
    except (yaml.YAMLError, ValueError, RecursionError):
        options = None
    if not isinstance(options, dict):
        raise CheckpointError(f"{where}: {OPTIONS!r}: not a YAML mapping.", value=OPTIONS)
    for name, values in KNOWN.items():
        value = options.setdefault(name, values[0])
        if value not in values:
            known = " or ".join(map(repr, values))
            raise _unsupported(where, name, value, f"must be {known}")
    for name, value in options.items():
        if str(name).startswith("transformer-") and name not in KNOWN.keys() | FREE and value:
            raise _unsupported(where, str(name), value, "is not supported")
    options.setdefault("transformer-decoder-dim-ffn", 0)
    for name in ("dim-emb", "enc-depth", "dec-depth", "transformer-heads", "transformer-dim-ffn"):
        if type(options.get(name)) is not int or options[name] < 1:
            raise _unsupported(where, name, options.get(name), "must be a positive integer")
    if options["dim-emb"] % 2:
        raise _unsupported(where, "dim-emb", options["dim-emb"], "must be even")
    return options


def _unsupported(where: str, option: str, value: object, problem: str) -> ConfigError:
    return ConfigError(f"{where}: `{option}` {problem}, got {value!r}.", option=option, value=value)


# --- Vocabularies


class Vocabulary(NamedTuple):
    """The vocabulary of one side: its pieces by id, and the sentencepiece model that splits text into them."""

    pieces: list[str]
    splitter: bytes
    where: str


def _vocabularies(folder: Path) -> tuple[Vocabulary, Vocabulary]:
    """Return the vocabularies of source and target."""
    lists, splitters = _lists(folder), [_splitter(folder, side) for side in ("source", "target")]
    files = lists or splitters
    models = {path: read_file(path) for path in splitters}
    pieces = {path: _own_pieces(models[path], path) for path in splitters}
    pieces |= {path: _listed(path) for path in lists}
    sides = zip(files, splitters, strict=True)
    source, target = (Vocabulary(pieces[path], models[splitter], str(path)) for path, splitter in sides)
    return source, target


def _lists(folder: Path) -> list[Path]:
    """Return the files that list the pieces of source and target, if any. One file is for both."""
    found = sorted(folder.glob("*vocab.yml"))
    if len(found) < 2:
        return found * 2
    sides = [path for side in ("src", "trg") for path in found if path.name.endswith(f"{side}.vocab.yml")]
    if len(found) != 2 or len(sides) != 2:
        raise CheckpointError(
            f"{folder}: {len(found)} files *vocab.yml. Keep one, or *src.vocab.yml and *trg.vocab.yml.", value=folder
        )
    return sides


def _splitter(folder: Path, side: str) -> Path:
    named, found = folder / f"{side}.spm", sorted(folder.glob("*.spm"))
    if named in found:
        return named
    if len(found) == 1 and found[0].name not in ("source.spm", "target.spm"):
        return found[0]
    raise CheckpointError(f"{folder}: {side}.spm is missing; other tokenizers are not supported.", value=folder)


def _own_pieces(model: bytes, path: Path) -> list[str]:
    found = SentencePiece(model, str(path))
    return [found.piece(i) for i in found.ids]


def _listed(path: Path) -> list[str]:
    """Return the pieces of a vocabulary by id."""
    yaml = optional_import("yaml", extra="export")
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # all values are strings: "no" and "1.5" are pieces
    try:
        found = {int(number): piece for piece, number in yaml.load(read_file(path), loader).items()}
    except (yaml.YAMLError, AttributeError, TypeError, ValueError, RecursionError):
        raise CheckpointError(f"{path}: not a vocabulary of Marian, with an id for each piece.", value=path) from None
    if found.keys() != set(range(len(found))):
        lacking = next(i for i in range(len(found)) if i not in found)
        raise CheckpointError(f"{path}: {len(found)} entries, and none with id {lacking}.", value=path)
    return [found[i] for i in range(len(found))]


def _tokenizer(source: Vocabulary, target: Vocabulary) -> Tokenizer:
    """Return a tokenizer, joint if both vocabularies are equal."""
    sources, targets = (
        Tokenizer.of_pieces([RENAMED_START if piece == NAMES[START] else piece for piece in pieces], splitter, where)
        for pieces, splitter, where in (source, target)
    )
    return targets if source == target else Tokenizer(targets.model, target.where, sources)


# --- Weights by our names


def _converted(
    parameters: Parameters, options: dict[str, Any], source: Vocabulary, target: Vocabulary
) -> tuple[ModelConfig, Weights]:
    """Return the options and weights of the model, in native order. All shapes are checked."""
    d_model, d_ff = options["dim-emb"], options["transformer-dim-ffn"]
    widths = {"encoder": d_ff, "decoder": options["transformer-decoder-dim-ffn"] or d_ff}
    depths = {"encoder": options["enc-depth"], "decoder": options["dec-depth"]}
    ours, tie = _embeddings(parameters, options, source, target)
    for side in ("encoder", "decoder"):
        for i in range(depths[side]):
            for names, here, inputs, outputs in _linears(
                f"{side}_l{i + 1}", f"{side}.layers.{i}", d_model, widths[side]
            ):
                weights = [parameters.take(f"{a}_W{b}", inputs, outputs).T for a, b in names]
                ours[f"{here}.weight"] = torch.cat(weights)
                ours[f"{here}.bias"] = torch.cat([parameters.take(f"{a}_b{b}", outputs) for a, b in names])
            for norm, here in _norms(f"{side}_l{i + 1}", f"{side}.layers.{i}"):
                ours[f"{here}.weight"] = parameters.take(f"{norm}_ln_scale", d_model)
                ours[f"{here}.bias"] = parameters.take(f"{norm}_ln_bias", d_model)
    parameters.done()
    stacks = {
        side: StackConfig(layers=depths[side], heads=options["transformer-heads"], d_ff=widths[side])
        for side in ("encoder", "decoder")
    }
    return ModelConfig(
        architecture="encoder-decoder",
        vocab_size=len(target.pieces),
        source_vocab_size=len(source.pieces),
        tie=tie,
        d_model=d_model,
        positions=PositionsConfig(kind="halves", frequencies="tensor2tensor"),
        activation=options["transformer-ffn-activation"],
        norm_epsilon=1e-6,
        attention_bias=True,
        classifier_bias="classifier.bias" in ours,
        **stacks,
    ), ours


def _linears(there: str, here: str, d_model: int, d_ff: int) -> Iterator[tuple[list[tuple[str, str]], str, int, int]]:
    """Yield for each linear module of a layer: the prefix and suffix of Marian's matrices in it, our name, and the
    numbers of inputs and outputs."""
    self_attention = f"{there}_self"
    yield [(self_attention, x) for x in "qkv"], f"{here}.self_attention.query_key_value", d_model, d_model
    yield [(self_attention, "o")], f"{here}.self_attention.output", d_model, d_model
    if there.startswith("decoder"):
        cross = f"{there}_context"
        yield [(cross, "q")], f"{here}.cross_attention.query", d_model, d_model
        yield [(cross, x) for x in "kv"], f"{here}.cross_attention.key_value", d_model, d_model
        yield [(cross, "o")], f"{here}.cross_attention.output", d_model, d_model
    yield [(f"{there}_ffn", "1")], f"{here}.feed_forward.inner", d_model, d_ff
    yield [(f"{there}_ffn", "2")], f"{here}.feed_forward.outer", d_ff, d_model


def _norms(there: str, here: str) -> Iterator[tuple[str, str]]:
    yield f"{there}_self_Wo", f"{here}.self_attention_residual.norm"
    if there.startswith("decoder"):
        yield f"{there}_context_Wo", f"{here}.cross_attention_residual.norm"
    yield f"{there}_ffn_ffn", f"{here}.feed_forward_residual.norm"


def _embeddings(
    parameters: Parameters, options: dict[str, Any], source: Vocabulary, target: Vocabulary
) -> tuple[Weights, Literal["all", "target", "none"]]:
    """Return the embeddings and the classifier, and which of them are tied."""
    d_model, entries, out = options["dim-emb"], len(target.pieces), "decoder_ff_logit_out"
    tied_all = bool(options.get("tied-embeddings-all"))
    one_embedding = tied_all or bool(options.get("tied-embeddings-src"))
    tied = tied_all or bool(options.get("tied-embeddings"))
    if one_embedding and source.pieces != target.pieces:
        raise CheckpointError(
            f"{target.where}: source and target share an embedding, but not the vocabulary.", value=target.where
        )
    ours: Weights = {}
    sides = {"encoder": source} if one_embedding else {"encoder": source, "decoder": target}
    for side, vocabulary in sides.items():
        name = "Wemb" if one_embedding else f"{side}_Wemb"
        rows = parameters.rows(name)
        if rows and rows != len(vocabulary.pieces):
            raise CheckpointError(
                f"{vocabulary.where}: the vocabulary has {len(vocabulary.pieces)} entries, the model {rows}.",
                value=vocabulary.where,
            )
        ours[f"{side}.embedding.tokens.weight"] = parameters.take(name, len(vocabulary.pieces), d_model)
    if not options.get("output-omit-bias"):
        ours["classifier.bias"] = parameters.take(f"{out}_b", entries)
    if tied:
        return ours, "all" if one_embedding else "target"
    if one_embedding:
        ours["decoder.embedding.tokens.weight"] = ours["encoder.embedding.tokens.weight"]
    older = parameters.has(f"{out}_W")  # transposed in old files
    weight = (
        parameters.take(f"{out}_W", d_model, entries).T if older else parameters.take(f"{out}_Wt", entries, d_model)
    )
    return {**ours, "classifier.weight": weight}, "none"
