"""Dialogues: turns to ids and back, with and without role tokens, within a limit."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.data.builtin import generate
from sightline.errors import InputError
from sightline.special import END, START
from sightline.text.dialogue import ROLE_TOKENS, DialogueFormat, Turn, alternating_turns
from sightline.text.tokenizer import Tokenizer
from support import raises

LINES = [text for pair in generate("train", 300) for text in (pair.source, pair.target)]
PLAIN = Tokenizer.train(LINES, 500)
ROLES = Tokenizer.train(LINES, 500, special=[*ROLE_TOKENS.values()])
every_tokenizer = pytest.mark.parametrize("tokenizer", [PLAIN, ROLES], ids=["plain", "roles"])

TEXTS = st.lists(st.sampled_from(["The dog sleeps.", "Der Hund schläft.", "<|user|> 漢字", ""]), max_size=6)


def prefix(tokenizer, role):
    return [] if tokenizer is PLAIN else [tokenizer.token_id(ROLE_TOKENS[role])]


def test_role_tokens_are_found_by_name():
    assert [PLAIN.token_id(name) for name in ROLE_TOKENS.values()] == [None, None, None]
    assert [ROLES.token_id(name) for name in ROLE_TOKENS.values()] == [4, 5, 6]
    assert DialogueFormat(PLAIN).role_ids("user") == []
    assert DialogueFormat(ROLES).role_ids("user") == [5]


def test_role_tokens_are_never_encoded_from_text():
    for name in ROLE_TOKENS.values():
        (ids,) = ROLES.encode([f"a {name} b"])
        assert not {*ids} & {4, 5, 6}
        assert ROLES.decode(ids) == f"a {name} b"
    assert ROLES.decode([5, *ROLES.encode(["the dog"])[0], END]) == "the dog"


@every_tokenizer
@given(texts=TEXTS)
def test_turns_to_ids_and_back(tokenizer, texts):
    form, turns = DialogueFormat(tokenizer), alternating_turns(texts)
    assert [turn.role for turn in turns] == ["user", "assistant"] * (len(texts) // 2) + ["user"] * (len(texts) % 2)
    encoded = form.encode(turns)
    for turn, ids, plain in zip(turns, encoded, tokenizer.encode(texts), strict=True):
        assert ids == [*prefix(tokenizer, turn.role), *plain, END]
    assert form.decode(chain.from_iterable(encoded)) == turns
    assert form.decode([START, *chain.from_iterable(encoded)]) == turns


def test_roles_are_decoded_from_their_tokens():
    form = DialogueFormat(ROLES)
    turns = [Turn("system", "Be brief."), Turn("assistant", "Hello."), Turn("assistant", "You?"), Turn("user", "")]
    assert form.decode(chain.from_iterable(form.encode(turns))) == turns
    unfinished = list(chain.from_iterable(form.encode(turns[:2])))[:-1]
    assert form.decode(unfinished) == turns[:2]


@every_tokenizer
@given(texts=TEXTS, limit=st.integers(1, 60))
def test_history_keeps_the_latest_turns_that_fit(tokenizer, texts, limit):
    form, turns = DialogueFormat(tokenizer), alternating_turns(texts)
    encoded = form.encode(turns)
    if encoded and len(encoded[-1]) > limit:
        with raises(InputError, value=len(encoded[-1])):
            form.history(turns, limit)
        return
    first = next(n for n in range(len(turns) + 1) if sum(map(len, encoded[n:])) <= limit)
    assert form.history(turns, limit) == [*chain.from_iterable(encoded[first:])]


def test_history_keeps_the_system_turn():
    form = DialogueFormat(ROLES)
    turns = [Turn("system", "Be brief."), *alternating_turns(["The dog sleeps."] * 5)]
    encoded = form.encode(turns)
    limit = len(encoded[0]) + 2 * len(encoded[1])
    assert form.history(turns, limit) == [*encoded[0], *encoded[4], *encoded[5]]
    with raises(InputError, value=len(encoded[0]) + len(encoded[1])):
        form.history(turns, len(encoded[0]) + len(encoded[1]) - 1)
    assert form.history(turns[:1], 100) == encoded[0]
    assert form.history([], 100) == []
    with raises(InputError, value=len(encoded[0])):
        form.history(turns[:1], len(encoded[0]) - 1)


@every_tokenizer
def test_a_prompt_continues_as_in_training(tokenizer):
    """At run time the model continues the prompt with the tokens that count in training."""
    form, turns = DialogueFormat(tokenizer), alternating_turns(["Hi.", "Hello.", "The dog sleeps.", "Good."])
    encoded = form.encode(turns)
    ids, mask = form.training_sequence(turns, encoded, 1000)
    assert ids == [*chain.from_iterable(encoded)]
    reply = [*tokenizer.encode(["Good."])[0], END]
    prompt = form.prompt(turns[:-1], 1000)
    assert [START, *ids] == [*prompt, *reply]
    assert mask[-len(reply) :] == [1] * len(reply)
    counted = [token for token, counts in zip(ids, mask, strict=True) if counts]
    assert counted == [*tokenizer.encode(["Hello."])[0], END, *reply]
    assert len(form.prompt(turns[:-1], len(prompt))) == len(prompt)
    assert len(form.prompt(turns[:-1], len(prompt) - 1)) < len(prompt)


@every_tokenizer
@given(texts=TEXTS, limit=st.integers(1, 60))
def test_training_sequences_lose_their_oldest_turns(tokenizer, texts, limit):
    form, turns = DialogueFormat(tokenizer), alternating_turns(texts)
    encoded = form.encode(turns)
    ids, mask = form.training_sequence(turns, encoded, limit)
    first = next(n for n in range(len(turns) + 1) if sum(map(len, encoded[n:])) <= limit)
    assert ids == [*chain.from_iterable(encoded[first:])]
    assert sum(mask) == sum(
        len(one) - len(prefix(tokenizer, "assistant"))
        for turn, one in zip(turns[first:], encoded[first:], strict=True)
        if turn.role == "assistant"
    )


@every_tokenizer
@given(texts=TEXTS, source_limit=st.integers(1, 60), target_limit=st.integers(1, 30), system=st.booleans())
def test_training_pairs_have_the_history_and_the_reply(tokenizer, texts, source_limit, target_limit, system):
    """At run time an encoder-decoder model reads the same history and writes the tokens that count in training."""
    form, turns = DialogueFormat(tokenizer), [Turn("system", "Be brief.")] * system + alternating_turns(texts)
    encoded = form.encode(turns)
    pairs = iter(form.training_pairs(turns, encoded, source_limit, target_limit))
    for number, turn in enumerate(turns):
        if turn.role == "assistant" and len(encoded[number]) <= target_limit:
            try:
                history = form.history(turns[:number], source_limit)
            except InputError:
                continue
            source, target, mask = next(pairs)
            assert [*source, END] == history
            assert target == [*form.role_ids("assistant"), *tokenizer.encode([turn.text])[0]]
            counted = [token for token, counts in zip(target, mask, strict=True) if counts]
            assert counted == tokenizer.encode([turn.text])[0]
    assert list(pairs) == []


def test_a_first_turn_of_the_assistant_has_an_empty_history():
    form, turns = DialogueFormat(ROLES), [Turn("assistant", "Hello."), Turn("user", "Hi."), Turn("assistant", "Good.")]
    first, second = form.training_pairs(turns, form.encode(turns), 100, 100)
    assert first.source == []
    assert [*second.source, END] == form.history(turns[:2], 100)
