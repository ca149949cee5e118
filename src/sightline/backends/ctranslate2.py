"""The search of CTranslate2, a library that runs Transformers fast on a CPU, by the rules of `sightline.search`.

It finds the same answers as `sightline.search` for all requests that `reason_not` accepts, with these differences:

- It excludes padding, start and unknown before the softmax, so all other tokens get a little more probability;
  `sightline.search` excludes them after it. Scores returned here are those of `sightline.search`. During the search,
  two hypotheses may swap ranks if their scores differ by less than the probability of the excluded tokens. A trained
  model gives these tokens almost none.
- It cuts hypotheses off at the maximum length; here they must end. Such sentences are searched again, step by step.
- It adds numbers in another order, so hypotheses whose scores differ by less than about 1e-5 may swap ranks.

This holds for float32. In int8, weights and the inputs of each product are rounded to 8 bits: the search is faster, and
answers, scores and log-probabilities differ a little.

With a shortlist (`sightline.text.shortlist`), a batch can write only the tokens that its sources allow. The softmax is
over these, so scores are a little higher if no log-probabilities are requested.
"""

import json
import math
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.backends.ctranslate2_format import Precision, new_name
from sightline.backends.thread_modes import ThreadMode, ThreadModes, batch_kind, processor
from sightline.config import SearchConfig
from sightline.errors import CheckpointError, ConfigError, InputError, SightlineError
from sightline.files import cache_folder, optional_import
from sightline.model_folder import SHORTLIST
from sightline.search.beam import NEVER
from sightline.search.types import Hypothesis, Request, StepUpdate
from sightline.special import END, START

TINY_PENALTY = 1e-30
"""With a length penalty of 0, CTranslate2 stops as soon as the best hypothesis has ended. With this one it follows the
usual rule, and the scores are the same."""
SCORING_SHARE = 8
"""Batches are smaller by this factor when whole answers are scored: each of their tokens has scores for the whole
vocabulary."""
LARGE_MODEL = 128 * 2**20
"""Bytes of float32 weights from which threads are limited by memory, and share one batch until both modes are
measured."""


class Found(NamedTuple):
    """A hypothesis of CTranslate2."""

    ids: list[int]
    score: float | None = None
    """None if CTranslate2 did not finish it; nan if no score was requested."""


