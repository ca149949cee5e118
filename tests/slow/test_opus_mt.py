"""Models of OPUS-MT (Tiedemann and Thottingal, 2020). They are too large for the repository, so these tests run only if
these variables are set.

SIGHTLINE_OPUS_MT: a folder with `opus-mt-en-fr` (of the Hugging Face hub) and `opus-mt-zh-en.argosmodel` (of Argos).
SIGHTLINE_DATA: a folder with pairs, `tatoeba/en-fr.test.tsv.gz`, `en-fr.train.tsv.xz` and `en-zh.dev.tsv.gz`.
"""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sightline
from sightline.data.corpus import Table, read_pairs
from sightline.evaluate.scores import values
from sightline.special import END, PAD, START

OPUS, DATA = (Path(os.environ.get(name, "")) for name in ("SIGHTLINE_OPUS_MT", "SIGHTLINE_DATA"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not {"SIGHTLINE_OPUS_MT", "SIGHTLINE_DATA"} <= {*os.environ}, reason="needs OPUS-MT's models"),
]
COMMAND = [sys.executable, "-m", "sightline.cli.main"]
TIRED, WIDE = (f"The animal didn't cross the street because it was too {how}." for how in ("tired", "wide"))


def run(*arguments):
    done = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def pairs(name, count=None):
    return list(itertools.islice(read_pairs(Table(DATA / "tatoeba" / name)), count))


@pytest.fixture(scope="module")
def french(tmp_path_factory):
    folder = tmp_path_factory.mktemp("opus") / "en-fr"
    run("import", OPUS / "opus-mt-en-fr", "--out", folder)
    return folder


@pytest.fixture(scope="module")
def theirs():
    from transformers import MarianMTModel, MarianTokenizer

    folder = OPUS / "opus-mt-en-fr"
    return MarianMTModel.from_pretrained(folder).eval(), MarianTokenizer.from_pretrained(folder)


@torch.no_grad()
def test_logits_are_those_of_hugging_face(french, theirs):
    engine, (model, words) = sightline.load(french, backend="torch"), theirs
    own = engine.tokenizer.own_ids
    native = [i for i, number in enumerate(own) if number >= 0 and i != PAD]  # their padding always has 0
    for source, target in pairs("en-fr.test.tsv.gz", 30):
        (ids,), (answer,) = engine.tokenizer.source.encode([source]), engine.tokenizer.encode([target])
        given = words([source], text_target=[target], return_tensors="pt")
        assert [own[i] for i in [*ids, END]] == given["input_ids"][0].tolist()
        assert [own[i] for i in [*answer, END]] == given["labels"][0].tolist()
        target_ids = torch.tensor([[model.config.decoder_start_token_id, *(own[i] for i in answer)]])
        expected = model(given["input_ids"], decoder_input_ids=target_ids).logits[0][:, [own[i] for i in native]]
        found = engine.model(torch.tensor([[*ids, END]]), torch.tensor([[START, *answer]]))[0][:, native]
        assert float((found - expected).abs().max()) <= 1e-4


def test_greedy_answers_are_those_of_hugging_face(french, theirs):
    engine, (model, words) = sightline.load(french), theirs
    engine.trained_source_length = engine.longest_source  # Hugging Face does not split a text
    texts = [source for source, _ in pairs("en-fr.test.tsv.gz", 500)]
    expected = []
    for i in range(0, len(texts), 20):
        given = words(texts[i : i + 20], return_tensors="pt", padding=True)
        expected += words.batch_decode(model.generate(**given, num_beams=1), skip_special_tokens=True)
    found = [one.text for one in engine.translate(texts, beams=1)]
    assert [(a, b) for a, b in zip(found, expected, strict=True) if a != b] == []


def test_bleu(french):
    test = pairs("en-fr.test.tsv.gz")
    engine = sightline.load(french)
    engine.trained_source_length = engine.longest_source
    found = [one.text for one in engine.translate([source for source, _ in test], beams=4, stop="best")]
    assert values(found, [target for _, target in test])["bleu"] == pytest.approx(52.4, abs=0.3)


def test_trace_and_scores_of_a_pronoun(french):
    engine = sightline.load(french, backend="torch")
    found = engine.translate(TIRED)[0].text
    assert "parce qu'il était trop fatigué" in found
    trace = engine.trace(TIRED)
    assert len(trace.names()) > 300
    assert trace["decoder.layers.5.cross_attention.probabilities"].values.shape[0] == 8
    assert max(trace.check().values()) < 1e-4
    leans = []
    for text, adjectives in ((TIRED, ("fatigué", "fatiguée")), (WIDE, ("large", "large"))):
        answers = [
            f"L'animal n'a pas traversé la rue parce qu'{pronoun} était trop {adjective}."
            for pronoun, adjective in zip(("il", "elle"), adjectives, strict=True)
        ]
        he, she = engine.score([text] * 2, answers)
        leans.append(she.log_prob - he.log_prob)
    assert leans[1] > leans[0] + 0.5


def test_fine_tuning(french, tmp_path):
    data = DATA / "tatoeba" / "en-fr.train.tsv.xz"
    some = tmp_path / "some.tsv"
    lines = [f"{source}\t{target}\n" for source, target in itertools.islice(read_pairs(Table(data)), 300)]
    some.write_text("".join(lines), "utf-8")
    sets = ["train.steps=12", "train.batch_tokens=512", "train.learning_rate=0.0001", "train.schedule=constant"]
    sets += ["train.warmup=0", "train.report_every=4", "train.validate_every=100", "train.average=0"]
    more = [word for each in sets for word in ("--set", each)]
    run("train", "--from", french, "--pairs", some, "--out", tmp_path / "tuned", "--cache", tmp_path / "c", *more)
    sources, targets = zip(*(line.rstrip("\n").split("\t") for line in lines[:100]), strict=True)
    before, after = (
        sum(one.log_prob for one in sightline.load(folder, backend="torch").score(sources, targets))
        for folder in (french, tmp_path / "tuned")
    )
    assert after > before


@pytest.mark.parametrize("kind", ["huggingface", "ctranslate2", "onnx"])
def test_export(french, tmp_path, kind):
    check_export(french, tmp_path, kind)


def test_trace_and_export_of_an_argos_package(tmp_path):
    run("import", OPUS / "opus-mt-zh-en.argosmodel", "--out", tmp_path / "zh-en")
    engine = sightline.load(tmp_path / "zh-en", backend="torch")
    assert len(engine.trace("我是一只小青蛙。").names()) > 300
    for kind in ("huggingface", "ctranslate2", "onnx"):
        check_export(tmp_path / "zh-en", tmp_path, kind)


def check_export(model, tmp_path, kind):
    done = run("export", model, "--to", kind, "--out", tmp_path / kind)
    assert float(done.stderr.split("difference ")[1].split(",")[0]) < 1e-3
    assert "0 answers differ" in done.stderr
