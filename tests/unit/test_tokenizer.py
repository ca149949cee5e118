"""Tokenizers: raw text to ids and back, with our own vocabularies and those of BERT, GPT-2 and Marian."""

import io
import json
import threading
from collections import Counter

import pytest
import sentencepiece
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertTokenizer, GPT2Tokenizer

from sightline.data.builtin import generate
from sightline.errors import InputError
from sightline.special import END, PAD, START, UNKNOWN
from sightline.text import tokenizer as module
from sightline.text.tokenizer import Tokenizer, suggest_vocab_size
from support import raises

LINES = [text for pair in generate("train", 2000) for text in (pair.source, pair.target)]
TOKENIZER = Tokenizer.train(LINES, 600)


def test_training_text_round_trip():
    assert [TOKENIZER.decode(ids) for ids in TOKENIZER.encode(LINES)] == LINES
    assert sum(map(len, TOKENIZER.encode(LINES))) < 0.5 * sum(map(len, LINES))


@given(st.text())
def test_any_text_round_trip_except_spaces(text):
    (ids,) = TOKENIZER.encode([text])
    assert UNKNOWN not in ids
    spaces = str.maketrans("\u2581", " ")  # sentencepiece's symbol for a space
    assert TOKENIZER.decode(ids).split(" ") == [w for w in text.translate(spaces).split(" ") if w] or not ids


def test_special_tokens_are_not_decoded():
    (ids,) = TOKENIZER.encode(["the dog"])
    assert TOKENIZER.decode([START, *ids, END, PAD, PAD]) == "the dog"
    assert not {PAD, START, END} & set(ids)
    assert TOKENIZER.pieces([PAD, START, END, UNKNOWN]) == ["<pad>", "<s>", "</s>", "<unk>"]


def test_the_same_text_gives_the_same_vocabulary():
    assert Tokenizer.train(LINES, 600).model == TOKENIZER.model
    assert Tokenizer(TOKENIZER.model).encode(LINES[:9]) == TOKENIZER.encode(LINES[:9])


def test_a_small_text_gives_a_smaller_vocabulary():
    assert Tokenizer.train(["a b c"], 4000).size < 300


def test_invalid_input(tmp_path):
    with raises(InputError, option="vocab_size", value=100):
        Tokenizer.train(LINES, 100)
    with raises(InputError, match="empty"):
        Tokenizer.train(["", "  "], 1000)
    with raises(InputError, value=tmp_path / "none.model"):
        Tokenizer.load(tmp_path / "none.model")
    (tmp_path / "bad.model").write_bytes(b"not a model")
    with raises(InputError, value=str(tmp_path / "bad.model"), match="sentencepiece"):
        Tokenizer.load(tmp_path / "bad.model")


def test_special_tokens_by_name(tmp_path):
    names = ["<mask>", "<|x|>"]
    ours = Tokenizer.train(LINES, 600, special=names)
    assert [ours.token_id(name) for name in (*names, "<pad>", "</s>", "[MASK]", "▁the")] == [
        4,
        5,
        PAD,
        END,
        None,
        ours.encode(["the"])[0][0],
    ]
    assert Tokenizer.train(LINES, 600, special=names).model == ours.model
    assert TOKENIZER.token_id("<mask>") is None
    read = bert(tmp_path)
    assert [read.token_id(name) for name in ("[MASK]", "[SEP]", "[CLS]", "<mask>")] == [5, END, START, None]


def test_the_mask_is_found_by_name(tmp_path):
    assert bert(tmp_path).mask_id == 5
    ours = Tokenizer.train(LINES, 600, special=["<|x|>", "<mask>"])
    assert ours.mask_id == ours.token_id("<mask>") == 5
    assert ours.mask_id not in ours.encode(["the <mask> dog"])[0]
    assert TOKENIZER.mask_id == UNKNOWN


@pytest.mark.parametrize("kind", ["ours", "bert", "gpt2"])
def test_ids_and_spans_in_one_pass(tmp_path, kind):
    tokenizer = {"ours": lambda _: TOKENIZER, "bert": bert, "gpt2": gpt2}[kind](tmp_path)
    texts = [*TEXTS, *LINES[:50]]
    found = tokenizer.encode_with_spans(texts)
    assert [ids for ids, _ in found] == tokenizer.encode(texts)
    for text, (ids, spans) in zip(texts, found, strict=True):
        assert len(ids) == len(spans)
        assert all(0 <= begin <= end <= len(text) for begin, end in spans)


