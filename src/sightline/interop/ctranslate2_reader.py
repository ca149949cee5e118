"""Read models in CTranslate2's format, and the packages of Argos Translate, which contain such models.

`ctranslate2_format.model_spec` maps CTranslate2's names to the weights of a model. Reading uses the same mapping: it
writes the arrays of the file into the weights of a new model. Weights in int8 or int16 become the floats that they
represent, so the model computes the same as CTranslate2 in float32.

Files are not trusted: lengths are checked against the size of the file, and unknown names and unsupported fields are
refused. Packages are read in memory; no file is unpacked to disk, and no code is run.

Sources end in the end token if `add_source_eos` is true, if Sightline wrote the model (unless its `source_end` is
false), and if answers begin with a zero vector, as Marian's do.
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
from sightline.files import optional_import, parse_json_object, read_file
from sightline.interop.native_order import to_internal_order
from sightline.model.initialise import sinusoids
from sightline.model.transformer import EncoderDecoder
from sightline.text.tokenizer import Tokenizer

Array = NDArray[Any]
Files = Mapping[str, bytes]

TYPES = "f4", "i1", "i2", "i4", "f2", "u2"
"""Types of arrays by CTranslate2's number. The last is bfloat16, which numpy does not have."""
BFLOAT16 = 5
OLDEST, NEWEST = 4, 6
"""Supported versions of the format."""
IRRELEVANT = ("/alignment_layer", "/alignment_heads", "/embeddings_merge")
"""Ends of names without effect on answers. Embeddings are merged only if there are several, which have other names."""
COMMON = ("num_heads", "pre_norm", "activation", "embeddings_merge", "alignment_layer", "alignment_heads")
"""Names that older files have once for encoder and decoder."""
MIN_LENGTH = 4096
"""Least `max_length` of a model with sinusoids: they need no training."""
MAX_SHARING = 32
"""Largest ratio of the weights of a model to those in its file, whose layers can share them."""
MAX_BYTES, MAX_COMPRESSION = 4 * 2**30, 200
"""Largest size and compression ratio of a file in a package."""
MODEL_FILES = re.compile(r"(model\.bin|config\.json|(shared|source|target)_vocabulary\.(json|txt))")
PIECES = "sentencepiece.model", "tokenizer.model", "source-tokenizer.model", "source.spm", "target.spm"


def read_ctranslate2(folder: Path | str, sentencepiece: Path | str | None = None) -> tuple[EncoderDecoder, Tokenizer]:
    """Return the model and the tokenizer in a folder of CTranslate2: `model.bin`, `config.json` (not in older folders)
    and vocabularies. `sentencepiece`: the model that splits text, if it is not in the folder."""
    folder = Path(folder)
    files = _files(folder, lambda name: bool(MODEL_FILES.fullmatch(name)) or name in PIECES)
    if sentencepiece is not None:
        files = {name: data for name, data in files.items() if name not in PIECES}
        files[PIECES[0]] = read_file(Path(sentencepiece))
    return _model(files, folder)


def read_argos(path: Path | str) -> tuple[EncoderDecoder, Tokenizer]:
    """Return the model and the tokenizer in a package of Argos Translate: an `.argosmodel` file or an unpacked one."""
    path = Path(path)
    if path.is_dir():
        found = [path, *sorted(inner for inner in path.iterdir() if inner.is_dir())]
        folder = next((each for each in found if (each / "metadata.json").is_file()), path)
        outer = _files(folder, lambda name: name in ("metadata.json", "bpe.model", *PIECES))
        inner = _files(folder / "model", lambda name: bool(MODEL_FILES.fullmatch(name)))
        return _package({**outer, **inner}, path)
    return _package(_unzipped(path), path)


def _package(files: Files, where: Path) -> tuple[EncoderDecoder, Tokenizer]:
    about = parse_json_object(files.get("metadata.json", b""), where / "metadata.json")
    for field, value in (("type", "translate"), ("target_prefix", "")):
        if about.get(field) not in (None, value):
            raise ConfigError(
                f"{where}: `{field}` must be {value!r}, got {about[field]!r}.", option=field, value=about[field]
            )
    if PIECES[0] not in files and "bpe.model" in files:
        raise ConfigError(f"{where}: bpe.model is not supported, only sentencepiece.model.", value="bpe.model")
    return _model(files, where)


