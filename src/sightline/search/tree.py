"""What a beam search has looked at: every hypothesis that was among the best at some step, and what became of it."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from sightline.config import SearchConfig
from sightline.errors import InputError
from sightline.model.transformer import EncoderDecoder
from sightline.search.beam import Beams, Chosen
from sightline.search.find import PlainSearch
from sightline.search.hypothesis import Hypothesis, Wish
from sightline.search.rules import Forced, Rules
from sightline.search.scorer import Scorer, Scores
from sightline.special import END
from sightline.text.tokenizer import with_end

__all__ = ["Node", "Tree", "grow_tree"]


class Node(NamedTuple):
    """A hypothesis: what its parent says, and one token more."""

    parent: int
    """Its number among the nodes; -1 where nothing was said yet."""
    step: int
    """From 0: how many tokens stand before this one."""
    token: int
    log_prob: float
    """Of the token alone."""
    total: float
    """Of the whole hypothesis."""
    fate: Literal["grew", "ended", "dropped"]
    """grew: it was among the beams; ended: the token is the end, and it counts as an answer; dropped: others were
    better."""
    score: float | None
    """Of an answer: the total by its length, as `SearchConfig.length_penalty` has it."""


class Tree(NamedTuple):
    """The search for the answer to one sentence."""

    nodes: list[Node]
    """Step by step, and in each step the best first."""
    answers: list[Hypothesis]
    """What was found, best first."""

    def ids(self, number: int) -> list[int]:
        """All tokens of a hypothesis, by its number among the nodes."""
        found: list[int] = []
        while number >= 0:
            found.insert(0, self.nodes[number].token)
            number = self.nodes[number].parent
        return found


class WatchedBeams(Beams):
    """The hypotheses of one sentence, which remembers all of them."""

    def __init__(self, rules: Rules, config: SearchConfig, source: Bool[Tensor, "1 source"]) -> None:
        super().__init__(rules, config, source)
        self.nodes: list[Node] = []
        self.numbers = [-1] * config.beams
        """The node of each row."""

    def _choose(self, scores: Scores, forced: Forced) -> Chosen:
        self.best = super()._choose(scores, forced)
        return self.best

    def grow(self, scores: Scores) -> Int[Tensor, " rows"]:
        step = int(self.length) - 1
        scale = (step + 1) ** self.config.length_penalty
        rows = super().grow(scores)
        grew = list(zip(rows.tolist(), self.last()[:, 0].tolist(), strict=True))
        born: dict[tuple[int, int], int] = {}
        candidates = zip(*(part[0].tolist() for part in self.best), strict=True)
        for rank, (total, log_prob, token, row) in enumerate(candidates):
            if total == -math.inf:
                continue
            ended = token == END
            fate: Literal["grew", "ended", "dropped"] = "grew" if (row, token) in grew else "dropped"
            if ended:
                fate = "ended" if rank < self.width else "dropped"
            born[row, token] = len(self.nodes)
            score = total / scale if fate == "ended" else None
            self.nodes.append(Node(self.numbers[row], step, token, log_prob, total, fate, score))
        self.numbers = [born.get(pair, -1) for pair in grew]
        return rows


@torch.no_grad()
def grow_tree(
    models: Sequence[EncoderDecoder], source: Sequence[int], config: SearchConfig, wish: Wish | None = None
) -> Tree:
    """Search by beams, as `find` does, and tell all that was looked at."""
    wish = wish or Wish()
    if config.sample or config.groups > 1 or config.coverage_penalty or wish.within:
        raise InputError("the beams of a plain beam search can be shown, without samples, groups, coverage or within.")
    device = models[0].classifier.weight.device
    room = min(model.config.positions.max_length for model in models)
    ids = torch.tensor([with_end(source, models[0].config.source_end)], device=device)
    if ids.shape[1] > room:
        raise InputError(f"a source of {len(source)} tokens is too long: the model reads at most {room} with its end.")
    rules = Rules([len(source) + 1], config, [wish], room, device)
    state = WatchedBeams(rules, config, torch.ones_like(ids, dtype=torch.bool))
    search = PlainSearch(Scorer(models, ids, beams=config.beams, capacity=rules.longest), state)
    for _ in range(rules.longest):
        search.advance()
        if bool(search.done().all()):
            break
    ((answers, _),) = state.answers()
    return Tree(state.nodes, answers)
