"""Models in CTranslate2's format as Sightline models, and the packages of Argos Translate, which are made of them.

What CTranslate2 calls a weight is said once, where models are written (`sightline.backends.ctranslate2_format`): here
the same words name the arrays of a new model, and the numbers of the file are put into them. Weights that were rounded
to int8 or int16 come in as the numbers they stand for, so that what is computed is what CTranslate2 computes in
float32.

A file is taken apart by hand, and nothing in it is trusted: no length without the bytes for it, no name that is not
known, no field that means something we do not compute. Of a package only the files that are needed are read, in memory;
nothing is unpacked to disk, and nothing in it is run.

Whether a source ends in the end token is not always told. It does where `add_source_eos` says so, in what Sightline
wrote (unless it says otherwise), and where answers begin with zeros: that is Marian, whose sources always have it.
"""

import json
import lzma
import math
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.backends.ctranslate2_format import ACTIVATIONS, model_spec, new_name
from sightline.config import ModelConfig, PositionsConfig
from sightline.errors import CheckpointError, ConfigError
from sightline.files import optional_import, parse_json_object
from sightline.interop.native_order import to_internal_order
from sightline.model.transformer import EncoderDecoder, sinusoids
from sightline.text.tokenizer import Tokenizer

__all__ = ["read_argos", "read_ctranslate2"]

Array = NDArray[Any]
Files = Mapping[str, bytes]

TYPES = "f4", "i1", "i2", "i4", "f2", "u2"
"""By CTranslate2's numbers; the last is bfloat16, which numpy does not have."""
BFLOAT16 = 5
OLDEST, NEWEST = 4, 6
"""Versions of the file's layout."""
IRRELEVANT = ("/alignment_layer", "/alignment_heads", "/embeddings_merge")
"""These do not change what is said; embeddings are merged only where there are several, which have other names."""
COMMON = ("num_heads", "pre_norm", "activation", "embeddings_merge", "alignment_layer", "alignment_heads")
"""What older files have once, for encoder and decoder."""
LENGTH = 4096
"""Of sinusoids, at least: they need no training for it."""
SHARED = 32
"""A model has at most so many times the weights of its file, where layers share them."""
MOST, DENSEST = 4 * 2**30, 200
"""Bytes of a file in a package, and how many times smaller it can be packed."""
WANTED = re.compile(r"(model\.bin|config\.json|(shared|source|target)_vocabulary\.(json|txt))")
PIECES = "sentencepiece.model", "tokenizer.model", "source-tokenizer.model", "source.spm", "target.spm"


def read_ctranslate2(folder: Path | str, sentencepiece: Path | str | None = None) -> tuple[EncoderDecoder, Tokenizer]:
    """A model from a folder that CTranslate2 can run: `model.bin`, `config.json` (older ones have none) and its
    vocabularies. `sentencepiece`: the model that cuts its texts, where it is not in the folder."""
    folder = Path(folder)
    files = _files(folder, lambda name: bool(WANTED.fullmatch(name)) or name in PIECES)
    if sentencepiece is not None:
        files = {name: data for name, data in files.items() if name not in PIECES}
        files[PIECES[0]] = _bytes(Path(sentencepiece))
    return _model(files, folder)


def read_argos(path: Path | str) -> tuple[EncoderDecoder, Tokenizer]:
    """A model from a package of Argos Translate: the `.argosmodel` file, or the folder it was unpacked to."""
    path = Path(path)
    if path.is_dir():
        found = [path, *sorted(inner for inner in path.iterdir() if inner.is_dir())]
        folder = next((each for each in found if (each / "metadata.json").is_file()), path)
        outer = _files(folder, lambda name: name in ("metadata.json", "bpe.model", *PIECES))
        inner = _files(folder / "model", lambda name: bool(WANTED.fullmatch(name)))
        return _package({**outer, **{f"model/{name}": data for name, data in inner.items()}}, path)
    return _package(_unzipped(path), path)


