"""Models of other programs: find one by its path or its name on the Hugging Face hub, and detect its format."""

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

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
Reader = Callable[[Path], tuple[Model, Tokenizer]]


def find_model(
    source: str, *, revision: str | None = None, offline: bool = False, log: Callable[[str], None] = lambda _: None
) -> Path:
    """Return the folder or package with this path, or else the downloaded model of this name on the hub. `log` receives
    one line before a download."""
    path = Path(source)
    if path.exists():
        return path
    if not HUB_NAME.fullmatch(source):
        raise InputError(
            f"{source}: no such folder or package, and not a name on the Hugging Face hub (OWNER/MODEL).", value=source
        )
    return fetch(source, revision=revision, offline=offline, log=log)


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