class CTranslate2Backend:
    """A model that `ctranslate2_format.convert` wrote, on the CPU."""

    device = "cpu"

    def __init__(
        self,
        folder: Path | str,
        precision: Precision = "float32",
        *,
        threads: int | None = None,
        shortlist: Path | None = None,
        batch_tokens: int = 8192,
        thread_modes: Path | None = None,
    ) -> None:
        """`precision` may differ from that of the folder. `threads`: by default, one for each available processor.
        `shortlist`: its file. `batch_tokens`: source tokens of a batch, times beams. `thread_modes`: the file of
        measurements (`sightline.backends.thread_modes`), by default in the user's cache."""
        self._folder, self._precision, self._shortlist = Path(folder), precision, shortlist
        self.exact, self.batch_tokens = precision == "float32" and shortlist is None, batch_tokens
        library, files = optional_import("ctranslate2", extra="fast"), self._files()
        try:
            about = json.loads(files["config.json"])
            self._max_length: int = about["sightline"]["max_length"]
            sides = ["shared"] * 2 if "shared_vocabulary.json" in files else ["source", "target"]
            self._source_names, self._names = (json.loads(files[f"{side}_vocabulary.json"]) for side in sides)
            self._model_bytes = len(files["model.bin"])
            # CTranslate2 skips a source that is only the end token. It reads it under a name that it does not know.
            self._source_names[END] = new_name(about["eos_token"], self._source_names)
        except (LookupError, TypeError, ValueError):
            raise self._invalid() from None
        self._ids = {name: i for i, name in enumerate(self._names)}
        self._choices = len(self._names) if shortlist is None else self._count_choices(files[SHORTLIST])
        available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._threads = available if threads is None else threads
        share = self._threads > 1 and precision == "float32" and self._model_bytes >= LARGE_MODEL
        self._modes = ThreadModes(
            "intra" if share else "inter",
            f"{processor()}, {self._threads} threads, CTranslate2 {library.__version__}, "
            f"model of {self._model_bytes} bytes, {precision}{', shortlist' if shortlist else ''}",
            thread_modes or cache_folder() / "ctranslate2-threads.json",
        )
        if self._threads == 1:
            self._modes.restrict("inter")
        self._loading = threading.Lock()
        self._translators = {self._modes.first: self._open(self._modes.first, files)}

    @property
    def memory_bytes(self) -> int:
        """Bytes of the weights in memory."""
        return self._model_bytes * len(self._translators)

    def reason_not(self, requests: Sequence[Request], options: SearchConfig) -> str | None:
        """Return why CTranslate2 cannot find the same answers, or None if it can."""
        several, constraints = options.beams > 1, [request.constraints for request in requests]
        # With one beam, tokens that are excluded before the softmax do not change the answer.
        renormalised = "with several beams: it renormalises the probabilities of the other tokens"
        reasons = {
            "it draws other samples": options.sample,
            f"`groups` = {options.groups}: it has no groups": options.groups > 1,
            f'`stop` = "{options.stop}": it knows "full" only': options.stop != "full",
            f"`coverage_penalty` = {options.coverage_penalty:g}: it does not return the attention of a forced end": (
                options.coverage_penalty > 0
            ),
            "a request without a source": not all(request.source for request in requests),
            "a request with text that the answer continues": any(request.given != [START] for request in requests),
            "an answer that is cut at its limit": any(request.limits.cut for request in requests),
            "a penalty of tokens that the answer contains already: it counts others": options.penalises,
            "a bias of single tokens: it has none": any(each.bias for each in constraints),
            "the likeliest tokens at each position: it does not return them": any(one.top for one in requests),
            "`require`: it has no such constraint": any(any(each.require) for each in constraints),
            "a constraint that contains the end token": any(
                END in ids for each in constraints for ids in [each.prefix, *each.forbid]
            ),
            "`prefix` with several beams: only its best hypothesis can end right after the prefix": (
                several and any(each.prefix for each in constraints)
            ),
            f"a minimum length {renormalised}": several and any(request.limits.least for request in requests),
            f"`forbid` {renormalised}": several and any(any(each.forbid) for each in constraints),
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def steps(
        self,
        requests: Sequence[Request],
        options: SearchConfig,
        *,
        streamed: Collection[int] = (),  # noqa: ARG002 - answers come whole
        cancelled: Collection[int] = (),
        eager: bool = False,  # noqa: ARG002
        log_probs: bool = True,
    ) -> Iterator[StepUpdate]:
        """Search and yield the answers of each batch when it is done, without tokens. `cancelled`: requests to skip;
        may grow during the search.

        CTranslate2 returns no log-probabilities of tokens, so all answers are scored after the search. If `log_probs`
        is false this is skipped, `Hypothesis.log_probs` is empty, and with one beam the score is nan.
        """
        reason = self.reason_not(requests, options)
        if reason is not None:
            raise ConfigError(f"CTranslate2 cannot run this search: {reason}. Use the backend torch.")
        if 2 * options.beams > self._choices - len(NEVER):
            raise ConfigError.of(
                "beams",
                options.beams,
                f"= {options.beams} is too large for a vocabulary of {self._choices}. "
                f"Use at most {(self._choices - len(NEVER)) // 2}.",
            )
        self._check(requests)
        kinds, lengths = list(map(_kind, requests)), [len(request.source) for request in requests]
        for batch in _batches(kinds, lengths, self.batch_tokens // options.beams):
            kept = [i for i in batch if i not in cancelled]
            if kept:
                found = self._answers([requests[i] for i in kept], options, log_probs)
                yield StepUpdate({}, dict(zip(kept, found, strict=True)))

    def search(
        self, requests: Sequence[Request], options: SearchConfig, *, log_probs: bool = True
    ) -> list[list[Hypothesis]]:
        """Return the best answers to each request, best first."""
        answers: dict[int, list[Hypothesis]] = {}
        for update in self.steps(requests, options, log_probs=log_probs):
            answers |= update.answers
        return [answers[i] for i in range(len(requests))]

    def score(self, requests: Sequence[Request], answers: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probability of each token of each answer, and of the end after it."""
        self._check(requests)
        pairs = [(request.source, list(answer)) for request, answer in zip(requests, answers, strict=True)]
        found: list[list[float]] = [[] for _ in pairs]
        lengths = [len(source) + len(answer) + 1 for source, answer in pairs]
        for batch in _batches([0] * len(pairs), lengths, self.batch_tokens // SCORING_SHARE):
            for i, log_probs in zip(batch, self._log_probs([pairs[i] for i in batch]), strict=True):
                found[i] = log_probs
        return found

    # --- Loading

    def _files(self) -> dict[str, bytes]:
        """Read the folder and the shortlist."""
        try:
            files = {path.name: path.read_bytes() for path in self._folder.iterdir() if path.is_file()}
            about = json.loads(files["config.json"])
            files["config.json"] = json.dumps({**about, "unk_token": about["eos_token"]}).encode()
        except (OSError, LookupError, TypeError, ValueError):
            raise self._invalid() from None
        if self._shortlist is not None:
            try:
                files[SHORTLIST] = self._shortlist.read_bytes()
            except OSError:
                raise InputError.of(
                    "shortlist",
                    self._shortlist,
                    f"not found: {self._shortlist}. Run `sightline shortlist` to learn one.",
                ) from None
        return files

    def _invalid(self) -> CheckpointError:
        return CheckpointError(f"{self._folder}: not a model converted for CTranslate2.", value=self._folder)

    def _count_choices(self, shortlist: bytes) -> int:
        """Return the number of tokens that a shortlist always allows, after a check of its first line."""
        source, _, always = shortlist.partition(b"\n")[0].partition(b"\t")
        ids = [self._ids.get(name, -1) for name in always.decode("utf-8", "replace").split(" ")]
        if source or not {*NEVER, END} <= set(ids) or -1 in ids:
            raise InputError.of(
                "shortlist",
                self._shortlist,
                f"is not for the vocabulary of the model: {self._shortlist}. Learn it again.",
            )
        return len(ids)

    def _open(self, mode: ThreadMode, files: dict[str, bytes]) -> Any:
        together = mode == "intra"
        torch_threads = torch.get_num_threads()
        try:
            return optional_import("ctranslate2", extra="fast").Translator(
                str(self._folder),
                files=files,
                device=self.device,
                compute_type=self._precision,
                inter_threads=1 if together else self._threads,
                intra_threads=self._threads if together else 1,
            )
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"{self._folder}: CTranslate2 cannot load this model: {error}.", value=self._folder
            ) from None
        finally:
            torch.set_num_threads(torch_threads)  # the constructor changes the number of the calling thread

    def _translator(self, kind: str | None) -> tuple[ThreadMode, Any]:
        """Return the translator for a kind of batches; without one, any that is loaded."""
        with self._loading:
            loaded = self._translators
            mode = next(iter(loaded)) if kind is None else self._modes.choose(kind, loaded)
            if mode not in loaded:
                try:
                    loaded[mode] = self._open(mode, self._files())
                except (SightlineError, MemoryError):
                    mode = next(iter(loaded))
                    self._modes.restrict(mode)
            for other in loaded.keys() - self._modes.keep(mode):
                del loaded[other]
            return mode, loaded[mode]

    # --- Searching

    def _check(self, requests: Sequence[Request]) -> None:
        longest = max((len(request.source) for request in requests), default=0)
        if longest > self._max_length:
            raise InputError(
                f"The source has {longest} tokens; this model reads at most {self._max_length}.", value=longest
            )

    def _answers(self, requests: list[Request], options: SearchConfig, log_probs: bool) -> list[list[Hypothesis]]:
        """Return the answers to a batch of one kind."""
        found = self._search(requests, options, scored=log_probs or options.beams > 1)
        answers: list[list[Hypothesis]] = [[] for _ in requests]
        unscored: list[tuple[int, list[int]]] = []
        for i, hypotheses in enumerate(found):
            for ids, score in hypotheses:
                if score is None or log_probs:
                    unscored.append((i, ids))
                else:
                    answers[i].append(Hypothesis(ids, score, []))
        rows = self.score([requests[i] for i, _ in unscored], [ids for _, ids in unscored])
        for (i, ids), row in zip(unscored, rows, strict=True):
            total = sum(row) / len(row) ** options.length_penalty
            answers[i].append(Hypothesis(ids, total, row if log_probs else []))
        return [sorted(each, key=lambda one: -one.score)[: options.nbest] for each in answers]

    def _search(self, requests: list[Request], options: SearchConfig, *, scored: bool) -> list[list[Found]]:
        """Return the hypotheses that can be among the best answers to each request."""
        longest = max(request.limits.most for request in requests) - 1  # the last token must be the end
        results = self._run(requests, longest, options, penalty=options.length_penalty, scored=scored, timed=True)
        answers = []
        for request, found in zip(requests, results, strict=True):
            most = request.limits.most
            if all(one.ids[-1:] == [END] and len(one.ids) < most for one in found):
                answers.append([Found(ids[:-1], score) for ids, score in found[: options.nbest]])
            elif options.beams == 1:
                answers.append([Found(found[0].ids[: most - 1])])
            else:
                answers.append([Found(ids) for ids in self._search_to_the_limit(request, options)])
        return answers

    def _search_to_the_limit(self, request: Request, options: SearchConfig) -> list[list[int]]:
        """Return the hypotheses of a sentence that is not done one token before its limit: those that have ended, and
        those that must end there.

        CTranslate2 returns all hypotheses that ended, and of the others those that rank among the beams. So at a length
        at which none ended, it returns all others. From the last such length, this method continues by itself. It uses
        the whole vocabulary: the shortlist may be the reason why the sentence did not end.
        """
        last, beams, most = request.limits.most - 1, options.beams, options.max_finished(options.beams)
        patient = options.model_copy(update={"patience": float(request.limits.most)})
        (found,) = self._run([request], last, patient, shortlist=False)
        ended = sorted((ids for ids, _ in found if ids[-1:] == [END]), key=len)
        if len(ended) >= most:  # the search was done before; unfinished hypotheses hid some of the finished ones
            done = len(ended[most - 1])
            return [ids[:-1] for ids in ended if len(ids) <= done]
        start = max(set(range(last + 1)) - {len(ids) for ids in ended})
        if start < last:
            (found,) = self._run([request], start, patient, shortlist=False)
        alive = [ids for ids, _ in found if ids[-1:] != [END]]
        totals = np.array([sum(row[:-1]) for row in self._log_probs([(request.source, ids) for ids in alive])])
        for _ in range(start, last):
            total = totals[:, None] + self._next(request.source, alive)
            best = np.argsort(-total, axis=None, kind="stable")[:beams]
            rows, tokens = np.unravel_index(best, total.shape)
            alive = [[*alive[row], token] for row, token in zip(rows.tolist(), tokens.tolist(), strict=True)]
            totals = total[rows, tokens]
        return [*(ids[:-1] for ids in ended), *alive]

    def _run(
        self,
        requests: Sequence[Request],
        length: int,
        options: SearchConfig,
        *,
        penalty: float = 0.0,
        shortlist: bool = True,
        scored: bool = True,
        timed: bool = False,
    ) -> list[list[Found]]:
        """Return the hypotheses of CTranslate2's own search for requests of one kind, best first. Those that do not end
        in END have reached this length.

        Constraints switch the shortlist off: CTranslate2 keeps positions of constrained tokens in the shortlist from
        one batch to the next. `timed`: measure thread modes.
        """
        if not length:
            return [[Found([])] for _ in requests]
        least, prefixed, forbid = _kind(requests[0])
        kind = batch_kind(options.beams, len(requests)) if timed else None
        mode, translator = self._translator(kind)
        began = time.perf_counter()
        results = translator.translate_batch(
            [self._source(request.source) for request in requests],
            [self._target(request.constraints.prefix) for request in requests] if prefixed else None,
            beam_size=options.beams,
            num_hypotheses=options.max_finished(options.beams),
            patience=options.patience,
            length_penalty=penalty or TINY_PENALTY,
            suppress_sequences=[self._target(ids) for ids in [*([i] for i in NEVER), *forbid] if ids],
            min_decoding_length=least,
            max_decoding_length=length,
            max_input_length=0,
            return_end_token=True,  # so that it counts in the length
            use_vmap=self._shortlist is not None and shortlist and not prefixed and not forbid,
            return_scores=scored,
            max_batch_size=self._part(mode, len(requests)),
        )
        if kind is not None:
            tokens = sum(len(request.source) for request in requests) + sum(len(r.hypotheses[0]) for r in results)
            self._modes.record(kind, mode, time.perf_counter() - began, tokens)
        return [
            [
                Found([self._ids[name] for name in names], score)
                for names, score in zip(result.hypotheses, result.scores if scored else [math.nan], strict=True)
            ]
            for result in results
        ]

    def _next(self, source: Sequence[int], alive: list[list[int]]) -> NDArray[np.float64]:
        """Return the log-probabilities of the tokens that can follow each of these hypotheses of one length."""
        _, translator = self._translator(None)
        results = translator.translate_batch(
            [self._source(source)] * len(alive),
            [self._target(ids) for ids in alive],
            beam_size=1,
            min_decoding_length=0,
            max_decoding_length=len(alive[0]) + 1,
            max_input_length=0,
            return_logits_vocab=True,
        )
        logits = np.stack([np.array(result.logits[0][-1], np.float64) for result in results])
        logits -= logits.max(1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(1, keepdims=True))
        logits[:, [*NEVER, END]] = -math.inf
        return logits

    def _log_probs(self, pairs: Sequence[tuple[Sequence[int], list[int]]]) -> list[list[float]]:
        """Return the log-probabilities of the tokens of each answer to a source, and of its end."""
        mode, translator = self._translator(None)
        results = translator.score_batch(
            [self._source(source) for source, _ in pairs],
            [self._target(ids) for _, ids in pairs],
            max_input_length=0,
            max_batch_size=self._part(mode, len(pairs)),
        )
        return [list(result.log_probs) for result in results]

    def _part(self, mode: ThreadMode, sentences: int) -> int:
        """Return the batch size of a thread; 0 does not split the batch."""
        return 0 if mode == "intra" else -(-sentences // self._threads)

    def _source(self, ids: Sequence[int]) -> list[str]:
        return [self._source_names[i] for i in ids]

    def _target(self, ids: Iterable[int]) -> list[str]:
        return [self._names[i] for i in ids]


def _kind(request: Request) -> tuple[int, bool, list[list[int]]]:
    """Return the options that CTranslate2 has for a whole batch only."""
    return request.limits.least, bool(request.constraints.prefix), request.constraints.forbid


def _batches(kinds: Sequence[Any], lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield batches of one kind and of similar length, the longest first, with at most this many tokens."""
    order = sorted(range(len(kinds)), key=lambda i: (kinds[i], -lengths[i]))
    while order:
        count = max(1, tokens // lengths[order[0]])
        batch = [i for i in order[:count] if kinds[i] == kinds[order[0]]]
        yield batch
        order = order[len(batch) :]
