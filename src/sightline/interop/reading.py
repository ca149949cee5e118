"""Models of other programs: detect the format of a folder or package."""

from collections.abc import Callable
from pathlib import Path

from sightline.errors import InputError
from sightline.interop.ctranslate2_reader import read_argos, read_ctranslate2
from sightline.interop.hugging_face_files import read_hugging_face
from sightline.interop.marian import read_marian
from sightline.model.transformer import Model
from sightline.text.tokenizer import Tokenizer

Reader = Callable[[Path], tuple[Model, Tokenizer]]


def detect_format(path: Path) -> tuple[str, Reader]:
    """Return the name of the format of a folder or package, and the function that reads it."""
    if path.is_file():
        return "an Argos Translate package", read_argos
    formats: dict[str, tuple[str, Reader]] = {
        "metadata.json": ("an Argos Translate package", read_argos),
        "model.bin": ("a CTranslate2 model", read_ctranslate2),
        "*.npz": ("a Marian model", read_marian),
        "config.json": ("a Hugging Face model", read_hugging_face),
    }
    for pattern, found in formats.items():
        if any(path.glob(pattern)):
            return found
    raise InputError(f"{path}: unknown format: none of {', '.join(formats)} found.", value=path)