def _package(files: Files, where: Path) -> tuple[EncoderDecoder, Tokenizer]:
    about = parse_json_object(files.get("metadata.json", b""), where / "metadata.json")
    for field, value in (("type", "translate"), ("target_prefix", "")):
        if about.get(field) not in (None, value):
            raise ConfigError(f"{where}: {field} = {about[field]!r} is not supported; only {value!r} is.")
    if PIECES[0] not in files and "bpe.model" in files:
        raise ConfigError(f"{where}: its text is cut by bpe.model and Moses's rules; only sentencepiece is supported.")
    kept = {name.removeprefix("model/"): data for name, data in files.items() if name != "metadata.json"}
    return _model(kept, where)


# --- Files


def _files(folder: Path, wanted: Any) -> dict[str, bytes]:
    try:
        return {
            path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file() and wanted(path.name)
        }
    except OSError as error:
        raise CheckpointError(f"{error.filename or folder}: cannot be read: {error.strerror}.") from None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}.") from None


def _unzipped(path: Path) -> dict[str, bytes]:
    """The files of a package that are needed, by their names in its one folder."""
    broken = zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, NotImplementedError, ValueError
    try:
        with zipfile.ZipFile(path) as archive:
            chosen = _chosen(archive.infolist(), path)
            return {name: archive.read(entry) for name, entry in chosen.items()}
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except broken:
        raise CheckpointError(f"{path}: this is no package of Argos Translate, or a damaged one.") from None


def _chosen(entries: list[zipfile.ZipInfo], where: Path) -> dict[str, zipfile.ZipInfo]:
    for entry in entries:
        if ".." in PurePosixPath(entry.filename).parts or entry.filename.startswith("/") or "\\" in entry.filename:
            raise CheckpointError(f"{where}: the entry {entry.filename!r} lies outside of the package.")
    roots = [PurePosixPath(e.filename).parent for e in entries if PurePosixPath(e.filename).name == "metadata.json"]
    if not roots:
        raise CheckpointError(f"{where}: there is no metadata.json, as a package of Argos Translate has it.")
    root = min(roots, key=lambda each: len(each.parts))
    found: dict[str, zipfile.ZipInfo] = {}
    for entry in entries:
        place = PurePosixPath(entry.filename)
        name = str(place.relative_to(root)) if place.is_relative_to(root) else ""
        inner = name.removeprefix("model/")
        if name in ("metadata.json", "bpe.model", *PIECES) or (inner != name and WANTED.fullmatch(inner)):
            if stat.S_ISLNK(entry.external_attr >> 16):
                raise CheckpointError(f"{where}: the entry {entry.filename!r} is a link, and no file.")
            found[name] = entry
        if entry.file_size > min(MOST, DENSEST * max(entry.compress_size, 2**16)):
            raise CheckpointError(
                f"{where}: {entry.filename!r} would be {entry.file_size:,} bytes, which it cannot be."
            )
    return found


# --- The file of the weights


