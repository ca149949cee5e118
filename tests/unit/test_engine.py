"""The translator: every way to use it gives the same answers, and these are those of the model."""

import random
import shutil
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from sacrebleu.metrics.chrf import CHRF

import sightline
from sightline.data.builtin import generate, riddle
from sightline.engine import Translator
from sightline.errors import CheckpointError, ConfigError, InputError
from sightline.evaluate.align import Choice, agreement, choose_heads, gold_of, save_choice
from sightline.search.align import Heads
from sightline.special import END, START
from sightline.text.tokenizer import Tokenizer
from support import raises

TEXTS = [pair.source for pair in generate("test", 40)]


@pytest.fixture(scope="module")
def engine(taught):
    return sightline.load(taught, backend="torch")


@pytest.mark.parametrize("beams", [1, 5])
def test_batches_change_nothing(engine, beams):
    """Real text, in batches of 1, 7, 64 and all, in two orders."""
    texts = [pair.source for pair in generate("test", 70)]
    expected = [engine.translate(text, beams=beams)[0] for text in texts]
    order = list(range(len(texts)))
    random.Random(0).shuffle(order)
    for size, places in ((7, order), (64, sorted(order)), (len(texts), order)):
        found = {}
        for i in range(0, len(places), size):
            some = places[i : i + size]
            found |= dict(zip(some, engine.translate([texts[j] for j in some], beams=beams), strict=True))
        for i, alone in enumerate(expected):
            assert found[i].text == alone.text
            assert found[i].score == pytest.approx(alone.score, abs=1e-4)


@pytest.mark.parametrize("options", [{"beams": 1}, {"beams": 4, "nbest": 2}, {"beams": 4, "length_penalty": 0.0}])
def test_ctranslate2_finds_the_same(engine, taught, options):
    pytest.importorskip("ctranslate2")
    fast = sightline.load(taught, backend="ctranslate2", precision="float32")
    assert fast.backends[0] is not fast.torch
    for one, other in zip(engine.translate(TEXTS, **options), fast.translate(TEXTS, **options), strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-4)
        assert one.text == other.text
        assert [x.text for x in one.alternatives] == [x.text for x in other.alternatives]
        assert np.allclose(one.log_probs, other.log_probs, atol=1e-3)


@pytest.mark.parametrize("threads", [1, 2])
def test_ctranslate2_leaves_torch_its_threads(taught, threads):
    pytest.importorskip("ctranslate2")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        sightline.load(taught, device="cpu", backend="ctranslate2").translate("The dog sleeps.")
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_torch_does_what_ctranslate2_cannot(engine, taught):
    pytest.importorskip("ctranslate2")
    fast = sightline.load(taught)
    for options in (
        {"sample": True, "beams": 2},
        {"beams": 4, "groups": 2},
        {"prefix": "Gestern"},
        {"stop": "best"},
        {"require": ["Hund"]},
    ):
        assert [x.text for x in fast.translate(TEXTS[:5], **options)] == [
            x.text for x in engine.translate(TEXTS[:5], **options)
        ]
    before = fast.translate(TEXTS[0])[0].score
    with fast.what_if(remove_heads={"decoder.layers.1.cross_attention": [0, 1, 2, 3]}):
        assert fast.translate(TEXTS[0])[0].score != pytest.approx(before, abs=1e-3)
        with ThreadPoolExecutor(1) as others:  # this thread is outside the what-if
            assert others.submit(fast.translate, TEXTS[0]).result()[0].score == pytest.approx(before, abs=1e-5)
    assert fast.translate(TEXTS[0])[0].score == pytest.approx(before, abs=1e-5)


def test_int8_is_close_and_its_files_are_kept(engine, taught):
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
    whole = sightline.load(taught, backend="ctranslate2").translate(TEXTS[:3])  # the other folder is still its own
    assert [one.score for one in whole] == pytest.approx([one.score for one in expected[:3]], abs=1e-4)
    (other,) = rounded.translate(TEXTS[0], stop="best")  # which torch does, in float32
    assert other == engine.translate(TEXTS[0], stop="best")[0]


