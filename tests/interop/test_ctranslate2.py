"""CTranslate2 finds the same answers with the same scores, and refuses the searches for which it would not."""

import json
import math
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import models

from searching import find
from sightline.backends.ctranslate2 import CTranslate2Backend
from sightline.backends.ctranslate2_format import convert, converted_folder, save_shortlist
from sightline.backends.thread_modes import ThreadModes, batch_kind
from sightline.config import SearchConfig
from sightline.errors import CheckpointError, ConfigError, InputError
from sightline.model_folder import SHORTLIST, ModelFolder, load_tokenizer, save_model
from sightline.search.score import score
from sightline.search.types import Constraints, Limits, Request
from sightline.special import END, PAD, START, UNKNOWN
from sightline.text.shortlist import Shortlist
from sightline.text.tokenizer import Tokenizer
from support import VOCAB, every_variant, raises, requests, translator, writer

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
    """A model that ends its sentences now and then. Like a trained model, it gives special tokens no probability."""
    torch.manual_seed(seed)
    model = translator(variant, **{"classifier_bias": True, **more})
    with torch.no_grad():
        model.classifier.weight.mul_(0.7)
        if model.classifier.bias is None:
            return model
        model.classifier.bias[END] += ending
        model.classifier.bias[[PAD, START, UNKNOWN]] -= 40
    return model


def opened(model, words, folder, precision="float32", **more):
    convert(model, words, folder, **more)
    return CTranslate2Backend(folder, precision, threads=1)


def search(backend, model, options, sources=SOURCES, constraints=None, **more):
    return backend.search(requests(sources, model.config, options, constraints), options, **more)


def same(model, backend, options, sources=SOURCES, constraints=None):
    expected = find(model, sources, options, constraints)
    found = search(backend, model, options, sources, constraints)
    assert [[h.ids for h in answers] for answers in found] == [[h.ids for h in answers] for answers in expected]
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-4)
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)
    return expected


@every_variant
@pytest.mark.parametrize("ending", [0, 3])
def test_answers_are_those_of_our_search(variant, ending, words, tmp_path):
    model = model_of(variant, ending=ending)
    backend = opened(model, words, tmp_path / "model")
    for beams in (1, 4):
        for penalty, patience in ((0.0, 1.0), (0.6, 1.6), (1.0, 2.0)):
            same(model, backend, SearchConfig(beams=beams, nbest=beams, length_penalty=penalty, patience=patience))


@pytest.mark.parametrize("other", OTHERS)
def test_every_option_of_a_model_is_converted(other, words, tmp_path):
    model = model_of(**OTHERS[other])
    beams = 4 if model.config.classifier_bias else 1  # without a bias, special tokens get probability
    same(model, opened(model, words, tmp_path / "model"), SearchConfig(beams=beams))


@pytest.mark.parametrize("seed", range(12))
def test_answers_at_the_maximum_length_are_those_of_our_search(seed, words, tmp_path):
    chance = random.Random(seed)
    model = model_of("biased", seed, ending=chance.choice([2, 3, 4, 5]))
    backend = opened(model, words, tmp_path / "model")
    sources = [[chance.randrange(4, VOCAB) for _ in range(chance.randrange(7))] for _ in range(5)]
    for ratio, extra in ((1.0, 0), (0.5, 3), (0.1, 0)):
        beams = chance.choice([1, 2, 4, 5])
        options = {"length_penalty": chance.choice([0.0, 1.0]), "patience": chance.choice([1.0, 1.5, 2.0])}
        config = SearchConfig(beams=beams, nbest=beams, max_ratio=ratio, max_extra=extra, **options)
        same(model, backend, config, sources)


def test_stopping_rule_without_length_penalty(words, tmp_path):
    """Two hypotheses with low scores end before the best one does."""
    logits = torch.zeros(VOCAB, 24)  # by position, for all tokens
    logits[10, :2], logits[END, :2], logits[END, 2] = 9, 6, 9
    logits[:, 3] = -logits.sum(1)  # the norm subtracts the mean
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
    backend = opened(model, words, tmp_path / "model")
    expected = same(model, backend, SearchConfig(), [[4] * 8, [5]])
    assert {len(best.ids) for best, *_ in expected} == {8}
    with raises(InputError, value=10, match="at most 9"):
        search(backend, model, SearchConfig(), [[4] * 9])


