"""Folders of Hugging Face models: read as a model of ours with its vocabulary, and written.

Nothing in a folder is run. Weights are best in safetensors; a pickle is read as far as it has numbers only.
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
from sightline.files import optional_import, read_json_object
from sightline.interop.hugging_face import DEFAULTS, converted, to_hugging_face
from sightline.interop.numbers import adopted, returned
from sightline.model.transformer import EncoderDecoder, Model
from sightline.text.tokenizer import Tokenizer

__all__ = ["quiet", "read_hugging_face", "read_weights", "write_hugging_face"]

SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"


def read_hugging_face(folder: Path) -> tuple[Model, Tokenizer]:
    """The model in a folder and its vocabulary, with our numbers for its tokens."""
    about = read_json_object(folder / "config.json")
    kind = about.get("model_type")
    if kind not in DEFAULTS:
        raise ConfigError(f"{folder}: model_type = {kind!r} cannot be imported; known are {', '.join(DEFAULTS)}.")
    fields = {**DEFAULTS[kind], **about}
    if kind not in ("marian", "pegasus"):
        tokenizer = Tokenizer.load(folder)
        return adopted(converted(about, read_weights(folder), str(folder)), tokenizer), tokenizer
    tokenizer = _pieces_tokenizer(folder, fields)  # before the weights, which are large
    model = converted(about, read_weights(folder), str(folder))
    return adopted(model, tokenizer, fields["decoder_start_token_id"]), tokenizer


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The weights in a folder by name, from one file or from several."""
    for name, load in ((SAFE, _load_safe), (PICKLED, _load_pickled)):
        if (folder / name).exists():
            return load(folder / name)
        if (folder / f"{name}.index.json").exists():
            parts = read_json_object(folder / f"{name}.index.json").get("weight_map")
            if not isinstance(parts, dict) or not all(isinstance(part, str) for part in parts.values()):
                raise CheckpointError(f"{folder / name}.index.json: this is no list of files with weights.")
            files = sorted({Path(part).name for part in parts.values()})
            return {name: weight for file in files for name, weight in load(folder / file).items()}
    raise CheckpointError(f"{folder}: there are no weights here; {SAFE} or {PICKLED} has them.")


def _load_safe(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: the weights cannot be read: {error}.") from None


def _load_pickled(path: Path) -> dict[str, Tensor]:
    """A pickle can run code when it is loaded; so whatever is not a tensor is refused before anything is made of it."""
    try:
        with warnings.catch_warnings(action="ignore"):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path}: this pickle has more in it than weights and could run code; it was not loaded. Take safetensors."
        ) from None
    except (OSError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: the weights cannot be read: {str(error).splitlines()[0]}.") from None
    if not isinstance(found, dict) or not all(isinstance(weight, Tensor) for weight in found.values()):
        raise CheckpointError(f"{path}: this is no list of weights by name.")
    return found


def _pieces_tokenizer(folder: Path, fields: dict[str, Any]) -> Tokenizer:
    """As Marian has it: sentencepiece cuts sources and targets, each by its own model, and a list numbers the pieces;
    where the vocabularies are two, there are two lists."""
    start, sizes = fields["decoder_start_token_id"], [fields["vocab_size"]]
    names = ["vocab.json"]
    if (folder / "target_vocab.json").exists():
        names, sizes = ["vocab.json", "target_vocab.json"], [*sizes, fields["decoder_vocab_size"] or sizes[0]]
    lists = [_pieces(folder / name, size, start) for name, size in zip(names, sizes, strict=True)]
    try:
        cut = [(folder / name).read_bytes() for name in ("source.spm", "target.spm")]
    except OSError as error:
        raise CheckpointError(f"{error.filename}: cannot be read: {error.strerror}.") from None
    source = Tokenizer.of_pieces(lists[0], cut[0], str(folder / "source.spm"))
    target = Tokenizer.of_pieces(lists[-1], cut[1], str(folder / "target.spm"))
    found = source if target.model == source.model else Tokenizer(target.model, str(folder / "target.spm"), source)
    for field, name in (("pad_token_id", "<pad>"), ("eos_token_id", "</s>")):
        if name in lists[-1] and lists[-1].index(name) != fields[field]:
            raise ConfigError(f"{folder}: {field} = {fields[field]!r} is not {name} of the vocabulary.")
    return found


def _pieces(path: Path, size: int, start: int) -> list[str]:
    """The entries of a vocabulary in the order of their numbers. A number without one gets a name. An entry <s> that
    answers do not begin with is none of the special tokens here."""
    found = read_json_object(path)
    numbers = list(found.values())
    if not all(isinstance(number, int) for number in numbers) or len(set(numbers)) < len(numbers):
        raise CheckpointError(f"{path}: this is no vocabulary, a number for each piece.")
    if not 0 <= min(numbers, default=0) <= max(numbers, default=0) < size:
        raise CheckpointError(f"{path}: the vocabulary has numbers that the model, with its {size} entries, has not.")
    pieces = [f"<{number}>" for number in range(size)]
    for piece, number in found.items():
        pieces[number] = f"{piece}'" if piece == "<s>" and number != start else piece
    return pieces


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The library draws bars for each file."""
    bars = optional_import("transformers", extra="export").utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()


def write_hugging_face(model: EncoderDecoder, tokenizer: Tokenizer, folder: Path) -> None:
    """A folder that `AutoModelForSeq2SeqLM` and `AutoTokenizer` load. What may not come in an answer (padding, start,
    unknown) is suppressed there too, and the search is by four beams."""
    models = [side.sentencepiece for side in (tokenizer.source, tokenizer)]
    if None in models:
        raise ConfigError("Marian's folders have a vocabulary of sentencepiece, and this model has another kind.")
    own = returned(model, tokenizer)
    theirs = to_hugging_face(own.model, pad=own.pad, start=own.start, end=own.end)
    theirs.config.sightline = {"max_length": model.config.positions.max_length}  # by which we know the folder again
    search = theirs.generation_config
    search.suppress_tokens = sorted({own.pad, own.start, own.unknown})
    search.num_beams, search.max_length, search.max_new_tokens = 4, None, 512
    with quiet():
        theirs.save_pretrained(folder)
    for name, data in zip(("source.spm", "target.spm"), models, strict=True):
        (folder / name).write_bytes(data or b"")
    lists = {"vocab.json": own.source_pieces}
    if own.source_pieces != own.pieces:
        lists["target_vocab.json"] = own.pieces
    for name, pieces in lists.items():
        numbers = {piece: number for number, piece in enumerate(pieces)}
        if len(numbers) < len(pieces):
            raise InputError("two entries of the vocabulary are written alike, and a list by name cannot have both.")
        (folder / name).write_text(json.dumps(numbers, ensure_ascii=False), "utf-8")
    about = {"tokenizer_class": "MarianTokenizer", "model_max_length": model.config.positions.max_length}
    about |= {"separate_vocabs": len(lists) > 1, "source_lang": None, "target_lang": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2), "utf-8")