def test_options_that_need_another_backend_are_refused(taught, monkeypatch):
    for options, option in (
        ({"precision": "int8", "backend": "torch"}, "precision"),
        ({"shortlist": True, "backend": "torch"}, "shortlist"),
        ({"precision": "bfloat16", "device": "cpu"}, "precision"),
    ):
        with raises(InputError, option=option, value=options[option]):
            sightline.load(taught, **options)
    for option, value in (("precision", "float16"), ("backend", "fast")):
        with raises(ConfigError, option=option, value=value):
            sightline.load(taught, **{option: value})
    with raises(InputError, option="precision", value="int8"):
        sightline.load([taught, taught], precision="int8")
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    alone = sightline.load(taught)
    assert alone.backends == [alone.torch]
    for options in ({"precision": "int8"}, {"shortlist": True}):
        with pytest.raises(InputError, match="pip install"):
            sightline.load(taught, **options)


def test_a_stream_is_greedy_search_piece_by_piece(engine):
    for text in TEXTS[:10]:
        pieces = list(engine.stream(text))
        assert len(pieces) > 3
        assert "".join(pieces) == engine.translate(text, beams=1)[0].text
    sampled = "".join(engine.stream(TEXTS[0], sample=True, seed=3))
    assert sampled == engine.translate(TEXTS[0], beams=1, sample=True, seed=3)[0].text


def test_a_written_text_has_the_score_that_it_was_written_with(engine):
    found = engine.translate(TEXTS, beams=4, length_penalty=0.0)
    scored = engine.score(TEXTS, [one.text for one in found])
    for one, other in zip(found, scored, strict=True):
        if other.tokens == one.tokens:  # the same text may be cut in other ways
            assert np.allclose(other.log_probs, one.log_probs, atol=1e-4)
            assert other.log_prob == pytest.approx(one.score, abs=1e-3)
    assert sum(one.tokens == other.tokens for one, other in zip(found, scored, strict=True)) > 30


def test_the_best_are_first_and_more_beams_find_better_answers(engine):
    found = engine.translate(TEXTS, beams=6, nbest=4, length_penalty=0.0)
    greedy = engine.translate(TEXTS, beams=1, length_penalty=0.0)
    for one in found:
        ranked = [one.score, *(other.score for other in one.alternatives)]
        assert len(ranked) == 4
        assert ranked == sorted(ranked, reverse=True)
    assert np.mean([one.score for one in found]) >= np.mean([one.score for one in greedy])


def test_an_ensemble_of_one_model_twice_is_that_model(engine, taught):
    twice = sightline.load([taught, taught])
    assert twice.backends == [twice.torch]
    for one, two in zip(engine.translate(TEXTS), twice.translate(TEXTS), strict=True):
        assert one.text == two.text
        assert one.score == pytest.approx(two.score, abs=1e-4)


def test_prefix_and_forbid(engine):
    for text in TEXTS[:8]:
        plain = engine.translate(text)[0].text
        (found,) = engine.translate(text, prefix="Gestern")
        assert found.text.startswith("Gestern")
        word = plain.split()[1].strip(".,")
        (other,) = engine.translate(text, forbid=[word])
        assert word not in other.text.replace(".", " ").replace(",", " ").split()


def test_require(engine):
    for text in TEXTS[:4]:
        (plain,) = engine.translate(text, beams=8)
        said = plain.text.split()[2].strip(".,")
        (same,) = engine.translate(text, beams=8, require=[said], stop="best")
        assert said in same.text
        (found,) = engine.translate(text, beams=8, nbest=2, require=["Gestern", "Wörter", "Wörter"])
        for one in (found, *found.alternatives):
            assert "Gestern" in one.text
            assert one.text.count("Wörter") >= 2
        (begun,) = engine.translate(text, beams=8, prefix="Der Wal", require=["Wal", "🐳"], forbid=["und"])
        assert begun.text.startswith("Der Wal")
        assert "🐳" in begun.text
    together = engine.translate(["", *TEXTS[:4]], require=["heute"])
    assert [one.text for one in together] == ["", *(engine.translate(x, require=["heute"])[0].text for x in TEXTS[:4])]


