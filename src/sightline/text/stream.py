"""Text while it is being written: each id gives what it adds, and nothing given is ever taken back.

The last token of a text may not be final. Bytes show as � until their character is whole, and how a token reads depends
on whether it is the first. So a window of the last ids is decoded each time, behind an ordinary token that keeps it
from being a beginning; its end is held back for as long as it may still change.
"""

import re
from collections.abc import Sequence

from sightline.special import END, PAD, START, UNKNOWN
from sightline.text.split import Piece, gap
from sightline.text.tokenizer import Tokenizer

__all__ = ["Telling", "TextStream"]

BROKEN = "\ufffd"
HELD = 3
"""Characters. A broken character is three bytes at most, and no decoder shows a byte as more than one �."""
KEPT = 32
"""Ids. Wherever the window begins, be it within a character, three bytes later it reads as the whole text does; what is
held back is no more than nine bytes behind that, and among these each second id may say nothing."""
MOST = 64
"""Ids, before the window is cut back to those kept."""
BYTE = re.compile("<0x[0-9A-F]{2}>")


class TextStream:
    """Ids one at a time, to the text each adds. All that `push` gives and then `finish` is what `decode` gives for all
    the ids at once, and an id costs the same however long the text is."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ordinary, self._ordinary_text = self._find_ordinary()
        # Hugging Face's decoder of this name shows a run of bytes as broken, all of it, for one byte that is.
        self._by_runs = b'"ByteFallback"' in tokenizer.model
        self._begin()

    def _begin(self) -> None:
        self._before: list[int] = []
        self._ids: list[int] = []
        self._text = ""
        self._given = 0  # characters of the window's text
        self._silent = False

    def push(self, id: int) -> str:  # noqa: A002
        """The text that this id makes certain; often "", as a character may take several ids."""
        if id in (PAD, START, END) or self._tokenizer.own_ids[id] < 0:
            return ""
        self._ids.append(id)
        if self._by_runs and BYTE.fullmatch(self._tokenizer.pieces([id])[0]):
            return ""
        text = self._decode()
        self._skip_silence(changed=text != self._text)
        self._text = text
        broken = 0 if self._by_runs else len(text) - len(text.rstrip(BROKEN))
        certain = len(text) - min(broken, HELD)
        new = text[self._given : certain]
        self._given = max(self._given, certain)
        if len(self._ids) > MOST:
            self._cut()
        return new

    def finish(self) -> str:
        """What was held back, as it reads now that nothing follows. The next id begins a new text."""
        rest = self._decode()[self._given :]
        self._begin()
        return rest

    def _find_ordinary(self) -> tuple[list[int], str]:
        for i in range(UNKNOWN, self._tokenizer.size):
            text = self._tokenizer.decode([i])
            if text.strip() and BROKEN not in text:
                return [i], text
        return [], ""

    def _decode(self) -> str:
        return self._tokenizer.decode(self._before + self._ids)

    def _cut(self) -> None:
        """As long as there is no text, what comes is still its beginning: sentencepiece drops all spaces there."""
        rest = len(self._text) - self._given
        if self._text:
            self._before = self._ordinary
        self._ids = self._ids[-KEPT:]
        self._text = self._decode()
        self._given = len(self._text) - rest

    def _skip_silence(self, changed: bool) -> None:
        """Of several ids in a row that say nothing one is kept, lest they fill the window. One matters: it may part two
        bytes."""
        was = self._silent
        self._silent = not changed and self._tokenizer.decode([*self._ordinary, self._ids[-1]]) == self._ordinary_text
        if was and self._silent:
            self._ids.pop()


class Telling:
    """The answers to the pieces of one text, told as one text, whichever of them grows first."""

    def __init__(self, tokenizer: Tokenizer, pieces: Sequence[Piece]) -> None:
        self._pieces, self._stream = pieces, TextStream(tokenizer)
        self._waiting: list[list[int]] = [[] for _ in pieces]
        self._ended = [False] * len(pieces)
        self._at, self._said = 0, ""

    def push(self, number: int, id: int) -> str:  # noqa: A002
        """The text that comes for sure with this token of the answer to this piece; often ""."""
        self._waiting[number].append(id)
        return self._tell()

    def finish(self, number: int) -> str:
        """The same, when this answer has come to its end. Of a piece without text, it has from the start."""
        self._ended[number] = True
        return self._tell()

    def _tell(self) -> str:
        told = ""
        while self._at < len(self._pieces):
            piece = self._pieces[self._at]
            said = "".join(map(self._stream.push, self._waiting[self._at]))
            self._waiting[self._at] = []
            if self._ended[self._at] and piece.text:
                said += self._stream.finish()
            told, self._said = told + said, self._said + said
            if not self._ended[self._at]:
                break
            self._at += 1
            told += gap(piece, self._said) if self._at < len(self._pieces) else piece.gap
            self._said = ""
        return told
