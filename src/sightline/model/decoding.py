"""Decoding with a cache: how a model with a decoder writes token by token."""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from sightline.config import ModelConfig
from sightline.model.cache import Cache, CrossKV
from sightline.model.mask import longest_row
from sightline.model.protocol import Inputs
from sightline.model.static_cache import StaticCache


class Decoding:
    """Base of the models with a decoder."""

    config: ModelConfig
    decoder: Any
    classifier: nn.Linear

    def project_source(self, inputs: Inputs) -> list[CrossKV]:  # noqa: ARG002
        """Return each decoder layer's keys and values of the encoder's output; none without an encoder."""
        return []

    def start(self, inputs: Inputs, *, beams: int = 1, capacity: int, static: bool = False) -> Cache:
        """Read the source, if any, and the target so far; return the cache after them, with `beams` equal rows for each
        sentence. The target is read once per sentence. It is padded on the right, and may be empty."""
        cross, target, kind = self.project_source(inputs), inputs.target, StaticCache if static else Cache
        sentences = len(cross[0].keys) if cross else len(inputs.require("target"))
        like = cross[0].keys if cross else self.classifier.weight
        cache = kind(self.config, sentences, beams, capacity, like=like, cross=cross)
        limit = self.config.positions.max_length
        if target is not None and (columns := longest_row(target, inputs.target_layout, limit)):
            prefix = Cache(self.config, sentences, 1, columns, like=like)
            self.decoder(target, inputs.target_layout, cross, prefix)
            cache.copy_from(prefix)
        return cache

    def step(self, tokens: Int[Tensor, "rows 1"], state: Cache) -> Float[Tensor, "rows vocab"]:
        """Read the next token of each row; return a score for every token that could follow it."""
        scores: Tensor = self.classifier(self.decoder(tokens, None, state.cross, state))
        return scores[:, -1]
