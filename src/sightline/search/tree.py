"""The tree of a beam search: every hypothesis that was among the best at some step, and its fate."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from sightline.config import SearchConfig
from sightline.errors import InputError
from sightline.model.protocol import Generative
from sightline.search.beam import Beams, Chosen, Forced
from sightline.search.driver import EagerSearch, check, inputs_of
from sightline.search.scoring import Scores
from sightline.search.types import Hypothesis, Request
from sightline.special import END


class Node(NamedTuple):
    """A hypothesis: that of its parent, and one token more."""

    parent: int
    """Its number among the nodes; -1 for the empty hypothesis."""
    step: int
    """From 0: the number of new tokens before this one."""
    token: int
    log_prob: float
    """Of the token alone."""
    total: float
    """Of the whole hypothesis."""
    fate: Literal["grew", "ended", "dropped"]
    """grew: it was among the beams; ended: it is a finished answer; dropped: others were better."""
    score: float | None
    """Of an answer: the total by its length, as in `SearchConfig.length_penalty`."""


class Tree(NamedTuple):
    """The search for the answer to one request."""

    nodes: list[Node]
    """Step by step, the best of each step first."""
    answers: list[Hypothesis]
    """The answers, best first."""

    def ids(self, number: int) -> list[int]:
        """Return all tokens of a hypothesis, by its number among the nodes."""
        found: list[int] = []
        while number >= 0:
            found.insert(0, self.nodes[number].token)
            number = self.nodes[number].parent
        return found


class WatchedBeams(Beams):
    """The hypotheses of one request, with all that were ever considered."""

    def __init__(self, requests: Sequence[Request], options: SearchConfig, device: torch.device) -> None:
        super().__init__(requests, options, device)
        self.nodes: list[Node] = []
        self.numbers = [-1] * options.beams
        """The node of each row."""

    def _choose(self, scores: Scores, forced: Forced) -> Chosen:
        self.best = super()._choose(scores, forced)
        return self.best

    def grow(self, scores: Scores) -> Int[Tensor, " rows"]:
        step, cut = int(self.length) - 1, bool(self.at_limit())
        scale = (step + 1) ** self.options.length_penalty
        rows = super().grow(scores)
        grew = list(zip(rows.tolist(), self.last()[:, 0].tolist(), strict=True))
        new: dict[tuple[int, int], int] = {}
        candidates = zip(*(part[0].tolist() for part in self.best), strict=True)
        for rank, (total, log_prob, token, row) in enumerate(candidates):
            if total == -math.inf:
                continue
            fate: Literal["grew", "ended", "dropped"] = "grew" if (row, token) in grew else "dropped"
            if token == END or cut:
                fate = "ended" if rank < self.width else "dropped"
            new[row, token] = len(self.nodes)
            score = total / scale if fate == "ended" else None
            self.nodes.append(Node(self.numbers[row], step, token, log_prob, total, fate, score))
        self.numbers = [new.get(pair, -1) for pair in grew]
        return rows


def grow_tree(model: Generative, request: Request, options: SearchConfig) -> Tree:
    """Search with beams, as `search` does, and return all hypotheses that were considered."""
    given = {
        "sample": options.sample,
        "groups": options.groups > 1,
        "coverage_penalty": options.coverage_penalty > 0,
        "require": any(request.constraints.require),
    }
    for option, is_set in given.items():
        if is_set:
            raise InputError(f"The tree of a search with `{option}` cannot be shown. Leave it out.", option=option)
    check(request, model.config.positions.max_length)
    state = WatchedBeams([request], options, model.device)
    search = EagerSearch(model, inputs_of([request], model.device), state)
    while not search.done().all():
        search.advance()
    ((answers, _),) = state.answers()
    return Tree(state.nodes, answers)
