"""CTranslate2 computes the same numbers, and finds the same by the same rules; where it would not, it says so."""

import json
import math
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import models

from sightline.backends.ctranslate2 import CTranslate2Search, supports
from sightline.backends.ctranslate2_format import beside, convert, save_shortlist
from sightline.config import SearchConfig
from sightline.errors import CheckpointError, ConfigError, InputError
from sightline.model_folder import SHORTLIST, ModelFolder, load_tokenizer, save_model
from sightline.search.find import find
from sightline.search.hypothesis import Wish
from sightline.search.score import force
from sightline.special import END, PAD, START, UNKNOWN
from sightline.text.shortlist import Shortlist
from sightline.text.tokenizer import Tokenizer
from support import VOCAB, every_variant, translator, writer

ctranslate2 = pytest.importorskip("ctranslate2")

NAMES = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(4, VOCAB))]
SOURCES = [[4, 5, 6, 7, 8, 9, 10], [30, 20], [], [17] * 5, [40, 4]]
OTHERS = {
    "post-norm with a final norm": {"final_norm": True},
    "pre-norm without one": {"norm": "pre", "final_norm": False},
    "epsilon": {"norm_epsilon": 0.1},
    "two vocabularies": {"source_vocab_size": 50, "tie": "target"},
    "nothing tied": {"tie": "none", "classifier_bias": False},
    "positions": {"positions": {"kind": "interleaved", "start": 2, "max_timescale": 300.0, "max_length": 40}},
    "rotary": {"positions": {"kind": "rotary", "max_timescale": 500.0, "start": 3}},
}


@pytest.fixture(scope="module")
def words():
    vocabulary = models.WordLevel({name: i for i, name in enumerate(NAMES)}, unk_token="<unk>")
    return Tokenizer(tokenizers.Tokenizer(vocabulary).to_str().encode())


def model_of(variant="paper", seed=1, ending=0.0, **more):
    """One that ends its sentences now and then. As one that was trained, it does not think of special tokens."""
    torch.manual_seed(seed)
    model = translator(variant, **{"classifier_bias": True, **more})
    with torch.no_grad():
        model.classifier.weight.mul_(0.7)
        if model.classifier.bias is None:
            return model
        model.classifier.bias[END] += ending
        model.classifier.bias[[PAD, START, UNKNOWN]] -= 40
    return model


def opened(model, words, folder, compute_type="float32", **more):
    convert(model, words, folder, **more)
    return CTranslate2Search(folder, compute_type, threads=1)


def same(model, theirs, config, sources=SOURCES, wishes=None):
    expected = find(model, sources, config, wishes)
    found = theirs.find(sources, config, wishes)
    assert [[h.ids for h in answers] for answers in found] == [[h.ids for h in answers] for answers in expected]
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-4)
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)
    return expected


@every_variant
@pytest.mark.parametrize("ending", [0, 3])
def test_the_same_is_found(variant, ending, words, tmp_path):
    model = model_of(variant, ending=ending)
    theirs = opened(model, words, tmp_path / "model")
    for beams in (1, 4):
        for penalty, patience in ((0.0, 1.0), (0.6, 1.6), (1.0, 2.0)):
            same(model, theirs, SearchConfig(beams=beams, nbest=beams, length_penalty=penalty, patience=patience))


@pytest.mark.parametrize("other", OTHERS)
def test_every_option_of_a_model_is_carried_over(other, words, tmp_path):
    model = model_of(**OTHERS[other])
    beams = 4 if model.config.classifier_bias else 1  # without a bias it does think of special tokens
    same(model, opened(model, words, tmp_path / "model"), SearchConfig(beams=beams))


@pytest.mark.parametrize("seed", range(12))
def test_at_the_limit_sentences_must_end_and_those_that_ended_count(seed, words, tmp_path):
    chance = random.Random(seed)
    model = model_of("biased", seed, ending=chance.choice([2, 3, 4, 5]))
    theirs = opened(model, words, tmp_path / "model")
    sources = [[chance.randrange(4, VOCAB) for _ in range(chance.randrange(7))] for _ in range(5)]
    for ratio, extra in ((1.0, 0), (0.5, 3), (0.1, 0)):
        beams = chance.choice([1, 2, 4, 5])
        options = {"length_penalty": chance.choice([0.0, 1.0]), "patience": chance.choice([1.0, 1.5, 2.0])}
        config = SearchConfig(beams=beams, nbest=beams, max_ratio=ratio, max_extra=extra, **options)
        same(model, theirs, config, sources)


