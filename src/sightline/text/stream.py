"""Streaming decoding: the text that each id adds. Text is never revised.

Decoding single ids is not enough: bytes show as � until their character is complete, and a token at the beginning of a
text may be decoded differently. So each step decodes a window of the last ids after an ordinary token, and holds back
the end of its text while later ids can change it.
"""

import re
from collections.abc import Sequence

from sightline.special import END, PAD, START, UNKNOWN
from sightline.text.split import Piece, gap
from sightline.text.tokenizer import Tokenizer

__all__ = ["Telling", "TextStream"]

BROKEN = "\ufffd"
HELD = 3
"""Characters to hold back. An incomplete character has at most three bytes, and each byte is decoded as one �."""
KEPT = 32
"""Ids of a shortened window. If it begins within a character, the text is correct three bytes later; the text that is
held back begins within nine more bytes, and every second id may be empty."""
MOST = 64
"""Ids of a window before it is shortened."""
BYTE = re.compile("<0x[0-9A-F]{2}>")


class TextStream:
    """Decodes ids one by one. The results of `push` and `finish` together are the result of `decode` for all ids. The
    time per id does not depend on the length of the text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ordinary, self._ordinary_text = self._find_ordinary()
        # This decoder of Hugging Face decodes a whole run of bytes as � if one of them is invalid.
        self._decodes_runs = b'"ByteFallback"' in tokenizer.model
        self._begin()

    def _begin(self) -> None:
        self._before: list[int] = []
        self._ids: list[int] = []
        self._text = ""
        self._returned = 0  # characters of the window's text that were returned
        self._empty = False

    def push(self, id: int) -> str:  # noqa: A002
        """Return the text that this id makes certain; often "", because a character can have several ids."""
        if id in (PAD, START, END) or self._tokenizer.own_ids[id] < 0:
            return ""
        self._ids.append(id)
        if self._decodes_runs and BYTE.fullmatch(self._tokenizer.pieces([id])[0]):
            return ""
        text = self._decode()
        self._skip_empty(changed=text != self._text)
        self._text = text
        broken = 0 if self._decodes_runs else len(text) - len(text.rstrip(BROKEN))
        certain = len(text) - min(broken, HELD)
        new = text[self._returned : certain]
        self._returned = max(self._returned, certain)
        if len(self._ids) > MOST:
            self._cut()
        return new

    def finish(self) -> str:
        """Return the text that was held back. The next id begins a new text."""
        rest = self._decode()[self._returned :]
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
        """Shorten the window. While it has no text, new ids are at the beginning, where sentencepiece drops spaces."""
        rest = len(self._text) - self._returned
        if self._text:
            self._before = self._ordinary
        self._ids = self._ids[-KEPT:]
        self._text = self._decode()
        self._returned = len(self._text) - rest

    def _skip_empty(self, changed: bool) -> None:
        """Keep one of several consecutive ids without text, so that they do not fill the window. One matters: it can
        separate two bytes."""
        was = self._empty
        self._empty = not changed and self._tokenizer.decode([*self._ordinary, self._ids[-1]]) == self._ordinary_text
        if was and self._empty:
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
