"""Models of other programs: detect the format of a folder or package, and import it."""

from collections.abc import Callable
from pathlib import Path

from sightline.errors import InputError
from sightline.interop.ctranslate2_reader import read_argos, read_ctranslate2
from sightline.interop.hub import find_model
from sightline.interop.hugging_face_files import read_hugging_face
from sightline.interop.marian import read_marian
from sightline.model.transformer import Model
from sightline.model_folder import count_parameters, save_model
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


def import_model(
    source: str,
    out: Path,
    *,
    revision: str | None = None,
    offline: bool = False,
    log: Callable[[str], None] = lambda _: None,
) -> None:
    """Convert a model of another program to a model folder. `source`: its folder or package, or its name on the hub.

    `revision` and `offline` are those of `find_model`. `log` receives a line before a download and one about the model.
    """
    if (out / "config.json").exists() or (out / "model.safetensors").exists():
        raise InputError.of("out", out, f"already contains a model: {out}. Choose another folder.")
    path = find_model(source, revision=revision, offline=offline, log=log)
    kind, read = detect_format(path)
    model, tokenizer = read(path)
    save_model(model, out, tokenizer)
    words = f"{tokenizer.size:,} entries" if tokenizer.joint else f"{tokenizer.source.size:,} and {tokenizer.size:,}"
    log(f"{kind}: {model.config.architecture}, {count_parameters(model):,} parameters, vocabulary of {words}")
