"""The writer: continuations by sampling, greedy search and beams, streamed or whole, and traces of what was written."""

import pytest
import torch

import sightline
from sightline.config import ModelConfig, SearchConfig
from sightline.data.builtin import generate
from sightline.engine import Completion, Writer
from sightline.errors import ConfigError, InputError
from sightline.model_folder import load_tokenizer, save_model
from sightline.special import END, START
from support import raises, random_weights

STACK = {"layers": 2, "heads": 4, "d_ff": 48}
TEXTS = [pair.source for pair in generate("test", 6)]


@pytest.fixture(scope="module")
def writer(taught, tmp_path_factory):
    """A language model with random weights that ends its texts now and then, loaded from disk."""
    torch.manual_seed(3)
    tokenizer, folder = load_tokenizer(taught), tmp_path_factory.mktemp("writer")
    sizes = {"d_model": 32, "decoder": STACK, "positions": {"max_length": 64}, "classifier_bias": True}
    model = random_weights(
        sightline.build(ModelConfig(architecture="decoder-only", vocab_size=tokenizer.size, **sizes))
    )
    with torch.no_grad():
        model.classifier.bias[END] += 2.5
    save_model(model, folder, tokenizer)
    engine = sightline.load(folder, device="cpu")
    assert isinstance(engine, Writer)
    return engine


@pytest.mark.parametrize("text", [*TEXTS[:3], "", "Der"])
def test_greedy_search_takes_the_likeliest_token_each_time(writer, text):
    (found,) = writer.complete(text, max_tokens=12, beams=1)
    ids, expected = [START, *writer.tokenizer.encode([text])[0]], []
    while len(expected) < 12:
        with torch.no_grad():
            logits = writer.model(torch.tensor([[*ids, *expected]]))[0, -1]
        logits[[0, 1, 3]] = -torch.inf
        if (best := int(logits.argmax())) == END:
            break
        expected.append(best)
    assert found.ids == expected
    assert found.segments[0].source_ids == ids
    assert found.finish_reason == ("length" if len(expected) == 12 else "stop")
    assert found.text == writer.tokenizer.decode([*ids, *expected])[len(writer.tokenizer.decode(ids)) :]


def test_samples_are_the_default_and_a_seed_repeats_them(writer):
    found = writer.complete(TEXTS[0], n=3, seed=5)
    assert [one.ids for one in found] == [one.ids for one in writer.complete(TEXTS[0], 3, sample=True, seed=5)]
    assert [one.ids for one in found] != [one.ids for one in writer.complete(TEXTS[0], 3, seed=6)]
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert len({one.text for one in found}) == 3


def test_beams_find_better_continuations_than_greedy_search(writer):
    greedy = writer.complete(TEXTS[0], beams=1, length_penalty=0.0)[0]
    ranked = writer.complete(TEXTS[0], n=3, beams=8, length_penalty=0.0, stop="best")
    assert len(ranked) == 3
    assert ranked[0].score >= greedy.score - 1e-5
    assert writer.complete(TEXTS[0], n=2, sample=False)[0].score >= greedy.score - 1e-5


@pytest.mark.parametrize("options", [{"beams": 1}, {"seed": 3}, {"seed": 4, "temperature": 2.0}], ids=str)
def test_a_stream_gives_the_same_text(writer, options):
    most = 0
    for text in [*TEXTS[:3], ""]:
        pieces = list(writer.stream(text, max_tokens=20, **options))
        assert "".join(pieces) == writer.complete(text, max_tokens=20, **options)[0].text
        most = max(most, len(pieces))
    assert most > 1


def test_the_neighbours_of_a_text_change_nothing(writer):
    options = SearchConfig(beams=3)
    together = writer.run(writer.plan(TEXTS, options, max_tokens=9))
    for text, (found,) in zip(TEXTS, together, strict=True):
        ((alone,),) = writer.run(writer.plan([text], options, max_tokens=9))
        assert (found.ids, found.text) == (alone.ids, alone.text)


def test_forbid_and_require(writer):
    def count(results, word):
        (ids,) = writer.tokenizer.encode([word])
        return sum(one.ids[i : i + len(ids)] == ids for one in results for i in range(len(one.ids)))

    samples = {"n": 30, "seed": 1, "max_tokens": 30}
    plain = writer.complete(TEXTS[0], **samples)
    words = {token.strip("▁") for one in plain for token in one.tokens if token.startswith("▁") and token[1:].isalpha()}
    word = max(words, key=lambda word: count(plain, word))
    assert count(plain, word) > 0
    assert count(writer.complete(TEXTS[0], forbid=[word], **samples), word) == 0
    (found,) = writer.complete(TEXTS[0], beams=6, max_tokens=20, require=["Hund"])
    assert "Hund" in found.text


@pytest.mark.parametrize("options", [{"beams": 1}, {"n": 4, "beams": 4}, {"n": 4, "temperature": 3.0}], ids=str)
def test_a_trace_of_a_continuation_has_the_ids_that_were_written(writer, options):
    for one in writer.complete(TEXTS[1], max_tokens=10, **options):
        (segment,), trace = one.segments, writer.trace(one)
        assert trace.ids == {"target": [*segment.source_ids, *segment.ids]}
        written = [*segment.ids, END][: len(segment.log_probs)]
        logits = trace["logits"].values[len(segment.source_ids) - 1 :]
        assert logits.log_softmax(-1)[range(len(written)), written].tolist() == pytest.approx(
            segment.log_probs, abs=1e-4
        )
    assert writer.trace(TEXTS[1]).ids == {"target": [START, *writer.tokenizer.encode([TEXTS[1]])[0]]}


def test_a_text_that_leaves_less_room_is_continued_up_to_the_last_position(writer):
    text = "Hund " * 20
    given = len(writer.tokenizer.encode([text])[0]) + 1
    (found,) = writer.complete(text, max_tokens=1000, beams=1, min_p=0.0)
    assert len(found.ids) <= 64 - given + 1
    with raises(InputError, option="text"):
        writer.complete("Hund " * 99)


def test_invalid_options_are_refused(writer):
    with raises(InputError, option="max_tokens", value=0):
        writer.complete("x", max_tokens=0)
    with raises(ConfigError, option="coverage_penalty"):
        writer.complete("x", beams=2, coverage_penalty=1.0)
    with raises(ConfigError, option="beams", value=2):
        list(writer.stream("x", beams=2))


def test_a_completion_is_readable(writer):
    (found,) = writer.complete(TEXTS[0], beams=1, max_tokens=4)
    assert isinstance(found, Completion)
    assert repr(found).startswith(f"Completion({found.text!r}, score=")
    assert "finish_reason=" in repr(found)
