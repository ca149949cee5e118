"""Dialogues as ids. Each turn is the token of its role, its text and END:

    <|user|> Hi, how are you? </s> <|assistant|> I am fine. </s>

A vocabulary without the tokens of the roles leaves them out.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

from sightline.special import END
from sightline.text.tokenizer import Tokenizer

ROLE_TOKENS = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
"""The names of the special tokens of the roles."""


def training_sequences(
    dialogues: Sequence[Sequence[str]], tokenizer: Tokenizer, limit: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the ids of each dialogue, and its loss mask: 1 for the tokens that the assistant writes, with their END.

    The turns of user and assistant alternate, and the user begins. Each sequence has at most `limit` tokens: the oldest
    turns that do not fit are left out.
    """
    tokens = [tokenizer.token_id(ROLE_TOKENS[role]) for role in ("user", "assistant")]
    user, assistant = ([] if token is None else [token] for token in tokens)
    encoded = iter(tokenizer.encode(list(chain.from_iterable(dialogues))))
    for texts in dialogues:
        turns = [[*(assistant if number % 2 else user), *next(encoded), END] for number in range(len(texts))]
        first, room = len(turns), limit
        while first and len(turns[first - 1]) <= room:
            first -= 1
            room -= len(turns[first])
        ids: list[int] = []
        mask: list[int] = []
        for number, turn in enumerate(turns[first:], start=first):
            read = len(assistant) if number % 2 else len(turn)
            ids += turn
            mask += [0] * read + [1] * (len(turn) - read)
        yield ids, mask
