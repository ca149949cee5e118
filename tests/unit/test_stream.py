"""Streaming decoding gives the same text as decoding all ids together."""

import io
import json

import pytest
import sentencepiece
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from sightline.data.builtin import generate
from sightline.special import END, PAD, START, UNKNOWN
from sightline.text.split import Piece, join
from sightline.text.stream import KEPT, MOST, IncrementalText, TextStream
from sightline.text.tokenizer import Tokenizer

LINES = [text for pair in generate("train", 300) for text in (pair.source, pair.target)]
TEXTS = [
    *LINES[:4],
    "It's 5 o'clock, isn't it? No! (They don't know.)",
    "Größe 漢字 👩‍👩‍👧 naïve e\u0301e\u0301 שלום مرحبا 🇩🇪🇫🇷",
    "\ufffd\ufffd a \ufffd",
    "x\n\ty\r\n  z  ",
    "👍🏽" * 50,
]


def own_sentencepiece(folder):
    return Tokenizer.train(LINES, 500)


def other_sentencepiece(**options):
    """A model trained elsewhere: with a token without text, and spaces kept."""

    def make(folder):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(LINES),
            model_writer=model,
            vocab_size=500,
            hard_vocab_limit=False,
            byte_fallback=True,
            minloglevel=2,
            control_symbols="<silent>",
            **options,
        )
        return Tokenizer(model.getvalue())

    return make


def word_pieces(folder):
    """Short entries, so that words are in many pieces, and all that the decoder tidies up."""
    letters = sorted({letter for line in LINES for letter in line.lower() if letter.isalpha()})
    marks = [".", ",", "?", "!", "'", "n't", "'m", "'s", "'ve", "'re", "-", "(", ")"]
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *marks, *letters, *(f"##{letter}" for letter in letters), "##", "do"]
    (folder / "vocab.txt").write_text("\n".join(entries), "utf-8")
    return Tokenizer.load(folder)


def byte_level(folder):
    """With entries that end one character and begin the next, as GPT-2 has, and one that is broken within."""
    kind = tokenizers.Tokenizer(tokenizers.models.BPE())
    kind.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    kind.train_from_iterator(LINES, trainer)
    kind.model.save(str(folder))
    entries = json.loads((folder / "vocab.json").read_text())
    merges = (folder / "merges.txt").read_text()
    for left, right in (("¤", "ã"), ("¤ã", "ĥ"), ("ĺ", "Ģ"), ("ĺĢ", "ð"), ("ĺĢð", "Ł"), ("ã", "a")):
        entries[left + right] = len(entries)
        merges += f"{left} {right}\n"
    (folder / "vocab.json").write_text(json.dumps({**entries, "<|endoftext|>": len(entries)}))
    (folder / "merges.txt").write_text(merges)
    return Tokenizer.load(folder)


def byte_runs(folder):
    """Llama's: sentencepiece in Hugging Face's clothes."""
    entries = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁▁", "a", "▁the", "\ufffd"]
    kind = tokenizers.Tokenizer(
        tokenizers.models.BPE({entry: i for i, entry in enumerate(entries)}, [("▁", "▁")], unk_token="<unk>")
    )
    steps = tokenizers.decoders
    kind.decoder = steps.Sequence(
        [steps.Replace("▁", " "), steps.ByteFallback(), steps.Fuse(), steps.Strip(content=" ", left=1)]
    )
    return Tokenizer(kind.to_str().encode())


def spaces_marked(folder):
    """T5's: its decoder too drops the space the text begins with, and there is nothing to stand for bytes."""
    entries = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -1.0), ("▁the", -2.0), ("a", -3.0), ("▁▁", -3.0)]
    kind = tokenizers.Tokenizer(tokenizers.models.Unigram(entries, unk_id=2))
    kind.decoder = tokenizers.decoders.Metaspace()
    return Tokenizer(kind.to_str().encode())


