"""Validation during training: loss, perplexity, and scores of the model's answers."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sightline.data.batches import MakeBatch, collate
from sightline.data.feed import Feed, Place
from sightline.data.store import Store
from sightline.model.transformer import Model
from sightline.text.tokenizer import Tokenizer
from sightline.train.step import Objective

ScoreFunction = Callable[[Sequence[str], Sequence[str]], dict[str, float]]
"""A function from answers and references to scores by name."""
SAMPLES = 3


class Answer(Protocol):
    """Answers texts by the engine of a task. Its batches have at most this many tokens, whatever memory is free, so
    that a resumed run equals an uninterrupted one."""

    def __call__(
        self, model: Model, tokenizer: Tokenizer, sources: Sequence[str], /, *, beams: int, batch_tokens: int
    ) -> list[str]: ...


class ValidationResult(NamedTuple):
    """Loss, scores, and samples as (source, reference, answer)."""

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
        make: MakeBatch = collate,
        objective: Callable[..., nn.Module] = Objective,
        answer: Answer | None = None,
        pairs: Sequence[tuple[str, ...]] = (),
        score: ScoreFunction | None = None,
        beams: int = 1,
        only: NDArray[np.int64] | None = None,
    ) -> None:
        """`pairs`: texts to answer by `answer`, with references; `score` scores the answers. `only`: indices of the
        examples of the store to use."""
        longest = 1 + max(int(side.lengths.max()) for side in (store.source, store.target) if side is not None)
        self.store, self.tokenizer, self.objective = store, tokenizer, objective
        self.feed = Feed([store], batch_tokens=max(batch_tokens, longest), seed=0, make=make, only=only)
        self.answer, self.pairs, self.score, self.beams = answer, pairs if answer else (), score, beams

    @torch.no_grad()
    def __call__(self, model: Model, *, bfloat16: bool) -> ValidationResult:
        """Validate a model without changing it. Layers compiled for training run eagerly here: compiling them for the
        many shapes of validation would take a minute."""
        device, training = next(model.parameters()).device, model.training
        model.eval()
        try:
            with torch.compiler.set_stance("force_eager"):
                with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
                    loss = self.loss(self.objective(model, 0.0), device)
                if not self.answer or not self.pairs:
                    return ValidationResult(loss, {}, [])
                sources, references = zip(*self.pairs, strict=True)
                texts = self.answer(
                    model, self.tokenizer, sources, beams=self.beams, batch_tokens=self.feed.batch_tokens
                )
        finally:
            model.train(training)
        scores = self.score(texts, references) if self.score else {}
        samples = list(zip(sources[:SAMPLES], references, texts, strict=False))
        return ValidationResult(loss, scores, samples)

    @torch.no_grad()
    def loss(self, objective: nn.Module, device: torch.device) -> float:
        """Return the mean negative log-likelihood per token."""
        total, tokens = torch.zeros((), dtype=torch.float64), 0
        for number in range(len(self.feed.plan(0))):
            batch = self.feed.batch(Place(0, number))
            total += objective(batch.to(device)).nll.double().cpu()
            tokens += batch.tokens
        return float(total) / max(tokens, 1)
