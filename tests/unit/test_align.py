"""Word alignments: extraction, format, and error rate."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sightline.data.builtin import generate, riddle
from sightline.errors import InputError
from sightline.evaluate.align import agreement, gold_of
from sightline.search.align import Heads, Words, align, every_head, link, read_pharaoh, weigh, write_pharaoh
from sightline.text.split import Piece, join, starts
from sightline.text.tokenizer import Tokenizer
from sightline.text.words import words_of
from sightline.trace.watch import tracing
from support import hooks, raises, translator


def test_error_rate_equals_hand_computed_values():
    gold = [[(0, 0), (1, 2), (2, 1)], [(0, 0)]]
    assert agreement(gold, gold) == (0.0, 1.0, 1.0)
    assert agreement([[(1, 1)], []], gold) == (1.0, 0.0, 0.0)
    # Five links are found, two of them among the four right ones.
    found = agreement([[(0, 0), (1, 1), (2, 1), (3, 3)], [(1, 0)]], gold)
    assert found == pytest.approx((1 - 2 * 2 / (5 + 4), 2 / 5, 2 / 4))
    assert agreement([[(0, 0), (0, 0)]], [[(0, 0), (1, 1)]]) == pytest.approx((1 / 3, 1.0, 0.5))  # repeated
    assert agreement([], []) == agreement([[]], [[]]) == (0.0, 1.0, 1.0)
    with raises(InputError, option="gold", value=2):
        agreement([[]], gold)


@given(st.sets(st.tuples(st.integers(0, 300), st.integers(0, 300))))
def test_pharaoh_format_round_trip(links):
    assert read_pharaoh(write_pharaoh(sorted(links)), "x") == sorted(links)


@pytest.mark.parametrize("line", ["0-0 1", "0--1", "a-b", "0-1-2", "-1-0", "0-0,1-1"])
def test_invalid_links_are_refused(line):
    with raises(InputError, match="gold:7"):
        read_pharaoh(line, "gold:7")


def test_strongest_links_come_first_and_every_word_is_linked():
    def linked(*rows):
        sides = [Words([], list(range(size))) for size in (len(rows[0]), len(rows))]
        return link(torch.tensor(rows), *sides)

    # Both target words prefer source word 0; the first one has the higher weight.
    assert linked([0.9, 0.1], [0.6, 0.4]) == [(0, 0), (1, 1)]
    # More target words than source words: the remaining ones take their best source word.
    assert linked([0.9, 0.1], [0.3, 0.7], [0.4, 0.6]) == [(0, 0), (1, 1), (1, 2)]
    assert linked([0.1, 0.7, 0.2]) == [(1, 0)]
    # The words of a segment are numbered within the whole text.
    assert link(torch.tensor([[0.1, 0.9]]), Words([5, 5, 5], [3, 3, 4]), Words([5], [7])) == [(4, 7)]


def test_gold_links_are_between_words_separated_by_spaces():
    pair = riddle()[0]
    source, target = pair.source.split(), pair.target.split()
    assert [(source[i], target[j]) for i, j in gold_of(pair)] == [
        ("The", "Das"),
        ("animal", "Tier"),
        ("didn't", "nicht,"),
        ("cross", "überquerte"),
        ("the", "die"),
        ("street", "Straße"),
        ("because", "weil"),
        ("it", "es"),
        ("was", "war."),
        ("too", "zu"),
        ("tired.", "müde"),
    ]
    for pair in generate("train", 300):
        assert {j for _, j in gold_of(pair)} == set(range(len(pair.target.split())))


@pytest.fixture(scope="module")
def tokenizer():
    pairs = list(generate("train", 300))
    return Tokenizer.train([text for pair in pairs for text in (pair.source, pair.target)], 450)


STRANGE = [
    "",
    " ",
    "a  b",
    "  The dog",
    "😀 👩‍👩‍👧 x",
    "a\u2028b\x85c\x0bd\u3000e",
    "\x00 \x07",
    "▁ ▁▁a",
    "e\u0301 \u0301",
    "ß\ttoo .",
]


@pytest.mark.parametrize("text", STRANGE)
def test_every_token_has_its_word(tokenizer, text):
    ((ids, spans),) = tokenizer.encode_with_spans([text])
    words = words_of(text, spans)
    assert len(words) == len(ids)
    assert words == sorted(words)
    if ids:
        assert set(words) == set(range(len(text.split())))


@given(st.lists(st.text(max_size=8), max_size=5))
def test_word_of_a_token_contains_its_letters(tokenizer, parts):
    text = " ".join(parts)
    ((_, spans),) = tokenizer.encode_with_spans([text])
    words = text.split() or [text.strip()]
    for (begin, end), word in zip(spans, words_of(text, spans), strict=True):
        assert text[begin:end].strip().split()[:1] in ([], [words[word]]) or text[begin:end].strip() in words[word]


def test_empty_text_has_no_tokens(tokenizer):
    assert tokenizer.encode_with_spans([]) == []
    assert tokenizer.encode_with_spans([""]) == [([], [])]


def test_words_of_a_segment_are_numbered_within_the_text(tokenizer):
    text = "The dog.  A cat\nsaw it"
    ((_, spans),) = tokenizer.encode_with_spans(["A cat"])
    assert set(words_of(text, spans, text.index("A cat"))) == {2, 3}


def test_starts_of_answers_in_the_joined_text():
    pieces = [Piece("", "  "), Piece("你好。", ""), Piece("Hm.", "\n\n"), Piece("x", " ")]
    answers = ["unused", "Hello.", "Well.", ""]
    whole = join(pieces, answers)
    assert whole == "  Hello. Well.\n\n "
    for piece, answer, start in zip(pieces, answers, starts(pieces, answers), strict=True):
        assert whole.startswith(answer if piece.text else "", start)


def pairs_of(*sizes):
    """Return pairs with these numbers of tokens, two tokens per word."""
    torch.manual_seed(0)
    sides = [
        [Words(torch.randint(4, 19, (size,)).tolist(), [i // 2 for i in range(size)]) for size in side]
        for side in zip(*sizes, strict=True)
    ]
    return sides[0], sides[1]


@torch.no_grad()
def test_alignment_weights_equal_the_trace():
    model = translator()
    sources, targets = pairs_of((6, 5), (3, 8), (1, 1))
    every = every_head(model)
    for step in ("predicts", "reads"):
        for i, found in weigh(model, sources, targets, [[head] for head in every], step):
            with tracing(model) as trace:
                model(torch.tensor([[*sources[i].ids, 2]]), torch.tensor([[1, *targets[i].ids]]))
            for (layer, head), weights in zip(every, found, strict=True):
                shown = trace[f"decoder.layers.{layer}.cross_attention.probabilities"].values[0, head]
                for t in range(weights.shape[0]):
                    for s in range(weights.shape[1]):
                        row = shown[2 * t + (step == "reads")]
                        assert weights[t, s].item() == pytest.approx(row[:-1][2 * s : 2 * s + 2].sum().item(), abs=1e-5)
    assert hooks(model) == 0


@torch.no_grad()
def test_group_is_the_mean_of_its_heads_and_batch_equals_single():
    model = translator()
    sources, targets = pairs_of((6, 5), (3, 8), (9, 2), (1, 1))
    every = every_head(model)
    single = dict(weigh(model, sources, targets, [[head] for head in every], "predicts"))
    for i, (together,) in weigh(model, sources, targets, [every], "predicts"):
        assert torch.allclose(together, single[i].mean(0), atol=1e-6)
        ((_, (alone,)),) = weigh(model, [sources[i]], [targets[i]], [every], "predicts")
        assert torch.allclose(together, alone, atol=1e-6)
        chosen = Heads(every[:2])
        assert align(model, sources, targets, chosen)[i] == align(model, [sources[i]], [targets[i]], chosen)[0]
    assert align(model, [Words([], []), sources[0]], [targets[0], Words([], [])]) == [[], []]
    assert align(model, [], []) == []