KINDS = {
    "ours": own_sentencepiece,
    "unigram": other_sentencepiece(model_type="unigram"),
    "spaces": other_sentencepiece(model_type="bpe", remove_extra_whitespaces=False),
    "suffix": other_sentencepiece(model_type="bpe", treat_whitespace_as_suffix=True, unk_surface=""),
    "bert": word_pieces,
    "gpt2": byte_level,
    "llama": byte_runs,
    "t5": spaces_marked,
}
MADE: dict[str, Tokenizer] = {}


@pytest.fixture(params=KINDS, scope="module")
def tokenizer(request, tmp_path_factory):
    if request.param not in MADE:
        MADE[request.param] = KINDS[request.param](tmp_path_factory.mktemp(request.param))
    return MADE[request.param]


def named(tokenizer):
    return {piece: i for i, piece in reversed(list(enumerate(tokenizer.pieces(range(tokenizer.size)))))}


def check(tokenizer, ids):
    stream = TextStream(tokenizer)
    found = ""
    for count, i in enumerate(ids, start=1):
        found += stream.push(i)
        if count % 7 == 0 and count < 300:  # nothing is ever taken back, and little is held
            whole = tokenizer.decode(ids[:count])
            assert whole.startswith(found)
            assert "ByteFallback" in str(tokenizer.model) or len(whole) - len(found) <= 3
    rest = stream.finish()
    assert found + rest == tokenizer.decode(ids)
    return found, rest


def test_texts(tokenizer):
    for ids in tokenizer.encode(TEXTS):
        check(tokenizer, [START, *ids, END, PAD])
    (ids,) = tokenizer.encode([" ".join(TEXTS * 3)])
    check(tokenizer, ids)


@given(text=st.text())
def test_any_text(tokenizer, text):
    (ids,) = tokenizer.encode([text])
    check(tokenizer, ids)


@given(data=st.data())
def test_any_ids(tokenizer, data):
    check(tokenizer, data.draw(st.lists(st.integers(0, tokenizer.size - 1), max_size=3 * MOST)))


PARTS = [
    "▁",
    "▁▁",
    "▁the",
    "a",
    "##a",
    "##",
    ".",
    "'s",
    "\ufffd",
    "Ġ",
    "ð",
    "Ł",
    "ĺ",
    "Ģ",
    "ĺĢðŁ",
    "ã",
    "ĥ",
    "¤",
    "¤ãĥ",
]
BYTES = [0x00, 0x20, 0x41, 0x80, 0x98, 0x9F, 0xBD, 0xBF, 0xC2, 0xE2, 0xED, 0xEF, 0xF0, 0xF4, 0xFF]
HARD = ["<unk>", "[UNK]", "<silent>", *PARTS, *(f"<0x{byte:02X}>" for byte in BYTES)]


@given(runs=st.lists(st.tuples(st.sampled_from(HARD), st.sampled_from([1, 1, 1, 2, 3, KEPT, 2 * MOST]))))
@example(runs=[("▁", 999), ("▁the", 1), ("▁", 999)])
@example(runs=[("<0xE2>", 1), ("<silent>", 999), ("<0x82>", 1), ("<0xAC>", 1)])
@example(runs=[("<silent>", 99), ("▁", 1), ("<silent>", 99), ("▁", 1), ("a", 1)])
def test_hard_ids_in_long_runs(tokenizer, runs):
    entries = named(tokenizer)
    check(tokenizer, [entries[piece] for piece, count in runs if piece in entries for _ in range(count)])


CYCLES = [["<0xF0>", "<0x9F>", "<0x98>"], ["<0xEF>", "<0xBF>", "<0xBD>"], ["<0x80>"], ["▁"], ["<silent>", "▁"]]
CYCLES += [["<silent>", "<0xE2>"], ["ð", "Ł", "ĺ"], ["ï", "¿", "½"], ["Ģ"], ["¤ãĥ"], ["ĺĢðŁ"], ["##"], ["a", "##a"]]


@pytest.mark.parametrize("cycle", CYCLES, ids="".join)
def test_long_repetitions(tokenizer, cycle):
    entries = named(tokenizer)
    ids = [entries[piece] for piece in cycle if piece in entries]
    for shift in range(len(ids)):
        for count in (MOST - 1, MOST, MOST + 1, 300):
            check(tokenizer, (ids * count)[shift : shift + count])