def test_rerank_puts_the_sample_most_similar_to_the_others_first(engine):
    options = {"sample": True, "beams": 24, "nbest": 24, "seed": 3}
    drawn = engine.translate(TEXTS[:6], **options)
    ranked = engine.translate(TEXTS[:6], rerank="mbr-chrf", **options)
    best = engine.translate(TEXTS[:6], rerank="mbr-chrf", **{**options, "nbest": 1})
    metric = CHRF()
    for one, other, first in zip(drawn, ranked, best, strict=True):
        samples = [one, *one.alternatives]
        texts = [sample.text for sample in samples]
        utility = {
            text: sum(metric.sentence_score(text, [y]).score for j, y in enumerate(texts) if j != texts.index(text))
            / 23
            for text in texts
        }
        found = [other, *other.alternatives]
        assert {x.text for x in found} == set(texts)
        assert len({x.text for x in found}) == len(found)
        assert [utility[x.text] for x in found] == pytest.approx(sorted(utility.values(), reverse=True), abs=1e-9)
        for x in found:
            assert x.score == pytest.approx(max(y.score for y in samples if y.text == x.text), abs=1e-4)
        assert first.text == other.text
    (parts,) = engine.translate("\n".join(TEXTS[:3]), rerank="mbr-chrf", **{**options, "nbest": 1})
    assert parts.text == "\n".join(one.text for one in best[:3])


def test_alternatives_at_a_position(engine, taught):
    twice = sightline.load([taught, taught])
    for asked in (engine, twice):
        for text in TEXTS[:3]:
            target = asked.translate(text)[0].text
            (whole,) = asked.score([text], [target])
            ids = asked.tokenizer.encode([target])[0]
            for position in (0, 2, len(ids)):
                begun = asked.tokenizer.decode(ids[:position])
                found = asked.alternatives(text, target, position, count=6)
                assert len({one.token for one in found}) == 6
                assert [one.log_prob for one in found] == sorted((one.log_prob for one in found), reverse=True)
                assert {"<pad>", "<s>", "<unk>"}.isdisjoint(one.token for one in found)
                own = [*whole.tokens, "</s>"][position]
                (mine,) = [one for one in found if one.token == own]
                assert mine.log_prob == pytest.approx(whole.log_probs[position], abs=1e-4)
                for one in found:
                    assert one.text.startswith(begun)
                    if one.token == "</s>":
                        assert one.text == begun
                    elif not one.token.startswith("<0x"):
                        assert one.text.startswith((begun + one.token.replace("▁", " ")).strip())
    (best,) = engine.translate(TEXTS[0], beams=1)
    assert engine.alternatives(TEXTS[0], "", 0, count=1, beams=1)[0].text == best.text


def test_lines_long_texts_and_empty_texts(engine):
    first, second = (one.text for one in engine.translate(TEXTS[:2]))
    (found,) = engine.translate(f"{TEXTS[0]}\n\n  {TEXTS[1]}\n")
    assert found.text == f"{first}\n\n  {second}\n"
    many = " ".join(TEXTS * 3)
    (found,) = engine.translate(many, beams=1)
    assert found.text == " ".join(one.text for one in engine.translate(TEXTS, beams=1) * 3)
    assert "".join(engine.stream(many)) == found.text
    assert [one.text for one in engine.translate(["", " ", "\n"])] == ["", " ", "\n"]
    assert engine.translate([]) == []


@pytest.mark.parametrize(
    "text", ["\x00\x07\x1b[31m", "😀👩‍👩‍👧", "שלום עולם", "x" * 3000, "a\u2028b", "\ufffd", "<s> </s> <pad>"]
)
def test_any_text_gets_an_answer(engine, text):
    (found,) = engine.translate(text, beams=2)
    assert isinstance(found.text, str)


