"""The writer: continuations by sampling, greedy search and beams, streamed or whole, and traces of what was written."""

import math

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
    ranked = writer.complete(TEXTS[0], n=3, beams=8, length_penalty=0.0)
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


def logits_after(writer, ids):
    with torch.no_grad():
        scores = writer.model(torch.tensor([ids]))[0, -1]
    scores[[0, 1, 3]] = -torch.inf
    return scores


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.8},
        {"presence_penalty": 1.5},
        {"frequency_penalty": 0.9},
        {"frequency_penalty": -0.7, "repetition_penalty": 0.8, "presence_penalty": 0.3},
    ],
    ids=str,
)
def test_penalties_change_the_scores_of_tokens_that_are_there_already(writer, options):
    """Presence and frequency count the tokens of the answer, repetition those of the text too."""
    own = SearchConfig(**options)
    ids, written = [START, *writer.tokenizer.encode([TEXTS[0]])[0]], []
    while len(written) < 16:
        scores = logits_after(writer, [*ids, *written])
        for token in {*ids, *written}:
            scores[token] *= own.repetition_penalty if scores[token] < 0 else 1 / own.repetition_penalty
        for token in set(written):
            scores[token] -= own.presence_penalty + own.frequency_penalty * written.count(token)
        if (best := int(scores.argmax())) == END:
            break
        written.append(best)
    (found,) = writer.complete(TEXTS[0], max_tokens=16, beams=1, **options)
    assert found.ids == written
    if options.get("frequency_penalty", 1) > 0:
        assert found.ids != writer.complete(TEXTS[0], max_tokens=16, beams=1)[0].ids
    with torch.no_grad():
        whole = writer.model(torch.tensor([[*ids, *written]]))[0].log_softmax(-1)[len(ids) - 1 :]
    expected = whole[range(len(found.log_probs)), [*written, END][: len(found.log_probs)]].tolist()
    assert found.log_probs == pytest.approx(expected, abs=1e-4), "log-probabilities are the model's"
    assert found.score == pytest.approx(sum(expected) / len(expected), abs=1e-4)


def test_a_bias_moves_the_scores_of_tokens(writer):
    first = writer.complete(TEXTS[0], beams=1, max_tokens=1)[0].ids[0]
    wanted = next(token for token in range(10, 500) if token != first)
    (found,) = writer.complete(TEXTS[0], beams=1, max_tokens=5, bias={wanted: 100.0})
    assert found.ids == [wanted] * 5
    for seed in range(20):
        (found,) = writer.complete(TEXTS[0], seed=seed, max_tokens=8, bias={first: -100.0, wanted: 2.0})
        assert first not in found.ids
    together = writer.search(
        [
            writer.plan([TEXTS[0]], SearchConfig(beams=1), max_tokens=5, bias=bias).requests[0]
            for bias in ({}, {wanted: 100.0})
        ],
        SearchConfig(beams=1),
    )
    assert [one.ids for (one,) in together] == [
        writer.complete(TEXTS[0], beams=1, max_tokens=5)[0].ids,
        [wanted] * 5,
    ]


@pytest.mark.parametrize("options", [{"beams": 1}, {"n": 3, "temperature": 2.0}, {"n": 2, "presence_penalty": 1.0}])
def test_the_likeliest_tokens_of_each_position(writer, options):
    for found in writer.complete(TEXTS[0], max_tokens=9, top=3, **options):
        (segment,) = found.segments
        assert len(found.top) == len(found.log_probs)
        for at, likely in enumerate(found.top):
            scores = logits_after(writer, [*segment.source_ids, *found.ids[:at]])
            with torch.no_grad():
                norm = writer.model(torch.tensor([[*segment.source_ids, *found.ids[:at]]]))[0, -1].logsumexp(-1)
            best = (scores - norm).topk(3)
            assert [one.log_prob for one in likely] == pytest.approx(best.values.tolist(), abs=1e-4)
            assert {one.id for one in likely} == {*best.indices.tolist()}
            assert [one.token for one in likely] == writer.tokenizer.pieces(one.id for one in likely)
    assert [one.ids for one in writer.complete(TEXTS[0], max_tokens=9, **options)] == [
        one.ids for one in writer.complete(TEXTS[0], max_tokens=9, top=3, **options)
    ]
    with raises(ConfigError, option="top"):
        writer.complete(TEXTS[0], beams=2, top=3)
    with raises(InputError, option="top", value=21):
        writer.complete(TEXTS[0], top=21)


