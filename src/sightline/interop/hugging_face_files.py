"""Read and write folders of Hugging Face models: weights, configuration and vocabulary.

Reading never runs code: a pickle is loaded only if it contains nothing but tensors.
"""

import contextlib
import json
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from sightline.errors import CheckpointError, ConfigError, InputError
from sightline.files import optional_import, read_file, read_json_object
from sightline.interop.hugging_face import DEFAULTS, convert, to_hugging_face
from sightline.interop.native_order import to_internal_order, to_native_order
from sightline.model.transformer import EncoderDecoder, Model
from sightline.text.tokenizer import Tokenizer

SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"


def read_hugging_face(folder: Path) -> tuple[Model, Tokenizer]:
    """Return the model in a folder and its tokenizer, in the order of our ids."""
    about = read_json_object(folder / "config.json")
    kind = about.get("model_type")
    if kind not in DEFAULTS:
        raise ConfigError(
            f"{folder}: `model_type` = {kind!r} cannot be imported. Supported: {', '.join(DEFAULTS)}.",
            option="model_type",
            value=kind,
        )
    fields = {**DEFAULTS[kind], **about}
    if kind not in ("marian", "pegasus"):
        tokenizer = Tokenizer.load(folder)
        return to_internal_order(convert(about, read_weights(folder), str(folder)), tokenizer), tokenizer
    tokenizer = _marian_tokenizer(folder, fields)  # first, as the weights are large
    model = convert(about, read_weights(folder), str(folder))
    return to_internal_order(model, tokenizer, fields["decoder_start_token_id"]), tokenizer


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights in a folder by name, from one file or several."""
    for name, load in ((SAFETENSORS, _load_safetensors), (PICKLE, _load_pickle)):
        if (folder / name).exists():
            return load(folder / name)
        index = folder / f"{name}.index.json"
        if index.exists():
            return {name: weight for file in shards(index) for name, weight in load(folder / file).items()}
    raise CheckpointError(f"{folder}: no weights found: {SAFETENSORS} and {PICKLE} are missing.", value=folder)


def shards(index: Path) -> list[str]:
    """Return the names of the files in an index of weight files."""
    parts = read_json_object(index).get("weight_map")
    if not isinstance(parts, dict) or not all(isinstance(part, str) for part in parts.values()):
        raise CheckpointError(f"{index}: not an index of weight files.", value=index)
    return sorted({Path(part).name for part in parts.values()})


def _load_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}.", value=path) from None


def _load_pickle(path: Path) -> dict[str, Tensor]:
    """Load a pickle, which can run code: refuse anything but tensors before it is created."""
    try:
        with warnings.catch_warnings(action="ignore"):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path}: not loaded: the pickle contains more than tensors and could run code. Use safetensors.",
            value=path,
        ) from None
    except (OSError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: cannot be read: {str(error).splitlines()[0]}.", value=path) from None
    if not isinstance(found, dict) or not all(isinstance(weight, Tensor) for weight in found.values()):
        raise CheckpointError(f"{path}: not a dictionary of weights.", value=path)
    return found


def _marian_tokenizer(folder: Path, fields: dict[str, Any]) -> Tokenizer:
    """Return a tokenizer of Marian: sentencepiece splits sources and targets, each by its own model, and a list gives
    the id of each piece. Separate vocabularies have two lists."""
    start, sizes = fields["decoder_start_token_id"], [fields["vocab_size"]]
    names = ["vocab.json"]
    if (folder / "target_vocab.json").exists():
        names, sizes = ["vocab.json", "target_vocab.json"], [*sizes, fields["decoder_vocab_size"] or sizes[0]]
    lists = [_pieces(folder / name, size, start) for name, size in zip(names, sizes, strict=True)]
    cut = [read_file(folder / name) for name in ("source.spm", "target.spm")]
    source = Tokenizer.of_pieces(lists[0], cut[0], str(folder / "source.spm"))
    target = Tokenizer.of_pieces(lists[-1], cut[1], str(folder / "target.spm"))
    found = source if target.model == source.model else Tokenizer(target.model, str(folder / "target.spm"), source)
    for field, name in (("pad_token_id", "<pad>"), ("eos_token_id", "</s>")):
        if name in lists[-1] and lists[-1].index(name) != fields[field]:
            raise ConfigError(
                f"{folder}: `{field}` = {fields[field]!r} is not the id of {name}.", option=field, value=fields[field]
            )
    return found


def _pieces(path: Path, size: int, start: int) -> list[str]:
    """Return the pieces of a vocabulary in the order of their ids. An id without a piece gets a name. A piece <s> that
    answers do not begin with is an ordinary token."""
    found = read_json_object(path)
    numbers = list(found.values())
    if not all(isinstance(number, int) for number in numbers) or len(set(numbers)) < len(numbers):
        raise CheckpointError(f"{path}: not a vocabulary with a distinct id for each piece.", value=path)
    if not 0 <= min(numbers, default=0) <= max(numbers, default=0) < size:
        raise CheckpointError(f"{path}: an id is not below {size}, the size of the model's vocabulary.", value=path)
    pieces = [f"<{number}>" for number in range(size)]
    for piece, number in found.items():
        pieces[number] = f"{piece}'" if piece == "<s>" and number != start else piece
    return pieces


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide the progress bars of the library."""
    bars = optional_import("transformers", extra="export").utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()


def write_hugging_face(model: EncoderDecoder, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a folder that `AutoModelForSeq2SeqLM` and `AutoTokenizer` load. Its generation options suppress padding,
    start and unknown, and use four beams."""
    models = [side.sentencepiece for side in (tokenizer.source, tokenizer)]
    if None in models:
        raise ConfigError("Marian needs a sentencepiece vocabulary, and this model has another kind.")
    native = to_native_order(model, tokenizer)
    theirs = to_hugging_face(native.model, pad=native.pad, start=native.start, end=native.end)
    theirs.config.sightline = {"max_length": model.config.positions.max_length}  # marks the folder as written here
    search = theirs.generation_config
    search.suppress_tokens = sorted({native.pad, native.start, native.unknown})
    search.num_beams, search.max_length, search.max_new_tokens = 4, None, 512
    with quiet():
        theirs.save_pretrained(folder)
    for name, data in zip(("source.spm", "target.spm"), models, strict=True):
        (folder / name).write_bytes(data or b"")
    lists = {"vocab.json": native.source_pieces}
    if native.source_pieces != native.pieces:
        lists["target_vocab.json"] = native.pieces
    for name, pieces in lists.items():
        numbers = {piece: number for number, piece in enumerate(pieces)}
        if len(numbers) < len(pieces):
            raise InputError("Marian cannot have two vocabulary entries of the same name.")
        (folder / name).write_text(json.dumps(numbers, ensure_ascii=False), "utf-8")
    about = {"tokenizer_class": "MarianTokenizer", "model_max_length": model.config.positions.max_length}
    about |= {"separate_vocabs": len(lists) > 1, "source_lang": None, "target_lang": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2), "utf-8")
