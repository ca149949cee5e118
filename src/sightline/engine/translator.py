"""The translator: an encoder-decoder that writes a text for a source text."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from sightline.config import ModelConfig, SearchConfig
from sightline.engine.base import Encodings, Engine
from sightline.engine.results import Alternative, Plan, Scored, Segment, Translation
from sightline.errors import InputError
from sightline.search.align import Alignment, Heads, Words, align
from sightline.search.constrained import least_tokens
from sightline.search.rerank import expected_chrf
from sightline.search.score import next_tokens
from sightline.search.tree import Tree, grow_tree
from sightline.search.types import NO_CONSTRAINTS, Constraints, Hypothesis, Limits, Request
from sightline.special import END, START
from sightline.text.split import Piece, is_one_sentence, join, split, starts
from sightline.text.stream import TextStream
from sightline.text.tokenizer import Tokenizer, with_end
from sightline.text.words import words_of
from sightline.trace.trace import Trace

LONGEST = 250
"""Tokens of a source beyond which even a sentence is split: models rarely see longer ones in training."""
TRAINED_SOURCE_LENGTH = 64
"""Tokens up to which sentences are translated together, if the model does not state the lengths it was trained on."""


def translation_request(
    source: Sequence[int], options: SearchConfig, config: ModelConfig, constraints: Constraints = NO_CONSTRAINTS
) -> Request:
    """Return the request for the translation of a source (ids without its end)."""
    length, max_positions = len(source) + 1, config.positions.max_length
    most = max(int(options.max_ratio * length) + options.max_extra, least_tokens(constraints) + 1)
    most = min(most, max_positions)
    least = min(math.ceil(options.min_ratio * (length - 1)), most - 1)
    return Request(with_end(source, config.source_end), Limits(most, least), constraints=constraints)


class Translator(Engine):
    """A trained translator, or several that vote."""

    def __init__(
        self,
        models: Any,
        tokenizer: Tokenizer,
        *,
        trained_source_length: int | None = None,
        heads: Heads | None = None,
        **options: Any,
    ) -> None:
        """`trained_source_length`: tokens of the sources in training; shorter sentences are translated together.
        `heads`: those that align words; all by default. Other options are those of `Engine`."""
        super().__init__(models, tokenizer, **options)
        self.trained_source_length, self.heads = trained_source_length or TRAINED_SOURCE_LENGTH, heads
        self.longest_source = self.max_positions - 1
        """Tokens of a source, without its end."""

    def translate(
        self,
        texts: str | Sequence[str],
        *,
        prefix: str | Sequence[str] | None = None,
        forbid: Sequence[str] = (),
        require: Sequence[str] = (),
        align: bool = False,
        **options: Any,
    ) -> list[Translation]:
        """Translate every text; return the translations in order.

        `prefix`: the beginning of the translation, one for all texts or one for each. `forbid` and `require`: words
        that a translation must not or must contain; a word that is required twice occurs twice. `align`: add the
        alignment of the words. Other options are those of `SearchConfig` (beams, nbest, length_penalty, sample, …).

        A word is searched for as the vocabulary usually splits it; a required word may be the beginning of a longer
        one. A text with several lines, or a long one, is translated in segments and joined again; it cannot have a
        prefix or required words. Translations are ordered by score, or with `rerank` by similarity to the other
        samples (segment by segment).
        """
        some, search = [texts] if isinstance(texts, str) else texts, SearchConfig(**options)
        return self.run(self.plan(some, search, prefix=prefix, forbid=forbid, require=require, align=align))

    def stream(self, text: str, *, prefix: str = "", forbid: Sequence[str] = (), **options: Any) -> Iterator[str]:
        """Yield the translation piece by piece, each as soon as it is certain: by greedy search or as a sample."""
        plan = self.plan([text], SearchConfig(**{"beams": 1, **options}), prefix=prefix, forbid=forbid)
        yield from self._stream(plan)

    def plan(
        self,
        texts: Sequence[str],
        options: SearchConfig,
        *,
        prefix: str | Sequence[str] | None = None,
        forbid: Sequence[str] = (),
        require: Sequence[str] = (),
        align: bool = False,
        log_probs: bool = True,
    ) -> Plan[list[Translation]]:
        """Make the translation of texts ready: segments, requests and the way back to translations."""
        encode_source, encode = self.encodings(spans=align)
        prefixes = [prefix or ""] * len(texts) if prefix is None or isinstance(prefix, str) else list(prefix)
        if (count := len(prefixes)) != len(texts):
            raise InputError.of("prefix", count, f"needs one text for each of the {len(texts)} texts, got {count}.")
        required, forbidden = ([ids for ids in encode(words) if ids] for words in (require, forbid))
        pieces, requests = self._split(texts, encode_source), []
        for parts, begun in zip(pieces, encode(prefixes) if any(prefixes) else [[] for _ in prefixes], strict=True):
            with_text = [part.text for part in parts if part.text]
            if (begun or required) and (count := len(with_text)) > 1:
                option = "prefix" if begun else "require"
                raise InputError.of(option, count, f"is for a text of one segment, and this one has {count}.")
            constraints = Constraints(begun, required, forbidden)
            config = self.model.config
            requests += [translation_request(ids, options, config, constraints) for ids in encode_source(with_text)]

        def assemble(answers: Sequence[list[Hypothesis]]) -> list[Translation]:
            if options.rerank != "none":
                answers = [self._rerank(each)[: options.nbest] for each in answers]
            found = iter(zip(requests, answers, strict=True))
            ranked = [self._translations(parts, [next(found) for part in parts if part.text]) for parts in pieces]
            if align:
                ranked = self._aligned(texts, pieces, ranked, encode_source)
            return [replace(first, alternatives=tuple(others)) for first, *others in ranked]

        searched = options if options.rerank == "none" else options.model_copy(update={"nbest": options.beams})
        return Plan(requests, searched, assemble, pieces[0] if len(pieces) == 1 else (), log_probs)

    def encodings(self, *, spans: bool = False) -> tuple[Encodings, Encodings]:
        """Return the encoders of sources and of targets for one call. `spans`: of sources."""
        source = Encodings(self.tokenizer.source, spans=spans)
        return source, source if self.tokenizer.source is self.tokenizer else Encodings(self.tokenizer)

    def tree(self, text: str | Plan[Any], *, prefix: str = "", **options: Any) -> Tree:
        """Return all hypotheses that a beam search for the translation of a text considers, with their fates. A plan
        has its own options."""
        plan = self.plan([text], SearchConfig(**options), prefix=prefix) if isinstance(text, str) else text
        self._one_segment(plan)
        return grow_tree(self.torch.model, plan.requests[0], plan.options)

    def score(
        self, sources: Sequence[str | list[int]], targets: Sequence[str | list[int]], *, first: int = 1
    ) -> list[Scored]:
        """Return the probability of each target as the translation of its source, token by token. Both are texts or
        ids, without start and end. Errors number the pairs from `first`."""
        encode_source, encode = self.encodings()
        given, wanted = encode_source(sources), encode(targets)
        self._check_pairs(given, wanted, first)
        options = SearchConfig()
        requests = [translation_request(ids, options, self.model.config) for ids in given]
        scores = self.torch.score(requests, wanted)
        return [
            Scored(sum(log_probs), self.tokenizer.pieces(ids), log_probs)
            for ids, log_probs in zip(wanted, scores, strict=True)
        ]

    def alternatives(
        self,
        text: str | Plan[Any],
        target: str | list[int],
        position: int,
        count: int = 5,
        **options: Any,
    ) -> list[Alternative]:
        """Return the likeliest tokens at a position of `target`, a translation of `text` or its beginning (as text or
        ids), and the best translation with each of them. A plan has its own options."""
        if isinstance(text, str):
            text = self.plan([text], SearchConfig(**options), log_probs=False)
        plan = text
        self._one_segment(plan)
        answer = self.tokenizer.encode([target])[0] if isinstance(target, str) else target
        if not 0 <= position <= len(answer) or position >= self.longest_source:
            last = min(len(answer), self.longest_source - 1)
            raise InputError.of("position", position, f"must be from 0 to {last}, got {position}.")
        if count < 1:
            raise InputError.of("count", count, f"must be at least 1, got {count}.")
        (request,), begun = plan.requests, answer[:position]
        likely = next_tokens(self.models, request, begun, count)
        config, source = self.model.config, request.source[: len(request.source) - self.model.config.source_end]
        requests = [
            translation_request(source, plan.options, config, Constraints([*begun, token]))
            for token, _ in likely
            if token != END
        ]
        rest, found = iter(self.search(requests, plan.options, log_probs=False)), []
        for token, log_prob in likely:
            answers = [Hypothesis(begun, 0.0, [])] if token == END else next(rest)
            (whole,) = plan.assemble([answers[:1]])
            found.append(Alternative(self.tokenizer.pieces([token])[0], log_prob, whole.text))
        return found

    def align(self, sources: Sequence[str], targets: Sequence[str], *, first: int = 1) -> list[Alignment]:
        """Return which word of each source belongs to which word of its target, by the attention that predicts the
        target. Words are separated by white space and counted from 0. Errors number the pairs from `first`."""
        return align(self.model, *self.words(sources, targets, first=first), self.heads)

    def words(
        self, sources: Sequence[str], targets: Sequence[str], *, first: int = 1
    ) -> tuple[list[Words], list[Words]]:
        """Return given pairs as tokens, with the word that each token belongs to."""
        encode_source, encode = Encodings(self.tokenizer.source, spans=True), Encodings(self.tokenizer, spans=True)
        given = [encode_source.words(text, text, 0) for text in sources]
        wanted = [encode.words(text, text, 0) for text in targets]
        self._check_pairs([one.ids for one in given], [one.ids for one in wanted], first)
        return given, wanted

    def trace(
        self,
        source: str | list[int] | Translation,
        /,
        target: str | list[int] | None = None,
        *,
        segment: int = 0,
        **options: Any,
    ) -> Trace:
        """Trace the model while it writes a target: exactly the ids of a segment of a translation; or a source and a
        target, as texts (which are tokenised) or as ids (taken as they are: a source with its end, a target without
        start and end). Without a target, the model's own translation.

        A text of several segments that is traced with its whole translation is one pass: the model translated the
        segments one by one, and might have written something else for all of them together."""
        if isinstance(source, str) and target is None:
            (result,) = self.translate(source, **options)
            if len(result.segments) == 1:
                return self.trace(result)
            target = result.text
        if isinstance(source, Translation):
            if not 0 <= segment < len(source.segments):
                raise InputError.of("segment", segment, f"must be from 0 to {len(source.segments) - 1}, got {segment}.")
            chosen = source.segments[segment]
            source, target = chosen.source_ids, chosen.ids
        if isinstance(source, str):
            source = with_end(self.tokenizer.source.encode([source])[0], self.model.config.source_end)
        if target is None:
            raise InputError.of("target", None, "is missing: a source of ids needs one.")
        return self._trace(
            source=source, target=[START, *(self.tokenizer.encode([target])[0] if isinstance(target, str) else target)]
        )

    def _split(self, texts: Sequence[str], encode: Encodings) -> list[list[Piece]]:
        """Split texts into segments; most texts are one."""
        limit = min(LONGEST, self.longest_source)
        together = min(self.trained_source_length, limit)
        return [
            [Piece(text, "")]
            if (length <= together and text.split() == text.split(" ")) or (length <= limit and is_one_sentence(text))
            else split(text, encode.lengths, limit, together)
            for text, length in zip(texts, encode.lengths(texts), strict=True)
        ]

    def _one_segment(self, plan: Plan[Any]) -> None:
        if (count := len(plan.requests)) != 1:
            raise InputError.of("text", count, f"must be one segment, and this one has {count}.")

    def _check_pairs(self, sources: Sequence[list[int]], targets: Sequence[list[int]], first: int) -> None:
        if (count := len(targets)) != len(sources):
            raise InputError.of("targets", count, f"must be as many as the {len(sources)} sources, got {count}.")
        for number, pair in enumerate(zip(sources, targets, strict=True), first):
            if max(map(len, pair)) > self.longest_source:
                raise InputError(
                    f"Pair {number} is too long: each side has at most {self.longest_source} tokens.", value=number
                )

    def _translations(
        self, parts: Sequence[Piece], found: Sequence[tuple[Request, list[Hypothesis]]]
    ) -> list[Translation]:
        """Return the translations of a text: the best answers to its segments, then the second best, and so on."""
        translations = []
        for rank in range(max((len(answers) for _, answers in found), default=1)):
            segments = []
            for request, answers in found:
                one = answers[min(rank, len(answers) - 1)]
                segments.append(Segment(request.source, one.ids, one.log_probs, one.score, self.tokenizer))
            score = sum(segment.score for segment in segments) / len(segments) if segments else 0.0
            translations.append(Translation(join(parts, self._texts(parts, segments)), score, segments))
        return translations

    def _texts(self, parts: Sequence[Piece], segments: Sequence[Segment]) -> list[str]:
        """Return the translated text of each part, "" for those without text."""
        rest = iter(segments)
        return [self.tokenizer.decode(next(rest).ids) if part.text else "" for part in parts]

    def _rerank(self, samples: list[Hypothesis]) -> list[Hypothesis]:
        """Return one sample of each text, the text most similar to all others first."""
        texts = [self.tokenizer.decode(one.ids) for one in samples]
        times = Counter(sorted(texts))  # in an order that no score decides
        utility = dict(zip(times, expected_chrf(list(times), list(times.values())).tolist(), strict=True))
        best = dict(zip(reversed(texts), reversed(samples), strict=True))  # the first of each, which scores best
        return [best[text] for text in sorted(best, key=lambda text: (-utility[text], -best[text].score))]

    def _aligned(
        self,
        texts: Sequence[str],
        pieces: Sequence[list[Piece]],
        ranked: Sequence[list[Translation]],
        encode: Encodings,
    ) -> list[list[Translation]]:
        """Add alignments to translations. Segments are aligned one by one; words are numbered in the whole text."""
        sources, targets = [], []
        for text, parts, ranks in zip(texts, pieces, ranked, strict=True):
            begins = accumulate((len(part.text + part.gap) for part in parts), initial=0)
            own = [
                encode.words(text, part.text, begin) for part, begin in zip(parts, begins, strict=False) if part.text
            ]
            for one in ranks:
                begun = starts(parts, self._texts(parts, one.segments))
                places = [start for part, start in zip(parts, begun, strict=True) if part.text]
                sources += own
                targets += [
                    Words(segment.ids, words_of(one.text, id_spans(self.tokenizer, segment.ids), start))
                    for segment, start in zip(one.segments, places, strict=True)
                ]
        found = iter(align(self.model, sources, targets, self.heads))
        return [
            [replace(one, alignment=sorted({pair for _ in one.segments for pair in next(found)})) for one in ranks]
            for ranks in ranked
        ]


def id_spans(tokenizer: Tokenizer, ids: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and last character of each token in the decoded text."""
    stream, spans, end = TextStream(tokenizer), [], 0
    for id in ids:  # noqa: A001
        begin, end = end, end + len(stream.push(id))
        spans.append((begin, end))
    if spans:
        spans[-1] = (spans[-1][0], end + len(stream.finish()))
    return spans
