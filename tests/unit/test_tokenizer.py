"""Raw text in, raw text out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.data.builtin import generate
from sightline.errors import InputError
from sightline.text.tokenizer import END, PAD, START, UNKNOWN, Tokenizer, suggest_vocab_size

LINES = [text for pair in generate("train", 2000) for text in (pair.source, pair.target)]
TOKENIZER = Tokenizer.train(LINES, 600)


def test_what_it_was_trained_on_comes_back():
    assert [TOKENIZER.decode(ids) for ids in TOKENIZER.encode(LINES)] == LINES
    assert sum(map(len, TOKENIZER.encode(LINES))) < 0.5 * sum(map(len, LINES))


@given(st.text())
def test_any_text_comes_back_but_for_spaces_and_nothing_is_unknown(text):
    (ids,) = TOKENIZER.encode([text])
    assert UNKNOWN not in ids
    spaces = str.maketrans("\u2581", " ")  # sentencepiece's own sign for a space cannot be told from one
    assert TOKENIZER.decode(ids).split(" ") == [w for w in text.translate(spaces).split(" ") if w] or not ids


def test_special_tokens_say_nothing():
    (ids,) = TOKENIZER.encode(["the dog"])
    assert TOKENIZER.decode([START, *ids, END, PAD, PAD]) == "the dog"
    assert not {PAD, START, END} & set(ids)
    assert TOKENIZER.pieces([PAD, START, END, UNKNOWN]) == ["<pad>", "<s>", "</s>", "<unk>"]


def test_the_same_text_gives_the_same_vocabulary():
    assert Tokenizer.train(LINES, 600).model == TOKENIZER.model
    assert Tokenizer(TOKENIZER.model).encode(LINES[:9]) == TOKENIZER.encode(LINES[:9])


def test_a_small_text_gives_a_smaller_vocabulary():
    assert Tokenizer.train(["a b c"], 4000).size < 300


def test_mistakes_are_named(tmp_path):
    with pytest.raises(InputError, match="a vocabulary of 100 is too small for this text, which needs at least"):
        Tokenizer.train(LINES, 100)
    with pytest.raises(InputError, match="there is no text to learn a vocabulary from"):
        Tokenizer.train(["", "  "], 1000)
    with pytest.raises(InputError, match=r"none\.model: cannot be read: No such file or directory"):
        Tokenizer.load(tmp_path / "none.model")
    (tmp_path / "bad.model").write_bytes(b"not a model")
    with pytest.raises(InputError, match=r"bad\.model: this is not a sentencepiece model"):
        Tokenizer.load(tmp_path / "bad.model")


def test_more_text_asks_for_a_larger_vocabulary():
    sizes = [suggest_vocab_size(n) for n in (100, 29_000, 160_000, 500_000, 5_000_000)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
