"""Where models are, and where what is made from them goes."""

import os
from pathlib import Path

__all__ = ["cache_folder", "kept_file", "made_from", "model_folder", "shipped"]

SHIPPED = Path(__file__).parent / "shipped"


def shipped() -> list[str]:
    """The names of the models that come with Sightline."""
    return sorted(path.name for path in SHIPPED.iterdir() if _is_model(path))


def model_folder(model: str | Path) -> Path:
    """The folder of a model that is named by its folder, or by the name of a shipped one (coref), or of a state of that
    (coref/states/step-00000080)."""
    local, inside = Path(model), SHIPPED / model
    try:
        return inside if not _is_model(local) and _is_model(inside) else local
    except OSError:  # a name that no file can have, or a folder that nobody may look into
        return local


def made_from(folder: Path) -> Path:
    """Where files go that are made from a model: beside it; those of a shipped one into the user's cache."""
    whole, place = folder.resolve(), SHIPPED.resolve()
    return cache_folder() / "models" / whole.relative_to(place) if place in whole.parents else folder


def kept_file(folder: Path, name: str) -> Path:
    """A file that belongs to a model: what the user made of it goes before what it came with."""
    made = made_from(folder) / name
    return made if made.exists() else folder / name


def cache_folder() -> Path:
    """What can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sightline"


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").exists()
