"""Plans of translations, until the engine makes them."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sightline.config import SearchConfig
from sightline.engine import Engine, Translation
from sightline.search.find import Progress
from sightline.search.hypothesis import Hypothesis
from sightline.search.types import Constraints
from sightline.text.split import Piece


class Request(NamedTuple):
    """One row of work."""

    source: list[int]
    constraints: Constraints
    wish: Any

    @property
    def size(self) -> int:
        return len(self.source) + 1


@dataclass(frozen=True)
class Plan:
    """Requests, and the way from their answers to translations."""

    requests: Sequence[Request]
    options: SearchConfig
    assemble: Callable[[Sequence[list[Hypothesis]]], list[Translation]]
    pieces: Sequence[Piece] = ()
    log_probs: bool = True


def plan(
    engine: Engine,
    texts: Sequence[str],
    options: SearchConfig,
    *,
    prefix: str | None = None,
    forbid: Sequence[str] = (),
    require: Sequence[str] = (),
    align: bool = False,
    log_probs: bool = True,
) -> Plan:
    """Plan the translation of texts."""
    asked = engine.asked(texts, prefix=prefix, without=forbid, within=require)
    requests = [
        Request(source, Constraints(require=[[0]] if require else []), wish)
        for source, wish in zip(asked.sources, asked.wishes, strict=True)
    ]
    pieces = asked.pieces[0] if len(texts) == 1 else []
    return Plan(requests, options, lambda found: engine.answered(asked, found, align=align), pieces, log_probs)


def steps(
    engine: Engine,
    requests: Sequence[Request],
    options: SearchConfig,
    *,
    streamed: Collection[int],
    cancelled: Collection[int],
    log_probs: bool,
) -> Iterator[Progress]:
    """Search for a batch of requests step by step."""
    sources, wishes = [request.source for request in requests], [request.wish for request in requests]
    return engine.follow(sources, options, wishes, details=log_probs, aloud=streamed, gone=cancelled)
