"""The reader: an encoder that reads a text (BERT)."""

from sightline.engine.base import Engine
from sightline.special import END, START
from sightline.trace.trace import Trace


class Reader(Engine):
    """A trained encoder."""

    def trace(self, text: str | list[int], /) -> Trace:
        """Trace the model on a text, or on ids (with start and end) exactly as they are."""
        ids = [START, *self.tokenizer.encode([text])[0], END] if isinstance(text, str) else text
        return self._trace(source=ids)
