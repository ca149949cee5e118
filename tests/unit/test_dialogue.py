"""Dialogues: turns to ids, with and without role tokens, within a limit."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.data.builtin import generate
from sightline.special import END
from sightline.text.dialogue import ROLE_TOKENS, training_sequences
from sightline.text.tokenizer import Tokenizer

LINES = [text for pair in generate("train", 300) for text in (pair.source, pair.target)]
PLAIN = Tokenizer.train(LINES, 500)
ROLES = Tokenizer.train(LINES, 500, special=[*ROLE_TOKENS.values()])
every_tokenizer = pytest.mark.parametrize("tokenizer", [PLAIN, ROLES], ids=["plain", "roles"])

TEXTS = st.lists(st.sampled_from(["The dog sleeps.", "Der Hund schläft.", "<|user|> 漢字", ""]), max_size=6)


def encode(tokenizer, texts):
    """The ids of each turn: its role, its text and END."""
    roles = [[], []] if tokenizer is PLAIN else [[5], [6]]
    return [[*roles[i % 2], *ids, END] for i, ids in enumerate(tokenizer.encode(texts))]


def test_role_tokens_are_found_by_name():
    assert [PLAIN.token_id(name) for name in ROLE_TOKENS.values()] == [None, None, None]
    assert [ROLES.token_id(name) for name in ROLE_TOKENS.values()] == [4, 5, 6]


def test_role_tokens_are_never_encoded_from_text():
    for name in ROLE_TOKENS.values():
        (ids,) = ROLES.encode([f"a {name} b"])
        assert not {*ids} & {4, 5, 6}
        assert ROLES.decode(ids) == f"a {name} b"
    assert ROLES.decode([5, *ROLES.encode(["the dog"])[0], END]) == "the dog"


@every_tokenizer
@given(dialogues=st.lists(TEXTS, max_size=3))
def test_the_assistant_writes_its_text_and_end(tokenizer, dialogues):
    sequences = list(training_sequences(dialogues, tokenizer, 1000))
    assert len(sequences) == len(dialogues)
    for texts, (ids, mask) in zip(dialogues, sequences, strict=True):
        assert ids == [*chain.from_iterable(encode(tokenizer, texts))]
        written = [token for token, counts in zip(ids, mask, strict=True) if counts]
        assert written == [i for text in tokenizer.encode(texts)[1::2] for i in (*text, END)]


@every_tokenizer
@given(texts=TEXTS, limit=st.integers(1, 60))
def test_training_sequences_lose_their_oldest_turns(tokenizer, texts, limit):
    encoded = encode(tokenizer, texts)
    ((ids, mask),) = training_sequences([texts], tokenizer, limit)
    first = next(n for n in range(len(texts) + 1) if sum(map(len, encoded[n:])) <= limit)
    assert ids == [*chain.from_iterable(encoded[first:])]
    prefix = 0 if tokenizer is PLAIN else 1
    assert sum(mask) == sum(len(one) - prefix for n, one in enumerate(encoded) if n >= first and n % 2)
