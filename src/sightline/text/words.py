"""Which word of a text a token belongs to. Words are what white space separates."""

import re
from collections.abc import Sequence

__all__ = ["words_of"]

WORD = re.compile(r"\S+")


def words_of(text: str, spans: Sequence[tuple[int, int]], start: int = 0) -> list[int]:
    """The word (0, 1, ...) of each token, by the spans of the tokens in the part of the text that begins at `start`.

    It is the word of the token's first letter; of a token that is white space alone, the word after it, or the last.
    Where there is no other word, white space is one, if it has tokens at all (the separators of ASCII may).
    """
    numbers: list[int] = []  # of each character of the text
    for number, word in enumerate(WORD.finditer(text)):
        numbers += [number] * (word.end() - len(numbers))
    found = []
    for begin, end in spans:
        first = WORD.search(text, start + begin, max(start + end, start + begin + 1))
        place = first.start() if first else start + begin
        found.append(numbers[min(place, len(numbers) - 1)] if numbers else 0)
    return found