def test_constraints_with_one_beam(words, tmp_path):
    model = model_of("pre-norm", ending=2)
    backend = opened(model, words, tmp_path / "model")
    plain = same(model, backend, SearchConfig(beams=1))
    first = [best.ids[:1] for best, *_ in plain]
    constraints = [
        Constraints([7, 8]),
        Constraints(),
        Constraints([9, 5], forbid=[[12], [9], first[2]]),
        Constraints(forbid=[first[3], []]),
        Constraints([6]),
    ]
    same(model, backend, SearchConfig(beams=1), constraints=constraints)
    found = same(model, backend, SearchConfig(beams=1, min_ratio=1.5, max_ratio=1.6), constraints=constraints)
    assert found[0][0].ids[:2] == [7, 8]


def test_answers_do_not_depend_on_batches(words, tmp_path):
    model = model_of(ending=3)
    backend = opened(model, words, tmp_path / "model")
    together = search(backend, model, SearchConfig(beams=2))
    backend.batch_tokens = 4
    for i, answers in enumerate(search(backend, model, SearchConfig(beams=2), SOURCES[::-1])[::-1]):
        assert [h.ids for h in answers] == [h.ids for h in together[i]]
    assert search(backend, model, SearchConfig(), []) == []


def test_each_batch_is_one_update_and_cancelled_requests_are_skipped(words, tmp_path):
    model, options = model_of(ending=3), SearchConfig(beams=2)
    backend = opened(model, words, tmp_path / "model")
    whole, backend.batch_tokens = search(backend, model, options), 12
    cancelled: set[int] = set()
    answers = {}
    for update in backend.steps(requests(SOURCES, model.config, options), options, cancelled=cancelled):
        assert update.tokens == {}
        assert not answers.keys() & update.answers.keys()
        answers |= update.answers
        cancelled.add(2)  # the shortest source comes last
    assert sorted(answers) == [0, 1, 3, 4]
    for i, found in answers.items():
        assert [h.ids for h in found] == [h.ids for h in whole[i]]


def test_score_is_that_of_the_model(words, tmp_path):
    model, answers = model_of(ending=3), [[7, 8, 9], [], [5] * 20, [11], [4]]
    backend = opened(model, words, tmp_path / "model")
    found = backend.score(requests(SOURCES, model.config, SearchConfig()), answers)
    for one, other in zip(found, score([model], requests(SOURCES, model.config, SearchConfig()), answers), strict=True):
        assert one == pytest.approx(other, abs=1e-4)


@pytest.mark.parametrize("beams", [1, 4])
def test_search_without_log_probs(beams, words, tmp_path):
    model = model_of(ending=3)
    backend = opened(model, words, tmp_path / "model")
    config = SearchConfig(beams=beams, nbest=beams, length_penalty=0.6)
    expected, found = search(backend, model, config), search(backend, model, config, log_probs=False)
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        assert one.ids == other.ids
        assert one.log_probs == []
        assert math.isnan(one.score) if beams == 1 else one.score == pytest.approx(other.score, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "request_fields", "reason"),
    [
        ({}, {}, None),
        ({"beams": 1}, {"limits": Limits(9, 2), "constraints": Constraints([4], forbid=[[5, 6]])}, None),
        ({"sample": True}, {}, "samples"),
        ({"groups": 2}, {}, "groups"),
        ({"stop": "best"}, {}, "stop"),
        ({"coverage_penalty": 0.2}, {}, "coverage_penalty"),
        ({}, {"limits": Limits(9, 2)}, "minimum length"),
        ({}, {"constraints": Constraints([4])}, "prefix"),
        ({}, {"constraints": Constraints(forbid=[[4]])}, "forbid"),
        ({"beams": 1}, {"constraints": Constraints(require=[[4]])}, "require"),
        ({"beams": 1}, {"constraints": Constraints(require=[[]])}, None),
        ({"beams": 1}, {"constraints": Constraints([4, END])}, "end token"),
        ({"beams": 1}, {"constraints": Constraints(forbid=[[4, END]])}, "end token"),
        ({"beams": 1}, {"source": []}, "without a source"),
        ({"beams": 1}, {"limits": Limits(9, cut=True)}, "cut at its limit"),
        ({"beams": 1}, {"given": [START, 4]}, "text that the answer continues"),
    ],
)
def test_searches_with_other_results_are_refused(options, request_fields, reason, words, tmp_path):
    backend, options = opened(model_of(), words, tmp_path / "model"), SearchConfig(**options)
    some = [Request([4, END], Limits(9)), Request([5, END], Limits(9))._replace(**request_fields)]
    found = backend.reason_not(some, options)
    if reason is None:
        assert found is None
        return
    assert reason in found
    with raises(ConfigError, match=reason):
        next(backend.steps(some, options))


