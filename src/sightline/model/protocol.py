"""The three protocols of a model: what training and traces need, what a search needs, and the state of a search. Our
models with a decoder get theirs from `Decoding`."""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sightline.config import ModelConfig
from sightline.errors import InputError
from sightline.model.cache import Cache, CrossKV
from sightline.model.mask import Layout, longest_row


class Inputs(NamedTuple):
    """The input of a model: ids of its encoder and of its decoder, each with the layout of their rows."""

    source: Int[Tensor, "batch source"] | None = None
    target: Int[Tensor, "batch target"] | None = None
    source_layout: Layout = None
    target_layout: Layout = None
    segments: Int[Tensor, "batch source"] | None = None

    def require(self, name: Literal["source", "target"]) -> Int[Tensor, "batch length"]:
        """Return the ids of this side, which the model needs."""
        ids = self.source if name == "source" else self.target
        if ids is None:
            raise InputError(f"The model needs the ids `{name}`.", option=name)
        return ids


@runtime_checkable
class Model(Protocol):
    """A Transformer of any architecture."""

    config: ModelConfig
    classifier: nn.Linear

    def hidden(self, inputs: Inputs) -> Float[Tensor, "batch length d_model"]:
        """Compute everything below the classifier."""

    def compile_units(self) -> Iterable[nn.Module]:
        """Yield the modules to compile, shard or checkpoint one by one."""


@runtime_checkable
class DecodeState(Protocol):
    """The state of a batch of hypotheses, `beams` neighbouring rows for each sentence: a key/value cache."""

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Let row i continue row `rows[i]`, one of the same sentence."""

    def select(self, sentences: Int[Tensor, " kept"]) -> None:
        """Keep these sentences only, each with its beams."""


@runtime_checkable
class Generative(Protocol):
    """A model that writes. Exported graphs are one too."""

    config: ModelConfig

    @property
    def device(self) -> torch.device: ...

    def start(self, inputs: Inputs, *, beams: int = 1, capacity: int) -> DecodeState:
        """Read the source, if any, and the target so far, padded on the right; return the state after them, `beams`
        equal rows for each sentence. `capacity`: positions of the longest target, those read here included."""

    def step(self, tokens: Int[Tensor, "rows 1"], state: Any, /) -> Float[Tensor, "rows vocab"]:
        """Read the next token of each row; return a score for every token that could follow it."""


class Decoding:
    """Base of our models with a decoder: how they write token by token. They are `Generative`."""

    config: ModelConfig
    decoder: Any
    classifier: nn.Linear

    def project_source(self, inputs: Inputs) -> list[CrossKV]:  # noqa: ARG002
        """Return each decoder layer's keys and values of the encoder's output; none without an encoder."""
        return []

    def start(self, inputs: Inputs, *, beams: int = 1, capacity: int) -> Cache:
        """Read the source, if any, and the target so far; return the cache after them, with `beams` equal rows for each
        sentence. The target is read once per sentence. It is padded on the right, and may be empty."""
        cross, target = self.project_source(inputs), inputs.target
        sentences = len(cross[0].keys) if cross else len(inputs.require("target"))
        like = cross[0].keys if cross else self.classifier.weight
        cache = Cache(self.config, sentences, beams, capacity, like=like, cross=cross)
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