# --- Files


def _files(folder: Path, wanted: Any) -> dict[str, bytes]:
    try:
        return {
            path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file() and wanted(path.name)
        }
    except OSError as error:
        raise CheckpointError(f"{error.filename or folder}: cannot be read: {error.strerror}.", value=folder) from None


def _unzipped(path: Path) -> dict[str, bytes]:
    """Return the files of a package that an import reads, by their names without a folder."""
    broken = zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, NotImplementedError, ValueError
    try:
        with zipfile.ZipFile(path) as archive:
            chosen = _chosen(archive.infolist(), path)
            return {name: archive.read(entry) for name, entry in chosen.items()}
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}.", value=path) from None
    except broken:
        raise CheckpointError(f"{path}: not a package of Argos Translate, or damaged.", value=path) from None


def _chosen(entries: list[zipfile.ZipInfo], where: Path) -> dict[str, zipfile.ZipInfo]:
    for entry in entries:
        if ".." in PurePosixPath(entry.filename).parts or entry.filename.startswith("/") or "\\" in entry.filename:
            raise CheckpointError(f"{where}: {entry.filename!r} is outside of the package.", value=entry.filename)
    roots = [PurePosixPath(e.filename).parent for e in entries if PurePosixPath(e.filename).name == "metadata.json"]
    if not roots:
        raise CheckpointError(f"{where}: not a package of Argos Translate: metadata.json is missing.", value=where)
    root = min(roots, key=lambda each: len(each.parts))
    found: dict[str, zipfile.ZipInfo] = {}
    for entry in entries:
        place = PurePosixPath(entry.filename)
        name = str(place.relative_to(root)) if place.is_relative_to(root) else ""
        inner = name.removeprefix("model/")
        if name in ("metadata.json", "bpe.model", *PIECES) or (inner != name and MODEL_FILES.fullmatch(inner)):
            if stat.S_ISLNK(entry.external_attr >> 16):
                raise CheckpointError(f"{where}: {entry.filename!r} is a link.", value=entry.filename)
            found[inner] = entry
        if entry.file_size > min(MAX_BYTES, MAX_COMPRESSION * max(entry.compress_size, 2**16)):
            raise CheckpointError(
                f"{where}: {entry.filename!r} is too large: {entry.file_size:,} bytes.", value=entry.filename
            )
    return found


# --- The file of the weights


