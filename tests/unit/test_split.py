"""Splitting texts: pieces fit, join to the text, and end at good boundaries."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from sightline.data.builtin import generate
from sightline.errors import InputError
from sightline.text.split import Piece, _belongs, gap, join, split
from sightline.text.tokenizer import Tokenizer
from support import raises

LINES = [text for pair in generate("train", 300) for text in (pair.source, pair.target)]
TOKENIZER = Tokenizer.train(LINES, 500)


def letters(texts):
    return [len(text) for text in texts]


def words(texts):
    return [len(text.split()) for text in texts]


def tokens(texts):
    return [len(ids) for ids in TOKENIZER.encode(texts)]


def more_than_its_parts(texts):
    """Does not add up at all."""
    return [len(text) + (len(text) // 3) ** 2 for text in texts]


LENGTHS = {"letters": (letters, 1), "words": (words, 1), "tokens": (tokens, 6), "more": (more_than_its_parts, 2)}

# Words, marks and white space of many scripts, and grapheme clusters.
BITS = [
    "a",
    "B",
    "word",
    "Wort",
    "Dr",
    "z.B",
    "3",
    "12",
    "漢",
    "字",
    "かな",
    "가",
    "कि",
    "क्ष",
    "שלום",
    "مرحبا",
    "ไทย",
    "กำ",
]
BITS += [
    "👩‍👩‍👧",
    "👍🏽",
    "🇩🇪",
    "❤️",
    "e\u0301",
    "\u0301",
    "\u200d",
    "\u1112\u1161\u11ab",
    "\x00",
    "\x1b",
    "\ufeff",
    "\u200f",
]
BITS += list(".!?…,;:—–。！？、，؟۔।()「」\"'“”«»")
BITS += [" ", " ", " ", "  ", "\t", "\n", "\r\n", "\r", "\x0b", "\x1c", "\x85", "\u2028", "\u00a0", "\u202f", "\u3000"]
MIXED = st.lists(st.sampled_from(BITS), max_size=60).map("".join)
TEXT = st.one_of(st.text(st.characters(exclude_categories=["Cs"])), MIXED)
every_length = pytest.mark.parametrize("kind", LENGTHS)


@every_length
@given(text=TEXT, more=st.integers(0, 30))
@example(text="a \u0301\u0301\u0301b", more=0)
@example(text="\t \u0301x", more=0)
@example(text=" \n\n ", more=3)
@example(text="", more=3)
@example(text=" \u200c", more=0)
@example(text="👩‍👩‍👧" * 20, more=2)
def test_pieces_fit_and_join_to_the_text(kind, text, more):
    length, least = LENGTHS[kind]
    limit = least + more
    pieces = split(text, length, limit)
    assert "".join(piece.text + piece.gap for piece in pieces) == text
    assert all(size <= limit for size in length([piece.text for piece in pieces]))
    for number, piece in enumerate(pieces):
        assert not piece.gap.strip()
        if number == 0 and text[0].isspace():
            assert piece.text == "" or _belongs(text[1])  # a space that bears a mark is text
        else:
            assert piece.text.strip()
        assert len(piece.text.splitlines()) <= 1
    assert join(pieces, [piece.text for piece in pieces]) == text


@given(lines=st.lists(MIXED.map(lambda text: " ".join(text.split())).filter(str.strip)), limit=st.integers(1, 20))
def test_each_line_is_split_by_itself(lines, limit):
    assume(not any(line[0] == "\u0301" for line in lines))
    apart = [[*split(line, letters, limit)] for line in lines]
    pieces = split("\n".join(lines), letters, limit)
    assert [piece.text for piece in pieces] == [piece.text for line in apart for piece in line]
    assert sum("\n" in piece.gap for piece in pieces) == max(len(lines) - 1, 0)


def greedy(parts, space, length, limit):
    """As many parts in each piece as there is room for."""
    found = []
    for part in parts:
        if found and length([found[-1] + space + part])[0] <= limit:
            found[-1] += space + part
        else:
            found.append(part)
    return found


@pytest.mark.parametrize("kind", ["letters", "words", "tokens"])
@given(data=st.data(), limit=st.integers(12, 60))
def test_pieces_are_as_long_as_whole_sentences_allow(kind, data, limit):
    length, _ = LENGTHS[kind]
    sentence = st.lists(st.sampled_from(["Aa", "the", "dog,", "Straße", "3.5"]), min_size=1, max_size=4)
    sentences = st.lists(st.tuples(sentence.map(" ".join), st.sampled_from([".", "!", "?", "…", '."', "?!", ".)"])))
    parts = ["X" + words + "yz" + end for words, end in data.draw(sentences)]
    assume(max(length(parts), default=0) <= limit)
    assert [piece.text for piece in split(" ".join(parts), length, limit)] == greedy(parts, " ", length, limit)


@pytest.mark.parametrize("kind", ["letters", "words", "tokens"])
@given(data=st.data(), limit=st.integers(12, 60))
def test_without_marks_pieces_are_as_long_as_words_allow(kind, data, limit):
    length, _ = LENGTHS[kind]
    parts = data.draw(st.lists(st.sampled_from(["a", "the", "Straße", "dog", "über"]), max_size=60))
    assert [piece.text for piece in split(" ".join(parts), length, limit)] == greedy(parts, " ", length, limit)


@given(
    parts=st.lists(st.text("漢字かな漢あ", min_size=1, max_size=9).map(lambda text: text + "。")),
    more=st.integers(0, 9),
)
def test_without_spaces(parts, more):
    limit = max(letters(parts), default=1) + more
    pieces = split("".join(parts), letters, limit)
    assert [piece.text for piece in pieces] == greedy(parts, "", letters, limit)
    assert all(piece.gap == "" for piece in pieces)


def cut(text, limit, length=letters):
    return [piece.text for piece in split(text, length, limit)]


@pytest.mark.parametrize(
    "expected",
    [
        ["He left.", "She stayed!", "Why?", "Nobody knows…", "The end."],
        ['"He left."', "(She stayed!)", "“Why?”", "‘Nobody.’", "The end."],
        ["« Ça va ? »", "Oui.", "»Ja.«", "Nein!", "„Doch.“", "Gut."],
        ["Dr. Smith met Prof. Jones.", "J. R. R. Tolkien wrote, e.g. in the U.S. Army."],
        ["Das gilt z.B. für Hr. Müller bzw. Fr. Maier.", "Am 3. Oktober kam Dipl.-Ing. Schmidt."],
        ["Pi is 3.14.", "See Fig. 2 and no. 7 on www.example.com.", "No.", "It is not."],
        ["It was 1999.", "Then came 2000."],
        ["Really?!", "Yes...", "No."],
        ["今日は天気がいい。", "明日は雨？", "そうだ！", "終わり。"],
        ["「行くの？」と聞いた。", "はい。"],
        ["他走了。", "“你好！”他说。"],
        ['"好。"他说。', "他走了。"],
        ["ہیلو۔", "آپ کیسے ہیں؟", "میں ٹھیک ہوں۔"],
        ["यह है।", "वह है।"],
        ["네.", "그렇습니다.", "갔다."],
        ["Это г. Пушкин и т.д. у нас.", "Да."],
    ],
    ids=lambda expected: expected[0],
)
def test_ends_of_sentences(expected):
    text = ("" if "\u3000" <= expected[0][-1] <= "\u30ff" else " ").join(expected)
    calls = []

    def length(texts):
        calls.append(texts)
        return [1 if text in expected else 2 for text in texts]

    assert cut(text, 1, length) == expected
    assert len(calls) == 2  # the line, and its sentences; nothing was cut at a lesser place


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("One two, three four; five six: seven", 14, ["One two,", "three four;", "five six:", "seven"]),
        ("One — two—three four", 9, ["One —", "two—", "three", "four"]),
        ("hello. how are you. fine", 12, ["hello.", "how are you.", "fine"]),  # perhaps sentences
        ("一二三、四五六，七八九", 5, ["一二三、", "四五六，", "七八九"]),
        ("四１，０００五", 6, ["四１，０００", "五"]),
        ("10 km and 20\u00a0km", 12, ["10 km and", "20\u00a0km"]),
        ("20\u00a0km", 4, ["20", "km"]),
        ("Short. A sentence that is long, too long", 16, ["Short.", "A sentence that", "is long,", "too long"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
        ("e\u0301" * 4, 3, ["e\u0301"] * 4),
        ("🇩🇪🇫🇷🇮🇹", 5, ["🇩🇪🇫🇷", "🇮🇹"]),
        ("a\u200d🇩🇪", 3, ["a\u200d", "🇩🇪"]),
        ("👩‍👩‍👧👍🏽", 6, ["👩‍👩‍👧", "👍🏽"]),
        ("\u1112\u1161\u11ab" * 2, 5, ["\u1112\u1161\u11ab"] * 2),
        ("क्षक्ष", 5, ["क्ष", "क्ष"]),
        ("กำกำ", 3, ["กำ", "กำ"]),
        ("!\ufe0f。\u0301。x", 4, ["!\ufe0f。\u0301", "。x"]),
    ],
)
def test_other_ends_of_pieces(text, limit, expected):
    assert cut(text, limit) == expected


def test_grapheme_clusters_are_split_only_if_they_are_too_long():
    assert cut("a" + "\u0301" * 9, 10) == ["a" + "\u0301" * 9]
    assert "".join(cut("a" + "\u0301" * 9, 4)) == "a" + "\u0301" * 9
    assert cut("👩\u200d👧", 2) == ["👩\u200d", "👧"]


def test_white_space():
    assert split("", letters, 9) == []
    assert split(" \n ", letters, 9) == [Piece("", " \n ")]
    assert split("\n a \r\n\r\n b  c\n", letters, 9) == [
        Piece("", "\n "),
        Piece("a", " \r\n\r\n "),
        Piece("b  c", "\n"),
    ]
    assert split("\t \u0301x", letters, 9) == [Piece("", "\t"), Piece(" \u0301x", "")]  # a space can bear a mark
    assert split("aa  \u0301b", letters, 3) == [Piece("aa", " "), Piece(" \u0301b", "")]
    assert split("a. B.", letters, 4) == [Piece("a.", " "), Piece("B.", "")]


def test_invalid_arguments():
    with raises(InputError, option="limit", value=0):
        split("a", letters, 0)
    with raises(InputError, option="limit", value=2, match="漢"):
        split("a 漢", tokens, 2)
    with raises(InputError, option="answers", value=1):
        join([Piece("a", ""), Piece("b", "")], ["a"])


LARGE = {
    "a line": " ".join(LINES * 200),
    "lines": "\n".join(LINES * 200),
    "a word": "a" * 1_000_000,
    "words": "a bc " * 200_000,
    "marks": "." * 1_000_000,
    "marks, apart": ". »" * 300_000,
    "an accent": "a" + "\u0301" * 1_000_000,
    "flags": "🇩🇪" * 500_000,
    "spaces": "a" + " " * 1_000_000 + "b",
    "Chinese": "他走了，我们也走了。" * 100_000,
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_text(name):
    text = LARGE[name][:1_000_000]
    calls = []

    def length(texts):
        calls.append(sum(map(len, texts)))
        return letters(texts)

    pieces = split(text, length, 250)  # code that is quadratic in the text does not end here
    assert len(calls) <= 6
    assert sum(calls) <= 6 * len(text)
    assert "".join(piece.text + piece.gap for piece in pieces) == text
    assert len(pieces) < 20_000


def test_the_number_of_calls_does_not_grow():
    counts = []
    for times in (1, 30):
        calls = []
        split(" ".join(LINES * times), lambda texts, calls=calls: calls.append(0) or tokens(texts), 40)
        counts.append(len(calls))
    assert max(counts) <= 6


def test_answers_keep_the_white_space():
    pieces = split("  One. Two.\n\n  Thirdly.\n", letters, 5)
    answers = ["" if not piece.text else f"<{piece.text}>" for piece in pieces]
    assert join(pieces, answers) == "  <One.> <Two.>\n\n  <Third><ly.>\n"
    assert join([], []) == ""
    assert join([Piece("", "  ")], ["unused"]) == "  "


@pytest.mark.parametrize(
    ("source", "answers", "expected"),
    [
        ("你好。再见。", ["Hello.", "Bye."], "Hello. Bye."),
        ("你好。再见。", ["Hello. ", "Bye."], "Hello. Bye."),
        ("你好。再见。", ["", "Bye."], "Bye."),
        ("你好。再见。", ["こん。", "また。"], "こん。また。"),
        ("你好。再见。", ["ہیلو۔", "خدا۔"], "ہیلو۔ خدا۔"),
        ("你好。再见。", ["안녕.", "네."], "안녕. 네."),
        ("Ho. Bye.", ["你好。", "再见。"], "你好。再见。"),
        ("Ho.\nBye.", ["你好。", "再见。"], "你好。\n再见。"),
        ("Ho.  Bye.", ["你好。", "再见。"], "你好。  再见。"),
        ("Ho. Bye.", ["नमः।", "अच्छा।"], "नमः। अच्छा।"),
        ("यह।वह।", ["This.", "That."], "This. That."),
        ("longwords", ["lang", "wort"], "langwort"),
    ],
)
def test_answers_in_another_script(source, answers, expected):
    pieces = split(source, letters, 5)
    assert len(pieces) == 2
    assert join(pieces, answers) == expected
    assert expected == answers[0] + gap(pieces[0], answers[0]) + answers[1]


@given(st.lists(st.sampled_from(["One two.", "Three four five!", "Six, seven, eight nine ten?"]), max_size=8))
def test_sentences_share_a_piece_up_to_the_trained_source_length(sentences):
    text = " ".join(sentences)
    assert [piece.text for piece in split(text, words, 5, 1)] == sentences
    for together in (2, 4, 6, 9):
        found = split(text, words, 50, together)
        assert "".join(piece.text + piece.gap for piece in found) == text
        for piece in found:
            assert words([piece.text])[0] <= together or piece.text in sentences


def words(texts):
    return [len(text.split()) for text in texts]
