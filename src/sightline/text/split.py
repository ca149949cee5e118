"""Splitting long texts into pieces, and joining the answers to the pieces.

A piece ends at the end of a sentence if possible; otherwise at the end of a clause, between words, or between
characters. The rules for ends of sentences are cautious: a missed end makes a piece longer, a wrong one breaks a
sentence.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from sightline.errors import InputError

Length = Callable[[Sequence[str]], list[int]]
"""Returns the number of tokens of each text."""

# Where a piece can end, best first.
LINE, SENTENCE, CLAUSE, SPACE, BOUND, ANYWHERE = range(6)
NEVER = 9

FINE = 8
"""Text without any boundary is split into eighths of the limit; smaller parts would take longer to measure."""

ENDS = ".!?…‼⁇⁈⁉"
SURE = "。！？｡؟۔।॥།።፧။។៕։"  # end a sentence in any context; most of these scripts have no space after it
PAUSES = ",;:،؛–"
SURE_PAUSES = "，、；：．､—"
CLOSING = "”’)]}」』）】》〉］｝｣〕〗"
EITHER = "\"'“‘«»‹›"  # an opening quote in one language is a closing one in another
NO_BREAK = "\u00a0\u2007\u202f"

MARKS = re.compile(
    r"[{marks}](?:[{marks}{closing}]|[{either}](?![^\s{closing}{either}])|[ {no_break}]»(?!\S))*".format(
        marks=re.escape(ENDS + SURE + PAUSES + SURE_PAUSES),
        closing=re.escape(CLOSING),
        either=re.escape(EITHER),
        no_break=NO_BREAK,
    )
)
GAP = re.compile(r"\s++")
SENTENCE_MARK = re.compile(f"[{re.escape(ENDS + SURE)}]")
BEFORE_WORDS = re.compile(rf"[\s\-/(\[{{„‚{EITHER}]")
LONG = 20  # characters; no abbreviation is longer

BEFORE_NAMES = frozenset(
    """
    Dr Mr Mrs Ms Prof St Mt Gen Col Sgt Lt Capt Rev Hon Sen Rep Gov Pres Messrs dr prof vs cf al approx incl
    Hr Fr Frl Hl Dipl Ing Bzw Evtl Ggf Inkl Vgl bzw ca evtl ggf inkl exkl vgl sog geb gest bspw zzgl abzgl Mio Mrd Tel
    Mme Mlle Mgr Ste Sr Sra Srta Dra Ud Uds Sig Sigg Dott Avv sig dott dhr Dhr mevr Mevr mw drs Drs bijv Bijv np tzn
    им ул тов проф акад напр Им Ул Тов Проф Акад Напр
    """.split()  # noqa: SIM905
)
"""Abbreviations that never end a sentence, unlike "etc." and "Inc."."""
BEFORE_NUMBERS = frozenset(
    """
    no nos nr nrs fig figs vol pp ch sec art abs bd kap ziff eq tab pág núm num str стр
    jan feb aug sept oct okt nov dec dez
    """.split()  # noqa: SIM905
)

# Code points that belong to the character before them and are not in the category of marks: joiners, later letters of a
# Korean syllable, voiced sound marks, Thai and Lao AM, skin tones, tags, the second half of a surrogate pair.
BELONGS = re.compile(
    "[\u200c\u200d\u0e33\u0eb3\u1160-\u11ff\ud7b0-\ud7fb\udc00-\udfff\uff9e\uff9f"
    "\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"
)
FLAGS = re.compile("[\U0001f1e6-\U0001f1ff]")  # two letters are one flag
FIRST = re.compile("[\u1100-\u115f\ua960-\ua97c]")  # letters of a Korean syllable
JOINER = "\u200d"
VIRAMA = 9  # joins the letters on its sides, in the scripts of India

UNSPACED = re.compile(
    "[\u2e80-\u312f\u3190-\u4dbf\u4e00-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff01-\uff9f\U00020000-\U0003ffff]"
)


class Piece(NamedTuple):
    """A piece of a text, and the white space after it."""

    text: str
    gap: str


class Part(NamedTuple):
    """A part of the text that is not split further."""

    before: int
    """Start of the white space before the part; `start` at the beginning of a line."""
    start: int
    end: int
    level: int
    """The kind of boundary at its end."""
    alone: int = -1
    """Number of its tokens; -1: not measured."""
    more: int = -1
    """Number of tokens that it adds to a piece."""


def split(text: str, length: Length, limit: int, trained_source_length: int | None = None) -> list[Piece]:
    """Split a text into pieces of at most `limit` tokens: `"".join(p.text + p.gap for p in pieces) == text`.

    Several sentences share a piece if it has at most `trained_source_length` tokens (default: `limit`), because a model
    that was trained on single sentences omits some of several. A line break always ends a piece. Each piece has text,
    except the first of a text that begins with white space, which is its gap. `length` is called a few times, each time
    with many texts.
    """
    if limit < 1:
        raise InputError.of("limit", limit, f"must be at least 1, got {limit}.")
    parts = _measure(text, _lines(text), length)
    together = limit if trained_source_length is None else min(trained_source_length, limit)
    parts = _refine(text, parts, SENTENCE, length, together)
    for level in (CLAUSE, SPACE, BOUND):
        parts = _refine(text, parts, level, length, limit)
    while any(part.alone > limit for part in parts):
        parts = _refine(text, parts, ANYWHERE, length, limit)
    spans = [(group[0].start, group[-1].end) for group in _fit(text, _pack(parts, limit, together), length, limit)]
    starts = [start for start, _ in spans] + [len(text)]
    pieces = [Piece(text[start:end], text[end:after]) for (start, end), after in zip(spans, starts[1:], strict=True)]
    return [Piece("", text[: starts[0]]), *pieces] if starts[0] else pieces


def is_one_sentence(text: str) -> bool:
    """Return whether `split` surely finds no boundary of a line or a sentence in a text. It is fast and often False."""
    inner = text.rstrip(ENDS + SURE + CLOSING + EITHER)
    return text.split() == text.split(" ") and not SENTENCE_MARK.search(inner)


def join(pieces: Sequence[Piece], answers: Sequence[str]) -> str:
    """Join the answers to all pieces, with the white space of the pieces between them (see `gap`). A piece without text
    has an answer, too, which is ignored."""
    return "".join(chain.from_iterable(_with_gaps(pieces, answers)))


def starts(pieces: Sequence[Piece], answers: Sequence[str]) -> list[int]:
    """Return the start of each answer in `join(pieces, answers)`."""
    sizes = [len(answer) + len(between) for answer, between in _with_gaps(pieces, answers)]
    return list(accumulate(sizes, initial=0))[:-1]


def _with_gaps(pieces: Sequence[Piece], answers: Sequence[str]) -> list[tuple[str, str]]:
    if len(pieces) != len(answers):
        raise InputError.of(
            "answers", len(answers), f"must have one answer per piece, got {len(answers)} for {len(pieces)} pieces."
        )
    return [
        (answer if piece.text else "", gap(piece, answer) if number < len(pieces) else piece.gap)
        for number, (piece, answer) in enumerate(zip(pieces, answers, strict=True), start=1)
    ]


def gap(piece: Piece, answer: str) -> str:
    """Return the white space between the answer to a piece and the next answer.

    It is the piece's, with two exceptions. If only the script of the answer has spaces between sentences (Chinese to
    English), an empty gap becomes a space. If only the script of the piece has them (English to Chinese), a single
    space is removed.
    """
    if not piece.text or not answer or answer[-1].isspace():
        return piece.gap
    source, target = _spacing(piece.text), _spacing(answer)
    if piece.gap == "" and target > source:
        return " "
    if piece.gap == " " and target == 0 < source:
        return ""
    return piece.gap


def _spacing(text: str) -> int:
    """Return whether a text is followed by a space: 0, never; 1, usually (after । or ؟); 2, always."""
    for letter in reversed(text):
        if UNSPACED.match(letter):
            return 0
        if letter in SURE:
            return 1
        if letter.isalnum():
            break
    return 2


def _lines(text: str) -> Iterator[Part]:
    place = 0
    for line in text.splitlines(keepends=True):
        end = place + len(line.rstrip())
        if end > place:
            start = _after_space(text, place, end)
            yield Part(start, start, end, LINE)
        place += len(line)


def _measure(text: str, parts: Iterable[Part], length: Length) -> list[Part]:
    """Measure each part with and without the space before it, because its tokens may differ."""
    parts = list(parts)
    fresh = [part for part in parts if part.alone < 0]
    texts = list(dict.fromkeys(text[start : p.end] for p in fresh for start in (p.start, p.before)))
    sizes = dict(zip(texts, length(texts), strict=True)) if texts else {}
    return [
        part._replace(alone=sizes[text[part.start : part.end]], more=sizes[text[part.before : part.end]])
        if part.alone < 0
        else part
        for part in parts
    ]


def _refine(text: str, parts: list[Part], level: int, length: Length, limit: int) -> list[Part]:
    """Split parts that are too long at all boundaries of this level."""
    found = []
    for part in parts:
        if part.alone <= limit:
            found.append(part)
            continue
        before, start = part.before, part.start
        for end, after in _cuts(text, part, level, limit):
            if end > start:
                found.append(Part(before, start, end, level))
            before, start = end, after
        rest = Part(before, start, part.end, part.level)
        found.append(rest if start > part.start else part)
    return _measure(text, found, length)


def _cuts(text: str, part: Part, level: int, limit: int) -> Iterator[tuple[int, int]]:
    """Yield the end of the text before each boundary, and the start of the text after it."""
    if level == ANYWHERE:
        yield from _cuts_anywhere(text, part, limit)
        return
    for end, after, found in _marks(text, part) if level in (SENTENCE, CLAUSE) else _gaps(text, part):
        if found == level and part.start < end and not _belongs(text[after]):
            yield end, after


def _gaps(text: str, part: Part) -> Iterator[tuple[int, int, int]]:
    for found in GAP.finditer(text, part.start, part.end):
        after = _after_space(text, found.start(), part.end)
        if after > found.start():
            yield found.start(), after, SPACE if text[found.start() : after].strip(NO_BREAK) else BOUND


def _marks(text: str, part: Part) -> Iterator[tuple[int, int, int]]:
    for found in MARKS.finditer(text, part.start, part.end):
        start, end = found.span()
        if end == part.end:
            return
        after = _after_space(text, end, part.end)
        marks = found.group().rstrip(CLOSING + EITHER + NO_BREAK + " ")
        if after > end:
            before = text[max(part.start, start - LONG) : start]
            yield end, after, _level_before_space(marks, before, text[after])
        else:
            before = text[max(part.start, start - 1) : start]
            yield end, after, _level_before_letter(marks, end - start > len(marks), before, text[end])


def _after_space(text: str, start: int, end: int) -> int:
    """Return the end of the white space at `start`. A space with a combining mark is not white space."""
    space = GAP.match(text, start, end)
    after = space.end() if space else start
    return after - 1 if start < after < end and _belongs(text[after]) else after


def _level_before_space(marks: str, before: str, after: str) -> int:
    if marks[-1] in SURE:
        return SENTENCE
    if marks[-1] not in ENDS:
        return CLAUSE
    if marks == "." and _is_abbreviation(before, after):
        return NEVER
    return CLAUSE if after.islower() else SENTENCE


def _level_before_letter(marks: str, closed: bool, before: str, after: str) -> int:
    if after in "\"'":  # opening or closing?
        return NEVER
    if marks[-1] in SURE:
        return CLAUSE if closed else SENTENCE  # 「行くの？」と聞いた
    return CLAUSE if marks[-1] in SURE_PAUSES and not (before.isdecimal() and after.isdecimal()) else NEVER


def _is_abbreviation(before: str, after: str) -> bool:
    """Return whether a full stop after the text `before` belongs to an abbreviation or a number."""
    if not before or before[-1].isspace():
        return False
    word = BEFORE_WORDS.split(before)[-1]
    if word.isdecimal():
        return len(word) <= 2  # 3. Oktober
    letters = word.split(".")
    most = min(len(letters), 2)  # J., z.B., Ph.D.
    if all(0 < len(each) <= most and each.upper() != each.lower() for each in letters):
        return True
    return word in BEFORE_NAMES or (after.isdecimal() and word.lower() in BEFORE_NUMBERS)


def _cuts_anywhere(text: str, part: Part, limit: int) -> Iterator[tuple[int, int]]:
    """Split into parts of equal size between grapheme clusters; within one only if it is too long by itself."""
    within = range(part.start + 1, part.end)
    places: Sequence[int] = _characters(text, part.start, part.end)
    if not places:
        places = [place for place in within if not _belongs(text[place])]
    if not places:
        if text[part.start].isspace():  # a combining mark on a space, which is blank without it
            yield part.start, part.start + 1
            return
        places = within
    if not places:
        raise InputError.of(
            "limit", limit, f"= {limit} is less than the {part.alone} tokens of {text[part.start : part.end]!r}."
        )
    count = min(len(places) + 1, -(-FINE * part.alone // limit))
    for number in range(1, count):
        place = places[number * (len(places) + 1) // count - 1]
        yield place, place


def _characters(text: str, start: int, end: int) -> list[int]:
    """Return the boundaries of grapheme clusters: accents, emoji and flags are not split."""
    places = []
    flags = 0
    last = ""
    for place in range(start, end):
        letter = text[place]
        if letter < "\u0300":
            if last:
                places.append(place)
            flags, last = 0, letter
            continue
        flags = flags + 1 if FLAGS.match(letter) else 0
        if last and not _belongs(letter) and not _joins(last, letter) and (flags == 0 or flags % 2):
            places.append(place)
        last = letter
    return places


def _belongs(letter: str) -> bool:
    """Return whether a code point belongs to the character before it."""
    return letter >= "\u0300" and (unicodedata.category(letter)[0] == "M" or bool(BELONGS.match(letter)))


def _joins(last: str, letter: str) -> bool:
    """Return whether `last` joins the code points before and after it."""
    if last == JOINER:
        return unicodedata.category(letter)[0] == "S" and not FLAGS.match(letter)
    if FIRST.match(last):
        return bool(FIRST.match(letter))
    return unicodedata.combining(last) == VIRAMA and letter.isalpha()


def _pack(parts: list[Part], limit: int, together: int) -> Iterator[list[Part]]:
    """Yield groups of parts: as many as fit, up to the best boundary. A second sentence has a lower limit than the rest
    of a sentence."""
    first = 0
    while first < len(parts):
        size = parts[first].alone
        best = last = first
        while parts[last].level != LINE and size + parts[last + 1].more <= (
            together if parts[last].level == SENTENCE else limit
        ):
            last += 1
            size += parts[last].more
            if parts[last].level <= parts[best].level:
                best = last
        yield parts[first : best + 1]
        first = best + 1


def _fit(text: str, groups: Iterable[list[Part]], length: Length, limit: int) -> list[list[Part]]:
    """Measure the groups, because the tokens of parts do not add up exactly, and halve those that are too long."""
    found = [(group, len(group) == 1) for group in groups]
    while unsure := [text[group[0].start : group[-1].end] for group, sure in found if not sure]:
        sizes = iter(length(unsure))
        tried, found = found, []
        for group, sure in tried:
            if sure or next(sizes) <= limit:
                found.append((group, True))
            else:
                found += [(half, len(half) == 1) for half in _halve(group)]
    return [group for group, _ in found]


def _halve(group: list[Part]) -> tuple[list[Part], list[Part]]:
    count = len(group)
    middle = min(range(1, count), key=lambda place: (group[place - 1].level, abs(2 * place - count)))
    return group[:middle], group[middle:]
