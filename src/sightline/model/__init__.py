"""The Transformer, its masks and its cache."""

from typing import TYPE_CHECKING

from sightline.lazy import lazy_exports

if TYPE_CHECKING:
    from sightline.model.mask import PackedRows
    from sightline.model.protocol import Inputs
    from sightline.model.transformer import Attend, DecoderOnly, EncoderDecoder, EncoderOnly, attention_weights, build

__all__ = [
    "Attend",
    "DecoderOnly",
    "EncoderDecoder",
    "EncoderOnly",
    "Inputs",
    "PackedRows",
    "attention_weights",
    "build",
]
__getattr__, __dir__ = lazy_exports(__name__)