class Variables:
    """What a `model.bin` has, by CTranslate2's names of today."""

    def __init__(self, data: bytes, where: Path) -> None:
        self.where = where
        self.size = len(data)
        self._data, self._place = memoryview(data), 0
        self.version = self._number("I")
        if not OLDEST <= self.version <= NEWEST:
            raise CheckpointError(
                f"{where}: the file has version {self.version}, and those from {OLDEST} to {NEWEST} can be read."
            )
        self.kind = self._name()
        self._number("I")  # the revision; what it means is seen by the names
        if self.kind != "TransformerSpec":
            raise ConfigError(f"a model of the kind {self.kind!r} cannot be read; only 'TransformerSpec' can.")
        found: dict[str, Array] = {}
        for _ in range(self._number("I")):
            name = self._name()
            if found.setdefault(name, value := self._array(name)) is not value:
                raise CheckpointError(f"{where}: {name!r} is there twice.")
        aliases = {self._name(): self._name() for _ in range(self._number("I"))}
        if self._place != self.size:
            raise CheckpointError(f"{where}: the file goes on where it should end, by {self.size - self._place} bytes.")
        for alias, name in aliases.items():
            if name not in found or alias in found:
                raise CheckpointError(f"{where}: {alias!r} stands for {name!r}, which cannot be.")
        self._origin = {_today(name): aliases.get(name, name) for name in [*found, *aliases]}
        """For each name the one that has the numbers in the file."""
        self._found = found
        for name in COMMON:
            if name in self._origin:
                origin = self._origin.pop(name)
                self._origin |= {f"{side}/{name}": origin for side in ("encoder", "decoder")}

    @property
    def names(self) -> set[str]:
        """All of them, but not the scales that belong to weights."""
        return {name for name in self._origin if not name.endswith("weight_scale")}

    def origin(self, name: str) -> str:
        """Where the numbers come from: two names that share them have the same."""
        if name not in self._origin:
            raise CheckpointError(f"{self.where}: the weights lack {name!r}.")
        return self._origin[name]

    def shape(self, name: str, rank: int) -> tuple[int, ...]:
        """Of a variable that has so many dimensions."""
        shape = self._found[self.origin(name)].shape
        if len(shape) != rank:
            raise CheckpointError(f"{self.where}: {name!r} has the shape {shape} and not {rank} dimensions.")
        return shape

    def scalar(self, name: str, default: Any) -> Any:
        """A number that is no weight."""
        if name not in self._origin:
            return default
        value = self._found[self._origin[name]]
        if value.size != 1:
            raise CheckpointError(f"{self.where}: {name!r} has the shape {value.shape} and should be one number.")
        return value.item()

    def text(self, name: str, default: str) -> str:
        """A name of a token, where older files have it."""
        return self._found[name].tobytes().decode(errors="replace") if name in self._found else default

    def described(self, name: str) -> str:
        """A variable by its name and, if it is one number, its value."""
        value = self._found[self.origin(name)]
        return f"{name} = {value.item()}" if value.size == 1 else name

    def weights(self, name: str) -> NDArray[np.float32]:
        """The numbers of a variable; of one that was rounded, those it stands for."""
        origin = self.origin(name)
        value = self._found[origin]
        if value.dtype.kind == "f":
            return value.astype(np.float32, copy=False)
        scale = self._found.get(f"{origin}_scale")
        if scale is None or value.dtype.itemsize > 2:
            raise CheckpointError(f"{self.where}: {name!r} has whole numbers and no scale for them.")
        if scale.size != 1 and scale.shape != value.shape[:1]:
            raise CheckpointError(f"{self.where}: {name!r} has a scale of the shape {scale.shape}.")
        with np.errstate(divide="ignore", invalid="ignore"):
            return value.astype(np.float32) / scale.astype(np.float32).reshape(-1, *[1] * (value.ndim - 1))

    def _take(self, count: int) -> memoryview:
        if count > self.size - self._place:
            raise CheckpointError(f"{self.where}: the file is cut off, or is no model of CTranslate2.")
        self._place += count
        return self._data[self._place - count : self._place]

    def _number(self, kind: str) -> int:
        (found,) = struct.unpack(f"<{kind}", self._take(struct.calcsize(f"<{kind}")))
        return int(found)

    def _name(self) -> str:
        text = bytes(self._take(self._number("H")))
        try:
            return text.removesuffix(b"\0").decode()
        except UnicodeDecodeError:
            raise CheckpointError(f"{self.where}: the file has a name that is no text.") from None

    def _array(self, name: str) -> Array:
        shape = [self._number("I") for _ in range(self._number("B"))]
        kind, size = self._number("B"), self._number("I")
        if kind >= len(TYPES):
            raise CheckpointError(f"{self.where}: {name!r} has numbers of an unknown kind, {kind}.")
        if math.prod(shape) * int(TYPES[kind][1]) != size or not size or len(shape) > 4:
            raise CheckpointError(f"{self.where}: {name!r} has the shape {tuple(shape)}, but {size} bytes.")
        found = np.frombuffer(self._take(size), f"<{TYPES[kind]}").reshape(shape)
        return (found.astype(np.uint32) << 16).view(np.float32) if kind == BFLOAT16 else found


def _today(name: str) -> str:
    """What older files call by other names."""
    name = name.replace("embeddings/multiply_by_sqrt_depth", "scale_embeddings")
    return re.sub("^encoder/embeddings/", "encoder/embeddings_0/", name)


# --- The model


class Tokens(NamedTuple):
    """What is told beside the weights: names of tokens, and what sources and answers begin and end with."""

    start: str | None
    """What answers begin with; None: zeros."""
    end: str
    unknown: str
    source_end: bool
    epsilon: float


