"""The protocol of a backend: the software that computes a search."""

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from sightline.config import SearchConfig
from sightline.search.types import Request, StepUpdate


class Backend(Protocol):
    """Searches with one model on one device."""

    device: str
    exact: bool
    """Whether it computes in float32, so that the neighbours of a request never change its answer."""

    @property
    def memory_bytes(self) -> int:
        """Return the memory that the weights take."""

    def reason_not(self, requests: Sequence[Request], options: SearchConfig) -> str | None:
        """Return why this backend cannot do a search as the torch backend does it, in one phrase; None if it can."""

    def steps(
        self,
        requests: Sequence[Request],
        options: SearchConfig,
        *,
        streamed: Collection[int] = (),
        cancelled: Collection[int] = (),
        eager: bool = False,
        log_probs: bool = True,
    ) -> Iterator[StepUpdate]:
        """Search step by step, as `sightline.search.driver.steps`. Without `log_probs`, a backend may leave out the
        log-probabilities of tokens, and with one beam the score (nan), if that is faster."""

    def score(self, requests: Sequence[Request], answers: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probability of each token of each answer and of the end after it."""