def test_suggested_size_grows_with_the_corpus():
    sizes = [suggest_vocab_size(n) for n in (100, 29_000, 160_000, 500_000, 5_000_000)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def bert(folder, small=True):
    """A vocabulary of BERT's kind in a folder, with other positions of the special tokens."""
    kind = tokenizers.Tokenizer(tokenizers.models.WordPiece())
    kind.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=small)
    kind.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    kind.train_from_iterator([*LINES, "[ ] sep a\u0301"], trainer)
    kind.model.save(str(folder))
    return Tokenizer.load(folder / "vocab.txt")


def gpt2(folder):
    """A vocabulary of GPT-2's kind in a folder. "model" is a word in it, as it is in the real one."""
    kind = tokenizers.Tokenizer(tokenizers.models.BPE())
    kind.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    kind.train_from_iterator(["model"] * 9999 + LINES, trainer)
    kind.model.save(str(folder))
    entries = json.loads((folder / "vocab.json").read_text())
    assert "model" in entries
    (folder / "vocab.json").write_text(json.dumps({**entries, "<|endoftext|>": len(entries)}))
    return Tokenizer.load(folder)


def own(tokenizer, texts):
    return [[tokenizer.own_ids[i] for i in ids] for ids in tokenizer.encode(texts)]


TEXTS = ["The dog didn't cross the street.", "Größe 漢字, 🙂  [SEP] <|endoftext|>\n\tx", ""]


def test_a_vocabulary_of_bert(tmp_path):
    ours = bert(tmp_path)
    theirs = BertTokenizer.from_pretrained(tmp_path)
    assert own(ours, LINES) == [theirs.encode(text, add_special_tokens=False) for text in LINES]
    assert [ours.decode(ids) for ids in ours.encode(LINES)] == [theirs.decode(ids) for ids in own(ours, LINES)]
    assert ours.decode(ours.encode(["The DOG, too, left  the street."])[0]) == "the dog, too, left the street."
    assert ours.pieces([PAD, START, END, UNKNOWN, 4, 5]) == ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[unused0]", "[MASK]"]
    assert ours.size == len(theirs) == len(set(ours.own_ids))
    assert ours.encode(["漢字"]) == [[UNKNOWN, UNKNOWN]]
    assert ours.pieces(ours.encode(["[SEP]"])[0])[0] == "["  # text is never encoded as a special token


def test_case_of_the_vocabulary(tmp_path):
    tokenizer = bert(tmp_path, small=False)
    assert tokenizer.decode(tokenizer.encode(["Das Tier überquerte."])[0]) == "Das Tier überquerte."


def test_a_vocabulary_of_gpt2(tmp_path):
    ours = gpt2(tmp_path)
    theirs = GPT2Tokenizer.from_pretrained(tmp_path)
    texts = [*LINES, TEXTS[0]]
    assert own(ours, texts) == [theirs.encode(text) for text in texts]
    assert [ours.decode(ids) for ids in ours.encode(TEXTS)] == TEXTS
    assert ours.pieces([PAD, START, END, UNKNOWN]) == ["<pad>", "<|endoftext|>", "<|endoftext|>", "<unk>"]
    assert ours.size == len(theirs) + 3
    assert ours.decode([START, UNKNOWN, *ours.encode(["the dog"])[0], END, PAD]) == "the dog"
    assert Tokenizer.load(tmp_path / "vocab.json").model == ours.model


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    return gpt2(tmp_path_factory.mktemp("gpt2"))


@given(st.text())
def test_any_text_round_trip_with_byte_level_pieces(byte_level, text):
    (ids,) = byte_level.encode([text])
    assert byte_level.decode(ids) == text
    assert min(ids, default=4) >= 4


@pytest.mark.parametrize("make", [bert, gpt2])
def test_a_tokenizer_json_and_the_bytes_of_a_model(tmp_path, make):
    first = make(tmp_path)
    kind = tokenizers.Tokenizer.from_str(first.model.decode())
    kind.add_special_tokens(["[SEP]", "<|endoftext|>"])
    kind.enable_padding(length=99)
    kind.enable_truncation(3)
    for name in ("vocab.json", "vocab.txt"):
        (tmp_path / name).unlink(missing_ok=True)
    kind.save(str(tmp_path / "tokenizer.json"))
    for again in (Tokenizer.load(tmp_path), Tokenizer.load(tmp_path / "tokenizer.json"), Tokenizer(first.model)):
        assert again.encode([*TEXTS, *LINES]) == first.encode([*TEXTS, *LINES])
        assert min(again.encode(["[SEP] <|endoftext|>"])[0]) >= UNKNOWN