def _model(files: Files, where: Path) -> tuple[EncoderDecoder, Tokenizer]:
    if "model.bin" not in files:
        raise CheckpointError(f"{where}: there is no model.bin here, as a model of CTranslate2 has it.")
    try:
        theirs = Variables(files["model.bin"], where / "model.bin")
        told = _told(files, theirs, where)
        config = _config(theirs, told)
        tokenizer, start = _tokenizer(files, theirs, told, where)
        with torch.random.fork_rng(devices=[]):  # weights are drawn here that nobody needs: let nobody notice
            model = EncoderDecoder(config)
            _fill(model, theirs)
            found = to_internal_order(model, tokenizer, start)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    assert isinstance(found, EncoderDecoder)  # noqa: S101 - it was one
    return found, tokenizer


def _told(files: Files, theirs: Variables, where: Path) -> Tokens:
    """Since version 6 it stands in config.json; before, among the variables."""
    zeros = bool(theirs.scalar("decoder/start_from_zero_embedding", 0))
    about: dict[str, Any] = {}
    if theirs.version >= 6 or "config.json" in files:
        about = parse_json_object(files.get("config.json", b""), where / "config.json")
    if theirs.version < 6:
        end, unknown = theirs.text("eos_token", "</s>"), theirs.text("unk_token", "<unk>")
        start = theirs.text("bos_token", "<s>") if theirs.scalar("with_target_bos", 1) else end
        about |= {"eos_token": end, "unk_token": unknown}
        about["decoder_start_token"] = None if theirs.scalar("user_decoder_start_tokens", 0) else start
        about["add_source_bos"] = bool(theirs.scalar("with_source_bos", 0))
        about["add_source_eos"] = bool(theirs.scalar("with_source_eos", 0))
    for field in ("add_source_bos", "multi_query_attention", "quantization_type"):
        if about.get(field):
            raise ConfigError(f"{field} = {about[field]!r} is not supported; only false is.")
    start, end, unknown = (
        about.get(field, name)
        for field, name in (("decoder_start_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>"))
    )
    if not isinstance(start, str) and not zeros:
        raise ConfigError(f"decoder_start_token = {start!r} is not supported; it must be the name of a token.")
    epsilon, ours = about.get("layer_norm_epsilon"), about.get("sightline")
    source_end = bool(about.get("add_source_eos")) or zeros
    if isinstance(ours, dict):
        source_end = bool(ours.get("source_end", True))
    if epsilon is not None and not (isinstance(epsilon, float) and epsilon > 0):
        raise ConfigError(f"layer_norm_epsilon = {epsilon!r} is no small number.")
    return Tokens(None if zeros else start, str(end), str(unknown), source_end, epsilon or 1e-5)


def _config(theirs: Variables, told: Tokens) -> ModelConfig:
    """What the shapes and flags mean. What is not as in the encoder's first layer everywhere is found later."""
    source, d_model = theirs.shape("encoder/embeddings_0/weight", 2)
    target, _ = theirs.shape("decoder/embeddings/weight", 2)
    sides = "encoder/embeddings_0", "decoder/embeddings", "decoder/projection"
    encoder, decoder, classifier = (theirs.origin(f"{side}/weight") for side in sides)
    tie: Any = "none" if decoder != classifier else "all" if encoder == decoder else "target"
    config = ModelConfig(
        vocab_size=target,
        source_vocab_size=None if source == target else source,
        tie=tie,
        d_model=d_model,
        encoder=_stack(theirs, "encoder"),
        decoder=_stack(theirs, "decoder"),
        positions=_positions(theirs, d_model),
        activation=_activation(theirs),
        norm="pre" if theirs.scalar("encoder/pre_norm", 1) else "post",
        norm_epsilon=told.epsilon,
        final_norm="encoder/layer_norm/gamma" in theirs.names,
        scale_embedding=_scaled(theirs, "encoder", d_model),
        embedding_norm="encoder/layernorm_embedding/gamma" in theirs.names,
        attention_bias="encoder/layer_0/self_attention/linear_0/bias" in theirs.names,
        classifier_bias="decoder/projection/bias" in theirs.names,
        source_end=told.source_end,
    )
    if _weights(config) > SHARED * theirs.size:
        raise CheckpointError(f"{theirs.where}: the file is too small for the model that its shapes tell of.")
    return config


