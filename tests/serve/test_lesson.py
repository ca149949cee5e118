"""The training run that a reader starts over HTTP, and the logit lens of a trace."""

from pathlib import Path

import pytest
import torch

import sightline
from serving import Server, problem, serving, wait_until
from sightline.model_folder import BUNDLED
from sightline.trace.explain import logit_lens

TEXT = "The animal didn't cross the street because it was too tired."


def status(server):
    return server.get("/v1/training").json()


@pytest.mark.medium
def test_a_run_is_started_stopped_and_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    server = Server("coref", "--backend", "torch")
    before = status(server)
    assert (before["allowed"], before["phase"], before["losses"]) == (True, "none", [])

    # Before the first run, the states are those of the bundled model.
    assert [one["step"] for one in before["states"]] == [0, 40, 80, 120, 160]
    stored = sightline.load(BUNDLED / "coref" / "states" / "step-00000080", device="cpu", backend="torch")
    (found,) = server.translate(TEXT, beams=1, model="training@80")
    assert found["text"] == stored.translate(TEXT, beams=1)[0].text

    assert server.post("/v1/training/start", {}).json()["phase"] == "running"
    wait_until(lambda: status(server)["losses"])
    assert server.post("/v1/training/start", {}).json()["run"] == 1  # it continues
    wait_until(lambda: status(server)["states"])
    (folder,) = tmp_path.glob("sightline-training-*")
    state = sightline.load(folder / "run" / "tested" / "step-00000000", device="cpu", backend="torch")
    (found,) = server.translate(TEXT, beams=1, model="training@0")
    assert found["text"] == state.translate(TEXT, beams=1)[0].text
    problem(server.post("/v1/translate", {"text": TEXT, "model": "training@80000"}), 404, "not-found")
    assert server.get("/v1/models").json()["data"][0]["name"] == "coref"

    server.post("/v1/training/stop", {})
    wait_until(lambda: status(server)["phase"] == "stopped")
    assert status(server)["states"]
    again = server.post("/v1/training/start", {}).json()
    assert (again["run"], again["phase"], again["states"]) == (2, "running", [])
    assert not folder.exists()
    (folder,) = tmp_path.glob("sightline-training-*")

    assert server.stop() == 0
    assert not folder.exists()
    assert [one for one in Path("/proc").glob("[0-9]*") if str(folder) in _command(one)] == []


def _command(process):
    try:
        return (process / "cmdline").read_text()
    except OSError:  # it has ended
        return ""


@pytest.mark.medium
@pytest.mark.parametrize("options", [["--no-training"], ["--host", "0.0.0.0"]])
def test_training_may_be_off(options):
    with serving("coref", "--backend", "torch", *options) as server:
        assert status(server)["allowed"] is False
        problem(server.post("/v1/training/start", {}), 403, "forbidden")
        assert status(server)["states"]  # the stored ones
        # A form of another web page cannot send JSON.
        problem(server.client.post("/v1/training/start", data={"a": "b"}), 415, "wrong-type")


@pytest.mark.medium
def test_the_logit_lens_of_a_trace(taught):
    engine = sightline.load(taught, device="cpu", backend="torch")
    text, target = "The animal was too tired.", "Das Tier war zu müde."
    expected = logit_lens(engine.trace(text, target), engine.model, "decoder")
    with serving(f"taught={taught}", "--backend", "torch") as server:
        number = server.post("/v1/trace", {"text": text, "target": target}).json()["id"]
        for position in (0, 3):
            layers = server.get(f"/v1/trace/{number}/lens", params={"position": position, "count": 2}).json()["layers"]
            best = expected.values[:, position].softmax(-1).topk(2)
            assert [[one["id"] for one in layer] for layer in layers] == best.indices.tolist()
            shown = torch.tensor([[one["probability"] for one in layer] for layer in layers])
            assert torch.allclose(shown, best.values, atol=1e-6)
            assert layers[0][0]["token"] == engine.tokenizer.pieces([best.indices[0, 0].item()])[0]
        problem(server.get(f"/v1/trace/{number}/lens", params={"position": 99}), 404, "not-found", 99)