def test_a_trace_with_labels_and_a_what_if(engine):
    pair = riddle()[0]
    trace = engine.trace(pair.source)
    name = "encoder.layers.0.self_attention.probabilities"
    assert name in trace
    assert trace[name].labels["query"] == trace.tokens["source"]
    assert max(trace.check().values()) < 1e-4
    given = engine.trace(pair.source, target=pair.target)
    assert "".join(given.tokens["target"]).replace("▁", " ").endswith(pair.target)
    before = engine.translate(pair.source, beams=1)[0]
    with engine.what_if(remove_heads={"decoder.layers.1.cross_attention": [0, 1, 2, 3]}):
        assert engine.translate(pair.source, beams=1)[0].score != before.score
    assert engine.translate(pair.source, beams=1)[0] == before


def test_invalid_arguments_are_refused(engine, taught):
    with raises(ConfigError, option="beams", value=2):
        list(engine.stream("x", beams=2))
    with raises(ConfigError, option="nbest"):
        engine.translate("x", beams=4, nbest=9)
    with raises(ConfigError, option="temprature"):
        engine.translate("x", temprature=2)
    with raises(InputError, option="targets", value=2):
        engine.score(["x"], ["y", "z"])
    with raises(InputError, option="prefix", value=2):
        engine.translate(["x"], prefix=["y", "z"])
    with raises(InputError, value=1):
        engine.score(["x " * 9000], ["y"])
    for device in ("cuda:99", "nothing"):
        with raises(InputError, option="device", value=device):
            sightline.load(taught, device=device)
    with raises(InputError, option="path"):
        sightline.load([])
    with pytest.raises(InputError, match="vote"):
        list(sightline.load([taught, taught]).stream("x"))


@pytest.mark.parametrize(
    ("options", "error", "option"),
    [
        ({"require": ["x"], "sample": True}, ConfigError, "require"),
        ({"require": ["x"], "groups": 2}, ConfigError, "groups"),
        ({"require": ["Haus"], "forbid": ["Haus"]}, InputError, "require"),
        ({"require": ["Haus " * 5000]}, InputError, "require"),
    ],
)
def test_impossible_constraints_are_refused(engine, options, error, option):
    with raises(error, option=option):
        engine.translate(TEXTS[0], **options)
    with raises(InputError, option="require", value=2):
        engine.translate("\n".join(TEXTS[:2]), require=["x"])


@pytest.mark.parametrize(
    ("arguments", "option", "value"),
    [
        ((TEXTS[0], "Der Hund", -1), "position", -1),
        ((TEXTS[0], "Der Hund", 99), "position", 99),
        ((TEXTS[0], "x" * 9000, 8500), "position", 8500),
        (("\n".join(TEXTS[:2]), "Der Hund", 1), "text", 2),
        (("", "Der Hund", 1), "text", 0),
    ],
)
def test_alternatives_of_invalid_positions_are_refused(engine, arguments, option, value):
    with raises(InputError, option=option, value=value):
        engine.alternatives(*arguments)
    with raises(InputError, option="count", value=0):
        engine.alternatives(TEXTS[0], "Der Hund", 1, count=0)


def test_ratios_make_answers_shorter_or_longer(engine):
    for text in TEXTS[:5]:
        (short,) = engine.translate(text, max_ratio=0.1, max_extra=3)
        (long,) = engine.translate(text, min_ratio=3.0, max_ratio=4.0)
        assert len(short.tokens) <= 3 + 2
        assert len(long.tokens) >= 3 * len(engine.tokenizer.encode([text])[0])
    assert torch.is_grad_enabled()


def test_words_are_aligned_by_attention():
    """The error of the bundled model is 0.225, far below that of the diagonal (0.58)."""
    engine = sightline.load("coref", backend="torch", device="cpu")
    pairs = list(generate("test", 300))
    sources, targets, gold = zip(*((pair.source, pair.target, gold_of(pair)) for pair in pairs), strict=True)
    found = agreement(engine.align(sources, targets), gold)
    assert found.error < 0.24
    assert found.precision == found.recall  # every word of the target has one link, in gold as well
    by_dev = list(generate("dev", 100))
    choice = choose_heads(
        engine, [pair.source for pair in by_dev], [pair.target for pair in by_dev], [gold_of(pair) for pair in by_dev]
    )
    assert choice.heads.step == "predicts"
    assert choice.error < 0.24