def _weights(config: ModelConfig) -> int:
    """How many a model has in its matrices, or a few more."""
    wide, stacks = config.d_model, ((config.encoder, 4), (config.decoder, 8))
    layers = sum(stack.layers * wide * (many * wide + 2 * stack.d_ff) for stack, many in stacks)
    return layers + 3 * wide * max(config.vocab_size, config.source_vocab_size or 0)


def _stack(theirs: Variables, side: str) -> Any:
    layers = {found[1] for found in map(re.compile(rf"{side}/layer_(\d+)/").match, theirs.names) if found}
    d_ff, _ = theirs.shape(f"{side}/layer_0/ffn/linear_0/weight", 2)
    return {"layers": len(layers), "heads": theirs.scalar(f"{side}/num_heads", 8), "d_ff": d_ff}


def _activation(theirs: Variables) -> Any:
    number = theirs.scalar("encoder/activation", 0)
    kinds = optional_import("ctranslate2", extra="fast").specs.Activation
    gated = "encoder/layer_0/ffn/linear_0_noact/weight" in theirs.names
    for ours, name in ACTIVATIONS.items():
        if getattr(kinds, name) == number and (ours == "swiglu") == (gated and name == "SWISH"):
            return ours
    raise ConfigError(f"encoder/activation = {number} is not supported.")


def _scaled(theirs: Variables, side: str, d_model: int) -> bool:
    """A flag, or the number itself that embeddings are multiplied by."""
    name = f"{side}/scale_embeddings"
    value = theirs.scalar(name, True)
    if not isinstance(value, float):
        return bool(value)
    if value != 1 and not math.isclose(value, math.sqrt(d_model), rel_tol=1e-3):
        raise ConfigError(f"{name} = {value:g} is not supported; only 1 and the root of d_model are.")
    return value != 1


def _positions(theirs: Variables, d_model: int) -> PositionsConfig:
    base = "encoder/layer_0/self_attention/rotary_base"
    if base in theirs.names:
        return PositionsConfig(kind="rotary", max_timescale=float(theirs.scalar(base, 0)))
    encoder, decoder = (
        _table(theirs, f"{side}/position_encodings/encodings", d_model) for side in ("encoder", "decoder")
    )
    if encoder != decoder:
        raise ConfigError("position_encodings differ in encoder and decoder, which is not supported.")
    return encoder


def _table(theirs: Variables, name: str, d_model: int) -> PositionsConfig:
    """The sinusoids that a table is; learned, if it is none. Without a table, CTranslate2 computes tensor2tensor's."""
    if name not in theirs.names:
        return PositionsConfig(kind="halves", frequencies="tensor2tensor", start=1, max_length=LENGTH)
    rows, wide = theirs.shape(name, 2)
    if wide != d_model or not rows:
        raise CheckpointError(f"{theirs.where}: {name!r} has the shape {(rows, wide)}, and vectors have {d_model}.")
    table = torch.from_numpy(theirs.weights(name).copy())
    if not table.any():
        return PositionsConfig(kind="none", max_length=rows)
    # Tables computed in single precision are the more off the further they go.
    near = 1e-3 + 1e-6 * torch.arange(rows)[:, None]
    for kind in ("halves", "interleaved"):
        for frequencies in ("paper", "tensor2tensor"):
            for start in range(3):
                found = PositionsConfig(kind=kind, frequencies=frequencies, start=start, max_length=rows)
                few = found.model_copy(update={"max_length": min(rows, 8)})
                if all(
                    ((sinusoids(each, d_model) - table[: each.max_length]).abs() < near[: each.max_length]).all()
                    for each in (few, found)
                ):
                    return found.model_copy(update={"max_length": max(rows, LENGTH)})
    return PositionsConfig(kind="learned", max_length=rows)


@torch.no_grad()
def _fill(model: EncoderDecoder, theirs: Variables) -> None:
    """Put the numbers of a file into a model; each must have its place, and each place its numbers."""
    config, where = model.config, theirs.where
    spec = model_spec(optional_import("ctranslate2", extra="fast").specs, model).variables()
    tables = {f"{side}/position_encodings/encodings" for side in ("encoder", "decoder")}
    told = {"with_source_bos", "with_source_eos", "with_target_bos", "user_decoder_start_tokens"}
    told |= {"decoder/start_from_zero_embedding", "unk_token", "bos_token", "eos_token"}
    unknown = sorted(name for name in theirs.names - spec.keys() - tables - told if not name.endswith(IRRELEVANT))
    if unknown:
        raise ConfigError(f"{theirs.described(unknown[0])} is not supported; Sightline computes no such thing.")
    for name, ours in spec.items():
        if name in tables and config.positions.kind != "learned":
            continue
        if isinstance(ours, np.ndarray):
            shape = theirs.shape(name, ours.ndim)
            if shape != ours.shape:
                raise CheckpointError(f"{where}: {name!r} has the shape {shape} where others ask for {ours.shape}.")
            ours[...] = theirs.weights(name)
        elif not name.endswith(IRRELEVANT) and name not in told:
            _same(theirs, name, ours, config)


