"""Where models are, and where what is made from them goes."""

import os
from pathlib import Path

__all__ = ["cache_folder", "made_from", "model_folder", "shipped"]

SHIPPED = Path(__file__).parent / "shipped"


def shipped() -> list[str]:
    """The names of the models that come with Sightline."""
    return sorted(path.parent.name for path in SHIPPED.glob("*/config.json"))


def model_folder(model: str | Path) -> Path:
    """The folder of a model that is named by its folder, or by the name of a shipped one (coref), or of a state of that
    (coref/states/step-00000080)."""
    inside = SHIPPED / model
    return inside if not Path(model).exists() and (inside / "config.json").exists() else Path(model)


def made_from(folder: Path) -> Path:
    """Where files go that are made from a model: beside it; those of a shipped one into the user's cache."""
    return cache_folder() / "models" / folder.relative_to(SHIPPED) if SHIPPED in folder.parents else folder


def cache_folder() -> Path:
    """What can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sightline"
