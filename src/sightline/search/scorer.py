"""What comes next: a score for every token after each hypothesis, from one model or from several that vote."""

import math
from collections.abc import Sequence
from threading import get_ident
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sightline.model.kernels.decode import CHUNK
from sightline.model.mask import Layout
from sightline.model.protocol import Inputs
from sightline.model.transformer import EncoderDecoder
from sightline.special import PAD

__all__ = ["Scorer", "Scores", "highest"]


class Scores(NamedTuple):
    """What is said of the token that comes next in each row. Log-probabilities are values - norm. (Subtracting it from
    all of them is a pass over the whole vocabulary, which only few tokens need.)"""

    values: Float[Tensor, "rows vocab"]
    norm: Float[Tensor, " rows"]
    maxima: Float[Tensor, "rows chunks"] | None = None
    """The highest value of every `CHUNK` tokens, where it was found on the way."""
    attention: Float[Tensor, "rows source"] | None = None
    """What the last token looks at, where that was asked for."""

    def look_again(self) -> None:
        """After the first few tokens, which are no words, have got other values."""
        if self.maxima is not None:
            self.maxima[:, 0] = self.values[:, :CHUNK].amax(1)


class Scorer:
    """The hypotheses of a batch of sources, `beams` neighbouring rows for each, as far as the models are concerned."""

    @torch.no_grad()
    def __init__(
        self,
        models: Sequence[EncoderDecoder],
        source: Int[Tensor, "sentences source"],
        *,
        beams: int,
        capacity: int,
        watched: bool = False,
    ) -> None:
        """`source` is padded on the right. `watched`: tell what each new token looks at."""
        there = source != PAD
        layout: Layout = None if bool(there.all()) else there
        self.models = models
        self.caches = [
            model.start(Inputs(source, source_layout=layout), capacity=capacity, beams=beams) for model in models
        ]
        self.watched = watched
        self.attention: Float[Tensor, "rows source"] | None = None

    @torch.no_grad()
    def next(self, tokens: Int[Tensor, "rows 1"]) -> Scores:
        """The scores of the tokens that could follow these."""
        self.attention = None
        if len(self.models) == 1:
            logits = self._step(0, tokens)
            return Scores(logits, logits.logsumexp(-1), attention=self.attention)
        votes = [self._step(i, tokens).log_softmax(-1) for i in range(len(self.models))]
        norm = torch.full((len(tokens),), math.log(len(votes)), device=tokens.device)
        mean = torch.stack(votes).logsumexp(0)  # of their probabilities, but for the norm
        return Scores(mean, norm, attention=self.attention)

    def _step(self, i: int, tokens: Tensor) -> Float[Tensor, "rows vocab"]:
        model, cache = self.models[i], self.caches[i]
        if not self.watched:
            return model.step(tokens, cache).float()
        seen: list[Tensor] = []
        here = get_ident()

        def look(_: Any, given: tuple[Any, ...]) -> None:
            if get_ident() != here:
                return
            q, k, _, mask = given
            scores = (q.float() @ k.float().mT) * q.shape[-1] ** -0.5
            scores = scores if mask.allowed is None else scores.masked_fill(~mask.allowed, -math.inf)
            seen.append(scores.softmax(-1).mean(1))

        hook = model.decoder.layers[-1].cross_attention.attend.register_forward_pre_hook(look)
        try:
            logits = model.step(tokens, cache).float()
        finally:
            hook.remove()
        mean = seen[0].flatten(0, 1) / len(self.models)  # the beams of a sentence ask one after another
        self.attention = mean if self.attention is None else self.attention + mean
        return logits

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Let each row go on from another one of its sentence."""
        for cache in self.caches:
            cache.reorder(rows)

    def keep(self, sentences: Int[Tensor, " kept"]) -> None:
        """Go on with these sentences alone."""
        for cache in self.caches:
            cache.select(sentences)


def highest(
    values: Float[Tensor, "rows n"], count: int, maxima: Float[Tensor, "rows chunks"] | None = None
) -> tuple[Float[Tensor, "rows c"], Int[Tensor, "rows c"]]:
    """The highest values of each row, sorted, and where they are. `maxima`: of every `CHUNK` of them, if known.

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
    where = (best[:, :, None] * CHUNK + torch.arange(CHUNK, device=values.device)).flatten(1)
    some = values.gather(1, where.clamp(max=n - 1)).float().masked_fill(where >= n, -math.inf)
    found = some.topk(count, dim=1)
    return found.values, where.gather(1, found.indices)
