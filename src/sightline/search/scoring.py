"""Scores of the next token: from one model or several, and the highest of them."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sightline.errors import ConfigError
from sightline.model.hooks import hooks
from sightline.model.kernels.decode import CHUNK
from sightline.model.protocol import DecodeState, Generative, Inputs
from sightline.model.transformer import CrossAttention, attention_weights


class Scores(NamedTuple):
    """Scores of the next token of each row. Log-probabilities are values - norm; the subtraction, a pass over the whole
    vocabulary, is made for the best tokens only."""

    values: Float[Tensor, "rows vocab"]
    norm: Float[Tensor, " rows"]
    maxima: Float[Tensor, "rows chunks"] | None = None
    """The highest value of each `CHUNK` neighbouring tokens, if a kernel has found it on the way."""
    attention: Float[Tensor, "rows source"] | None = None
    """Attention of the last token to the source, if requested."""

    def update_first_chunk(self) -> None:
        """Find the first maximum again, after the special tokens have got other values."""
        if self.maxima is not None:
            self.maxima[:, 0] = self.values[:, :CHUNK].amax(1)


class EnsembleState(NamedTuple):
    """The states of the members of an ensemble."""

    states: Sequence[DecodeState]

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        for state in self.states:
            state.reorder(rows)

    def select(self, sentences: Int[Tensor, " kept"]) -> None:
        for state in self.states:
            state.select(sentences)


class Ensemble:
    """Several models of one vocabulary as one: the mean of their probabilities."""

    def __init__(self, models: Sequence[Generative]) -> None:
        self.models, self.device = models, models[0].device
        self.config = min((model.config for model in models), key=lambda config: config.positions.max_length)

    def start(self, inputs: Inputs, *, beams: int = 1, capacity: int) -> EnsembleState:
        return EnsembleState([model.start(inputs, beams=beams, capacity=capacity) for model in self.models])

    def step(self, tokens: Int[Tensor, "rows 1"], state: EnsembleState) -> Float[Tensor, "rows vocab"]:
        both = zip(self.models, state.states, strict=True)
        log_probs = [model.step(tokens, own).float().log_softmax(-1) for model, own in both]
        return torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))


def next_scores(
    model: Generative, tokens: Int[Tensor, "rows 1"], state: DecodeState, watched: Sequence[nn.Module] = ()
) -> Scores:
    """Return the scores of the tokens that can follow these. `watched`: the attention to the source to return, as their
    mean."""
    seen: list[Tensor] = []

    def look(args: Sequence[Any]) -> None:
        q, k, _, mask = args
        seen.append(attention_weights(q, k, mask).mean(1))

    with hooks([(module, look) for module in watched]):
        logits = model.step(tokens, state)
    # The beams of a sentence are queries of one row.
    weights = torch.stack(seen).mean(0).flatten(0, 1) if watched else None
    return Scores(logits, logits.float().logsumexp(-1), attention=weights)


def last_cross_attention(model: Generative) -> list[nn.Module]:
    """Return the encoder-decoder attention of the last decoder layer, of each member of an ensemble."""
    models = model.models if isinstance(model, Ensemble) else [model]
    found: list[nn.Module] = []
    for one in models:
        parts = one.modules() if isinstance(one, nn.Module) else ()
        layers = [part for part in parts if isinstance(part, CrossAttention)]
        if not layers:
            raise ConfigError.of(
                "coverage_penalty",
                None,
                "needs encoder-decoder attention, and this model does not give it. Set it to 0.",
            )
        found.append(layers[-1].attend)
    return found


def highest(
    values: Float[Tensor, "rows n"], count: int, maxima: Float[Tensor, "rows chunks"] | None = None
) -> tuple[Float[Tensor, "rows c"], Int[Tensor, "rows c"]]:
    """Return the highest values of each row, sorted, and their columns. `maxima`: of each `CHUNK` columns, if known.

    They are in the chunks with the highest maxima, and a maximum is found much faster than an order."""
    rows, n = values.shape
    whole = n // CHUNK * CHUNK
    if count * CHUNK * 4 > n:
        found = values.topk(min(count, n), dim=1)
        return found.values.float(), found.indices
    if maxima is None:
        maxima = values[:, :whole].view(rows, -1, CHUNK).amax(2)
        if whole < n:
            maxima = torch.cat([maxima, values[:, whole:].amax(1, keepdim=True)], 1)
    best = maxima.topk(count, dim=1).indices
    columns = (best[:, :, None] * CHUNK + torch.arange(CHUNK, device=values.device)).flatten(1)
    some = values.gather(1, columns.clamp(max=n - 1)).float().masked_fill(columns >= n, -math.inf)
    found = some.topk(count, dim=1)
    return found.values, columns.gather(1, found.indices)
