"""Streaming decoding: the text that each id adds. Text is never revised.

Decoding single ids is not enough: bytes show as � until their character is complete, and a token at the beginning of a
text may be decoded differently. So each step decodes a window of the last ids after an ordinary token, and holds back
the end of its text while later ids can change it.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence

from sightline.special import END, PAD, START, UNKNOWN
from sightline.text.split import Piece, gap
from sightline.text.tokenizer import Tokenizer

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


class StoppedText:
    """The text of one answer, token by token, up to the first stop string.

    Text that may be the beginning of a stop string is held back. The results of `push` and `finish` together do not
    depend on when they are asked for, so a streamed answer equals a whole one.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = (), stop: Sequence[str] = ()) -> None:
        """`before`: ids that the answer continues. `stop`: texts before the first of which it ends."""
        self._stream, self._stop = TextStream(tokenizer), stop
        for id in before[-MOST:]:  # noqa: A001
            self._stream.push(id)
        self.text = ""
        """Up to the stop string, with the end that is held back."""
        self.offsets: list[int] = []
        """For each token: the characters of the text that were certain before it."""
        self.stopped = False
        self._returned = 0

    def push(self, id: int) -> str:  # noqa: A002
        """Return the text that this token makes certain."""
        self.offsets.append(len(self.text))
        return self._take(self._stream.push(id), more=True)

    def finish(self) -> str:
        """Return the rest of the text."""
        return self._take(self._stream.finish(), more=False)

    def covered(self, characters: int) -> int:
        """Return how many tokens this many characters of the text are made of."""
        return bisect_left(self.offsets, characters)

    def _take(self, new: str, *, more: bool) -> str:
        if self.stopped:
            return ""
        begin = max(0, len(self.text) - max(map(len, self._stop), default=0) + 1)
        self.text += new
        found = [at for stop in self._stop if (at := self.text.find(stop, begin)) >= 0]
        certain = len(self.text)
        if found:
            self.text, self.stopped, certain = self.text[: min(found)], True, min(found)
        elif more:
            certain -= self._held()
        text = self.text[self._returned : certain]
        self._returned = max(self._returned, certain)
        return text

    def _held(self) -> int:
        """Return the length of the longest end of the text with which a stop string begins."""
        return max((n for stop in self._stop for n in range(1, len(stop)) if self.text.endswith(stop[:n])), default=0)


class IncrementalText:
    """The answers to the segments of one text, as one text that grows, whichever segment grows first."""

    def __init__(self, tokenizer: Tokenizer, pieces: Sequence[Piece], before: Sequence[int] = ()) -> None:
        """`pieces`: the segments of the text, and the blank parts between them. `before`: ids that the answer
        continues."""
        self._pieces, self._stream = pieces, TextStream(tokenizer)
        for id in before:  # noqa: A001
            self._stream.push(id)
        self._numbers = [number for number, piece in enumerate(pieces) if piece.text]
        self._waiting: list[list[int]] = [[] for _ in pieces]
        self._ended = [not piece.text for piece in pieces]
        self._at, self._written = 0, ""

    def push(self, segment: int, id: int) -> str:  # noqa: A002
        """Return the text that this token of the answer to a segment makes certain; often ""."""
        self._waiting[self._numbers[segment]].append(id)
        return self.flush()

    def finish(self, segment: int) -> str:
        """Return the text that the end of the answer to a segment makes certain."""
        self._ended[self._numbers[segment]] = True
        return self.flush()

    def flush(self) -> str:
        """Return the text that is certain and was not returned before."""
        text = ""
        while self._at < len(self._pieces):
            piece = self._pieces[self._at]
            new = "".join(map(self._stream.push, self._waiting[self._at]))
            self._waiting[self._at] = []
            if self._ended[self._at] and piece.text:
                new += self._stream.finish()
            text, self._written = text + new, self._written + new
            if not self._ended[self._at]:
                break
            self._at += 1
            text += gap(piece, self._written) if self._at < len(self._pieces) else piece.gap
            self._written = ""
        return text
