"""The reader: words for masks, alone and in batches, and traces of the ids that were read."""

import pytest
import torch

import sightline
from sightline.config import ModelConfig
from sightline.data.builtin import generate
from sightline.engine import Filled, Reader
from sightline.errors import InputError
from sightline.model_folder import save_model
from sightline.special import END, START, UNKNOWN
from sightline.text.tokenizer import Tokenizer
from support import raises, random_weights

LINES = [text for pair in generate("train", 300) for text in (pair.source, pair.target)]
STACK = {"layers": 2, "heads": 4, "d_ff": 48}
TEXTS = [
    "The [MASK] sleeps.",
    "[MASK] dog sleeps, and the [MASK] sees <mask>.",
    "the dog [MASK]",
    "[MASK]",
    "The dog[MASK]s the [MASK][MASK] cat in the house, and the bird sings.",
]


@pytest.fixture(scope="module", params=[["<mask>"], []], ids=["mask", "unknown"])
def reader(request, tmp_path_factory):
    """An encoder with random weights, loaded from disk. Version 0.1 masked with UNKNOWN."""
    torch.manual_seed(3)
    tokenizer, folder = Tokenizer.train(LINES, 500, special=request.param), tmp_path_factory.mktemp("reader")
    sizes = {"d_model": 32, "encoder": STACK, "positions": {"max_length": 64}}
    config = ModelConfig(architecture="encoder-only", vocab_size=tokenizer.size, **sizes)
    save_model(random_weights(sightline.build(config)), folder, tokenizer)
    engine = sightline.load(folder, device="cpu")
    assert isinstance(engine, Reader)
    return engine


@torch.no_grad()
def log_probs(reader, ids):
    return reader.model(torch.tensor([ids]))[0].log_softmax(-1)


@pytest.mark.parametrize("text", TEXTS)
def test_candidates_are_the_likeliest_tokens_at_the_masks(reader, text):
    (found,) = reader.fill(text, n=7)
    expected = log_probs(reader, found.ids)
    masks = [i for i, token in enumerate(found.ids) if token == reader.tokenizer.mask_id]
    assert [mask.position for mask in found.masks] == masks
    assert len(masks) == text.count("MASK") + text.count("<mask>")
    for mask in found.masks:
        values, tokens = expected[mask.position].topk(7)
        assert [one.id for one in mask.candidates] == tokens.tolist()
        assert [one.probability for one in mask.candidates] == pytest.approx(values.exp().tolist(), rel=1e-4)
        assert [one.token for one in mask.candidates] == reader.tokenizer.pieces(tokens)


def test_the_text_around_a_mask_is_split_as_around_a_word(reader):
    encode, mask = reader.tokenizer.encode, reader.tokenizer.mask_id
    assert mask == (4 if "<mask>" in reader.tokenizer.all_pieces() else UNKNOWN)
    for before, word, after in [("The", " dog", " sleeps."), ("The cat sees", " it", "."), ("", "The", " dog, it")]:
        (ids,) = encode([before + word + after])
        (inside,) = encode([word])
        start = len(encode([before])[0])
        assert ids[start : start + len(inside)] == inside
        expected = [START, *ids[:start], mask, *ids[start + len(inside) :], END]
        gap = " " if word.startswith(" ") else ""
        for name in ("[MASK]", "<mask>"):
            assert reader.fill(before + gap + name + after)[0].ids == expected


def test_the_neighbours_of_a_text_change_nothing(reader):
    texts = [*TEXTS, *(f"{line} [MASK] {line}" for line in LINES[:20] if len(line) < 50)]
    for text, together in zip(texts, reader.fill(texts), strict=True):
        (alone,) = reader.fill(text)
        assert (together.text, together.ids) == (alone.text, alone.ids)
        for mask, expected in zip(together.masks, alone.masks, strict=True):
            assert [one.id for one in mask.candidates] == [one.id for one in expected.candidates]
            probabilities = [one.probability for one in expected.candidates]
            assert [one.probability for one in mask.candidates] == pytest.approx(probabilities, rel=1e-4)


def test_a_row_with_a_near_tie_is_computed_alone(reader, monkeypatch):
    """All candidates are in the order of a pass over the text alone, even where the differences are rounding errors."""
    n = reader.tokenizer.size
    rows, compute = [], reader._log_probs
    monkeypatch.setattr(reader, "_log_probs", lambda some: rows.append(len(some)) or compute(some))
    together = reader.fill(TEXTS, n)
    assert rows == [len(TEXTS), *[1] * len(TEXTS)]
    for text, found in zip(TEXTS, together, strict=True):
        assert found == reader.fill(text, n)[0]


def test_each_text_is_encoded_and_computed_once(reader, monkeypatch):
    seen, encode = [], reader.tokenizer.encode_masked
    monkeypatch.setattr(reader.tokenizer, "encode_masked", lambda texts: seen.extend(texts) or encode(texts))
    found = reader.fill([TEXTS[0], TEXTS[1], TEXTS[0]])
    assert seen == TEXTS[:2]
    assert found[0] == found[2]
    assert reader.fill([]) == []


def test_the_best_words_are_in_the_text(reader, monkeypatch):
    def filled(text, *words):
        """Fill in these tokens, whatever the model predicts."""
        ids = iter([reader.tokenizer.token_id(word) for word in words])

        def certain(rows):
            scores = torch.full((len(words), reader.tokenizer.size), -50.0)
            for mask in range(len(words)):
                scores[mask, next(ids)] = 0.0
            return [scores]

        with monkeypatch.context() as patch:
            patch.setattr(reader, "_log_probs", certain)
            return reader.fill(text, 1)[0].text

    assert filled("  The [MASK]  sleeps.\n", "▁dog") == "  The dog  sleeps.\n"
    assert filled("[MASK] sleeps", "▁dog") == "dog sleeps"
    assert filled("The dog [MASK] the <mask>", "s", ".") == "The dogs the."
    assert filled("The dog[MASK]", "s") == "The dogs"


def test_a_trace_has_the_ids_that_were_read(reader):
    for found in reader.fill(TEXTS):
        trace = reader.trace(found)
        assert trace.ids == {"source": found.ids}
        for mask in found.masks:
            scores = trace["logits"].values[mask.position].log_softmax(-1)
            assert [scores[one.id].exp().item() for one in mask.candidates] == pytest.approx(
                [one.probability for one in mask.candidates], rel=1e-4
            )
    assert reader.trace(TEXTS[1]).ids == {"source": reader.fill(TEXTS[1])[0].ids}
    assert reader.trace("The dog").ids == {"source": [START, *reader.tokenizer.encode(["The dog"])[0], END]}


def test_invalid_texts_are_refused(reader):
    for text in ("", "The dog sleeps."):
        with raises(InputError, option="text", value=text):
            reader.fill(["The [MASK] sleeps.", text])
    size = len(reader.tokenizer.encode(["dog " * 80])[0])
    with raises(InputError, option="text", value=size + 3):
        reader.fill("dog " * 80 + "[MASK]")
    for n in (0, reader.tokenizer.size + 1):
        with raises(InputError, option="n", value=n):
            reader.fill(TEXTS, n)


def test_a_result_is_readable(reader):
    (found,) = reader.fill(TEXTS[0])
    assert isinstance(found, Filled)
    best = found.masks[0].candidates[0]
    assert repr(found) == f"Filled({found.text!r}, {best.token!r} {best.probability:.3f})"
    assert found.tokens == reader.tokenizer.pieces(found.ids)
