"""The one object everyone uses: raw text goes in, raw text comes out, and every number in between can be looked at.

engine = sightline.load("runs/mine")
engine.translate(["Hi, how are you?"], beam=4)[0].text
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from sightline.backends.ctranslate2 import CTranslate2Backend
from sightline.backends.ctranslate2_format import converted_folder
from sightline.config import SearchConfig
from sightline.errors import InputError, SightlineError
from sightline.model.kernels.compiled import column_major_weights
from sightline.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly, Model
from sightline.model_folder import SHORTLIST, ModelFolder
from sightline.search.align import Alignment, Heads, Words, align
from sightline.search.find import Progress, find, follow, stream
from sightline.search.hypothesis import Hypothesis, Wish
from sightline.search.risk import expected_chrf
from sightline.search.rules import bounds
from sightline.search.score import following, force
from sightline.search.tree import Tree, grow_tree
from sightline.search.types import Constraints, Limits, Request
from sightline.special import END, START
from sightline.text.split import Piece, join, split, starts
from sightline.text.stream import Telling
from sightline.text.tokenizer import Tokenizer, with_end
from sightline.text.words import words_of
from sightline.trace.trace import Trace
from sightline.trace.watch import tracing
from sightline.trace.what_if import what_if

__all__ = ["Alternative", "Asked", "Engine", "Reader", "Scored", "Translation", "load", "load_any"]

WINDOW = 4096
"""Lines of a long text that are sorted by length together."""
LONGEST = 250
"""Tokens of a source beyond which even a sentence is split: models rarely see longer ones in training."""
ENGINES = ("auto", "torch", "ctranslate2")
PRECISIONS = ("auto", "float32", "bfloat16", "int8")
USUAL = 64
"""Tokens up to which sentences are translated together, where it is not known what the model has learnt from."""


class Translation(NamedTuple):
    """An answer to one text."""

    text: str
    score: float
    """log P(y|x) / |y|^α (`SearchConfig.length_penalty`); of a text that was split, the mean over its parts."""
    tokens: list[str]
    """The sub-words it was written in."""
    log_probs: list[float]
    """Of each token, and of the end after it."""
    alternatives: list["Translation"] = []  # noqa: RUF012 - never changed
    """With nbest: the next best ones."""
    alignment: Alignment | None = None
    """With align: pairs of a source word and a word of this text that belong together. Words are what white space
    separates, counted from 0."""


class Scored(NamedTuple):
    """How probable a given answer is."""

    log_prob: float
    tokens: list[str]
    log_probs: list[float]
    """Of each token, and of the end after it."""


class Alternative(NamedTuple):
    """What could come at a place in a translation."""

    token: str
    """As the vocabulary writes it; the end is one too."""
    log_prob: float
    """Of the token alone, after what stands before it."""
    text: str
    """The whole translation, if this token is taken."""


class Asked(NamedTuple):
    """Texts as the model reads them."""

    texts: Sequence[str]
    pieces: list[list[Piece]]
    """Of each text: what is translated at a time, and what stands between."""
    sources: list[list[int]]
    """The tokens of all pieces that have text."""
    wishes: list[Wish]
    """What is wanted of the answer to each."""


class Changes(threading.local):
    """Whether this thread is inside of a what-if, which the model here knows of, and no other."""

    here = False


class Engine:
    """A trained translator, or several that vote."""

    def __init__(
        self,
        models: Sequence[EncoderDecoder],
        tokenizer: Tokenizer,
        *,
        usual: int = USUAL,
        fast: CTranslate2Backend | None = None,
        heads: Heads | None = None,
    ) -> None:
        """`usual`: tokens that sources had in training. Sentences that have more together are translated one by one.
        `fast`: what searches where it would find the same as we do. `heads`: those of the first model by which words
        are aligned, if not all."""
        self.models = [model.eval() for model in models]
        self.tokenizer, self.usual, self.fast, self.heads = tokenizer, usual, fast, heads
        self.changes = Changes()
        self.room = min(model.config.positions.max_length for model in models) - 1
        """Tokens of a source, without its end."""

    @property
    def model(self) -> EncoderDecoder:
        """The model; of several, the first."""
        return self.models[0]

    def translate(
        self,
        texts: str | Sequence[str],
        *,
        beam: int = 4,
        prefix: str | Sequence[str] | None = None,
        without: Sequence[str] = (),
        within: Sequence[str] = (),
        align: bool = False,
        **options: Any,
    ) -> list[Translation]:
        """The translation of every text, in order. `options` are those of `SearchConfig` (nbest, length_penalty,
        sample, temperature, ...); `prefix`: how the answer must begin, for all or for each; `without`: words it must
        not have; `within`: words it must have, one that is named twice at two places; `align`: whether it is told
        which word comes from which.

        A word is looked for as the vocabulary usually cuts it; where one must be, it may be the beginning of a longer
        one. A text with several lines, or one that is too long, is translated in parts and put together again; it
        cannot have a prefix or words that must be there.

        The answers are ordered by score, but with rerank="mbr-chrf" by likeness to all that was drawn (of a text in
        parts, part by part).
        """
        config = SearchConfig(beams=beam, **options)
        some = [texts] if isinstance(texts, str) else texts
        return self.search(some, config, prefix=prefix, without=without, within=within, align=align)

    def search(
        self,
        texts: Sequence[str],
        config: SearchConfig,
        *,
        prefix: str | Sequence[str] | None = None,
        without: Sequence[str] = (),
        within: Sequence[str] = (),
        details: bool = True,
        align: bool = False,
    ) -> list[Translation]:
        """The same, all options in one. `details`: whether log_probs are wanted, which may take longer; without, one
        beam may have no score either (nan)."""
        asked = self.asked(texts, prefix=prefix, without=without, within=within)
        return self.answered(asked, self._find(asked.sources, config, asked.wishes, details), align=align)

    def asked(
        self,
        texts: Sequence[str],
        *,
        prefix: str | Sequence[str] | None = None,
        without: Sequence[str] = (),
        within: Sequence[str] = (),
    ) -> Asked:
        """What `search` will search for."""
        prefixes = [prefix or ""] * len(texts) if prefix is None or isinstance(prefix, str) else list(prefix)
        if len(prefixes) != len(texts):
            raise InputError(f"there are {len(prefixes)} prefixes and {len(texts)} texts; each text needs one.")
        begun = self.tokenizer.encode(prefixes) if any(prefixes) else [[] for _ in prefixes]
        banned, wanted = self._words(without), self._words(within)
        pieces, sources, wishes = self._pieces(texts), [], []
        for parts, first in zip(pieces, begun, strict=True):
            some = [part.text for part in parts if part.text]
            if (first or wanted) and len(some) > 1:
                what = "a prefix is" if first else "words that must occur are"
                raise InputError(f"{what} for a text of one part, and this one is translated in several.")
            sources += some
            wishes += [Wish(first, banned, wanted)] * len(some)
        return Asked(texts, pieces, self.tokenizer.source.encode(sources), wishes)

    def answered(self, asked: Asked, answers: Sequence[list[Hypothesis]], *, align: bool = False) -> list[Translation]:
        """The translations of texts, from what was found for all that was asked, in its order."""
        texts, pieces, found = asked.texts, asked.pieces, iter(answers)
        ranked = [_ranks([next(found) if part.text else [] for part in parts]) for parts in pieces]
        whole = [[self._together(parts, each) for each in ranks] for parts, ranks in zip(pieces, ranked, strict=True)]
        if align:
            whole = self._aligned(texts, pieces, ranked, whole)
        return [first._replace(alternatives=others) for first, *others in whole]

    def follow(
        self,
        sources: Sequence[list[int]],
        config: SearchConfig,
        wishes: Sequence[Wish],
        *,
        details: bool = True,
        aloud: Collection[int] = (),
        gone: Collection[int] = (),
    ) -> Generator[Progress, None, None]:
        """One batch of what was asked, step by step (`sightline.search.find.follow`), so that others have their turn in
        between. CTranslate2 makes one step of all of it, and tells no tokens: what is `aloud`, torch searches."""
        if aloud and len(self.models) > 1:
            raise InputError("several models that vote cannot be streamed; load one of them.")
        if config.rerank == "none" and (aloud or self._fast(sources, config, wishes) is None):
            yield from follow(self.models, sources, config, wishes, aloud=aloud, gone=gone)
        else:
            yield Progress({}, dict(enumerate(self._find(sources, config, wishes, details))))

    def translate_lines(self, lines: Iterable[str], *, window: int = WINDOW, **options: Any) -> Iterator[Translation]:
        """The translations of any number of lines, in order, in constant memory: a window of them at a time."""
        rest = iter(lines)
        while batch := list(islice(rest, window)):
            yield from self.translate(batch, **options)

    def stream(self, text: str, *, prefix: str = "", without: Sequence[str] = (), **options: Any) -> Iterator[str]:
        """The translation piece by piece, each as soon as it is sure: of greedy search, or with sample=True of a
        sample."""
        config = SearchConfig(**{"beams": 1, **options})
        if len(self.models) > 1:
            raise InputError("several models that vote cannot be streamed; load one of them.")
        wish = Wish(self.tokenizer.encode([prefix])[0], self._words(without))
        parts = self._pieces([text])[0]
        telling = Telling(self.tokenizer, parts)
        for number, part in enumerate(parts):
            if part.text:
                (source,) = self.tokenizer.source.encode([part.text])
                for token in stream(self.model, source, config, wish):
                    yield from filter(None, [telling.push(number, token)])
            yield from filter(None, [telling.finish(number)])

    def beams(self, text: str, *, beam: int = 4, prefix: str = "", **options: Any) -> Tree:
        """All hypotheses that a beam search for the translation of a text looks at, and what becomes of each."""
        asked = self.asked([text], prefix=prefix)
        if len(asked.sources) != 1:
            raise InputError(f"beams are shown for a text of one part, and this one has {len(asked.sources)}.")
        return grow_tree(self.models, asked.sources[0], SearchConfig(beams=beam, **options), asked.wishes[0])

    def score(self, sources: Sequence[str], targets: Sequence[str], *, first: int = 1) -> list[Scored]:
        """How probable each target is as the translation of its source, token by token. Errors count the pairs from
        `first` on."""
        given, wanted = self.tokenizer.source.encode(sources), self.tokenizer.encode(targets)
        self._check(given, wanted, first)
        return [
            Scored(sum(log_probs), self.tokenizer.pieces(ids), log_probs)
            for ids, log_probs in zip(wanted, force(self.models, given, wanted), strict=True)
        ]

    def alternatives(
        self, text: str, target: str, position: int, count: int = 5, *, beam: int = 4, **options: Any
    ) -> list[Alternative]:
        """What could come in place of a token of `target`, a translation of `text` or its beginning: the tokens that
        are likeliest after the first `position` ones (those of `score`), the likeliest first, and how it would go on
        from each. `options` are those of `SearchConfig`."""
        (parts,), (answer,) = self._pieces([text]), self.tokenizer.encode([target])
        some = [part.text for part in parts if part.text]
        if len(some) != 1:
            raise InputError(f"alternatives are for a text of one part, and this one has {len(some)}.")
        if not 0 <= position <= len(answer):
            raise InputError(f"there is no position {position} in a translation of {len(answer)} tokens.")
        if position >= self.room:
            raise InputError(f"position {position} is too far on: the model writes at most {self.room} tokens.")
        if count < 1:
            raise InputError(f"count = {count} alternatives are none; ask for one or more.")
        (source,), begun = self.tokenizer.source.encode(some), answer[:position]
        likely = following(self.models, source, begun, count)
        wishes = [Wish([*begun, token]) for token, _ in likely if token != END]
        longer = iter(self._find([source] * len(wishes), SearchConfig(beams=beam, **options), wishes, details=False))
        ended, found = [Hypothesis(begun, 0.0, [])], []
        for token, log_prob in likely:
            answers = ended if token == END else next(longer)
            whole = self._together(parts, [answers[0] if part.text else None for part in parts])
            found.append(Alternative(self.tokenizer.pieces([token])[0], log_prob, whole.text))
        return found

    def align(self, sources: Sequence[str], targets: Sequence[str], *, first: int = 1) -> list[Alignment]:
        """Which word of each source belongs to which word of its target, by where the model looks while it writes the
        target. Words are what white space separates, counted from 0. Errors count the pairs from `first` on."""
        return align(self.model, *self.words(sources, targets, first=first), self.heads)

    def words(
        self, sources: Sequence[str], targets: Sequence[str], *, first: int = 1
    ) -> tuple[list[Words], list[Words]]:
        """Given pairs as tokens, with the word that each token belongs to."""
        given = self._cut(self.tokenizer.source, [(text, text, 0) for text in sources])
        wanted = self._cut(self.tokenizer, [(text, text, 0) for text in targets])
        self._check([one.ids for one in given], [one.ids for one in wanted], first)
        return given, wanted

    def trace(self, text: str, target: str | None = None, **options: Any) -> Trace:
        """Everything that goes on in the model when it writes `target` for `text`, by dotted name; without a target,
        when it writes its own translation. One pass shows every step, also of a text of several sentences, which it
        translates one by one: what it wrote for them it might not have written for all at once."""
        target = self.translate(text, **options)[0].text if target is None else target
        (source,), (answer,) = self.tokenizer.source.encode([text]), self.tokenizer.encode([target])
        if max(len(source), len(answer)) > self.room:
            raise InputError(f"only texts of at most {self.room} tokens can be traced.")
        source = with_end(source, self.model.config.source_end)
        return _traced(self.model, self.tokenizer, {"source": source, "target": [START, *answer]})

    @contextlib.contextmanager
    def what_if(self, **changes: Any) -> Iterator[None]:
        """Inside the block the model is changed, as `sightline.what_if` says; outside it is as it was."""
        with contextlib.ExitStack() as stack:
            for model in self.models:
                stack.enter_context(what_if(model, **changes))
            self.changes.here = True
            stack.callback(setattr, self.changes, "here", False)
            yield

    def _find(
        self, sources: Sequence[list[int]], config: SearchConfig, wishes: Sequence[Wish], details: bool
    ) -> list[list[Hypothesis]]:
        if config.rerank != "none":
            samples = find(self.models, sources, config.model_copy(update={"nbest": config.beams}), wishes)
            return [self._by_risk(each)[: config.nbest] for each in samples]
        fast = self._fast(sources, config, wishes)
        if fast is None:
            return find(self.models, sources, config, wishes)
        answers = fast.search(self._requests(sources, config, wishes), config, log_probs=details)
        return [[Hypothesis(*one) for one in each] for each in answers]

    def _requests(self, sources: Sequence[list[int]], config: SearchConfig, wishes: Sequence[Wish]) -> list[Request]:
        end, requests = self.model.config.source_end, []
        for source, wish in zip(sources, wishes, strict=True):
            limits = Limits(*bounds(len(source) + 1, config, wish, self.room + 1))
            constraints = Constraints(wish.prefix, wish.within, wish.without)
            requests.append(Request(with_end(source, end), limits, constraints=constraints))
        return requests

    def _fast(
        self, sources: Sequence[list[int]], config: SearchConfig, wishes: Sequence[Wish]
    ) -> CTranslate2Backend | None:
        """What searches faster than torch, if there is such, and it finds the same."""
        if self.changes.here or self.fast is None:
            return None
        return None if self.fast.reason_not(self._requests(sources, config, wishes), config) else self.fast

    def _by_risk(self, samples: list[Hypothesis]) -> list[Hypothesis]:
        """One sample of each text, the text most like all others first."""
        texts = [self.tokenizer.decode(one.ids) for one in samples]
        times = Counter(sorted(texts))  # in an order that no score decides
        utility = dict(zip(times, expected_chrf(list(times), list(times.values())).tolist(), strict=True))
        best = dict(zip(reversed(texts), reversed(samples), strict=True))  # the first of each, which scores best
        return [best[text] for text in sorted(best, key=lambda text: (-utility[text], -best[text].score))]

    def _pieces(self, texts: Sequence[str]) -> list[list[Piece]]:
        """What the model reads at a time: most texts are one piece."""
        limit = min(LONGEST, self.room)
        usual = min(self.usual, limit)
        return [
            [Piece(text, "")]
            if length <= usual and text.split() == text.split(" ")
            else split(text, self._lengths, limit, usual)
            for text, length in zip(texts, self._lengths(texts), strict=True)
        ]

    def _lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in self.tokenizer.source.encode(texts)]

    def _words(self, words: Sequence[str]) -> list[list[int]]:
        """Words inside a sentence, as the vocabulary cuts them."""
        return [ids for ids in self.tokenizer.encode(words) if ids] if words else []

    def _check(self, sources: Sequence[list[int]], targets: Sequence[list[int]], first: int) -> None:
        if len(sources) != len(targets):
            raise InputError(f"there are {len(sources)} sources and {len(targets)} targets; they come in pairs.")
        for number, (ids, answer) in enumerate(zip(sources, targets, strict=True), first):
            if max(len(ids), len(answer)) > self.room:
                raise InputError(f"pair {number} is too long: the model takes at most {self.room} tokens a side.")

    def _together(self, parts: Sequence[Piece], found: Sequence[Hypothesis | None]) -> Translation:
        """The answer to a text from those to its parts."""
        there = [one for one in found if one]
        return Translation(
            join(parts, self._said(found)),
            sum(one.score for one in there) / len(there) if there else 0.0,
            [token for one in there for token in self.tokenizer.pieces(one.ids)],
            [log_prob for one in there for log_prob in one.log_probs],
        )

    def _said(self, found: Sequence[Hypothesis | None]) -> list[str]:
        return [self.tokenizer.decode(one.ids) if one else "" for one in found]

    def _aligned(
        self,
        texts: Sequence[str],
        pieces: Sequence[list[Piece]],
        ranked: Sequence[list[list[Hypothesis | None]]],
        answers: Sequence[list[Translation]],
    ) -> list[list[Translation]]:
        """The same answers with their alignments. Parts are aligned one by one; words are those of the whole text."""
        sources, targets, owners = [], [], []
        for i, (text, parts) in enumerate(zip(texts, pieces, strict=True)):
            begins = accumulate((len(part.text + part.gap) for part in parts[:-1]), initial=0)
            given = [(text, part.text, begin) for part, begin in zip(parts, begins, strict=True)] if parts else []
            for rank, found in enumerate(ranked[i]):
                said = self._said(found)
                sources += given
                targets += [
                    (answers[i][rank].text, one, start) for one, start in zip(said, starts(parts, said), strict=True)
                ]
                owners += [(i, rank)] * len(parts)
        # What no text is written in (single bytes) becomes more tokens when the answer is read again.
        read = [Words(one.ids[: self.room], one.words[: self.room]) for one in self._cut(self.tokenizer, targets)]
        links: dict[tuple[int, int], set[tuple[int, int]]] = {}
        given_words = self._cut(self.tokenizer.source, sources)
        for owner, some in zip(owners, align(self.model, given_words, read, self.heads), strict=True):
            links.setdefault(owner, set()).update(some)
        return [
            [one._replace(alignment=sorted(links.get((i, rank), ()))) for rank, one in enumerate(ranks)]
            for i, ranks in enumerate(answers)
        ]

    @staticmethod
    def _cut(tokenizer: Tokenizer, parts: Sequence[tuple[str, str, int]]) -> list[Words]:
        """Parts of texts (the whole text, the part, where it begins) as tokens."""
        texts = [part for _, part, _ in parts]
        both = zip(parts, tokenizer.encode(texts), tokenizer.spans(texts), strict=True)
        return [Words(ids, words_of(text, spans, start)) for (text, _, start), ids, spans in both]


class Reader:
    """A model that does not translate: it goes on with a text (GPT) or reads it (BERT), and can be looked into."""

    def __init__(self, model: DecoderOnly | EncoderOnly, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer

    def trace(self, text: str) -> Trace:
        """Everything that goes on in the model when it is given a text, by dotted name. The tokens of a decoder are
        "target", those of an encoder "source"."""
        (given,) = self.tokenizer.encode([text])
        writes = isinstance(self.model, DecoderOnly)
        ids = {"target": [START, *given]} if writes else {"source": [START, *given, END]}
        room = self.model.config.positions.max_length - (1 if writes else 2)
        if len(given) > room:
            raise InputError(f"only texts of at most {room} tokens can be traced.")
        return _traced(self.model, self.tokenizer, ids)


def _traced(model: Model, tokenizer: Tokenizer, ids: dict[str, list[int]]) -> Trace:
    """What goes on in a model that is given these ids."""
    device = model.classifier.weight.device
    with torch.no_grad(), tracing(model) as trace:
        model(*(torch.tensor([some], device=device) for some in ids.values()))
    sides = {"source": tokenizer.source, "target": tokenizer}
    trace.ids, trace.tokens = ids, {side: sides[side].pieces(some) for side, some in ids.items()}
    return trace.sentence(0)


def _ranks(found: Sequence[list[Hypothesis]]) -> list[list[Hypothesis | None]]:
    """The best answer to every part, then the second best to all of them, ..."""
    count = max((len(each) for each in found), default=0)
    return [[each[min(rank, len(each) - 1)] if each else None for each in found] for rank in range(max(count, 1))]


def load(
    path: str | Path | Sequence[str | Path],
    *,
    device: str = "auto",
    engine: Literal["auto", "torch", "ctranslate2"] = "auto",
    precision: Literal["auto", "float32", "bfloat16", "int8"] = "auto",
    shortlist: bool = False,
    threads: int | None = None,
) -> Engine:
    """Open a trained model by its folder or by the name of a shipped one; or several of one vocabulary, which then
    vote.

    `engine`: what searches. auto: on a processor, CTranslate2 where it is installed and finds the same; else torch.
    `precision`: what is computed in, scores and log-probabilities among it. auto: float32, in which both engines find
    the same, whatever the neighbours of a sentence. Two others are faster, and round, so that answers differ here and
    there: bfloat16 on a GPU, and int8 by CTranslate2 (what only torch can do is then float32).
    `shortlist`: search by the one that `sightline shortlist` wrote beside the model: faster once more, but what is not
    on it is not found. An answer with a prefix, or without some words, may have any token, as always.
    `threads`: of CTranslate2; without, as many as torch has (`torch.set_num_threads`).
    """
    paths = [ModelFolder(each) for each in ([path] if isinstance(path, str | Path) else path)]
    if not paths:
        raise InputError("there is no model to load; name its folder.")
    device = _device(device)
    for each in paths:
        architecture = each.config.architecture
        if architecture != "encoder-decoder":
            raise InputError(f"{each.path}: this model is {architecture} and does not translate.")
    tokenizers = [each.load_tokenizer() for each in paths]
    models = []
    for each, tokenizer in zip(paths, tokenizers, strict=True):
        model = each.load_model(device)
        assert isinstance(model, EncoderDecoder)  # noqa: S101
        if tokenizer.files != tokenizers[0].files:
            raise InputError(
                f"{each.path}: its vocabulary is not that of {paths[0].path}; models that vote need one in common."
            )
        models.append(model)
        if model.config.source_end != models[0].config.source_end:
            raise InputError(
                f"{each.path}: its sources end otherwise than those of {paths[0].path}; such models cannot vote."
            )
    if precision == "bfloat16":
        if not device.startswith("cuda"):
            raise InputError(f"bfloat16 is for a GPU, and the device is {device}; leave the precision out.")
        models = [model.to(torch.bfloat16) for model in models]
    if device == "cpu":
        for model in models:
            column_major_weights(model)
    threads = torch.get_num_threads() if threads is None else threads
    usual, heads = min(each.trained_source_length or USUAL for each in paths), paths[0].alignment_heads()
    fast = _fast(paths[0], models, tokenizers[0], device, engine, precision, shortlist, threads)
    return Engine(models, tokenizers[0], usual=usual, fast=fast, heads=None if heads is None else Heads(*heads))


def load_any(path: str | Path, *, device: str = "auto", **options: Any) -> Engine | Reader:
    """Open a model of any architecture by its folder or its name: one that translates as `load` does, with its
    options, another to be looked into."""
    folder = ModelFolder(path)
    if folder.config.architecture == "encoder-decoder":
        return load(path, device=device, **options)
    model = folder.load_model(_device(device))
    assert isinstance(model, DecoderOnly | EncoderOnly)  # noqa: S101
    return Reader(model, folder.load_tokenizer())


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:  # what torch raises for a kind that it was built without
        raise InputError(f"device {name}: it cannot be used here: {str(error).splitlines()[0]}") from None
    return name


def _fast(
    folder: ModelFolder,
    models: Sequence[EncoderDecoder],
    tokenizer: Tokenizer,
    device: str,
    engine: str,
    precision: str,
    shortlist: bool,
    threads: int,
) -> CTranslate2Backend | None:
    for name, value, known in (("engine", engine, ENGINES), ("precision", precision, PRECISIONS)):
        if value not in known:
            raise InputError(f"there is no {name} {value!r}; known are {', '.join(known[:-1])} and {known[-1]}.")
    if precision == "bfloat16" and (engine == "ctranslate2" or shortlist):
        raise InputError("bfloat16 is for the engine torch, which has no shortlists; leave one of the two out.")
    only_there = "int8" if precision == "int8" else "a shortlist" if shortlist else None
    if engine == "torch" and only_there:
        raise InputError(f"{only_there} is for the engine ctranslate2 only; leave one of the two out.")
    wanted = engine == "ctranslate2" or only_there is not None
    if engine == "torch" or (not wanted and (device != "cpu" or len(models) > 1)):
        return None
    if len(models) > 1:
        raise InputError("several models vote with the engine torch only, in float32 and without a shortlist.")
    kind: Literal["float32", "int8"] = "int8" if precision == "int8" else "float32"
    try:
        return CTranslate2Backend(
            converted_folder(folder, models[0], tokenizer, kind),
            kind,
            threads=threads,
            shortlist=folder.file(SHORTLIST) if shortlist else None,
        )
    except SightlineError:  # it is not installed, or cannot do this model, or there is no room for its files
        if wanted:
            raise
        return None