def test_a_search_without_length_penalty_stops_by_the_same_rule(words, tmp_path):
    """Two have ended early, without much hope, while the best one was about to."""
    logits = torch.zeros(VOCAB, 24)  # at each position, whatever stands there
    logits[10, :2], logits[END, :2], logits[END, 2] = 9, 6, 9
    logits[:, 3] = -logits.sum(1)  # a norm takes the mean away
    model = model_of("learned", tie="none", classifier_bias=False, norm_epsilon=1e-9)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
        model.decoder.embedding.positions.table[:24] = torch.eye(24)
        model.classifier.weight.copy_(logits * 23**0.5 / 24)
    config = SearchConfig(beams=2, patience=1, length_penalty=0.0)
    expected = same(model, opened(model, words, tmp_path / "model"), config)
    assert {tuple(best.ids) for best, *_ in expected} == {()}


def test_the_longest_answer_fills_the_model(words, tmp_path):
    model = model_of("learned", positions={"kind": "learned", "max_length": 9})
    theirs = opened(model, words, tmp_path / "model")
    expected = same(model, theirs, SearchConfig(), [[4] * 8, [5]])
    assert {len(best.ids) for best, *_ in expected} == {8}
    with pytest.raises(InputError, match="a source of 9 tokens is too long: the model reads at most 8"):
        theirs.find([[4] * 9], SearchConfig())


def test_one_beam_has_wishes(words, tmp_path):
    model = model_of("pre-norm", ending=2)
    theirs = opened(model, words, tmp_path / "model")
    plain = same(model, theirs, SearchConfig(beams=1))
    said = [best.ids[:1] for best, *_ in plain]
    wishes = [Wish([7, 8]), Wish(), Wish([9, 5], [[12], [9], said[2]]), Wish(without=[said[3], []]), Wish([6])]
    same(model, theirs, SearchConfig(beams=1), wishes=wishes)
    found = same(model, theirs, SearchConfig(beams=1, min_ratio=1.5, max_ratio=1.6), wishes=wishes)
    assert found[0][0].ids[:2] == [7, 8]
    with pytest.raises(InputError, match="a prefix of 4096 tokens is too long"):
        theirs.find([[4]], SearchConfig(beams=1), [Wish([5] * 4096)])


def test_batches_do_not_matter_and_answers_come_in_order(words, tmp_path):
    model = model_of(ending=3)
    theirs = opened(model, words, tmp_path / "model")
    together = theirs.find(SOURCES, SearchConfig(beams=2))
    for i, answers in enumerate(theirs.find(SOURCES[::-1], SearchConfig(beams=2), budget=4)[::-1]):
        assert [h.ids for h in answers] == [h.ids for h in together[i]]
    assert theirs.find([], SearchConfig()) == []


@pytest.mark.parametrize("beams", [1, 4])
def test_without_log_probs_the_scores_are_its_own(beams, words, tmp_path):
    theirs = opened(model_of(ending=3), words, tmp_path / "model")
    config = SearchConfig(beams=beams, nbest=beams, length_penalty=0.6)
    expected, found = theirs.find(SOURCES, config), theirs.find(SOURCES, config, log_probs=False)
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        assert one.ids == other.ids
        assert one.log_probs == []
        assert math.isnan(one.score) if beams == 1 else one.score == pytest.approx(other.score, abs=1e-4)


