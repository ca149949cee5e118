"""Validation during training: loss, perplexity, and scores of translations."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.config import SearchConfig
from sightline.data.feed import Feed, Place
from sightline.data.store import Store
from sightline.engine.results import Plan
from sightline.engine.translator import Translator, translation_request
from sightline.model.transformer import Model
from sightline.text.tokenizer import Tokenizer
from sightline.train.step import Objective

ScoreFunction = Callable[[Sequence[str], Sequence[str]], dict[str, float]]
"""A function from translations and references to scores by name."""
SAMPLES = 3


class ValidationResult(NamedTuple):
    """Loss, scores, and samples as (source, reference, translation)."""

    loss: float
    scores: dict[str, float]
    samples: list[tuple[str, str, str]]

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))


class Validation:
    """Validation text, prepared once and used after every epoch."""

    def __init__(
        self,
        store: Store,
        tokenizer: Tokenizer,
        *,
        batch_tokens: int,
        masked: int | None = None,
        score: ScoreFunction | None = None,
        pairs: Sequence[tuple[str, str]] = (),
        beams: int = 1,
        only: NDArray[np.int64] | None = None,
    ) -> None:
        """`pairs`: texts to translate, with references; `score` scores the translations. `masked`: vocabulary size, for
        a model that predicts masked words. `only`: indices of the pairs of the store to use."""
        longest = 1 + max(int(side.lengths.max()) for side in (store.source, store.target) if side is not None)
        self.store = store
        self.feed = Feed([store], batch_tokens=max(batch_tokens, longest), seed=0, masked=masked, only=only)
        self.tokenizer, self.score, self.pairs, self.beams = tokenizer, score, pairs, beams
        self.sources = tokenizer.source.encode([source for source, _ in pairs])

    @torch.no_grad()
    def __call__(self, model: Model, *, bfloat16: bool) -> ValidationResult:
        """Validate a model without changing it. Layers compiled for training run eagerly here: compiling them for the
        many shapes of validation would take a minute."""
        device, training = next(model.parameters()).device, model.training
        model.eval()
        try:
            with torch.compiler.set_stance("force_eager"):
                with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
                    loss = self.loss(Objective(model, 0.0), device)
                if not self.pairs:
                    return ValidationResult(loss, {}, [])
                texts = self._translate(model)
        finally:
            model.train(training)
        scores = self.score(texts, [reference for _, reference in self.pairs]) if self.score else {}
        samples = [(*pair, text) for pair, text in zip(self.pairs[:SAMPLES], texts, strict=False)]
        return ValidationResult(loss, scores, samples)

    def _translate(self, model: Model) -> list[str]:
        """Translate the sources; those that are longer than the model can read are cut. The size of the batches does
        not depend on free memory, so that a resumed run equals an uninterrupted one."""
        options, limit = SearchConfig(beams=self.beams), model.config.positions.max_length - 1
        requests = [translation_request(ids[:limit], options, model.config) for ids in self.sources]
        plan = Plan(
            requests,
            options,
            lambda answers: [self.tokenizer.decode(best.ids) for best, *_ in answers],
            log_probs=False,
        )
        with Translator(model, self.tokenizer, batch_tokens=self.feed.batch_tokens) as translator:
            return translator.run(plan)

    @torch.no_grad()
    def loss(self, objective: torch.nn.Module, device: torch.device) -> float:
        """Return the mean negative log-likelihood per token."""
        total, tokens = torch.zeros((), dtype=torch.float64), 0
        for number in range(len(self.feed.plan(0))):
            batch = self.feed.batch(Place(0, number))
            total += objective(batch.to(device)).nll.double().cpu()
            tokens += batch.tokens
        return float(total) / max(tokens, 1)
