"""Conversion: models of Hugging Face, Marian, CTranslate2 and Argos Translate to ours, and ours to other formats."""

from typing import TYPE_CHECKING

from sightline.lazy import lazy_exports

if TYPE_CHECKING:
    from sightline.interop.export import export_model
    from sightline.interop.hugging_face import from_hugging_face, to_hugging_face
    from sightline.interop.reading import import_model

__all__ = ["export_model", "from_hugging_face", "import_model", "to_hugging_face"]
__getattr__, __dir__ = lazy_exports(__name__)
