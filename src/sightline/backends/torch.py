"""The torch backend: our own search with our own models. It can do everything."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from sightline.config import ModelConfig, SearchConfig
from sightline.model.protocol import Generative
from sightline.search import driver
from sightline.search.prefix import PrefixCache
from sightline.search.score import score
from sightline.search.scoring import Ensemble
from sightline.search.types import Request, StepUpdate

MOST_TOKENS = 2**20
"""Positions of a batch beyond which nothing gets faster."""


class TorchBackend:
    """One model, or several of one vocabulary that vote."""

    def __init__(self, models: Sequence[Any], batch_tokens: int | None = None) -> None:
        """`batch_tokens`: positions of a batch; by default as many as the free memory allows."""
        self.models = models
        self.model: Generative = models[0] if len(models) == 1 else Ensemble(models)
        self.device = str(self.model.device)
        self.prefixes = PrefixCache(self.model)
        self.exact = all(weight.dtype == torch.float32 for model in models for weight in model.parameters())
        self.batch_tokens = batch_tokens or default_batch_tokens(self.model.config, self.model.device)

    @property
    def memory_bytes(self) -> int:
        weights = {weight.data_ptr(): weight for model in self.models for weight in model.parameters()}.values()
        return sum(weight.numel() * weight.element_size() for weight in weights)

    def reason_not(self, requests: Sequence[Request], options: SearchConfig) -> str | None:  # noqa: ARG002
        return None

    def steps(
        self,
        requests: Sequence[Request],
        options: SearchConfig,
        *,
        streamed: Collection[int] = (),
        cancelled: Collection[int] = (),
        eager: bool = False,
        log_probs: bool = True,  # noqa: ARG002 - they cost nothing here
    ) -> Iterator[StepUpdate]:
        return driver.steps(
            self.model,
            requests,
            options,
            batch_tokens=self.batch_tokens,
            streamed=streamed,
            cancelled=cancelled,
            eager=eager,
            prefixes=self.prefixes,
        )

    def score(self, requests: Sequence[Request], answers: Sequence[Sequence[int]]) -> list[list[float]]:
        # Here every position has a score for the whole vocabulary, so batches do not grow with the memory.
        return score(self.models, requests, answers)


def default_batch_tokens(config: ModelConfig, device: torch.device) -> int:
    """Return how many positions fit in half of the free memory of a GPU. On a CPU, larger batches are not faster."""
    if device.type != "cuda":
        return driver.BATCH_TOKENS
    free, _ = torch.cuda.mem_get_info(device)
    stack = config.decoder
    cached = 6 * stack.layers * config.d_model * 4  # keys and values of a source position and two new ones
    scored = config.vocab_size  # a row has float32 scores, kept a few times, and about twenty positions
    fitting = free // 2 // (cached + scored)
    return max(driver.BATCH_TOKENS, min(MOST_TOKENS, 1 << (fitting.bit_length() - 1)))