class Variables:
    """The arrays of a `model.bin`, by the names of current versions."""

    def __init__(self, data: bytes, where: Path) -> None:
        self.where = where
        self.size = len(data)
        self._data, self._position = memoryview(data), 0
        self.version = self._number("I")
        if not OLDEST <= self.version <= NEWEST:
            raise CheckpointError(
                f"{where}: version {self.version} of the format is not supported, only {OLDEST} to {NEWEST}.",
                value=self.version,
            )
        self.kind = self._name()
        self._number("I")  # the revision; names of weights show its differences
        if self.kind != "TransformerSpec":
            raise ConfigError(
                f"Models of kind {self.kind!r} are not supported, only 'TransformerSpec'.", value=self.kind
            )
        found: dict[str, Array] = {}
        for _ in range(self._number("I")):
            name = self._name()
            if found.setdefault(name, value := self._array(name)) is not value:
                raise self._error(name, "appears twice")
        aliases = {self._name(): self._name() for _ in range(self._number("I"))}
        if self._position != self.size:
            raise CheckpointError(f"{where}: {self.size - self._position} bytes after the end.", value=where)
        for alias, name in aliases.items():
            if name not in found or alias in found:
                raise self._error(alias, f"invalid alias of {name!r}")
        self._origin = {_current_name(name): aliases.get(name, name) for name in [*found, *aliases]}
        """The array in the file, for each name."""
        self._found = found
        for name in COMMON:
            if name in self._origin:
                origin = self._origin.pop(name)
                self._origin |= {f"{side}/{name}": origin for side in ("encoder", "decoder")}

    @property
    def names(self) -> set[str]:
        """All names except those of the scales of weights."""
        return {name for name in self._origin if not name.endswith("weight_scale")}

    def origin(self, name: str) -> str:
        """Return the name of the array in the file; tied weights have the same."""
        if name not in self._origin:
            raise self._error(name, "missing weight")
        return self._origin[name]

    def shape(self, name: str, rank: int) -> tuple[int, ...]:
        """Return the shape of a variable with this many dimensions."""
        shape = self._found[self.origin(name)].shape
        if len(shape) != rank:
            raise self._error(name, f"expected {rank} dimensions, got shape {shape}")
        return shape

    def scalar(self, name: str, default: Any) -> Any:
        """Return a single number, an option of the model."""
        if name not in self._origin:
            return default
        value = self._found[self._origin[name]]
        if value.size != 1:
            raise self._error(name, f"expected one number, got shape {value.shape}")
        return value.item()

    def text(self, name: str, default: str) -> str:
        """Return the name of a token, which older files have among the variables."""
        return self._found[name].tobytes().decode(errors="replace") if name in self._found else default

    def value(self, name: str) -> object:
        """Return the value of a single number, else the shape."""
        value = self._found[self.origin(name)]
        return value.item() if value.size == 1 else value.shape

    def weights(self, name: str) -> NDArray[np.float32]:
        """Return a variable as floats."""
        origin = self.origin(name)
        value = self._found[origin]
        if value.dtype.kind == "f":
            return value.astype(np.float32, copy=False)
        scale = self._found.get(f"{origin}_scale")
        if scale is None or value.dtype.itemsize > 2:
            raise self._error(name, "integers without a scale")
        if scale.size != 1 and scale.shape != value.shape[:1]:
            raise self._error(name, f"scale of shape {scale.shape}")
        with np.errstate(all="ignore"):
            return value.astype(np.float32) / scale.astype(np.float32).reshape(-1, *[1] * (value.ndim - 1))

    def _take(self, count: int) -> memoryview:
        if count > self.size - self._position:
            raise CheckpointError(f"{self.where}: truncated, or not a model of CTranslate2.", value=self.where)
        self._position += count
        return self._data[self._position - count : self._position]

    def _number(self, kind: str) -> int:
        (found,) = struct.unpack(f"<{kind}", self._take(struct.calcsize(f"<{kind}")))
        return int(found)

    def _name(self) -> str:
        text = bytes(self._take(self._number("H")))
        try:
            return text.removesuffix(b"\0").decode()
        except UnicodeDecodeError:
            raise CheckpointError(f"{self.where}: a name is not valid UTF-8.", value=self.where) from None

    def _array(self, name: str) -> Array:
        shape = [self._number("I") for _ in range(self._number("B"))]
        kind, size = self._number("B"), self._number("I")
        if kind >= len(TYPES):
            raise self._error(name, f"unknown type {kind}")
        if math.prod(shape) * int(TYPES[kind][1]) != size or not size or len(shape) > 4:
            raise self._error(name, f"{size} bytes for shape {tuple(shape)}")
        found = np.frombuffer(self._take(size), f"<{TYPES[kind]}").reshape(shape)
        return (found.astype(np.uint32) << 16).view(np.float32) if kind == BFLOAT16 else found

    def _error(self, name: str, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {name!r}: {problem}.", value=name)


def _current_name(name: str) -> str:
    """Return the current name of a variable in an older file."""
    name = name.replace("embeddings/multiply_by_sqrt_depth", "scale_embeddings")
    return re.sub("^encoder/embeddings/", "encoder/embeddings_0/", name)


# --- The model


class Settings(NamedTuple):
    """Options apart from the shapes of weights: the special tokens, and the epsilon of norms."""

    start: str | None
    """The token that answers begin with; None for a zero vector."""
    end: str
    unknown: str
    source_end: bool
    epsilon: float


def _model(files: Files, where: Path) -> tuple[EncoderDecoder, Tokenizer]:
    if "model.bin" not in files:
        raise CheckpointError(f"{where}: no CTranslate2 model found: model.bin is missing.", value=where)
    try:
        theirs = Variables(files["model.bin"], where / "model.bin")
        settings = _settings(files, theirs, where)
        config = _config(theirs, settings)
        tokenizer, start = _tokenizer(files, theirs, settings, where)
        with torch.random.fork_rng(devices=[]):  # random initial weights are replaced
            model = EncoderDecoder(config)
            _fill(model, theirs)
            return to_internal_order(model, tokenizer, start), tokenizer
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}", option=error.option, value=error.value) from None