def test_alignments_are_the_same_alone_together_and_from_every_backend(engine, taught):
    found = engine.translate(TEXTS, align=True)
    again = engine.align(TEXTS, [one.text for one in found])
    for text, one, links in zip(TEXTS, found, again, strict=True):
        assert one.alignment == links == engine.align([text], [one.text])[0]
        alone = engine.translate(text)[0]
        assert (one.text, one.ids) == (alone.text, alone.ids)
    pytest.importorskip("ctranslate2")
    fast = sightline.load(taught, backend="ctranslate2")
    assert [one.alignment for one in fast.translate(TEXTS, align=True)] == [one.alignment for one in found]
    (best,) = fast.translate(TEXTS[0], nbest=3, align=True)
    assert all(one.alignment for one in (best, *best.alternatives))


def test_words_are_those_of_the_whole_text(engine):
    first, second = engine.translate(TEXTS[:2], align=True)
    text = f"\n{TEXTS[0]}  \n\n  {TEXTS[1]}\n"
    (whole,) = engine.translate(text, align=True)
    past, said = len(TEXTS[0].split()), len(first.text.split())
    assert whole.alignment == first.alignment + sorted((s + past, t + said) for s, t in second.alignment)
    assert engine.translate([], align=True) == []


@pytest.mark.parametrize(
    "text", ["", "  ", "\n", "😀 👩‍👩‍👧  x", "x" * 3000, "word " * 400, "a\u2028b\x85c d", "\x00 \x07", "<s> </s> ▁"]
)
def test_links_are_between_existing_words(engine, text):
    (found,) = engine.translate(text, beams=1, align=True)
    assert {target for _, target in found.alignment} <= set(range(len(found.text.split())))
    assert {source for source, _ in found.alignment} <= set(range(len(text.split())))
    assert found.alignment == sorted(set(found.alignment))
    assert bool(found.alignment) == bool(text.split() and found.text.split())


def test_answers_that_tokenise_to_more_tokens_than_were_written_are_aligned(engine):
    torch.manual_seed(0)
    config = engine.model.config
    short = config.model_copy(update={"positions": config.positions.model_copy(update={"max_length": 24})})
    wild = Translator(sightline.build(short), engine.tokenizer)
    found = wild.translate(TEXTS[0], beams=8, nbest=8, sample=True, temperature=9.0, min_ratio=3.0, align=True)[0]
    lengths = [len(engine.tokenizer.encode([one.text])[0]) for one in (found, *found.alternatives)]
    assert max(lengths) > 24
    assert all(one.alignment for one in (found, *found.alternatives))


def test_chosen_heads_are_stored_with_the_model(engine, taught, tmp_path):
    folder = shutil.copytree(taught, tmp_path / "model")
    save_choice(folder, Choice(Heads([(1, 0), (0, 2)], "reads"), 0.25, 7))
    chosen = sightline.load(folder)
    assert chosen.heads == Heads([(1, 0), (0, 2)], "reads")
    assert chosen.align(TEXTS[:9], TEXTS[1:10]) != engine.align(TEXTS[:9], TEXTS[1:10])
    for text in ("{}", '{"heads": [[7, 0]], "step": "reads"}'):
        (folder / "alignment.json").write_text(text)
        with pytest.raises(CheckpointError, match="no such attention heads"):
            sightline.load(folder)
    with raises(InputError, option="targets", value=2):
        engine.align(["x"], ["y", "z"])
    with raises(InputError, value=1):
        engine.align(["x " * 9000], ["y"])
    with pytest.raises(InputError):
        choose_heads(engine, ["x"], ["y"], [[(0, 0)], []])
    with pytest.raises(InputError):
        choose_heads(engine, ["x"], ["y"], [[]])


# --- Results and traces