def test_too_many_beams_for_the_vocabulary_are_refused(words, tmp_path):
    model = model_of()
    with raises(ConfigError, option="beams", value=20):
        search(opened(model, words, tmp_path / "model"), model, SearchConfig(beams=20))


def test_int8(words, tmp_path):
    model = model_of(ending=3)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    backend = opened(model, words, tmp_path / "model", "int8", quantization="int8")
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    convert(model, words, tmp_path / "whole")
    size = [(tmp_path / name / "model.bin").stat().st_size for name in ("model", "whole")]
    assert size[0] < size[1]
    found = search(backend, model, SearchConfig(nbest=4))
    assert all(len(answers) == 4 and all(math.isfinite(h.score) for h in answers) for answers in found)
    assert search(CTranslate2Backend(tmp_path / "model", "float32", threads=1), model, SearchConfig(), [[4]])


# --- With a shortlist


def shortened(folder, words, tmp_path, always, likely):
    """Return the model of `folder` with this shortlist."""
    places = np.cumsum([0, *(len(likely.get(i, [])) for i in range(VOCAB))])
    ids = np.array([token for i in range(VOCAB) for token in likely.get(i, [])], int)
    save_shortlist(Shortlist(np.array(always), places, ids, 1.0), words, tmp_path)
    return CTranslate2Backend(folder, threads=1, shortlist=tmp_path / SHORTLIST)


@pytest.mark.parametrize("beams", [1, 4])
def test_a_shortlist_of_all_tokens_changes_nothing(beams, words, tmp_path):
    model = model_of(ending=3)
    backend = opened(model, words, tmp_path / "model")
    config, sources = SearchConfig(beams=beams, nbest=beams), [ids for ids in SOURCES if ids]
    for always, likely in ((range(VOCAB), {}), (range(14), {i: range(14, VOCAB) for i in range(4, VOCAB)})):
        short = shortened(tmp_path / "model", words, tmp_path, always, likely)
        for log_probs in (True, False):
            found, expected = (search(x, model, config, sources, log_probs=log_probs) for x in (short, backend))
            for one, other in zip(chain(*found), chain(*expected), strict=True):
                assert one.ids == other.ids
                assert one.score == pytest.approx(other.score, abs=1e-5, nan_ok=True)
    short = shortened(tmp_path / "model", words, tmp_path, range(4), {})
    with raises(ConfigError, option="beams", value=beams):
        search(short, model, config, sources)


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_shortlist_limits_each_batch(beams, precision, words, tmp_path, monkeypatch):
    """The allowed tokens differ between batches."""
    always, config = [*range(4), 11, 13, 24, 35, 36, 37], SearchConfig(beams=beams)
    likely = {i: [4 + (i * 7 + j) % 30 for j in range(5)] for i in range(4, VOCAB)}
    written: set[int] = set()
    outside: set[int] = set()
    limited = []
    monkeypatch.setattr(CTranslate2Backend, "_search_to_the_limit", lambda *_: limited.append(1) or [[]])
    for seed in range(6):
        model = model_of("biased", seed, ending=1 if beams > 1 else 2)
        backend = opened(model, words, tmp_path / "model", precision)
        shortened(tmp_path / "model", words, tmp_path, always, likely)
        short = CTranslate2Backend(tmp_path / "model", precision, threads=1, shortlist=tmp_path / SHORTLIST)
        for source in [*SOURCES, [25, 26], [5], *SOURCES]:
            allowed = {*always, *(token for i in source for token in likely[i])}
            (((other,),), ((best,),)) = (search(x, model, config, [source]) for x in (backend, short))
            assert not set(best.ids) & {PAD, START, END, UNKNOWN}
            outside |= set(other.ids) - allowed
            assert set(best.ids) <= allowed
            written |= set(best.ids)
            if precision == "float32":  # log-probabilities are over the whole vocabulary
                (expected,) = score([model], requests([source], model.config, config), [best.ids])
                assert best.log_probs == pytest.approx(expected, abs=1e-4)
    assert outside
    assert written - set(always)
    assert len(limited) < 100  # of 156; there, all tokens are allowed


