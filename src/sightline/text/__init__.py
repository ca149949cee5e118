"""Text processing: tokenizers, splitting, streaming, dialogues, words and shortlists."""

from typing import TYPE_CHECKING

from sightline.lazy import lazy_exports

if TYPE_CHECKING:
    from sightline.text.dialogue import DialogueFormat, Turn, alternating_turns
    from sightline.text.tokenizer import Tokenizer

__all__ = ["DialogueFormat", "Tokenizer", "Turn", "alternating_turns"]
__getattr__, __dir__ = lazy_exports(__name__)