@pytest.mark.parametrize(
    "options",
    [
        {"beams": 1},
        {"beams": 5},
        {"beams": 5, "nbest": 5},
        {"beams": 3, "nbest": 3, "sample": True, "temperature": 2.0, "seed": 4},
    ],
    ids=str,
)
def test_a_trace_of_a_result_has_the_ids_that_were_written(engine, options):
    """Also if the text of a result would be tokenised otherwise, and for each segment of a text."""
    texts = [*TEXTS[:12], "\n".join(TEXTS[:3]), f"{TEXTS[0]} {TEXTS[1]}" * 4]
    differ = 0
    for result in engine.translate(texts, **options):
        for one in (result, *result.alternatives):
            assert one.ids == [token for segment in one.segments for token in segment.ids]
            differ += engine.tokenizer.encode([one.text])[0] != one.ids
            for number, segment in enumerate(one.segments):
                trace = engine.trace(one, segment=number)
                assert trace.ids == {"source": segment.source_ids, "target": [START, *segment.ids]}
                written = [*segment.ids, END]
                log_probs = trace["logits"].values.log_softmax(-1)[range(len(written)), written].tolist()
                assert log_probs == pytest.approx(segment.log_probs, abs=1e-4)
    if options.get("sample"):
        assert differ, "some samples would be tokenised otherwise"


def test_a_trace_takes_texts_or_ids(engine):
    (result,) = engine.translate(TEXTS[0])
    (segment,) = result.segments
    by_result, by_text = engine.trace(result), engine.trace(TEXTS[0])
    by_ids = engine.trace(segment.source_ids, segment.ids)
    given = engine.trace(TEXTS[0], result.text)
    assert by_result.ids == by_text.ids == by_ids.ids
    assert given.ids["target"] == [START, *engine.tokenizer.encode([result.text])[0]]
    several = engine.trace(f"{TEXTS[0]}\n{TEXTS[1]}")
    assert len(several.ids["source"]) > len(segment.source_ids)
    with raises(InputError, option="segment", value=1):
        engine.trace(result, segment=1)
    with raises(InputError, option="target"):
        engine.trace(segment.source_ids)


@pytest.mark.parametrize("align", [False, True])
def test_each_text_is_encoded_once_per_call(engine, monkeypatch, align):
    texts = [*TEXTS[:9], TEXTS[0], "\n".join(TEXTS[3:6]), " ".join(TEXTS * 2)]
    seen = Counter()
    for name in ("encode", "spans", "encode_with_spans"):
        if plain := getattr(Tokenizer, name, None):

            def counting(self, some, *more, plain=plain):
                seen.update(some)
                return plain(self, some, *more)

            monkeypatch.setattr(Tokenizer, name, counting)
    engine.translate(texts, beams=1, forbid=["und"], align=align)
    assert set(texts) <= set(seen)
    assert max(seen.values()) == 1, seen.most_common(3)


def test_results_are_readable(engine):
    (result,) = engine.translate(TEXTS[0], nbest=2)
    assert repr(result).startswith(f"Translation({result.text!r}, score=")
    assert "1 alternatives" in repr(result)
    assert len(repr(engine.translate(" ".join(TEXTS), beams=1)[0])) < 160


def test_an_engine_is_safe_to_use_from_several_threads(engine):
    """Searches, traces and what-ifs at the same time give the same as one after another."""
    removed = {"encoder.layers.0.self_attention": [0, 1]}

    def work(i):
        if i % 3 == 0:
            with engine.what_if(remove_heads=removed):
                return engine.translate(TEXTS[i], beams=2)
        if i % 3 == 1:
            return engine.trace(TEXTS[i])["logits"].numpy().tolist()
        return engine.translate(TEXTS[i : i + 4], beams=3), list(engine.stream(TEXTS[i]))

    expected = [work(i) for i in range(12)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(12))) == expected


def test_engines_can_be_closed(taught):
    with sightline.load(taught) as engine:
        before = engine.translate(TEXTS[0])[0].text
        assert engine.memory_bytes > 10**5
        assert engine.device.partition(":")[0] in ("cpu", "cuda", "mps")
    assert engine.backends == [engine.torch]
    assert engine.translate(TEXTS[0])[0].text == before  # torch needs nothing that was freed