@pytest.mark.parametrize(
    ("config", "wish", "reason"),
    [
        ({}, Wish(), None),
        ({"beams": 1, "min_ratio": 0.5}, Wish([4], [[5, 6]]), None),
        ({"sample": True}, Wish(), "sample = true draws other tokens there"),
        ({"groups": 2}, Wish(), "groups = 2, and it has none"),
        ({"stop": "best"}, Wish(), 'stop = "best", and it knows "full" only'),
        ({"coverage_penalty": 0.2}, Wish(), "coverage_penalty = 0.2, and"),
        ({"min_ratio": 0.5}, Wish(), "min_ratio = 0.5 with several beams"),
        ({}, Wish([4]), "a prefix with several beams"),
        ({}, Wish(without=[[4]]), "sequences to avoid with several beams"),
        ({"beams": 1}, Wish(within=[[4]]), "sequences that must occur"),
        ({"beams": 1}, Wish(within=[[]]), None),
        ({"beams": 1}, Wish([4, END]), "a wish has the end in it"),
        ({"beams": 1}, Wish(without=[[4, END]]), "a wish has the end in it"),
    ],
)
def test_it_says_what_it_would_find_otherwise(config, wish, reason):
    found = supports(SearchConfig(**config), [Wish(), wish])
    assert found is None if reason is None else found.startswith(reason)


def test_what_it_would_find_otherwise_is_refused(words, tmp_path):
    theirs = opened(model_of(), words, tmp_path / "model")
    with pytest.raises(ConfigError, match="CTranslate2 does not search like this: groups = 2, and it has none"):
        theirs.find(SOURCES, SearchConfig(groups=2))
    with pytest.raises(ConfigError, match="beams = 20 are too many for a vocabulary of 41"):
        theirs.find(SOURCES, SearchConfig(beams=20))


def test_int8(words, tmp_path):
    model = model_of(ending=3)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    theirs = opened(model, words, tmp_path / "model", "int8", quantization="int8")
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    convert(model, words, tmp_path / "whole")
    size = [(tmp_path / name / "model.bin").stat().st_size for name in ("model", "whole")]
    assert size[0] < size[1]
    found = theirs.find(SOURCES, SearchConfig(nbest=4))
    assert all(len(answers) == 4 and all(math.isfinite(h.score) for h in answers) for answers in found)
    assert CTranslate2Search(tmp_path / "model", "float32", threads=1).find([[4]], SearchConfig())


# --- With a shortlist


def shortened(theirs_of, words, tmp_path, always, likely):
    """The same model, once without a shortlist and once with this one."""
    places = np.cumsum([0, *(len(likely.get(i, [])) for i in range(VOCAB))])
    ids = np.array([token for i in range(VOCAB) for token in likely.get(i, [])], int)
    save_shortlist(Shortlist(np.array(always), places, ids, 1.0), words, tmp_path)
    return CTranslate2Search(theirs_of, threads=1, shortlist=tmp_path / SHORTLIST)


@pytest.mark.parametrize("beams", [1, 4])
def test_a_shortlist_of_all_tokens_changes_nothing(beams, words, tmp_path):
    model = model_of(ending=3)
    theirs = opened(model, words, tmp_path / "model")
    config, sources = SearchConfig(beams=beams, nbest=beams), [ids for ids in SOURCES if ids]
    for always, likely in ((range(VOCAB), {}), (range(14), {i: range(14, VOCAB) for i in range(4, VOCAB)})):
        short = shortened(tmp_path / "model", words, tmp_path, always, likely)
        for log_probs in (True, False):
            found, expected = (x.find(sources, config, log_probs=log_probs) for x in (short, theirs))
            for one, other in zip(chain(*found), chain(*expected), strict=True):
                assert one.ids == other.ids
                assert one.score == pytest.approx(other.score, abs=1e-5, nan_ok=True)
    short = shortened(tmp_path / "model", words, tmp_path, range(4), {})
    with pytest.raises(ConfigError, match=f"beams = {beams} are too many for a vocabulary of 4"):
        short.find(sources, config)