def test_constraints_and_the_maximum_length_switch_a_shortlist_off(words, tmp_path):
    model = model_of("pre-norm", ending=2)
    backend = opened(model, words, tmp_path / "model")
    short = shortened(tmp_path / "model", words, tmp_path, [*range(4), *range(30, 40)], {})
    constraints = [Constraints(), Constraints([6]), Constraints([7, 8]), Constraints(forbid=[[31]])]
    constraints.insert(1, Constraints([9, 5], forbid=[[12], [9]]))
    config = SearchConfig(beams=1)
    for _ in range(2):  # a batch does not affect the next one
        found, expected = (search(x, model, config, constraints=constraints) for x in (short, backend))
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert (one[0].ids == other[0].ids) == (i != 0)
        assert found[3][0].ids[:2] == [7, 8]
    never = model_of(ending=-20)
    convert(never, words, tmp_path / "never")
    short = shortened(tmp_path / "never", words, tmp_path, [*range(4), *range(30, 40)], {})
    same(never, short, SearchConfig(beams=3, nbest=3, max_ratio=1.0, max_extra=1), SOURCES)


def test_a_shortlist_for_another_vocabulary_is_refused(words, tmp_path):
    convert(model_of(), words, tmp_path / "model")
    with raises(InputError, option="shortlist", value=tmp_path / SHORTLIST):
        CTranslate2Backend(tmp_path / "model", shortlist=tmp_path / SHORTLIST)
    for text in ("", "w4\tw5\n", "\t<pad> <s> </s> <unk> elephant\n", "\t<pad> <s> w4\n", "\t\xff\n"):
        (tmp_path / SHORTLIST).write_text(text, "latin-1")
        with raises(InputError, option="shortlist", value=tmp_path / SHORTLIST):
            CTranslate2Backend(tmp_path / "model", shortlist=tmp_path / SHORTLIST)


def test_a_shortlist_omits_names_with_blanks(tmp_path):
    entries = ["<pad>", "<s>", "</s>", "<unk>", "New York", "a\tb", "new\nline", "w", "x\u2028y", "z"]
    vocabulary = models.WordLevel({name: i for i, name in enumerate(entries)}, unk_token="<unk>")
    words = Tokenizer(tokenizers.Tokenizer(vocabulary).to_str().encode())
    starts = np.arange(11)  # each source token allows itself
    save_shortlist(Shortlist(np.arange(4), starts, np.arange(10), 1.0), words, tmp_path)
    rows = (tmp_path / SHORTLIST).read_text("utf-8").split("\n")
    assert rows[0] == "\t<pad> <s> </s> <unk>"
    assert rows[-3:] == ["w\tw", "z\tz", ""]
    assert not any("York" in row or "line" in row for row in rows)


def test_the_folder_works_with_ctranslate2_alone(words, tmp_path):
    model = model_of(ending=3)
    ((ours,),) = search(opened(model, words, tmp_path / "model"), model, SearchConfig(beams=1), [[4, 5]])
    plain = ctranslate2.Translator(str(tmp_path / "model"), compute_type="float32", intra_threads=1)
    (result,) = plain.translate_batch([["w4", "w5", "</s>"]], beam_size=1, min_decoding_length=0)
    assert result.hypotheses[0][: len(ours.ids)] == words.pieces(ours.ids)
    assert load_tokenizer(tmp_path / "model").pieces([4, 5]) == ["w4", "w5"]


def test_every_id_has_a_name_of_its_own(tmp_path):
    entries = {
        "<|endoftext|>": 0,
        "a": 1,
        "b": 2,
        "<7>": 3,
    }  # one token is start and end; others are missing
    model = models.BPE(entries, [])
    convert(model_of(), Tokenizer(tokenizers.Tokenizer(model).to_str().encode()), tmp_path / "model")
    names = json.loads((tmp_path / "model" / "shared_vocabulary.json").read_text())
    assert names[:9] == ["<pad>", "<|endoftext|>", "<|endoftext|>'", "<unk>", "a", "b", "<7>", "<7>'", "<8>"]
    assert len(set(names)) == VOCAB


def test_concurrent_processes_convert_a_model_once(words, tmp_path, monkeypatch):
    model, made, start = model_of(), [], threading.Barrier(8)
    save_model(model, tmp_path / "model", words)
    monkeypatch.setattr(
        "sightline.backends.ctranslate2_format.convert", lambda *how, **more: made.append(1) or convert(*how, **more)
    )

    def use(_):
        start.wait()
        folder = converted_folder(ModelFolder(tmp_path / "model"), model, words)
        return search(CTranslate2Backend(folder, threads=1), model, SearchConfig())

    with ThreadPoolExecutor(8) as pool:
        first, *others = pool.map(use, range(8))
    assert len(made) == 1
    assert all(found == first for found in others)
    converted_folder(ModelFolder(tmp_path / "model"), model, words)
    assert len(made) == 1