@pytest.mark.parametrize("options", [{"beams": 1}, {"seed": 4, "temperature": 2.0}, {"n": 3, "seed": 5}], ids=str)
def test_a_continuation_ends_before_the_first_stop_string(writer, options):
    stopped = 0
    for text in TEXTS[:3]:
        plain = {one.text: one for one in writer.complete(text, max_tokens=20, **options)}
        whole = max(plain, key=len)
        for begin in range(0, len(whole) - 3, 5):
            stops = [whole[begin : begin + 3], "never there"]
            found = writer.complete(text, max_tokens=20, stop=stops, **options)
            assert sorted(one.text for one in found) == sorted(one.split(stops[0])[0] for one in plain)
            for one in found:
                assert len(one.log_probs) - len(one.ids) in ((0,) if one.text not in plain else (0, 1))
                (same,) = {
                    tuple(other.ids[: len(one.ids)])
                    for other in plain.values()
                    if other.text.startswith(one.text) and other.ids[: len(one.ids)] == one.ids
                } or {()}
                assert list(same) == one.ids
                if one.text not in plain:
                    stopped += 1
                    assert one.finish_reason == "stop"
                    written = writer.tokenizer.decode([*one.segments[0].source_ids, *one.ids])
                    before = writer.tokenizer.decode(one.segments[0].source_ids)
                    assert written[len(before) :].startswith(one.text)
                    assert not one.ids or len(written) - len(before) - len(one.text) < 20
            if "n" not in options:
                pieces = list(writer.stream(text, max_tokens=20, stop=stops, **options))
                assert "".join(pieces) == found[0].text
    assert stopped > 10
    with raises(InputError, option="stop"):
        writer.complete("x", stop=["a", ""])


def test_a_stopped_search_computes_no_more_steps(writer, monkeypatch):
    steps = []
    original = type(writer.model).step
    monkeypatch.setattr(type(writer.model), "step", lambda *args: steps.append(1) or original(*args))
    whole = writer.complete(TEXTS[0], beams=1, max_tokens=30, bias={END: -100.0})[0]
    assert len(steps) == 30
    steps.clear()
    (found,) = writer.complete(TEXTS[0], beams=1, max_tokens=30, bias={END: -100.0}, stop=whole.text[4:8])
    assert found.text == whole.text[: whole.text.index(whole.text[4:8])]
    assert len(steps) < 15


def test_seeds_of_requests_take_the_place_of_the_seed_of_the_search(writer):
    plan = writer.plan([TEXTS[0]] * 3, SearchConfig(beams=1, sample=True), max_tokens=9, seeds=[(7,), (7, 1), (7,)])
    (first,), (second,), (third,) = writer.run(plan)
    assert first.ids == third.ids == writer.complete(TEXTS[0], seed=7, max_tokens=9)[0].ids
    assert first.ids != second.ids


def test_a_score_is_the_log_probability_of_each_token(writer):
    text = TEXTS[0]
    found = writer.score(text, top=2)
    ids = writer.tokenizer.encode([text])[0]
    with torch.no_grad():
        log_probs = writer.model(torch.tensor([[START, *ids]]))[0].log_softmax(-1)
    assert found.ids == ids
    assert found.log_probs == pytest.approx(log_probs[range(len(ids)), ids].tolist(), abs=1e-4)
    assert found.log_prob == pytest.approx(sum(found.log_probs))
    assert found.perplexity == pytest.approx(math.exp(-found.log_prob / len(ids)))
    assert found.word_perplexity == pytest.approx(math.exp(-found.log_prob / len(text.split())))
    assert found.bits_per_byte == pytest.approx(-found.log_prob / math.log(2) / len(text.encode()))
    for at, likely in enumerate(found.top):
        log_probs[at, [0, 1, 3]] = -torch.inf
        assert [one[1] for one in likely] == pytest.approx(log_probs[at].topk(2).values.tolist(), abs=1e-4)
    empty = writer.score("")
    assert (empty.ids, empty.log_prob, empty.bits_per_byte, empty.perplexity) == ([], 0.0, 0.0, 1.0)


@pytest.mark.parametrize("stride", [None, 1, 20, 64])
def test_long_texts_are_scored_in_windows(writer, stride):
    ids = writer.tokenizer.encode([" ".join(TEXTS * 3)])[0][:150]
    found, step = writer.score(ids, stride=stride), stride or 32
    for at in (0, 40, 63, 64, 65, 90, 128, 149):
        window = next(begin for begin in range(0, 150, step) if at < begin + 64)
        with torch.no_grad():
            scores = writer.model(torch.tensor([[START, *ids[window:at]]]))[0, -1].log_softmax(-1)
        assert found.log_probs[at] == pytest.approx(float(scores[ids[at]]), abs=1e-4)
    assert len(found.log_probs) == 150
    with raises(InputError, option="stride", value=65):
        writer.score(ids, stride=65)