@pytest.mark.parametrize("compute_type", ["float32", "int8"])
@pytest.mark.parametrize("beams", [1, 3])
def test_what_is_not_on_the_shortlist_is_not_found_batch_by_batch(beams, compute_type, words, tmp_path, monkeypatch):
    """Each batch has other tokens, at other places of what is computed."""
    always, config = [*range(4), 11, 13, 24, 35, 36, 37], SearchConfig(beams=beams)
    likely = {i: [4 + (i * 7 + j) % 30 for j in range(5)] for i in range(4, VOCAB)}
    said: set[int] = set()
    outside: set[int] = set()
    limited = []
    monkeypatch.setattr(CTranslate2Search, "_to_the_limit", lambda *_: limited.append(1) or [[]])
    for seed in range(6):
        model = model_of("biased", seed, ending=1 if beams > 1 else 2)
        theirs = opened(model, words, tmp_path / "model", compute_type)
        shortened(tmp_path / "model", words, tmp_path, always, likely)
        short = CTranslate2Search(tmp_path / "model", compute_type, threads=1, shortlist=tmp_path / SHORTLIST)
        for source in [*SOURCES, [25, 26], [5], *SOURCES]:
            allowed = {*always, *(token for i in source for token in likely[i])}
            (((other,),), ((best,),)) = theirs.find([source], config), short.find([source], config)
            assert not set(best.ids) & {PAD, START, END, UNKNOWN}
            outside |= set(other.ids) - allowed
            assert set(best.ids) <= allowed
            said |= set(best.ids)
            if compute_type == "float32":  # a log-probability is that of the model, among all tokens
                (expected,) = force([model], [source], [best.ids])
                assert best.log_probs == pytest.approx(expected, abs=1e-4)
    assert outside
    assert said - set(always)
    assert len(limited) < 100  # of 156, where several beams have all tokens


def test_with_wishes_and_at_the_limit_all_tokens_may_come(words, tmp_path):
    model = model_of("pre-norm", ending=2)
    theirs = opened(model, words, tmp_path / "model")
    short = shortened(tmp_path / "model", words, tmp_path, [*range(4), *range(30, 40)], {})
    wishes = [Wish([7, 8]), Wish([9, 5], [[12], [9]]), Wish(), Wish(without=[[31]]), Wish([6])]
    config = SearchConfig(beams=1)
    for _ in range(2):  # what it keeps of one batch does not matter in the next
        found, expected = short.find(SOURCES, config, wishes), theirs.find(SOURCES, config, wishes)
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert (one[0].ids == other[0].ids) == (i != 2)
        assert found[0][0].ids[:2] == [7, 8]
    never = model_of(ending=-20)
    convert(never, words, tmp_path / "never")
    short = shortened(tmp_path / "never", words, tmp_path, [*range(4), *range(30, 40)], {})
    same(never, short, SearchConfig(beams=3, nbest=3, max_ratio=1.0, max_extra=1), SOURCES)


def test_a_shortlist_for_another_vocabulary_is_refused(words, tmp_path):
    convert(model_of(), words, tmp_path / "model")
    with pytest.raises(InputError, match="there is no shortlist beside the model; sightline shortlist makes one"):
        CTranslate2Search(tmp_path / "model", shortlist=tmp_path / SHORTLIST)
    for text in ("", "w4\tw5\n", "\t<pad> <s> </s> <unk> elephant\n", "\t<pad> <s> w4\n", "\t\xff\n"):
        (tmp_path / SHORTLIST).write_text(text, "latin-1")
        with pytest.raises(InputError, match="this is no shortlist for the vocabulary of the model; make it anew"):
            CTranslate2Search(tmp_path / "model", shortlist=tmp_path / SHORTLIST)


def test_names_that_the_format_has_no_place_for_are_left_out(tmp_path):
    entries = ["<pad>", "<s>", "</s>", "<unk>", "New York", "a\tb", "new\nline", "w", "x\u2028y", "z"]
    vocabulary = models.WordLevel({name: i for i, name in enumerate(entries)}, unk_token="<unk>")
    words = Tokenizer(tokenizers.Tokenizer(vocabulary).to_str().encode())
    starts = np.arange(11)  # each allows itself
    save_shortlist(Shortlist(np.arange(4), starts, np.arange(10), 1.0), words, tmp_path)
    rows = (tmp_path / SHORTLIST).read_text("utf-8").split("\n")
    assert rows[0] == "\t<pad> <s> </s> <unk>"
    assert rows[-3:] == ["w\tw", "z\tz", ""]
    assert not any("York" in row or "line" in row for row in rows)


