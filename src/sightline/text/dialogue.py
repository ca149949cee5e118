"""Dialogues as ids: speaker roles, history and replies. Training and run time use the same format.

Each turn is the token of its role, its text and END:

    <|user|> Hi, how are you? </s> <|assistant|> I am fine. </s>

A vocabulary without these tokens leaves them out; the roles then alternate, and the user speaks first. The history is
the turns before a reply, without the oldest if they do not fit. Both architectures write the text of the reply and END:

- An encoder-decoder model reads the history as its source, which ends with the END of its last turn; an empty history
  is END alone. Its decoder reads START and the role of the reply.
- A decoder-only model reads START, the history and the role of the reply.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal, NamedTuple

from sightline.errors import InputError
from sightline.special import END, START
from sightline.text.tokenizer import Tokenizer

Role = Literal["system", "user", "assistant"]
ROLE_TOKENS: dict[Role, str] = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
"""The names of the special tokens of the roles."""


class Turn(NamedTuple):
    """A turn of a dialogue."""

    role: Role
    text: str


class TrainingPair(NamedTuple):
    """A reply for the training of an encoder-decoder model."""

    source: list[int]
    """The history, without its last END, which a batch adds."""
    target: list[int]
    """The role of the reply and its text, without START and END, which a batch adds."""
    loss_mask: list[int]
    """1 for the tokens of the target that the assistant writes, 0 for its role."""


def alternating_turns(texts: Iterable[str]) -> list[Turn]:
    """Return the turns of a user and an assistant in alternation; the user begins."""
    return [Turn("assistant" if number % 2 else "user", text) for number, text in enumerate(texts)]


class DialogueFormat:
    """Encodes and decodes dialogues with one tokenizer; sources need `DialogueFormat(tokenizer.source)`."""

    def __init__(self, tokenizer: Tokenizer, encode: Callable[[Sequence[str]], list[list[int]]] | None = None) -> None:
        """`encode`: returns the ids of texts, if not the tokenizer; it may know them already."""
        self._tokenizer, self._encode = tokenizer, encode or tokenizer.encode
        found = {role: tokenizer.token_id(name) for role, name in ROLE_TOKENS.items()}
        self._ids: dict[Role, int] = {role: token for role, token in found.items() if token is not None}
        self._roles = {token: role for role, token in self._ids.items()}

    def role_ids(self, role: Role) -> list[int]:
        """Return the token of a role, or nothing if the vocabulary has none."""
        return [self._ids[role]] if role in self._ids else []

    def encode(self, turns: Sequence[Turn]) -> list[list[int]]:
        """Return the ids of each turn: its role, its text and END."""
        texts = self._encode([turn.text for turn in turns])
        return [[*self.role_ids(turn.role), *ids, END] for turn, ids in zip(turns, texts, strict=True)]

    def history(self, turns: Sequence[Turn], limit: int) -> list[int]:
        """Return the ids of the latest turns that fit into `limit` tokens, and of a system turn at the beginning.

        Raise an InputError if the last turn does not fit.
        """
        encoded = self.encode(turns)
        found = _history(turns, encoded, limit)
        if found is None:
            size = len(encoded[-1]) + (len(encoded[0]) if len(turns) > 1 and turns[0].role == "system" else 0)
            raise InputError(f"The last turn needs {size} tokens, but the model reads at most {limit}.", value=size)
        return found

    def prompt(self, turns: Sequence[Turn], limit: int) -> list[int]:
        """Return what a decoder-only model reads before its reply: START, the history and the role of the reply."""
        reply = self.role_ids("assistant")
        return [START, *self.history(turns, limit - 1 - len(reply)), *reply]

    def training_sequence(
        self, turns: Sequence[Turn], encoded: Sequence[list[int]], limit: int
    ) -> tuple[list[int], list[int]]:
        """Join encoded turns to one sequence of at most `limit` tokens, without the oldest turns that do not fit.

        Return its ids and its loss mask: 1 for the tokens that the assistant writes, with their END.
        """
        first = first_that_fits([len(ids) for ids in encoded], limit)
        ids: list[int] = []
        mask: list[int] = []
        for turn, one in zip(turns[first:], encoded[first:], strict=True):
            read = len(one) if turn.role != "assistant" else len(self.role_ids(turn.role))
            ids += one
            mask += [0] * read + [1] * (len(one) - read)
        return ids, mask

    def training_pairs(
        self, turns: Sequence[Turn], encoded: Sequence[list[int]], source_limit: int, target_limit: int
    ) -> Iterator[TrainingPair]:
        """Yield a pair for each reply: the history before it, as `history` returns it, and the reply.

        `source_limit`: tokens of a history; older turns that do not fit are left out. `target_limit`: tokens of a
        reply with its role and END. A reply that does not fit, or whose last turn before it does not, is left out.
        """
        for number, (turn, ids) in enumerate(zip(turns, encoded, strict=True)):
            if turn.role == "assistant" and len(ids) <= target_limit:
                source = _history(turns[:number], encoded[:number], source_limit)
                if source is not None:
                    role = len(self.role_ids(turn.role))
                    target = ids[:-1]
                    yield TrainingPair(source[:-1], target, [0] * role + [1] * (len(target) - role))

    def decode(self, ids: Iterable[int]) -> list[Turn]:
        """Return the turns of a sequence; the last one may have no END."""
        turns: list[Turn] = []
        turn: list[int] = []
        for token in ids:
            if token == END:
                turns.append(self._turn(turn, len(turns)))
                turn = []
            elif token != START:
                turn.append(token)
        return [*turns, self._turn(turn, len(turns))] if turn else turns

    def _turn(self, ids: list[int], number: int) -> Turn:
        role = self._roles.get(ids[0]) if ids else None
        text = self._tokenizer.decode(ids[1:] if role else ids)
        return Turn(role or ("assistant" if number % 2 else "user"), text)


def _history(turns: Sequence[Turn], encoded: Sequence[list[int]], limit: int) -> list[int] | None:
    """Return the ids of the latest turns that fit into `limit` tokens, after a system turn at the beginning; None if
    the last turn does not fit."""
    begun = 1 if turns and turns[0].role == "system" else 0
    first = begun + first_that_fits(list(map(len, encoded[begun:])), limit - sum(map(len, encoded[:begun])))
    found = [*chain.from_iterable(encoded[:begun]), *chain.from_iterable(encoded[first:])]
    return None if begun < first == len(encoded) or len(found) > limit else found


def first_that_fits(lengths: Sequence[int], room: int) -> int:
    """Return the number of the first turn such that it and all later turns fit into `room` tokens."""
    first = len(lengths)
    while first and lengths[first - 1] <= room:
        first -= 1
        room -= lengths[first]
    return first