def test_sentencepiece_model_with_other_ids():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(LINES), model_writer=model, vocab_size=200, model_type="unigram", minloglevel=2
    )
    tokenizer = Tokenizer(model.getvalue())  # <unk> is 0, <s> is 1, </s> is 2, no padding
    assert tokenizer.own_ids == [-1, 1, 2, 0, *range(3, 200)]
    assert tokenizer.pieces([PAD, START, END, UNKNOWN]) == ["<pad>", "<s>", "</s>", "<unk>"]
    assert [tokenizer.decode(ids) for ids in tokenizer.encode(LINES)] == LINES
    with raises(InputError, option="dropout", value=0.1):
        tokenizer.encode(LINES, 0.1)


def test_dropout_changes_the_pieces_and_not_the_text():
    plain, dropped, other = (TOKENIZER.encode(LINES, *how) for how in ((0.0, 1), (0.1, 1), (0.1, 2)))
    assert plain == TOKENIZER.encode(LINES)
    assert len({str(ids) for ids in (plain, dropped, other)}) == 3
    for found in (dropped, other, TOKENIZER.encode(LINES, 0.5), TOKENIZER.encode(LINES, 1.0)):
        assert [TOKENIZER.decode(ids) for ids in found] == LINES
    lengths = [sum(map(len, TOKENIZER.encode(LINES, dropout))) for dropout in (0.0, 0.05, 0.1, 0.3, 1.0)]
    assert lengths == sorted(set(lengths))
    assert lengths[-1] == sum(len(line) + 1 for line in LINES)  # no merges: letters, and the space before each line


def test_dropout_is_a_pure_function_of_texts_and_seed():
    first = TOKENIZER.encode(LINES[:200], 0.2, 7)
    TOKENIZER.encode(LINES[:33], 0.9, 8)
    TOKENIZER.encode(LINES[:33])
    assert TOKENIZER.encode(LINES[:200], 0.2, 7) == first
    found = {}

    def encode(seed):
        found[seed] = TOKENIZER.encode(LINES[:200], 0.2, seed)

    threads = [threading.Thread(target=encode, args=(seed,)) for seed in range(5, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[7] == first
    assert len({str(ids) for ids in found.values()}) == 5


def test_invalid_dropout(tmp_path):
    with raises(InputError, option="dropout", value=0.1, match=r"vocab\.txt"):
        bert(tmp_path).encode(["a"], 0.1)
    with raises(InputError, option="dropout", value=2):
        TOKENIZER.encode(["a"], 2)


def test_many_texts_are_encoded_like_each_alone():
    assert TOKENIZER.encode(LINES) == [TOKENIZER.encode([line])[0] for line in LINES]


def test_a_small_text_is_used_completely(monkeypatch):
    monkeypatch.setattr(module, "SAMPLE_LINES", len(LINES))
    assert module.sample_lines(iter([*LINES, "", " "])) == LINES


@pytest.mark.parametrize(("line", "most"), [("{:05}", 20_000), ("{:010}", 15_000)], ids=["lines", "text"])
def test_a_large_text_is_sampled_evenly(monkeypatch, line, most):
    monkeypatch.setattr(module, "SAMPLE_LINES", 20_000)
    monkeypatch.setattr(module, "SAMPLE_TEXT", 150_000)
    kept = module.sample_lines(line.format(i) for i in range(100_000))
    assert len(kept) == len(set(kept)) == most
    tenths = Counter(int(text) // 10_000 for text in kept)
    assert all(abs(tenths[tenth] / most - 0.1) < 0.01 for tenth in range(10))


def test_vocabularies_that_cannot_be_read(tmp_path):
    cases = {
        "a.json": (b"[1]", "a.json: not a JSON object"),
        "b.json": (b'{"model": {}}', "b.json: the library tokenizers cannot read"),
        "c/vocab.json": (b'{"a": 0}', "merges.txt: cannot be read"),
        "d.txt": (b"a\nb\n", r"d.txt: the vocabulary has no entry \[UNK\]"),
        "e.txt": (b"\xff", "e.txt: not valid UTF-8"),
        "f/readme": (b"", "f: the folder has no tokenizer.json"),
    }
    for name, (data, message) in cases.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        with raises(InputError, match=message):
            Tokenizer.load(path.parent if name.startswith("f/") else path)
    (tmp_path / "c" / "merges.txt").write_text("#version: 0.2\nx y\n")
    with raises(InputError, value=tmp_path / "c" / "vocab.json", match=r"merges\.txt"):
        Tokenizer.load(tmp_path / "c")