def _settings(files: Files, theirs: Variables, where: Path) -> Settings:
    """Return the options, which are in config.json since version 6, and among the variables before."""
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
            raise _unsupported(field, about[field], "false")
    start, end, unknown = (
        about.get(field, name)
        for field, name in (("decoder_start_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>"))
    )
    if not isinstance(start, str) and not zeros:
        raise _unsupported("decoder_start_token", start, "the name of a token")
    epsilon, ours = about.get("layer_norm_epsilon"), about.get("sightline")
    source_end = bool(about.get("add_source_eos")) or zeros
    if isinstance(ours, dict):
        source_end = bool(ours.get("source_end", True))
    if epsilon is not None and not (isinstance(epsilon, float) and epsilon > 0):
        raise _unsupported("layer_norm_epsilon", epsilon, "a positive number")
    return Settings(None if zeros else start, str(end), str(unknown), source_end, epsilon or 1e-5)


def _config(theirs: Variables, settings: Settings) -> ModelConfig:
    """Return the options that shapes and flags imply. `_fill` checks that all layers agree with the first one."""
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
        norm_epsilon=settings.epsilon,
        final_norm="encoder/layer_norm/gamma" in theirs.names,
        scale_embedding=_scaled(theirs, "encoder", d_model),
        embedding_norm="encoder/layernorm_embedding/gamma" in theirs.names,
        attention_bias="encoder/layer_0/self_attention/linear_0/bias" in theirs.names,
        classifier_bias="decoder/projection/bias" in theirs.names,
        source_end=settings.source_end,
    )
    if _count_weights(config) > MAX_SHARING * theirs.size:
        raise CheckpointError(f"{theirs.where}: too small for a model of these shapes.", value=theirs.where)
    return config


def _count_weights(config: ModelConfig) -> int:
    """Return an upper bound on the number of weights in the matrices of a model."""
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
    raise _unsupported("encoder/activation", number, ", ".join(ACTIVATIONS))


def _scaled(theirs: Variables, side: str, d_model: int) -> bool:
    """Return whether embeddings are scaled, from a flag or the factor itself."""
    name = f"{side}/scale_embeddings"
    value = theirs.scalar(name, True)
    if not isinstance(value, float):
        return bool(value)
    if value != 1 and not math.isclose(value, math.sqrt(d_model), rel_tol=1e-3):
        raise _unsupported(name, value, "1 or the square root of d_model")
    return value != 1


def _positions(theirs: Variables, d_model: int) -> PositionsConfig:
    base = "encoder/layer_0/self_attention/rotary_base"
    if base in theirs.names:
        return PositionsConfig(kind="rotary", max_timescale=float(theirs.scalar(base, 0)))
    encoder, decoder = (
        _table(theirs, f"{side}/position_encodings/encodings", d_model) for side in ("encoder", "decoder")
    )
    if encoder != decoder:
        raise ConfigError("The position encodings of encoder and decoder must be equal.")
    return encoder


def _table(theirs: Variables, name: str, d_model: int) -> PositionsConfig:
    """Return the sinusoids in a table, or learned positions. Without a table, CTranslate2 uses tensor2tensor's."""
    if name not in theirs.names:
        return PositionsConfig(kind="halves", frequencies="tensor2tensor", start=1, max_length=MIN_LENGTH)
    rows, wide = theirs.shape(name, 2)
    if wide != d_model or not rows:
        raise CheckpointError(f"{theirs.where}: {name!r}: shape {(rows, wide)} for vectors of {d_model}.", value=name)
    table = torch.from_numpy(theirs.weights(name).copy())
    if not table.any():
        return PositionsConfig(kind="none", max_length=rows)
    # The error of a table in single precision increases with the position.
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
                    return found.model_copy(update={"max_length": max(rows, MIN_LENGTH)})
    return PositionsConfig(kind="learned", max_length=rows)