def test_who_knows_only_ctranslate2_can_use_the_folder(words, tmp_path):
    model = model_of(ending=3)
    ours = opened(model, words, tmp_path / "model").find([[4, 5]], SearchConfig(beams=1))[0][0]
    plain = ctranslate2.Translator(str(tmp_path / "model"), compute_type="float32", intra_threads=1)
    (result,) = plain.translate_batch([["w4", "w5", "</s>"]], beam_size=1, min_decoding_length=0)
    assert result.hypotheses[0][: len(ours.ids)] == words.pieces(ours.ids)
    assert load_tokenizer(tmp_path / "model").pieces([4, 5]) == ["w4", "w5"]


def test_a_name_is_found_for_every_id(tmp_path):
    entries = {"<|endoftext|>": 0, "a": 1, "b": 2, "<7>": 3}  # one special token is start and end, others are missing
    model = models.BPE(entries, [])
    convert(model_of(), Tokenizer(tokenizers.Tokenizer(model).to_str().encode()), tmp_path / "model")
    names = json.loads((tmp_path / "model" / "shared_vocabulary.json").read_text())
    assert names[:9] == ["<pad>", "<|endoftext|>", "<|endoftext|>'", "<unk>", "a", "b", "<7>", "<7>'", "<8>"]
    assert len(set(names)) == VOCAB


def test_of_several_who_need_the_files_at_once_one_makes_them(words, tmp_path, monkeypatch):
    model, made, start = model_of(), [], threading.Barrier(8)
    save_model(model, tmp_path / "model", words)
    monkeypatch.setattr(
        "sightline.backends.ctranslate2_format.convert", lambda *how, **more: made.append(1) or convert(*how, **more)
    )

    def use(_):
        start.wait()
        return CTranslate2Search(beside(ModelFolder(tmp_path / "model"), model, words)).find(SOURCES, SearchConfig())

    with ThreadPoolExecutor(8) as pool:
        first, *others = pool.map(use, range(8))
    assert len(made) == 1
    assert all(found == first for found in others)
    beside(ModelFolder(tmp_path / "model"), model, words)
    assert len(made) == 1


def test_what_cannot_be_converted_is_refused_by_name(words, tmp_path):
    waves = {"kind": "rotary", "frequencies": "tensor2tensor"}
    with pytest.raises(ConfigError, match='positions.frequencies = "tensor2tensor" cannot be converted'):
        convert(model_of(positions=waves), words, tmp_path / "model")
    with pytest.raises(ConfigError, match='architecture = "decoder-only" cannot be converted'):
        convert(writer(), words, tmp_path / "model")
    with pytest.raises(InputError, match="a vocabulary of 41 does not fit a model of 40 tokens"):
        convert(model_of(vocab_size=40), words, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_what_fails_leaves_nothing_behind(words, tmp_path, monkeypatch):
    folder = tmp_path / "model"

    def full(*_):
        raise OSError(28, "No space left on device")

    for before in ([], ["model"]):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", full)
            with pytest.raises(CheckpointError, match="cannot be written: No space left on device"):
                convert(model_of(), words, folder)
        assert [path.name for path in tmp_path.iterdir()] == before
        same(model_of(seed=2), opened(model_of(seed=2), words, folder), SearchConfig())
    same(model_of(seed=3), opened(model_of(seed=3), words, folder), SearchConfig())  # in its place
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_is_not_ours_is_neither_replaced_nor_read(words, tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "config.json").write_text("{}")
    with pytest.raises(InputError, match="not a model converted by"):
        convert(model_of(), words, tmp_path / "letters")
    for folder in ("letters", "nowhere"):
        with pytest.raises(CheckpointError, match=f"{folder}: this is no model that was converted for CTranslate2"):
            CTranslate2Search(tmp_path / folder)
    convert(model_of(), words, tmp_path / "model")
    (tmp_path / "model" / "model.bin").write_bytes(b"no model")
    with pytest.raises(CheckpointError, match="CTranslate2 cannot use this model"):
        CTranslate2Search(tmp_path / "model")


def test_without_the_package_it_says_how_to_get_it(words, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(InputError, match="pip install 'sightline"):
        convert(model_of(), words, tmp_path / "model")
    with pytest.raises(InputError, match="pip install 'sightline"):
        CTranslate2Search(tmp_path / "model")