@pytest.mark.parametrize("tokenizer", ["ours", "gpt2"], indirect=True)
def test_a_character_is_returned_when_it_is_complete(tokenizer):
    (ids,) = tokenizer.encode(["a漢🙂b"])
    stream = TextStream(tokenizer)
    found = [new for i in ids if (new := stream.push(i))]
    assert found == ["a", "漢", "🙂", "b"]
    assert stream.finish() == ""


@pytest.mark.parametrize("tokenizer", ["ours", "bert", "gpt2"], indirect=True)
def test_words_are_returned_with_their_ids(tokenizer):
    (ids,) = tokenizer.encode([LINES[0]])
    stream = TextStream(tokenizer)
    for count, i in enumerate(ids, start=1):
        before = tokenizer.decode(ids[: count - 1])
        assert before + stream.push(i) == tokenizer.decode(ids[:count])


@pytest.mark.parametrize("tokenizer", ["ours"], indirect=True)
def test_incomplete_characters_are_returned_at_the_end(tokenizer):
    entries = named(tokenizer)
    stream = TextStream(tokenizer)
    for _ in range(2):
        assert [stream.push(entries[piece]) for piece in ("▁", "<0xE2>", "<0x82>")] == ["", "", ""]
        assert stream.finish() == "\ufffd\ufffd"
        assert stream.finish() == ""
    assert stream.push(entries["▁"]) == ""  # a beginning again


def test_special_tokens_have_no_text(tokenizer):
    stream = TextStream(tokenizer)
    assert [stream.push(i) for i in (PAD, START, END)] == ["", "", ""]
    if tokenizer.own_ids[UNKNOWN] < 0:
        assert stream.push(UNKNOWN) == ""
    assert stream.finish() == ""


def test_time_per_id_does_not_depend_on_the_length(tokenizer, monkeypatch):
    (ids,) = tokenizer.encode([" ".join(TEXTS)])
    ids = (ids * (6000 // len(ids) + 1))[:6000]
    decode = tokenizer.decode
    stream = TextStream(tokenizer)
    work = []
    monkeypatch.setattr(tokenizer, "decode", lambda some: work.append(len(some)) or decode(some))
    found = "".join(map(stream.push, ids)) + stream.finish()
    assert found == decode(ids)
    assert sum(work) <= 2 * MOST * len(ids)
    assert max(work) < 1000  # Llama's longest run of bytes


OWN = Tokenizer.train(LINES, 500)


@given(st.data())
def test_answers_to_pieces_are_returned_in_order(data):
    tokenizer = OWN
    texts = data.draw(st.lists(st.sampled_from(["a b.", "", "Ein Mann", "läuft 🦊!"]), max_size=4))
    pieces = [Piece(text, data.draw(st.sampled_from([" ", "\n", ""]))) for text in texts]
    answers = [tokenizer.encode([text])[0] for text in texts]
    numbers = [i for i, piece in enumerate(pieces) if piece.text]
    growing = IncrementalText(tokenizer, pieces)
    written = growing.flush()
    left = [*(number for number, i in enumerate(numbers) for _ in range(len(answers[i]) + 1))]
    at = [0] * len(numbers)
    for number in data.draw(st.permutations(left)):
        ids = answers[numbers[number]]
        written += growing.finish(number) if at[number] == len(ids) else growing.push(number, ids[at[number]])
        at[number] += 1
        assert join(pieces, [tokenizer.decode(ids) for ids in answers]).startswith(written)
    assert written == join(pieces, [tokenizer.decode(ids) for ids in answers])


def test_a_continuation_is_decoded_after_its_text():
    (text,) = OWN.encode(["Ein Mann läuft 🦊!"])
    growing = IncrementalText(OWN, [Piece("Ein", "")], before=text[:3])
    written = "".join(growing.push(0, token) for token in text[3:]) + growing.finish(0)
    assert OWN.decode(text[:3]) + written == OWN.decode(text)
