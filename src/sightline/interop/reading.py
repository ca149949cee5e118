"""Models from elsewhere, whatever they are: a folder, a package or a name on the Hugging Face hub."""

import re
from collections.abc import Callable
from pathlib import Path

from sightline.errors import InputError
from sightline.interop.ctranslate2_reader import read_argos, read_ctranslate2
from sightline.interop.hub import fetch
from sightline.interop.hugging_face_files import read_hugging_face
from sightline.interop.marian import read_marian
from sightline.model.transformer import Model
from sightline.text.tokenizer import Tokenizer

__all__ = ["find", "kind_of"]

HUB = re.compile(r"[\w.-]+/[\w.-]+")
Reader = Callable[[Path], tuple[Model, Tokenizer]]


def find(
    source: str, *, revision: str | None = None, offline: bool = False, tell: Callable[[str], None] = lambda _: None
) -> Path:
    """The folder or package of that path; where there is none, the model of that name on the hub. `tell` gets a line on
    what is about to be fetched."""
    path = Path(source)
    if path.exists():
        return path
    if not HUB.fullmatch(source):
        raise InputError(f"{source}: there is no such folder or package, and a name on the hub is written OWNER/MODEL.")
    return fetch(source, revision=revision, offline=offline, tell=tell)


def kind_of(path: Path) -> tuple[str, Reader]:
    """What a folder or package has in it, in words, and what reads it."""
    if path.is_file():
        return "an Argos Translate package", read_argos
    marks: dict[str, tuple[str, Reader]] = {
        "metadata.json": ("an Argos Translate package", read_argos),
        "model.bin": ("a CTranslate2 model", read_ctranslate2),
        "*.npz": ("a Marian model", read_marian),
        "config.json": ("a Hugging Face model", read_hugging_face),
    }
    for mark, found in marks.items():
        if any(path.glob(mark)):
            return found
    raise InputError(f"{path}: no kind of model is known that has neither of {', '.join(marks)}.")