def test_a_model_that_ctranslate2_cannot_compute_is_refused(words, tmp_path):
    waves = {"kind": "rotary", "frequencies": "tensor2tensor"}
    with raises(ConfigError, option="model.positions.frequencies", value="tensor2tensor"):
        convert(model_of(positions=waves), words, tmp_path / "model")
    with raises(ConfigError, option="model.architecture", value="decoder-only"):
        convert(writer(), words, tmp_path / "model")
    with raises(InputError, value=41, match="40"):
        convert(model_of(vocab_size=40), words, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_failed_conversion_leaves_no_files(words, tmp_path, monkeypatch):
    folder = tmp_path / "model"

    def full(*_):
        raise OSError(28, "No space left on device")

    for before in ([], ["model"]):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", full)
            with raises(CheckpointError, value=folder, match="No space left on device"):
                convert(model_of(), words, folder)
        assert [path.name for path in tmp_path.iterdir()] == before
        same(model_of(seed=2), opened(model_of(seed=2), words, folder), SearchConfig())
    same(model_of(seed=3), opened(model_of(seed=3), words, folder), SearchConfig())  # replaces the older one
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_of_another_kind_is_neither_replaced_nor_read(words, tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "config.json").write_text("{}")
    with raises(InputError, value=tmp_path / "letters", match="converted"):
        convert(model_of(), words, tmp_path / "letters")
    for folder in ("letters", "nowhere"):
        with raises(CheckpointError, value=tmp_path / folder, match="CTranslate2"):
            CTranslate2Backend(tmp_path / folder)
    convert(model_of(), words, tmp_path / "model")
    (tmp_path / "model" / "model.bin").write_bytes(b"no model")
    with raises(CheckpointError, value=tmp_path / "model", match="cannot load"):
        CTranslate2Backend(tmp_path / "model")


def test_a_missing_package_is_reported(words, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with raises(InputError, value="ctranslate2", match="pip install"):
        convert(model_of(), words, tmp_path / "model")
    with raises(InputError, value="ctranslate2", match="pip install"):
        CTranslate2Backend(tmp_path / "model")


# --- Threads

KIND = batch_kind(4, 32)
BAD_ENTRY = b'{"one machine": {"beams 4, batch 32": "x"}}'


def measured(modes, intra, inter, kind=KIND, batches=40):
    """Run batches of 100 tokens with these times; return the modes that were chosen."""
    seconds, loaded, chosen = {"intra": intra, "inter": inter}, {modes.first}, []
    for _ in range(batches):
        chosen.append(modes.choose(kind, loaded))
        loaded.add(chosen[-1])
        modes.record(kind, chosen[-1], seconds[chosen[-1]], 100)
    return chosen


@pytest.mark.parametrize("default", ["intra", "inter"])
@pytest.mark.parametrize(("intra", "inter", "faster"), [(0.7, 1.0, "intra"), (1.0, 0.9, "inter"), (1.0, 1.0, None)])
def test_the_faster_thread_mode_is_measured_and_kept(default, intra, inter, faster, tmp_path):
    file, best = tmp_path / "cache" / "threads.json", faster or default
    modes = ThreadModes(default, "one machine", file)
    chosen = measured(modes, intra, inter)
    short = math.ceil(2 / (intra if default == "intra" else inter))
    assert chosen[:short] == [default] * short  # short calls measure nothing
    other = "inter" if default == "intra" else "intra"
    assert chosen[short : short + 14] == [default] * 7 + [other] * 7  # the first batch of each does not count
    assert chosen[short + 14 :] == [best] * (40 - short - 14)
    assert modes.keep(best) == {best}

    again = ThreadModes(default, "one machine", file)  # in another process
    assert again.first == best
    assert measured(again, intra, inter) == [best] * 40
    assert ThreadModes(default, "another machine", file).first == default


def test_entries_of_other_machines_and_kinds_are_kept(tmp_path):
    file = tmp_path / "threads.json"
    first, second = (ThreadModes("intra", machine, file) for machine in ("one", "two"))
    measured(first, 1.0, 0.5)
    measured(second, 1.0, 0.5)
    measured(first, 0.5, 1.0, batch_kind(1, 1))
    kinds = {"beams 4, batch 32": "inter", "beams 1, batch 1": "intra"}
    assert json.loads(file.read_text()) == {"one": kinds, "two": {"beams 4, batch 32": "inter"}}


def test_the_only_copy_is_the_one_that_is_measured(tmp_path):
    modes = ThreadModes("intra", "one machine", tmp_path / "threads.json")
    assert modes.keep("intra") == {"intra", "inter"}  # nothing is measured yet
    modes.record(KIND, "intra", 3.0, 100)
    assert modes.keep("intra") == {"intra"}
    measured(modes, 1.0, 0.5)
    measured(modes, 0.5, 1.0, batch_kind(1, 1))
    assert modes.keep("intra") == {"intra", "inter"}  # one for each kind


def test_outliers_do_not_decide(tmp_path):
    modes = ThreadModes("intra", "one machine", tmp_path / "threads.json")
    seconds = {"intra": iter([1.0] * 20), "inter": iter([9.0, 0.8, 9.0, 0.8, 0.8, 9.0, 0.8, *[0.8] * 20])}
    for _ in range(16):
        mode = modes.choose(KIND, {"intra", "inter"})
        modes.record(KIND, mode, next(seconds[mode]), 100)
    assert modes.choose(KIND, {"intra"}) == "inter"


def test_a_short_call_uses_the_mode_that_is_loaded(tmp_path):
    file = tmp_path / "threads.json"
    measured(ThreadModes("intra", "one machine", file), 1.0, 0.5)
    modes = ThreadModes("intra", "one machine", file)
    assert modes.choose(KIND, {"intra"}) == "intra"
    modes.record(KIND, "intra", 3.0, 100)
    assert modes.choose(KIND, {"intra"}) == "inter"
    assert modes.keep("inter") == {"inter"}
    modes.restrict("intra")
    assert modes.choose(KIND, {"intra"}) == "intra"


@pytest.mark.parametrize("text", [b"", b"[]", b'{"one machine": 3}', b"\xff", BAD_ENTRY])
def test_an_unreadable_file_of_thread_modes_is_ignored(text, tmp_path):
    file = tmp_path / "threads.json"
    file.write_bytes(text)
    modes = ThreadModes("intra", "one machine", file)
    assert modes.first == "intra"
    measured(modes, 1.0, 0.5)
    assert json.loads(file.read_text()) == {"one machine": {"beams 4, batch 32": "inter"}}
    (tmp_path / "a file").touch()
    nowhere = ThreadModes("intra", "one machine", tmp_path / "a file" / "threads.json")
    assert measured(nowhere, 1.0, 0.5)[-1] == "inter"


def test_kinds_of_batches():
    assert batch_kind(4, 1) != batch_kind(1, 1)
    assert batch_kind(4, 1) != batch_kind(4, 2)
    assert batch_kind(4, 33) == batch_kind(4, 63)
    assert batch_kind(4, 64) == batch_kind(4, 1000)


def test_both_thread_modes_find_the_same_answers(words, tmp_path, monkeypatch):
    monkeypatch.setattr("sightline.backends.thread_modes.MEASURE_AFTER", 0.0)
    monkeypatch.setattr("sightline.backends.thread_modes.SECONDS", 0.0)
    model, options, file = model_of(ending=3), SearchConfig(beams=2, nbest=2), tmp_path / "threads.json"
    convert(model, words, tmp_path / "model")
    backend = CTranslate2Backend(tmp_path / "model", threads=2, thread_modes=file)
    one, copies, loaded = backend.memory_bytes, [], []
    for _ in range(16):
        same(model, backend, options)
        copies.append(backend.memory_bytes // one)
        loaded += backend._translators
    assert copies == [1] * 16  # threads of a second copy would slow down the measured one
    assert loaded[:14] == ["inter"] * 7 + ["intra"] * 7
    assert [*json.loads(file.read_text()).values()] == [{"beams 2, batch 4": ANY}]


def test_without_its_files_a_model_keeps_its_thread_mode(words, tmp_path, monkeypatch):
    monkeypatch.setattr("sightline.backends.thread_modes.MEASURE_AFTER", 0.0)
    model = model_of(ending=3)
    convert(model, words, tmp_path / "model")
    backend = CTranslate2Backend(tmp_path / "model", threads=2, thread_modes=tmp_path / "threads.json")
    (tmp_path / "model" / "model.bin").unlink()
    for _ in range(3):
        same(model, backend, SearchConfig(beams=2))
    assert not (tmp_path / "threads.json").exists()