@torch.no_grad()
def _fill(model: EncoderDecoder, theirs: Variables) -> None:
    """Set the weights of a model from a file, which must have exactly these."""
    config, where = model.config, theirs.where
    spec = model_spec(optional_import("ctranslate2", extra="fast").specs, model).variables()
    tables = {f"{side}/position_encodings/encodings" for side in ("encoder", "decoder")}
    options = {"with_source_bos", "with_source_eos", "with_target_bos", "user_decoder_start_tokens"}
    options |= {"decoder/start_from_zero_embedding", "unk_token", "bos_token", "eos_token"}
    unknown = sorted(name for name in theirs.names - spec.keys() - tables - options if not name.endswith(IRRELEVANT))
    if unknown:
        name, value = unknown[0], theirs.value(unknown[0])
        raise ConfigError.of(name, value, f"= {value} is not supported.")
    for name, ours in spec.items():
        if name in tables and config.positions.kind != "learned":
            continue
        if isinstance(ours, np.ndarray):
            shape = theirs.shape(name, ours.ndim)
            if shape != ours.shape:
                raise CheckpointError(f"{where}: {name!r}: expected shape {ours.shape}, got {shape}.", value=name)
            ours[...] = theirs.weights(name)
        elif not name.endswith(IRRELEVANT) and name not in options:
            _check_equal(theirs, name, ours, config)


def _check_equal(theirs: Variables, name: str, ours: Any, config: ModelConfig) -> None:
    value = theirs.scalar(name, ours)
    if name.endswith("/scale_embeddings"):
        value = _scaled(theirs, name.partition("/")[0], config.d_model)
    if name.endswith("/rotary_dim") and value == 0:  # all channels
        value = ours
    if value != ours:
        raise _unsupported(name, value, str(ours))


def _unsupported(option: str, value: object, supported: str) -> ConfigError:
    return ConfigError(f"`{option}` must be {supported}, got {value!r}.", option=option, value=value)


# --- The vocabulary


def _tokenizer(files: Files, theirs: Variables, settings: Settings, where: Path) -> tuple[Tokenizer, int | None]:
    """Return the tokenizer, and the native id of the token that answers begin with; None for a zero vector."""
    shared = any(f"shared_vocabulary.{kind}" in files for kind in ("json", "txt"))
    target = _entries(files, "shared" if shared else "target", where)
    source = target if shared else _entries(files, "source", where)
    sizes = (("encoder/embeddings_0", source), ("decoder/embeddings", target))
    for name, entries in sizes:
        rows, _ = theirs.shape(f"{name}/weight", 2)
        if len(entries) != rows:
            raise CheckpointError(f"{where}: the vocabulary has {len(entries)} entries, the model {rows}.", value=where)
    if settings.start is not None and settings.start not in target:
        raise CheckpointError(f"{where}: the start token {settings.start} is not in the vocabulary.", value=where)
    start = None if settings.start is None else target.index(settings.start)
    pieces = _pieces(files, where)
    sides = [
        Tokenizer.of_pieces(_renamed(side, settings), cut, str(where))
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
            raise CheckpointError(f"{where}: {name}.json is missing.", value=where)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(entry, str) for entry in found):
        raise CheckpointError(f"{where}: {name}: not a list of tokens.", value=where)
    return found


def _renamed(entries: list[str], settings: Settings) -> list[str]:
    """Return distinct entries, the special ones by our names. Other entries with such a name are ordinary tokens."""
    special = {name: f"{name}'" for name in ("<s>", "</s>", "<unk>")} | {
        settings.unknown: "<unk>",
        settings.end: "</s>",
    }
    if settings.start == "<s>":
        special["<s>"] = "<s>"
    names: dict[str, None] = {}
    for entry in entries:
        names[new_name(special.get(entry, entry), names)] = None
    return list(names)


def _pieces(files: Files, where: Path) -> tuple[bytes, bytes]:
    """Return the sentencepiece models of sources and targets."""
    pairs = [("source.spm", "target.spm"), ("source-tokenizer.model", "tokenizer.model")]
    pairs += [(name, name) for name in ("sentencepiece.model", "tokenizer.model", "source.spm")]
    for source, target in pairs:
        if source in files and target in files:
            cut = [Tokenizer(files[name], f"{where}/{name}").sentencepiece for name in (source, target)]
            if cut[0] is not None and cut[1] is not None:
                return cut[0], cut[1]
            raise ConfigError(f"{where}/{target}: not a sentencepiece model.", value=target)
    raise CheckpointError(
        f"{where}: `sentencepiece` not found: the folder has no sentencepiece.model. Pass the file.",
        option="sentencepiece",
        value=where,
    )
