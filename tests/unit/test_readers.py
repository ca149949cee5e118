"""Models that do not translate: the service traces them and refuses to translate with them."""

import numpy as np
import pytest
import torch

import sightline
from serving import problem, serving
from sightline.config import ModelConfig
from sightline.data.builtin import generate
from sightline.engine import load
from sightline.model.transformer import build
from sightline.model_folder import load_tokenizer, save_model
from sightline.special import END, START
from sightline.trace.pack import read_trace
from support import random_weights

TEXT = next(iter(generate("test", 1))).source
STACK = {"layers": 2, "heads": 4, "d_ff": 48}
SMALL = {"d_model": 32, "encoder": STACK, "decoder": STACK, "positions": {"max_length": 64}}


@pytest.fixture(scope="module")
def folders(taught, tmp_path_factory):
    tokenizer, found = load_tokenizer(taught), {}
    for name, architecture, task in (
        ("gpt-en-de", "decoder-only", None),
        ("bert", "encoder-only", None),
        ("chat-gpt", "decoder-only", "chat"),
        ("chat-encoder-decoder", "encoder-decoder", "chat"),
    ):
        torch.manual_seed(3)
        config = ModelConfig(architecture=architecture, vocab_size=tokenizer.size, **SMALL)
        found[name] = tmp_path_factory.mktemp("models") / name
        save_model(random_weights(build(config)), found[name], tokenizer, task=task)
    return found


@pytest.fixture(scope="module")
def server(taught, folders):
    with serving(*folders.values(), f"translator={taught}") as server:
        yield server


@pytest.mark.parametrize(
    ("name", "architecture", "side"), [("gpt-en-de", "decoder-only", "target"), ("bert", "encoder-only", "source")]
)
def test_traces_of_models_that_do_not_translate(server, folders, name, architecture, side):
    answer = server.post("/v1/trace", {"text": TEXT, "model": name}).json()
    opened = load(folders[name], device="cpu")
    ids = [START, *opened.tokenizer.encode([TEXT])[0], *([END] if side == "source" else [])]
    assert answer["ids"] == {side: ids}
    assert answer["tokens"] == {side: opened.tokenizer.pieces(ids)}
    assert answer["target"] is None
    assert answer["config"]["architecture"] == architecture
    packed = read_trace(server.get(f"/v1/trace/{answer['id']}", params={"dtype": "f32"}).content)
    with torch.no_grad():
        logits = opened.model(torch.tensor([ids]))[0]
    assert np.allclose(packed["logits"].numpy(), logits, atol=1e-5)
    assert packed["logits"].labels["position"] == answer["tokens"][side]
    seen = opened.trace(TEXT)
    assert packed.names() == seen.names()
    for one in seen.names():
        assert np.allclose(packed[one].numpy(), seen[one].numpy(), atol=1e-5)
    weight = server.get(f"/v1/models/{name}/weights/classifier.weight", params={"row": 5})
    assert weight.content == opened.model.classifier.weight[5].detach().numpy().tobytes()
    long = server.post("/v1/trace", {"text": "x " * 64, "model": name})
    problem(long, 422, "invalid", "text", 64)
    assert server.post("/v1/trace", {"text": "", "model": name}).status_code == 200


@pytest.mark.parametrize("name", ["chat-gpt", "chat-encoder-decoder"])
def test_traces_of_dialogue_models_have_the_reply(server, folders, name):
    engine = load(folders[name], device="cpu")
    (expected,) = engine.reply(TEXT, beams=3)
    answer = server.post("/v1/trace", {"text": TEXT, "model": name, "beams": 3}).json()
    seen = engine.trace(expected)
    assert (answer["target"], answer["parts"]) == (expected.text, 1)
    assert (answer["ids"], answer["tokens"]) == (seen.ids, seen.tokens)
    packed = read_trace(server.get(f"/v1/trace/{answer['id']}", params={"dtype": "f32"}).content)
    assert packed.names() == seen.names()
    assert np.allclose(packed["logits"].numpy(), seen["logits"].numpy(), atol=1e-5)
    long = server.post("/v1/trace", {"text": "x " * 64, "model": name})
    problem(long, 422, "invalid", "last turn")


def test_a_mask_in_a_traced_text_is_the_mask(server, folders):
    text = "The [MASK] sleeps."
    (expected,) = load(folders["bert"], device="cpu").fill(text)
    assert server.post("/v1/trace", {"text": text, "model": "bert"}).json()["ids"] == {"source": expected.ids}


@pytest.mark.parametrize("name", ["gpt-en-de", "bert", "chat-gpt", "chat-encoder-decoder"])
def test_models_that_do_not_translate_refuse_requests_for_translations(server, name):
    refused = server.post("/v1/trace", {"text": TEXT, "target": "x", "model": name})
    problem(refused, 422, "invalid", "target", name, "does not translate")
    for path, body in {
        "/v1/translate": {"text": TEXT},
        "/v1/translate/stream": {"text": TEXT},
        "/v1/beams": {"text": TEXT},
        "/v1/score": {"pairs": [{"source": TEXT, "target": "x"}]},
        "/v1/alternatives": {"text": TEXT, "target": "x", "position": 0},
    }.items():
        problem(server.post(path, {**body, "model": name}), 422, "invalid", "model", name, "does not translate")


def test_models_of_all_tasks_are_served_together(server, taught):
    kinds = {one["name"]: (one["architecture"], one["task"]) for one in server.get("/v1/models").json()["data"]}
    assert kinds == {
        "gpt-en-de": ("decoder-only", "write"),
        "bert": ("encoder-only", "read"),
        "chat-gpt": ("decoder-only", "chat"),
        "chat-encoder-decoder": ("encoder-decoder", "chat"),
        "translator": ("encoder-decoder", "translate"),
    }
    assert server.get("/languages").json() == []
    expected = sightline.load(taught, device="cpu").translate(TEXT)[0].text
    assert server.translate(TEXT, model="translator")[0]["text"] == expected