def _same(theirs: Variables, name: str, ours: Any, config: ModelConfig) -> None:
    value = theirs.scalar(name, ours)
    if name.endswith("/scale_embeddings"):
        value = _scaled(theirs, name.partition("/")[0], config.d_model)
    if name.endswith("/rotary_dim") and value == 0:  # all of them
        value = ours
    if value != ours:
        raise ConfigError(f"{name} = {value} is not supported; here only {ours} is.")


# --- The vocabulary


def _tokenizer(files: Files, theirs: Variables, told: Tokens, where: Path) -> tuple[Tokenizer, int | None]:
    """The tokenizer, and the own number of the token that answers begin with, if it is not the usual one."""
    shared = any(f"shared_vocabulary.{kind}" in files for kind in ("json", "txt"))
    target = _entries(files, "shared" if shared else "target", where)
    source = target if shared else _entries(files, "source", where)
    sizes = (("encoder/embeddings_0", source), ("decoder/embeddings", target))
    for name, entries in sizes:
        rows, _ = theirs.shape(f"{name}/weight", 2)
        if len(entries) != rows:
            raise CheckpointError(f"{where}: a vocabulary of {len(entries)} entries does not fit a model of {rows}.")
    if told.start is not None and told.start not in target:
        raise CheckpointError(f"{where}: the vocabulary has no entry {told.start}, which answers begin with.")
    start = None if told.start is None else target.index(told.start)
    pieces = _pieces(files, where)
    sides = [
        Tokenizer.of_pieces(_renamed(side, told), cut, str(where))
        for side, cut in zip((source, target), pieces, strict=True)
    ]
    if sides[0].model == sides[1].model:
        return sides[1], start
    return Tokenizer(sides[1].model, str(where), sides[0]), start


def _entries(files: Files, side: str, where: Path) -> list[str]:
    name = f"{side}_vocabulary"
    try:
        if f"{name}.json" in files:
            found = json.loads(files[f"{name}.json"])
        elif f"{name}.txt" in files:
            found = files[f"{name}.txt"].decode().removesuffix("\n").split("\n")
        else:
            raise CheckpointError(f"{where}: there is no {name}.json or {name}.txt, nor one that is shared.")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(entry, str) for entry in found):
        raise CheckpointError(f"{where}: {name} is no list of tokens.")
    return found


def _renamed(entries: list[str], told: Tokens) -> list[str]:
    """The entries by the names we know them by, each another. What only has such a name is an ordinary token."""
    special = {name: f"{name}'" for name in ("<s>", "</s>", "<unk>")} | {told.unknown: "<unk>", told.end: "</s>"}
    if told.start == "<s>":
        special["<s>"] = "<s>"
    names: dict[str, None] = {}
    for entry in entries:
        names[new_name(special.get(entry, entry), names)] = None
    return list(names)


def _pieces(files: Files, where: Path) -> tuple[bytes, bytes]:
    """What cuts sources and targets."""
    pairs = [("source.spm", "target.spm"), ("source-tokenizer.model", "tokenizer.model")]
    pairs += [(name, name) for name in ("sentencepiece.model", "tokenizer.model", "source.spm")]
    for source, target in pairs:
        if source in files and target in files:
            cut = [Tokenizer(files[name], f"{where}/{name}").sentencepiece for name in (source, target)]
            if cut[0] is not None and cut[1] is not None:
                return cut[0], cut[1]
            raise ConfigError(f"{where}/{target}: only sentencepiece may cut the text of a model from CTranslate2.")
    raise CheckpointError(
        f"{where}: there is no sentencepiece.model beside the model; name the file that cuts its text."
    )
