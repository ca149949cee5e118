"""Models that Marian itself has written (marian-nmt.github.io), as OPUS-MT releases them: the same numbers, in our
words.

What is computed is what Marian's own program computes. Hugging Face's port of it, which `hugging_face` reads, differs
in two small things: Marian's timescales end in 10000 exactly (as tensor2tensor's do), and the epsilon of its norms is
1e-6. An option that means something we do not compute is refused by name rather than half understood. Such are pre-norm
(Marian's search does not normalise the keys and values of earlier tokens, its training does) and gelu (which changed
between its versions).
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
from sightline.files import optional_import
from sightline.interop.native_order import to_internal_order
from sightline.model.transformer import EncoderDecoder
from sightline.model_folder import set_weights
from sightline.special import START
from sightline.text.tokenizer import NAMES, SentencePiece, Tokenizer

__all__ = ["read_marian"]

Weights = dict[str, Tensor]

OPTIONS = "special:model.yml"
"""The parameter that is none: the options of the model, as the bytes of a YAML text that ends in a zero."""
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
"""The values of options that we compute, the usual one first. What only training knows (dropout) is written `d`."""
FREE = {
    "transformer-heads",
    "transformer-dim-ffn",
    "transformer-decoder-dim-ffn",
    "transformer-depth-scaling",  # of the first weights
    "transformer-guided-alignment-layer",  # of training
    "transformer-dropout",
    "transformer-dropout-attention",
    "transformer-dropout-ffn",
    "transformer-dim-aan",  # four of average attention, which is refused
    "transformer-aan-depth",
    "transformer-aan-activation",
    "transformer-aan-nogate",
}
"""Options of Transformers that may have any value. Others may only say no."""
OWN_START = "<marian:s>"
"""Where a vocabulary has an entry <s>, it is called this: Marian's answers never begin with it, but with zeros."""


@torch.no_grad()
def read_marian(folder: Path | str) -> tuple[EncoderDecoder, Tokenizer]:
    """A model of Marian, and its vocabulary, from a folder as OPUS-MT's archives unpack, ready for use (`eval`).

    The weights are its one file `*.npz`; of several, the one that has `best` in its name (what an optimizer left does
    not count). The vocabulary is its one `*vocab.yml`, or `*src.vocab.yml` and `*trg.vocab.yml`, and `source.spm` and
    `target.spm` cut the text (or one `*.spm` both). Without a list, sentencepiece's own numbers are the vocabulary.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such folder.")
    parameters = Parameters(_weights_file(folder))
    options = _options(parameters)
    source, target = _vocabularies(folder)
    config, weights = _converted(parameters, options, source, target)
    tokenizer = _tokenizer(source, target)
    model = EncoderDecoder(config)
    set_weights(model, weights, parameters.where)
    ours = to_internal_order(model, tokenizer, start=None)
    assert isinstance(ours, EncoderDecoder)  # noqa: S101 - it is of the same kind
    return ours, tokenizer


# --- Weights


def _weights_file(folder: Path) -> Path:
    found = sorted(path for path in folder.glob("*.npz") if not path.name.endswith(".optimizer.npz"))
    if len(found) > 1:
        found = [path for path in found if "best" in path.name] or found
    if not found:
        raise CheckpointError(f"{folder}: there is no model of Marian here; one has a file *.npz.")
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise CheckpointError(f"{folder}: which model is meant is not clear ({names}); leave one, or call it *best*.")
    return found[0]


class Parameters:
    """What an npz file holds. Each is taken once, by its name and its shape."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        try:
            with path.open("rb") as file:  # numpy would leave it open where it fails
                archive = np.load(file, allow_pickle=False)
                self._left: dict[str, NDArray[Any]] = {name: archive[name] for name in archive.files}
        except Exception as error:  # there are many ways in which zipfile, zlib and numpy fail on what is damaged
            raise CheckpointError(f"{path}: the weights cannot be read: {_reason(error)}.") from None

    def options(self) -> bytes:
        if OPTIONS not in self._left:
            raise CheckpointError(f"{self.where}: there are no options of a model of Marian in it ({OPTIONS!r}).")
        return self._left.pop(OPTIONS).tobytes().rstrip(b"\0")

    def has(self, name: str) -> bool:
        return name in self._left

    def rows(self, name: str) -> int:
        """How many a matrix has; of what is no matrix, 0, which fits nothing."""
        return len(self._left[name]) if name in self._left and self._left[name].ndim == 2 else 0

    def take(self, name: str, *shape: int) -> Tensor:
        """Marian writes a vector as a matrix of one row."""
        if name not in self._left:
            raise CheckpointError(f"{self.where}: the weights lack {name!r}, which the model's options ask for.")
        found = self._left.pop(name)
        if found.shape not in (shape, (1, *shape)):
            shapes = f"{found.shape} where the model's options ask for {shape}"
            raise CheckpointError(f"{self.where}: {name!r} has the shape {shapes}.")
        if not np.issubdtype(found.dtype, np.floating):
            raise CheckpointError(f"{self.where}: {name!r} has numbers of the kind {found.dtype}, not floats.")
        return torch.from_numpy(np.ascontiguousarray(found, dtype=np.float32).reshape(shape))

    def done(self) -> None:
        if self._left:
            name = min(self._left)
            raise CheckpointError(f"{self.where}: the weights have {name!r}, which is not known in such a model.")


