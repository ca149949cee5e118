"""Requests with changes to the model: equal to those of the library, and without effect on other requests."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import sightline
from serving import problem, serving
from sightline.config import ModelConfig
from sightline.data.builtin import generate
from sightline.model.transformer import build
from sightline.model_folder import load_tokenizer, save_model
from sightline.serve.schemas import WhatIf
from sightline.trace.pack import read_trace
from support import random_weights

TEXTS = [pair.source for pair in generate("test", 20)]
SELF, CROSS, MASKED = (
    "encoder.layers.1.self_attention",
    "decoder.layers.0.cross_attention",
    "decoder.layers.1.self_attention",
)
CHANGES = [
    {"without": ["positions"]},
    {"without": ["scale", "look-ahead-mask"]},
    {"without": ["norms@encoder.layers.0", "feed-forward@decoder", "residuals@decoder.layers.1"]},
    {"remove_heads": {SELF: [0, 2]}, "average_heads": {CROSS: [1]}, "scale_heads": {MASKED: {"0": 0.5, "3": -2.0}}},
    {"set_attention": {CROSS: [{"head": 0, "query": 1, "key": 2, "value": 0.75}]}, "without": ["scale@decoder"]},
]
every_change = pytest.mark.parametrize("changes", CHANGES, ids=range(len(CHANGES)))


@pytest.fixture(scope="module")
def folders(taught, tmp_path_factory):
    """A translator, models of one stack with random weights, and a translator with large weights."""
    tokenizer, found = load_tokenizer(taught), {"translator": taught}
    stack = {"layers": 2, "heads": 4, "d_ff": 48}
    sizes = {"d_model": 32, "encoder": stack, "decoder": stack, "vocab_size": tokenizer.size}
    for name, architecture in (("writer", "decoder-only"), ("reader", "encoder-only")):
        torch.manual_seed(3)
        found[name] = tmp_path_factory.mktemp("models") / name
        save_model(random_weights(build(ModelConfig(**sizes, architecture=architecture))), found[name], tokenizer)
    large = build(ModelConfig(**sizes))
    for name, module in large.named_modules():
        if isinstance(module, nn.Linear) and ".layers." in name:
            module.weight.data *= 1e8  # which the norms hide
    found["large"] = tmp_path_factory.mktemp("models") / "large"
    save_model(large, found["large"], tokenizer)
    return found


@pytest.fixture(scope="module")
def engine(taught):
    return sightline.load(taught, device="cpu")


@pytest.fixture(scope="module")
def server(folders):
    """A service whose requests without changes run by CTranslate2."""
    with serving(*(f"{name}={folder}" for name, folder in folders.items())) as server:
        yield server


def library(engine, changes):
    return engine.what_if(**WhatIf.model_validate(changes).changes())


def tensors(server, answer):
    return read_trace(server.get(f"/v1/trace/{answer['id']}", params={"dtype": "f32"}).content)


@every_change
def test_translations_equal_those_of_the_library_bit_for_bit(server, engine, changes):
    plain = [server.translate(TEXTS[0], beams=beams, details=True) for beams in (1, 4)]
    for options in ({"beams": 1}, {"beams": 4, "nbest": 2}, {"beams": 2, "sample": True}):
        (found,) = server.translate(TEXTS[0], **options, align=True, details=True, what_if=changes)
        with library(engine, changes):
            (expected,) = engine.translate(TEXTS[0], **options, align=True)
        assert (found["text"], found["score"]) == (expected.text, expected.score)
        assert found["log_probs"] == expected.log_probs
        assert [tuple(pair) for pair in found["alignment"]] == expected.alignment
        assert [one["score"] for one in found.get("alternatives", [])] == [one.score for one in expected.alternatives]
    assert [server.translate(TEXTS[0], beams=beams, details=True) for beams in (1, 4)] == plain


@every_change
def test_scores_and_traces_equal_those_of_the_library_bit_for_bit(server, engine, changes):
    target = engine.translate(TEXTS[0])[0].text
    body = {"pairs": [{"source": TEXTS[0], "target": target}]}
    plain, plain_trace = server.post("/v1/score", body).json(), server.post("/v1/trace", {"text": TEXTS[0]}).json()
    (found,) = server.post("/v1/score", {**body, "what_if": changes}).json()["scores"]
    with library(engine, changes):
        (expected,) = engine.score([TEXTS[0]], [target])
        trace = engine.trace(TEXTS[0], target)
        own = engine.translate(TEXTS[0])[0].text
    assert found["log_probs"] == expected.log_probs
    answer = server.post("/v1/trace", {"text": TEXTS[0], "target": target, "what_if": changes}).json()
    packed = tensors(server, answer)
    assert packed.names() == trace.names()
    for name in trace.names():
        assert packed[name].numpy().tobytes() == trace[name].numpy().tobytes(), name
    assert answer["log_probs"] == pytest.approx(expected.log_probs, abs=1e-4)
    assert WhatIf.model_validate(answer["what_if"]) == WhatIf.model_validate(changes)
    assert server.post("/v1/trace", {"text": TEXTS[0], "what_if": changes}).json()["target"] == own
    assert server.post("/v1/score", body).json() == plain
    again = server.post("/v1/trace", {"text": TEXTS[0]}).json()
    assert again["what_if"] is None
    assert server.get(f"/v1/trace/{again['id']}").content == server.get(f"/v1/trace/{plain_trace['id']}").content


@every_change
def test_streams_trees_and_alternatives_of_a_changed_model(server, engine, changes):
    with library(engine, changes):
        expected = engine.translate(TEXTS[1], beams=1)[0]
        tree = engine.tree(TEXTS[1], beams=3)
        others = engine.alternatives(TEXTS[1], "Der Hund", 1, beams=2)
    answer = server.post("/v1/translate/stream", {"text": TEXTS[1], "what_if": changes})
    assert f'"text":"{expected.text}"' in answer.text.splitlines()[-2]
    found = server.post("/v1/beams", {"text": TEXTS[1], "beams": 3, "what_if": changes}).json()
    assert [one["total"] for one in found["beams"]] == [node.total for node in tree.nodes]
    body = {"text": TEXTS[1], "target": "Der Hund", "position": 1, "beams": 2, "what_if": changes}
    found = server.post("/v1/alternatives", body).json()["alternatives"]
    assert [(one["log_prob"], one["text"]) for one in found] == [(one.log_prob, one.text) for one in others]


@pytest.mark.medium
def test_clients_with_and_without_changes_do_not_affect_each_other(server, engine):
    """Twenty clients at once: long and short texts, searches, streams, scores and traces."""
    jobs = []
    for number in range(100):
        changes = [None, *CHANGES][number % 6]
        texts = [TEXTS[number % 20], " ".join(TEXTS[number % 7 : number % 7 + 4])][: 1 + number % 2]
        jobs.append((changes, texts, {"beams": 1 + number % 3}))

    def ask(job):
        changes, texts, options = job
        more = {} if changes is None else {"what_if": changes}
        found = server.translate(texts, **options, **more, details=True)
        trace = server.post("/v1/trace", {"text": texts[0], "target": "Der Hund schläft.", **more}).json()
        row = server.get(f"/v1/trace/{trace['id']}/logits", params={"row": 2, "dtype": "f32"}).content
        return [(one["text"], one["log_probs"]) for one in found], row

    alone = [ask(job) for job in jobs]
    with ThreadPoolExecutor(20) as pool:
        together = list(pool.map(ask, jobs))
    for (changes, texts, options), (one, row), (other, same) in zip(jobs, alone, together, strict=True):
        assert row == same
        if changes is None:  # these share batches, which changes the last bits
            assert [text for text, _ in one] == [text for text, _ in other]
            assert [text for text, _ in one] == [found.text for found in engine.translate(texts, **options)]
        else:
            assert one == other


def test_a_writer_without_its_mask_sees_later_tokens(server, folders):
    mask_off = {"without": ["look-ahead-mask"]}
    for changes, equal in ((None, True), (mask_off, False)):
        rows = []
        for text in ("The dog sleeps.", "The dog slept."):
            answer = server.post("/v1/trace", {"model": "writer", "text": text, "what_if": changes}).json()
            rows.append(tensors(server, answer)["logits"].numpy()[1])
        assert np.array_equal(*rows) == equal
    engine = sightline.load(folders["writer"], device="cpu")
    with library(engine, mask_off):
        expected = engine.trace("The dog slept.")
    assert rows[1].tobytes() == expected["logits"].numpy()[1].tobytes()


def test_a_reader_without_positions_does_not_see_the_order(server):
    texts = ("The dog saw the man.", "The man saw the dog.")
    for changes, bound, other in ((None, np.inf, 1e-2), ({"without": ["positions"]}, 1e-5, 0)):
        found = []
        for text in texts:
            answer = server.post("/v1/trace", {"model": "reader", "text": text, "what_if": changes}).json()
            found.append(tensors(server, answer)["encoder.output"].numpy()[0])  # of the start
        difference = np.abs(found[0] - found[1]).max() / np.abs(found[0]).max()
        assert other <= difference <= bound


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"without": ["attention"]}, ["without", "attention", "look-ahead-mask"]),
        ({"without": ["norms@encoder.layers.9"]}, ["without", "encoder.layers.9"]),
        ({"remove_heads": {"encoder.layer.1.self_attention": [0]}}, ["remove_heads", SELF]),
        ({"remove_heads": {SELF: [4]}}, ["remove_heads", 4]),
        ({"remove_heads": {SELF: [1]}, "scale_heads": {SELF: {"1": 2.0}}}, ["scale_heads", 1]),
        ({"scale_heads": {SELF: {"one": 2.0}}}, ["scale_heads"]),
        ({"scale_heads": {SELF: {"1": 1e9}}}, ["scale_heads", 100]),
        ({"set_attention": {SELF: [{"head": 0, "query": 1, "key": 2, "value": 1.5}]}}, ["set_attention"]),
        ({"set_attention": {SELF: [{"head": 0, "query": 1, "key": 99, "value": 0.5}]}}, ["set_attention", 99]),
        ({"with": ["positions"]}, ["with"]),
    ],
)
def test_invalid_changes(server, changes, words):
    target = {"target": "Der Hund."}
    for path, body in (
        ("translate", {"text": TEXTS[0]}),
        ("translate/stream", {"text": TEXTS[0]}),
        ("score", {"pairs": [{"source": TEXTS[0], **target}]}),
        ("trace", {"text": TEXTS[0], **target}),
    ):
        problem(server.post(f"/v1/{path}", {**body, "what_if": changes}), 422, "invalid", *words)


def test_the_number_of_changes_is_limited(server):
    many = {"remove_heads": {SELF: [0] * 257}}
    problem(server.post("/v1/translate", {"text": TEXTS[0], "what_if": many}), 413, "too-large", 257, 256)


def test_a_changed_model_that_overflows_is_a_problem(server):
    changes, target = {"without": ["norms"]}, "Der Hund."
    about = {"model": "large", "what_if": changes}
    for path, body in (
        ("translate", {"text": TEXTS[0]}),
        ("translate/stream", {"text": TEXTS[0]}),
        ("score", {"pairs": [{"source": TEXTS[0], "target": target}]}),
        ("beams", {"text": TEXTS[0]}),
        ("alternatives", {"text": TEXTS[0], "target": target, "position": 1}),
    ):
        problem(server.post(f"/v1/{path}", {**about, **body}), 422, "invalid", "overflow")
    assert server.post("/v1/translate", {"model": "large", "text": TEXTS[0]}).status_code == 200
    answer = server.post("/v1/trace", {**about, "text": TEXTS[0], "target": target}).json()  # shows where
    assert None in answer["log_probs"]
