"""Words of tokens. Words are separated by white space."""

import re
from collections.abc import Sequence

WORD = re.compile(r"\S+")


def words_of(text: str, spans: Sequence[tuple[int, int]], start: int = 0) -> list[int]:
    """Return the word (0, 1, ...) of each token, by its span in the part of the text that begins at `start`.

    A token belongs to the word of its first character that is not white space. A token of white space belongs to the
    next word, or to the last one. In a text of white space only, all tokens belong to word 0.
    """
    numbers: list[int] = []  # the word of each character
    for number, word in enumerate(WORD.finditer(text)):
        numbers += [number] * (word.end() - len(numbers))
    found = []
    for begin, end in spans:
        first = WORD.search(text, start + begin, max(start + end, start + begin + 1))
        place = first.start() if first else start + begin
        found.append(numbers[min(place, len(numbers) - 1)] if numbers else 0)
    return found