def _reason(error: Exception) -> str:
    """Why, on one line."""
    return (" ".join(str(error).split()) or type(error).__name__).rstrip(".")


# --- Options


def _options(parameters: Parameters) -> dict[str, Any]:
    """The options of a model, once all of them mean something that we compute."""
    where, yaml = parameters.where, optional_import("yaml", extra="export")
    try:
        options = yaml.safe_load(parameters.options().decode())
    except (yaml.YAMLError, ValueError, RecursionError):
        options = None
    if not isinstance(options, dict):
        raise CheckpointError(f"{where}: the options in it ({OPTIONS!r}) are not readable as YAML.")
    for name, values in KNOWN.items():
        value = options.setdefault(name, values[0])
        if value not in values:
            known = " or ".join(map(repr, values))
            raise ConfigError(f"{where}: the option {name} = {value!r} is not supported; only {known} is.")
    for name, value in options.items():
        if str(name).startswith("transformer-") and name not in KNOWN.keys() | FREE and value:
            raise ConfigError(f"{where}: the option {name} = {value!r} is not supported.")
    options.setdefault("transformer-decoder-dim-ffn", 0)
    for name in ("dim-emb", "enc-depth", "dec-depth", "transformer-heads", "transformer-dim-ffn"):
        if type(options.get(name)) is not int or options[name] < 1:
            raise ConfigError(f"{where}: the option {name} = {options.get(name)!r} must be a number above 0.")
    if options["dim-emb"] % 2:
        raise ConfigError(f"{where}: the option dim-emb = {options['dim-emb']} is odd, which is not supported.")
    return options


# --- Vocabularies


class Vocabulary(NamedTuple):
    """Of one side: its pieces by their numbers, and the sentencepiece model that cuts a text into them."""

    pieces: list[str]
    cutter: bytes
    where: str


def _vocabularies(folder: Path) -> tuple[Vocabulary, Vocabulary]:
    """The source's and the target's."""
    lists, cutters = _lists(folder), [_cutter(folder, side) for side in ("source", "target")]
    files = lists or cutters
    models = {path: _read(path) for path in cutters}
    pieces = {path: _own_pieces(models[path], path) for path in cutters}
    pieces |= {path: _listed(path) for path in lists}
    sides = zip(files, cutters, strict=True)
    source, target = (Vocabulary(pieces[path], models[cutter], str(path)) for path, cutter in sides)
    return source, target


def _lists(folder: Path) -> list[Path]:
    """The files that list the pieces of source and target, if there are such; one file is for both."""
    found = sorted(folder.glob("*vocab.yml"))
    if len(found) < 2:
        return found * 2
    sides = [path for side in ("src", "trg") for path in found if path.name.endswith(f"{side}.vocab.yml")]
    if len(found) != 2 or len(sides) != 2:
        raise CheckpointError(
            f"{folder}: there are {len(found)} files *vocab.yml; leave one, or *src.vocab.yml and *trg.vocab.yml."
        )
    return sides


def _cutter(folder: Path, side: str) -> Path:
    named, found = folder / f"{side}.spm", sorted(folder.glob("*.spm"))
    if named in found:
        return named
    if len(found) == 1 and found[0].name not in ("source.spm", "target.spm"):
        return found[0]
    raise CheckpointError(f"{folder}: there is no {side}.spm, and what else may cut a text into pieces is not read.")


def _own_pieces(model: bytes, path: Path) -> list[str]:
    found = SentencePiece(model, str(path))
    return [found.piece(i) for i in found.ids]


