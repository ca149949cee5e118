"""CTranslate2, a library that runs Transformers fast on a processor: our models in its format, and its search by our
rules.

The files hold the same numbers as the model, or rounded to int8. Ids are the same as well: a token of CTranslate2's
vocabulary is the piece that ours has for the id. So the folder also serves programs that know CTranslate2 alone (a
source ends in the end token, unless the model says source_end = false).

What it finds is what `sightline.search` finds, as far as `supports` promises. Where the two differ by nature:

- What may not come (padding, start, unknown) it leaves out before probabilities are computed, so that all other tokens
  get a little more; here it is left out afterwards. The scores that are given are ours. But while it searches,
  hypotheses may change places that are nearer to each other than these tokens are probable. A model that has learned
  never to say them leaves no room for that; one that gives them weight does.
- At the greatest length it cuts hypotheses off; here they must end. What it does not tell is searched for step by step.
- Sums are added in another order, so what is as good as something else, to some 1e-5, may be found instead of it.

That is in float32. In int8 the weights, and what goes into each product, are rounded to 8 bits: it is faster, and what
is found and how it scores are a little off. All that is told then is told in int8, log-probabilities among it.

With a shortlist (`sightline.text.shortlist`) it chooses among fewer tokens, those that any source of a batch allows.
What else was probable has no share then, so that without log-probabilities the scores it gives are a little higher.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.backends.ctranslate2_format import Precision, new_name
from sightline.config import SearchConfig
from sightline.errors import CheckpointError, ConfigError, InputError
from sightline.files import optional_import
from sightline.model_folder import SHORTLIST
from sightline.search.hypothesis import Hypothesis, Wish
from sightline.search.rules import NEVER, bounds
from sightline.special import END
from sightline.text.tokenizer import with_end

__all__ = ["CTranslate2Search", "supports"]

NEARLY_ZERO = 1e-30
"""With a length penalty of 0, CTranslate2 stops by another rule: once the best hypothesis has ended. With this one it
does not, and all scores are the same."""


MOST_PARTS = 4
"""Into which a batch is split. Threads with sentences of their own are up to eight times as fast as threads that share
them, and wait for each other at every layer (docs/decisions/0012)."""
ALL_AT_ONCE = 8
"""Whole answers are read in smaller batches by this, as each of their tokens has a score for all the vocabulary."""


def supports(config: SearchConfig, wishes: Iterable[Wish] | None = None) -> str | None:
    """Why CTranslate2 would not find the same, in one phrase; None where it does."""
    wishes, beams = list(wishes or ()), config.beams > 1
    # What it leaves out, it leaves out before probabilities are computed. One beam takes the likeliest either way.
    shared = "with several beams, and it shares out the probability of what may not come"
    reasons = {
        "sample = true draws other tokens there": config.sample,
        f"groups = {config.groups}, and it has none": config.groups > 1,
        f'stop = "{config.stop}", and it knows "full" only': config.stop != "full",
        f"coverage_penalty = {config.coverage_penalty:g}, and where a forced end looks it does not tell": (
            config.coverage_penalty > 0
        ),
        "sequences that must occur, and it does not search for them": any(any(wish.within) for wish in wishes),
        "a wish has the end in it": any(END in ids for wish in wishes for ids in [wish.prefix, *wish.without]),
        "a prefix with several beams, of which only the best may end right behind it there": (
            beams and any(wish.prefix for wish in wishes)
        ),
        f"min_ratio = {config.min_ratio:g} {shared}": beams and config.min_ratio > 0,
        f"sequences to avoid {shared}": beams and any(any(wish.without) for wish in wishes),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


class Task(NamedTuple):
    """What is asked for one source."""

    source: Sequence[int]
    wish: Wish
    limit: int
    """Tokens of the longest answer, its end among them."""
    least: int
    """Tokens of the shortest, without the end."""

    @property
    def kind(self) -> tuple[int, bool, list[list[int]]]:
        """CTranslate2 takes these for a whole batch only."""
        return self.least, bool(self.wish.prefix), self.wish.without


class Found(NamedTuple):
    """A hypothesis, before it is an answer."""

    ids: list[int]
    score: float | None = None
    """By CTranslate2, where it is finished; nan where it was not asked for."""


class CTranslate2Search:
    """A model that `convert` wrote, with its search, on the processor."""

    def __init__(
        self,
        folder: Path | str,
        compute_type: Precision = "float32",
        threads: int | None = None,
        shortlist: Path | None = None,
    ) -> None:
        """`compute_type` need not be what the folder was written in. `threads`: None for as many as there are
        processors. `shortlist`: the file of one, by which it then searches."""
        package, folder = optional_import("ctranslate2", extra="fast"), Path(folder)
        try:
            files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
            about = json.loads(files["config.json"])
            self._room: int = about["sightline"]["max_length"]
            self._end: bool = about["sightline"].get("source_end", True)
            sides = ["shared"] * 2 if "shared_vocabulary.json" in files else ["source", "target"]
            self._source_names, self._names = (json.loads(files[f"{side}_vocabulary.json"]) for side in sides)
            files["config.json"] = json.dumps({**about, "unk_token": about["eos_token"]}).encode()
        except (OSError, LookupError, TypeError, ValueError):
            raise CheckpointError(f"{folder}: this is no model that was converted for CTranslate2.") from None
        self._ids = {name: i for i, name in enumerate(self._names)}
        self._fewest = len(self._names)
        """Tokens there are to choose from."""
        self._short = shortlist is not None
        if shortlist is not None:
            files[SHORTLIST] = self._read_shortlist(shortlist)
        # A source that is nothing but the end it does not read; by a name that it does not know, the end is read.
        self._source_names[END] = new_name(about["eos_token"], self._source_names)
        there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = threads or there
        self._parts = min(threads, MOST_PARTS)
        options = {"inter_threads": self._parts, "intra_threads": max(1, threads // self._parts)}
        of_torch = torch.get_num_threads()
        try:
            self._translator = package.Translator(
                str(folder), files=files, device="cpu", compute_type=compute_type, **options
            )
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"{folder}: CTranslate2 cannot use this model: {error}.") from None
        finally:
            torch.set_num_threads(of_torch)  # it gives its own number to whoever makes it

    def _read_shortlist(self, path: Path) -> bytes:
        try:
            text = path.read_bytes()
        except OSError:
            raise InputError(
                f"{path}: there is no shortlist beside the model; sightline shortlist makes one."
            ) from None
        source, _, always = text.partition(b"\n")[0].partition(b"\t")
        ids = [self._ids.get(name, -1) for name in always.decode("utf-8", "replace").split(" ")]
        if source or not {*NEVER, END} <= set(ids) or -1 in ids:
            raise InputError(f"{path}: this is no shortlist for the vocabulary of the model; make it anew.")
        self._fewest = len(ids)
        return text

    def find(
        self,
        sources: Sequence[Sequence[int]],
        config: SearchConfig,
        wishes: Sequence[Wish] | None = None,
        *,
        log_probs: bool = True,
        budget: int = 8192,
    ) -> list[list[Hypothesis]]:
        """For every source (ids without END) its best answers, best first, in the order of the sources.

        `log_probs`: have those of each token, and by them the scores. It does not tell them while it searches, and must
        read all answers once more. Without, it is faster; `Hypothesis.log_probs` is empty, and the scores are its own.
        One beam needs no scores to search, and then has none (nan), which again is faster.
        `budget`: tokens of all hypotheses' sources in a batch.
        """
        wishes = [Wish()] * len(sources) if wishes is None else wishes
        reason = supports(config, wishes)
        if reason is not None:
            raise ConfigError(f"CTranslate2 does not search like this: {reason}.")
        if 2 * config.beams > self._fewest - len(NEVER):
            raise ConfigError(f"beams = {config.beams} are too many for a vocabulary of {self._fewest}.")
        tasks = [self._task(ids, wish, config) for ids, wish in zip(sources, wishes, strict=True)]
        answers: list[list[Hypothesis]] = [[] for _ in tasks]
        unknown: list[tuple[int, list[int]]] = []
        for batch in _batches(tasks, budget // config.beams):
            for i, found in zip(batch, self._search([tasks[i] for i in batch], config, log_probs), strict=True):
                for ids, score in found:
                    if score is None or log_probs:
                        unknown.append((i, ids))
                    else:
                        answers[i].append(Hypothesis(ids, score, []))
        for i, ids, logs in self._scored(tasks, unknown, budget // ALL_AT_ONCE):
            score = sum(logs) / len(logs) ** config.length_penalty
            answers[i].append(Hypothesis(ids, score, logs if log_probs else []))
        return [sorted(answer, key=lambda one: -one.score)[: config.nbest] for answer in answers]

    def _task(self, source: Sequence[int], wish: Wish, config: SearchConfig) -> Task:
        if len(with_end(source, self._end)) > self._room:
            most = self._room - self._end
            raise InputError(f"a source of {len(source)} tokens is too long: the model reads at most {most}.")
        return Task(source, wish, *bounds(len(source) + 1, config, wish, self._room))

    def _search(self, tasks: list[Task], config: SearchConfig, log_probs: bool) -> list[list[Found]]:
        """The hypotheses of each task that can be among its best, as ids without the end."""
        longest = max(task.limit for task in tasks) - 1  # there the end must come, and CTranslate2 would not know
        scored = log_probs or config.beams > 1
        results = self._run(tasks, longest, config, penalty=config.length_penalty, scored=scored)
        answers = []
        for task, found in zip(tasks, results, strict=True):
            if all(ids[-1:] == [END] and len(ids) < task.limit for ids, _ in found):
                answers.append([Found(ids[:-1], score) for ids, score in found[: config.nbest]])
            elif config.beams == 1:
                answers.append([Found(found[0].ids[: task.limit - 1])])
            else:
                answers.append([Found(ids) for ids in self._to_the_limit(task, config)])
        return answers

    def _to_the_limit(self, task: Task, config: SearchConfig) -> list[list[int]]:
        """The hypotheses of a sentence that is not over where only the end may come: what has ended by then, and what
        must end there.

        CTranslate2 tells of all that ended; of what grows, it tells what ranks among the beams. So where nothing ended,
        this is all that grows. From the last such length we go on by ourselves. All this among all tokens: it may well
        be a shortlist that has kept the sentence from its end.
        """
        last, beams, enough = task.limit - 1, config.beams, config.enough(config.beams)
        patient = config.model_copy(update={"patience": float(task.limit)})
        (found,) = self._run([task], last, patient, short=False)
        ended = sorted((ids for ids, _ in found if ids[-1:] == [END]), key=len)
        if len(ended) >= enough:  # it was over after all; what only grew has hidden some of what had ended
            over = len(ended[enough - 1])
            return [ids[:-1] for ids in ended if len(ids) <= over]
        start = max(set(range(last + 1)) - {len(ids) for ids in ended})
        if start < last:
            (found,) = self._run([task], start, patient, short=False)
        living = [ids for ids, _ in found if ids[-1:] != [END]]
        totals = np.array([sum(logs[:-1]) for logs in self._log_probs([(task.source, ids) for ids in living])])
        for _ in range(start, last):
            total = totals[:, None] + self._next(task.source, living)
            best = np.argsort(-total, axis=None, kind="stable")[:beams]
            rows, tokens = np.unravel_index(best, total.shape)
            living = [[*living[row], token] for row, token in zip(rows.tolist(), tokens.tolist(), strict=True)]
            totals = total[rows, tokens]
        return [*(ids[:-1] for ids in ended), *living]

    def _run(
        self,
        tasks: Sequence[Task],
        length: int,
        config: SearchConfig,
        *,
        penalty: float = 0.0,
        short: bool = True,
        scored: bool = True,
    ) -> list[list[Found]]:
        """CTranslate2's own search for tasks of one kind: the hypotheses of each, best first. Those that do not end in
        END had come to this length. `short`: by the shortlist, if there is one and nothing is wished: of other tokens
        than the special ones it does not remember, from one batch to the next, where in the shortlist they stand."""
        if not length:
            return [[Found([])] for _ in tasks]
        least, prefixed, without = tasks[0].kind
        results = self._translator.translate_batch(
            [self._source(task.source) for task in tasks],
            [self._target(task.wish.prefix) for task in tasks] if prefixed else None,
            beam_size=config.beams,
            num_hypotheses=config.enough(config.beams),
            patience=config.patience,
            length_penalty=penalty or NEARLY_ZERO,
            suppress_sequences=[self._target(ids) for ids in [*([i] for i in NEVER), *without] if ids],
            min_decoding_length=least,
            max_decoding_length=length,
            max_input_length=0,
            return_end_token=True,  # so it counts in the length
            use_vmap=self._short and short and not prefixed and not without,
            return_scores=scored,
            max_batch_size=-(-len(tasks) // self._parts),
        )
        return [
            [
                Found([self._ids[name] for name in names], score)
                for names, score in zip(result.hypotheses, result.scores if scored else [math.nan], strict=True)
            ]
            for result in results
        ]

    def _next(self, source: Sequence[int], living: list[list[int]]) -> NDArray[np.float64]:
        """Log-probabilities of the words that could follow each of these hypotheses, which have one length."""
        results = self._translator.translate_batch(
            [self._source(source)] * len(living),
            [self._target(ids) for ids in living],
            beam_size=1,
            min_decoding_length=0,
            max_decoding_length=len(living[0]) + 1,
            max_input_length=0,
            return_logits_vocab=True,
        )
        logits = np.stack([np.array(result.logits[0][-1], np.float64) for result in results])
        logits -= logits.max(1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(1, keepdims=True))
        logits[:, [*NEVER, END]] = -math.inf
        return logits

    def _scored(
        self, tasks: Sequence[Task], pairs: list[tuple[int, list[int]]], budget: int
    ) -> Iterator[tuple[int, list[int], list[float]]]:
        """Numbers of tasks, and hypotheses for them, with the log-probabilities of these."""
        pairs = sorted(pairs, key=lambda pair: -len(tasks[pair[0]].source) - len(pair[1]))
        while pairs:
            i, ids = pairs[0]
            count = max(1, budget // (len(tasks[i].source) + len(ids) + 2))
            batch, pairs = pairs[:count], pairs[count:]
            log_probs = self._log_probs([(tasks[i].source, ids) for i, ids in batch])
            for (i, ids), logs in zip(batch, log_probs, strict=True):
                yield i, ids, logs

    def _log_probs(self, pairs: Sequence[tuple[Sequence[int], list[int]]]) -> list[list[float]]:
        """Of each token of an answer to a source, and of its end."""
        results = self._translator.score_batch(
            [self._source(source) for source, _ in pairs],
            [self._target(ids) for _, ids in pairs],
            max_input_length=0,
            max_batch_size=-(-len(pairs) // self._parts),
        )
        return [list(result.log_probs) for result in results]

    def _source(self, ids: Sequence[int]) -> list[str]:
        return [self._source_names[i] for i in with_end(ids, self._end)]

    def _target(self, ids: Iterable[int]) -> list[str]:
        return [self._names[i] for i in ids]


def _batches(tasks: Sequence[Task], budget: int) -> Iterator[list[int]]:
    """Tasks of one kind and of like length, the longest first."""
    order = sorted(range(len(tasks)), key=lambda i: (tasks[i].kind, -len(tasks[i].source)))
    while order:
        first = tasks[order[0]]
        count = max(1, budget // (len(first.source) + 1))
        batch = [i for i in order[:count] if tasks[i].kind == first.kind]
        yield batch
        order = order[len(batch) :]
