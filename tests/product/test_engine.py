"""The engine: what it writes is what the model thinks, whichever way one asks."""

import random
import sys

import numpy as np
import pytest
import torch

import sightline
from sightline.data.builtin import generate, riddle
from sightline.errors import ConfigError, InputError

TEXTS = [pair.source for pair in generate("test", 40)]


@pytest.fixture(scope="module")
def engine(taught):
    return sightline.load(taught, engine="torch")


@pytest.mark.parametrize("beam", [1, 5])
def test_neighbours_do_not_matter(engine, beam):
    """Real text, in batches of 1, 7, 64 and all, in two orders: letter by letter the same."""
    texts = [pair.source for pair in generate("test", 70)]
    expected = [engine.translate(text, beam=beam)[0] for text in texts]
    order = list(range(len(texts)))
    random.Random(0).shuffle(order)
    for size in (7, 64, len(texts)):
        for places in (list(range(len(texts))), order):
            found = {}
            for i in range(0, len(places), size):
                some = places[i : i + size]
                found |= dict(zip(some, engine.translate([texts[j] for j in some], beam=beam), strict=True))
            for i, alone in enumerate(expected):
                assert found[i].text == alone.text
                assert found[i].score == pytest.approx(alone.score, abs=1e-4)


@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 4, "nbest": 2}, {"beam": 4, "length_penalty": 0.0}])
def test_ctranslate2_finds_the_same(engine, taught, options):
    pytest.importorskip("ctranslate2")
    fast = sightline.load(taught, engine="ctranslate2", precision="float32")
    assert fast.fast is not None
    for one, other in zip(engine.translate(TEXTS, **options), fast.translate(TEXTS, **options), strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-4)
        assert one.text == other.text
        assert [x.text for x in one.alternatives] == [x.text for x in other.alternatives]
        assert np.allclose(one.log_probs, other.log_probs, atol=1e-3)


def test_what_ctranslate2_cannot_do_is_done_by_torch(engine, taught):
    pytest.importorskip("ctranslate2")
    fast = sightline.load(taught)
    for options in ({"sample": True, "beam": 2}, {"beam": 4, "groups": 2}, {"prefix": "Gestern"}, {"stop": "best"}):
        assert [x.text for x in fast.translate(TEXTS[:5], **options)] == [
            x.text for x in engine.translate(TEXTS[:5], **options)
        ]
    before = fast.translate(TEXTS[0])[0].score
    with fast.what_if(remove_heads={"decoder.layers.1.cross_attention": [0, 1, 2, 3]}):
        assert fast.translate(TEXTS[0])[0].score != pytest.approx(before, abs=1e-3)
    assert fast.translate(TEXTS[0])[0].score == pytest.approx(before, abs=1e-5)


def test_int8_is_near_and_its_files_are_kept(engine, taught):
    pytest.importorskip("ctranslate2")
    rounded = sightline.load(taught, precision="int8")
    found, expected = rounded.translate(TEXTS), engine.translate(TEXTS)
    assert sum(one.text == other.text for one, other in zip(found, expected, strict=True)) > 20
    for one in found:  # scores and log-probabilities are of one precision
        assert one.score == pytest.approx(np.mean(one.log_probs), abs=1e-5)
    assert any(abs(one.score - other.score) > 1e-5 for one, other in zip(found, expected, strict=True))
    made = (taught / "ctranslate2-int8" / "model.bin").stat()
    assert sightline.load(taught, precision="int8").translate(TEXTS)[:3] == found[:3]
    assert (taught / "ctranslate2-int8" / "model.bin").stat() == made
    whole = sightline.load(taught, engine="ctranslate2").translate(TEXTS[:3])  # the other folder is still its own
    assert [one.score for one in whole] == pytest.approx([one.score for one in expected[:3]], abs=1e-4)
    (other,) = rounded.translate(TEXTS[0], stop="best")  # which torch does, in float32
    assert other == engine.translate(TEXTS[0], stop="best")[0]


def test_what_only_ctranslate2_does_is_not_done_otherwise(taught, monkeypatch):
    for options, message in (
        ({"precision": "int8", "engine": "torch"}, "int8 is for the engine ctranslate2 only"),
        ({"shortlist": True, "engine": "torch"}, "a shortlist is for the engine ctranslate2 only"),
        ({"precision": "float16"}, "no precision 'float16'; known are auto, float32 and int8"),
    ):
        with pytest.raises(InputError, match=message):
            sightline.load(taught, **options)
    with pytest.raises(InputError, match="several models vote with the engine torch only, in float32"):
        sightline.load([taught, taught], precision="int8")
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert sightline.load(taught).fast is None
    for options in ({"precision": "int8"}, {"shortlist": True}):
        with pytest.raises(InputError, match="pip install ctranslate2"):
            sightline.load(taught, **options)


def test_a_stream_is_greedy_search_piece_by_piece(engine):
    for text in TEXTS[:10]:
        pieces = list(engine.stream(text))
        assert len(pieces) > 3
        assert "".join(pieces) == engine.translate(text, beam=1)[0].text
    sampled = "".join(engine.stream(TEXTS[0], sample=True, seed=3))
    assert sampled == engine.translate(TEXTS[0], beam=1, sample=True, seed=3)[0].text