def _listed(path: Path) -> list[str]:
    """The pieces that a vocabulary lists, by their numbers."""
    yaml = optional_import("yaml", extra="export")
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # it makes strings of all: "no" and "1.5" are pieces
    try:
        found = {int(number): piece for piece, number in yaml.load(_read(path), loader).items()}
    except (yaml.YAMLError, AttributeError, TypeError, ValueError, RecursionError):
        raise CheckpointError(f"{path}: this is no vocabulary of Marian, which has a number for each piece.") from None
    if found.keys() != set(range(len(found))):
        lacking = next(i for i in range(len(found)) if i not in found)
        raise CheckpointError(f"{path}: the vocabulary has {len(found)} entries, and none of them is number {lacking}.")
    return [found[i] for i in range(len(found))]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}.") from None


def _tokenizer(source: Vocabulary, target: Vocabulary) -> Tokenizer:
    """One for both sides, where they are the same."""
    found = _one_side(target)
    return found if source == target else Tokenizer(found.model, target.where, _one_side(source))


def _one_side(vocabulary: Vocabulary) -> Tokenizer:
    pieces = [OWN_START if piece == NAMES[START] else piece for piece in vocabulary.pieces]
    return Tokenizer.of_pieces(pieces, vocabulary.cutter, vocabulary.where)


# --- From their names to ours


def _converted(
    parameters: Parameters, options: dict[str, Any], source: Vocabulary, target: Vocabulary
) -> tuple[ModelConfig, Weights]:
    """The model in its own numbering of tokens. All shapes are known to fit before it is built."""
    d_model, d_ff = options["dim-emb"], options["transformer-dim-ffn"]
    widths = {"encoder": d_ff, "decoder": options["transformer-decoder-dim-ffn"] or d_ff}
    depths = {"encoder": options["enc-depth"], "decoder": options["dec-depth"]}
    ours, tie = _embeddings(parameters, options, source, target)
    for side in ("encoder", "decoder"):
        for i in range(depths[side]):
            for there, here, wide, deep in _linears(f"{side}_l{i + 1}", f"{side}.layers.{i}", d_model, widths[side]):
                weights = [parameters.take(f"{a}_W{b}", wide, deep).T for a, b in there]
                ours[f"{here}.weight"] = torch.cat(weights)
                ours[f"{here}.bias"] = torch.cat([parameters.take(f"{a}_b{b}", deep) for a, b in there])
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
    """Of one layer: which of Marian's products stand in one of ours, by prefix and suffix, and their two widths."""
    own = f"{there}_self"
    yield [(own, x) for x in "qkv"], f"{here}.self_attention.query_key_value", d_model, d_model
    yield [(own, "o")], f"{here}.self_attention.output", d_model, d_model
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
    """What has a row for each token: the two embeddings and the classifier, and which of them are one."""
    d_model, entries, out = options["dim-emb"], len(target.pieces), "decoder_ff_logit_out"
    every = bool(options.get("tied-embeddings-all"))
    one_embedding = every or bool(options.get("tied-embeddings-src"))
    tied = every or bool(options.get("tied-embeddings"))
    if one_embedding and source.pieces != target.pieces:
        raise CheckpointError(f"{target.where}: source and target have one embedding, but two vocabularies.")
    ours: Weights = {}
    for side, vocabulary in (("encoder", source), ("decoder", target)):
        name, here = "Wemb" if one_embedding else f"{side}_Wemb", f"{side}.embedding.tokens.weight"
        if one_embedding and side == "decoder":
            ours[here] = ours["encoder.embedding.tokens.weight"]
            continue
        rows = parameters.rows(name)
        if rows and rows != len(vocabulary.pieces):
            raise CheckpointError(
                f"{vocabulary.where}: the vocabulary has {len(vocabulary.pieces)} entries, and the model {rows}."
            )
        ours[here] = parameters.take(name, len(vocabulary.pieces), d_model)
    if not options.get("output-omit-bias"):
        ours["classifier.bias"] = parameters.take(f"{out}_b", entries)
    if tied:
        if one_embedding:
            del ours["decoder.embedding.tokens.weight"]
        return ours, "all" if one_embedding else "target"
    older = parameters.has(f"{out}_W")  # it was transposed once
    weight = (
        parameters.take(f"{out}_W", d_model, entries).T if older else parameters.take(f"{out}_Wt", entries, d_model)
    )
    return {**ours, "classifier.weight": weight}, "none"
