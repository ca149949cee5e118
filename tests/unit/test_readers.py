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
from sightline.trace.pack import read
from support import random_weights

TEXT = next(iter(generate("test", 1))).source
STACK = {"layers": 2, "heads": 4, "d_ff": 48}
SMALL = {"d_model": 32, "encoder": STACK, "decoder": STACK, "positions": {"max_length": 64}}


@pytest.fixture(scope="module")
def folders(taught, tmp_path_factory):
    tokenizer, found = load_tokenizer(taught), {}
    for name, architecture in (("gpt-en-de", "decoder-only"), ("bert", "encoder-only")):
        torch.manual_seed(3)
        config = ModelConfig(architecture=architecture, vocab_size=tokenizer.size, **SMALL)
        found[name] = tmp_path_factory.mktemp("models") / name
        save_model(random_weights(build(config)), found[name], tokenizer)
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
    packed = read(server.get(f"/v1/trace/{answer['id']}", params={"dtype": "f32"}).content)
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
    refused = server.post("/v1/trace", {"text": TEXT, "target": "x", "model": name})
    problem(refused, 422, "invalid", "target", name, "does not translate")
    long = server.post("/v1/trace", {"text": "x " * 64, "model": name})
    problem(long, 422, "invalid", "text", 64)
    assert server.post("/v1/trace", {"text": "", "model": name}).status_code == 200
    for path, body in {
        "/v1/translate": {"text": TEXT},
        "/v1/translate/stream": {"text": TEXT},
        "/v1/beams": {"text": TEXT},
        "/v1/score": {"pairs": [{"source": TEXT, "target": "x"}]},
        "/v1/alternatives": {"text": TEXT, "target": "x", "position": 0},
    }.items():
        problem(server.post(path, {**body, "model": name}), 422, "invalid", "model", name, "does not translate")


def test_models_of_all_tasks_are_served_together(server, taught):
    kinds = {one["name"]: one["architecture"] for one in server.get("/v1/models").json()["models"]}
    assert kinds == {"gpt-en-de": "decoder-only", "bert": "encoder-only", "translator": "encoder-decoder"}
    assert server.get("/languages").json() == []
    expected = sightline.load(taught, device="cpu").translate(TEXT)[0].text
    assert server.translate(TEXT, model="translator")[0]["text"] == expected