def test_what_is_written_scores_what_it_was_written_with(engine):
    found = engine.translate(TEXTS, beam=4, length_penalty=0.0)
    scored = engine.score(TEXTS, [one.text for one in found])
    for one, other in zip(found, scored, strict=True):
        if other.tokens == one.tokens:  # the same text may be cut in other ways
            assert np.allclose(other.log_probs, one.log_probs, atol=1e-4)
            assert other.log_prob == pytest.approx(one.score, abs=1e-3)
    assert sum(one.tokens == other.tokens for one, other in zip(found, scored, strict=True)) > 30


def test_the_best_come_first_and_more_beams_find_better(engine):
    found = engine.translate(TEXTS, beam=6, nbest=4, length_penalty=0.0)
    greedy = engine.translate(TEXTS, beam=1, length_penalty=0.0)
    for one in found:
        ranked = [one.score, *(other.score for other in one.alternatives)]
        assert len(ranked) == 4
        assert ranked == sorted(ranked, reverse=True)
    assert np.mean([one.score for one in found]) >= np.mean([one.score for one in greedy])


def test_several_models_vote_and_one_twice_is_one(engine, taught):
    twice = sightline.load([taught, taught])
    assert twice.fast is None
    for one, two in zip(engine.translate(TEXTS), twice.translate(TEXTS), strict=True):
        assert one.text == two.text
        assert one.score == pytest.approx(two.score, abs=1e-4)


def test_a_prefix_begins_it_and_a_word_that_is_not_wanted_is_not_there(engine):
    for text in TEXTS[:8]:
        plain = engine.translate(text)[0].text
        (found,) = engine.translate(text, prefix="Gestern")
        assert found.text.startswith("Gestern")
        word = plain.split()[1].strip(".,")
        (other,) = engine.translate(text, without=[word])
        assert word not in other.text.replace(".", " ").replace(",", " ").split()


def test_lines_long_texts_and_nothing_at_all(engine):
    first, second = (one.text for one in engine.translate(TEXTS[:2]))
    (found,) = engine.translate(f"{TEXTS[0]}\n\n  {TEXTS[1]}\n")
    assert found.text == f"{first}\n\n  {second}\n"
    many = " ".join(TEXTS * 3)
    (found,) = engine.translate(many, beam=1)
    assert found.text == " ".join(one.text for one in engine.translate(TEXTS, beam=1) * 3)
    assert "".join(engine.stream(many)) == found.text
    assert [one.text for one in engine.translate(["", " ", "\n"])] == ["", " ", "\n"]
    assert engine.translate([]) == []
    some = [one.text for one in engine.translate_lines(iter(TEXTS[:5]), window=2, beam=1)]
    assert some == [one.text for one in engine.translate(TEXTS[:5], beam=1)]


@pytest.mark.parametrize(
    "text", ["\x00\x07\x1b[31m", "😀👩‍👩‍👧", "שלום עולם", "x" * 3000, "a\u2028b", "\ufffd", "<s> </s> <pad>"]
)
def test_whatever_comes_something_comes_back(engine, text):
    (found,) = engine.translate(text, beam=2)
    assert isinstance(found.text, str)


def test_a_look_inside(engine):
    pair = riddle()[0]
    trace = engine.trace(pair.source)
    name = "encoder.layers.0.self_attention.probabilities"
    assert name in trace
    assert trace[name].labels["query"] == trace.tokens["source"]
    assert max(trace.check().values()) < 1e-4
    given = engine.trace(pair.source, target=pair.target)
    assert "".join(given.tokens["target"]).replace("▁", " ").endswith(pair.target)
    before = engine.translate(pair.source, beam=1)[0]
    with engine.what_if(remove_heads={"decoder.layers.1.cross_attention": [0, 1, 2, 3]}):
        assert engine.translate(pair.source, beam=1)[0].score != before.score
    assert engine.translate(pair.source, beam=1)[0] == before


def test_what_cannot_be_done_is_said(engine, taught, tmp_path):
    with pytest.raises(InputError, match="change their mind"):
        list(engine.stream("x", beams=2))
    with pytest.raises(ConfigError, match="nbest = 9"):
        engine.translate("x", beam=4, nbest=9)
    with pytest.raises(ConfigError, match="did you mean 'temperature'"):
        engine.translate("x", temprature=2)
    with pytest.raises(InputError, match="1 sources and 2 targets"):
        engine.score(["x"], ["y", "z"])
    with pytest.raises(InputError, match="2 prefixes and 1 texts"):
        engine.translate(["x"], prefix=["y", "z"])
    with pytest.raises(InputError, match="at most"):
        engine.score(["x " * 9000], ["y"])
    with pytest.raises(InputError, match="no engine 'fast'"):
        sightline.load(taught, engine="fast")
    with pytest.raises(InputError, match="several"):
        list(sightline.load([taught, taught]).stream("x"))


def test_a_shorter_or_longer_answer_can_be_asked_for(engine):
    for text in TEXTS[:5]:
        (short,) = engine.translate(text, max_ratio=0.1, max_extra=3)
        (long,) = engine.translate(text, min_ratio=3.0, max_ratio=4.0)
        assert len(short.tokens) <= 3 + 2
        assert len(long.tokens) >= 3 * len(engine.tokenizer.encode([text])[0])
    assert torch.is_grad_enabled()
