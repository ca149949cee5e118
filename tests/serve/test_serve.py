"""The service: the real command line in its own process, and real clients."""

import asyncio
import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import libretranslatepy
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import sightline
from serving import check_document, problem, serving, wait_until
from sightline.config import ModelConfig, SearchConfig, ServeConfig
from sightline.data.builtin import generate
from sightline.errors import InputError
from sightline.model.transformer import build
from sightline.model_folder import load_model, load_tokenizer, save_model
from sightline.serve import access
from sightline.serve.access import Keys, read_keys
from sightline.serve.app import bind, create_app
from sightline.serve.models import Models, named
from sightline.serve.problems import Problem
from sightline.serve.service import Service, Traces
from sightline.special import END, START
from sightline.text.tokenizer import Tokenizer
from sightline.trace.lineage import lineage
from sightline.trace.pack import PIECE, manifest, read_trace
from support import raises

TEXTS = [pair.source for pair in generate("test", 40)]
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def engine(taught):
    return sightline.load(taught, device="cpu")


@pytest.fixture(scope="module", params=["auto", "torch"])
def server(taught, request):
    with serving(f"tiny-en-de={taught}", "--backend", request.param) as server:
        yield server


@pytest.fixture(scope="module")
def small(taught):
    """A service with low limits and keys."""
    limits = {"max_body": 2000, "max_texts": 3, "max_characters": 300, "max_tokens": 400, "max_beams": 3}
    limits |= {"max_traced": 30, "receive": 1}
    keys = taught.parent / "keys.txt"
    keys.write_text("# clients\nanna 0123456789abcdef\n\nbert fedcba9876543210\n")
    sets = [part for name, value in limits.items() for part in ("--set", f"{name}={value}")]
    with serving(f"tiny-en-de={taught}", "--keys", keys, "--allow-origin", "https://example.org", *sets) as server:
        server.client.headers["authorization"] = "Bearer 0123456789abcdef"
        yield server


def test_translations_equal_those_of_the_engine(server, engine):
    for options in (
        {"beams": 1},
        {},
        {"beams": 3, "nbest": 2, "details": True},
        {"align": True},
        {"beams": 2, "sample": True},
    ):
        more = {name: value for name, value in options.items() if name != "details"}
        expected = engine.translate(TEXTS[:6], **more)
        for mine, theirs in zip(server.translate(TEXTS[:6], **options), expected, strict=True):
            assert mine["text"] == theirs.text
            if "details" in options:
                assert mine["tokens"] == theirs.tokens
                assert mine["log_probs"] == pytest.approx(theirs.log_probs, abs=1e-4)
                assert mine["score"] == pytest.approx(theirs.score, abs=1e-4)
                assert [one["text"] for one in mine["alternatives"]] == [one.text for one in theirs.alternatives]
            if "align" in options:
                assert [tuple(pair) for pair in mine["alignment"]] == theirs.alignment
    (one,) = server.translate(TEXTS[0], prefix="Die", beams=2)
    assert one["text"].startswith("Die")
    word = server.translate(TEXTS[0])[0]["text"].split()[1]
    assert word not in server.translate(TEXTS[0], forbid=[word])[0]["text"].split()
    assert "Garten" in server.translate(TEXTS[0], require=["Garten"])[0]["text"]


def test_requests_take_every_option_of_a_search(server, engine):
    for options in (
        {"groups": 2, "diversity": 1.0, "nbest": 3},
        {"stop": "best", "length_penalty": 0.6},
        {"patience": 1.0, "coverage_penalty": 0.2},
        {"min_ratio": 1.5, "max_ratio": 3.0, "max_extra": 5},
        {"beams": 8, "sample": True, "rerank": "mbr-chrf", "top_k": 20, "min_p": 0.01, "temperature": 1.5},
    ):
        found, expected = server.translate(TEXTS[:4], **options), engine.translate(TEXTS[:4], **options)
        assert [one["text"] for one in found] == [one.text for one in expected]
        for mine, theirs in zip(found, expected, strict=True):
            assert [one["text"] for one in mine.get("alternatives", [])] == [one.text for one in theirs.alternatives]
    (expected,) = engine.translate(TEXTS[0], beams=6, stop="best")
    answer = server.post("/v1/beams", {"text": TEXTS[0], "beams": 6, "stop": "best"}).json()
    assert answer["translations"][0]["text"] == expected.text
    answer = server.post("/v1/trace", {"text": TEXTS[0], "beams": 6, "stop": "best", "forbid": ["x"]}).json()
    assert answer["target"] == expected.text
    begun = {"text": TEXTS[0], "target": "Die Katze.", "position": 1}
    answer = server.post("/v1/alternatives", {**begun, "length_penalty": 0.0, "beams": 2}).json()
    theirs = engine.alternatives(TEXTS[0], "Die Katze.", 1, beams=2, length_penalty=0.0)
    assert [one["text"] for one in answer["alternatives"]] == [one.text for one in theirs]


def test_options_that_conflict_get_a_problem_that_names_the_field(server):
    for path, options, word in (
        ("translate", {"groups": 3}, "beams"),
        ("translate", {"groups": 2, "sample": True}, "groups"),
        ("translate", {"rerank": "mbr-chrf"}, "rerank"),
        ("translate/stream", {"nbest": 2}, "beams"),
        ("beams", {"sample": True}, "sample"),
        ("beams", {"require": ["Garten"]}, "require"),
        ("alternatives", {"groups": 3, "target": "Die", "position": 0}, "groups"),
    ):
        problem(server.post(f"/v1/{path}", {"text": TEXTS[0], **options}), 422, "invalid", word)


def test_schemas_declare_the_options_of_a_search(server):
    schemas = server.get("/openapi.json").json()["components"]["schemas"]
    for request in ("TranslateRequest", "StreamRequest", "BeamsRequest", "TraceRequest", "AlternativesRequest"):
        fields = schemas[request]["properties"]
        for name, option in SearchConfig.model_fields.items():
            about = fields[name]
            if (request, name) != ("StreamRequest", "beams"):
                assert about["default"] == option.default
                assert about["description"] == option.description


def test_line_breaks_and_empty_texts_are_kept(server, engine):
    text = f"{TEXTS[0]}\n\n  {TEXTS[1]}\n"
    assert server.translate([text, "", " \n"])[0]["text"] == engine.translate(text)[0].text
    assert [one["text"] for one in server.translate(["", " \n"])] == ["", " \n"]
    assert server.translate([]) == []


def events(answer):
    found = []
    for block in answer.text.split("\n\n")[:-1]:
        kind, data = block.split("\n")
        found.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_streamed_chunks_add_up_to_the_translation(server, engine):
    for text in (TEXTS[0], f"{TEXTS[1]}\n{TEXTS[2]}", "", "🦊 ü"):
        answer = server.post("/v1/translate/stream", {"text": text})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        *told, (last, whole) = events(answer)
        assert last == "done"
        assert {kind for kind, _ in told} <= {"token"}
        assert "".join(one["text"] for _, one in told) == whole["text"] == engine.translate(text, beams=1)[0].text
    assert len(events(server.post("/v1/translate/stream", {"text": TEXTS[0]}))) > 5
    sampled = {"text": TEXTS[0], "sample": True, "seed": 3, "temperature": 2.0}
    drawn = events(server.post("/v1/translate/stream", sampled))[-1][1]["text"]
    assert drawn == engine.translate(TEXTS[0], beams=1, sample=True, seed=3, temperature=2.0)[0].text


def test_scores_equal_those_of_the_engine(server, engine):
    targets = [one.text for one in engine.translate(TEXTS[:3])]
    pairs = [{"source": source, "target": target} for source, target in zip(TEXTS[:3], targets, strict=True)]
    answer = server.post("/v1/score", {"pairs": pairs}).json()
    for mine, theirs in zip(answer["scores"], engine.score(TEXTS[:3], targets), strict=True):
        assert mine["tokens"] == theirs.tokens
        assert mine["log_prob"] == pytest.approx(theirs.log_prob, abs=1e-4)
    found = server.post("/v1/alternatives", {"text": TEXTS[0], "target": targets[0], "position": 2}).json()
    expected = engine.alternatives(TEXTS[0], targets[0], 2)
    assert [one["text"] for one in found["alternatives"]] == [one.text for one in expected]


def test_trace_tensors_in_both_formats(server, engine):
    answer = server.post("/v1/trace", {"text": TEXTS[0]}).json()
    expected = engine.trace(TEXTS[0])
    assert answer["tokens"] == expected.tokens
    assert [one["name"] for one in answer["tensors"]] == expected.names()
    name = "encoder.layers.0.self_attention.probabilities"
    about = next(one for one in answer["tensors"] if one["name"] == name)
    for dtype, kind, tolerance in (("f32", "<f4", 1e-5), ("f16", "<f2", 1e-3)):
        packed = server.get(f"/v1/trace/{answer['id']}", params={"names": [name], "dtype": dtype})
        assert packed.headers["content-type"] == "application/octet-stream"
        theirs = expected[name].numpy()
        assert np.allclose(read_trace(packed.content)[name].numpy(), theirs, atol=tolerance)
        plain = server.get(f"/v1/trace/{answer['id']}/{name}", params={"dtype": dtype})
        assert plain.headers["x-pieces"] == "1"
        assert np.allclose(np.frombuffer(plain.content, kind).reshape(about["shape"]), theirs, atol=tolerance)
    whole = read_trace(server.get(f"/v1/trace/{answer['id']}").content)
    assert whole.names() == expected.names()
    assert len(plain.content) < PIECE
    problem(server.get(f"/v1/trace/{answer['id']}/{name}", params={"piece": 1}), 404, "not-found")
    problem(server.get(f"/v1/trace/{answer['id']}/no.such.thing"), 404, "not-found")
    problem(server.get("/v1/trace/forgotten"), 404, "not-found")
    given = server.post("/v1/trace", {"text": TEXTS[0], "target": "Der Hund"}).json()
    assert given["target"] == "Der Hund"


def floats(answer):
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["cache-control"] == "no-store"
    return np.frombuffer(answer.content, "<f4")


def test_a_trace_has_the_same_manifest_over_http_and_in_a_file(server, engine):
    answer = server.post("/v1/trace", {"text": TEXTS[0]}).json()
    packed = server.get(f"/v1/trace/{answer['id']}").content
    again = read_trace(packed)
    of_http = ("id", "target", "log_probs", "what_if")
    assert manifest(again) == {name: value for name, value in answer.items() if name not in of_http}
    assert again.model == "tiny-en-de"
    trace = engine.trace(TEXTS[0])
    assert again.lineage == trace.lineage == lineage(engine.model)
    assert again.stacks == trace.stacks
    for tensor in answer["tensors"]:
        assert tensor["sides"] == trace.sides(tensor["name"])


def test_trace_reports_the_number_of_parts(server, engine):
    several = f"{TEXTS[0]} {TEXTS[1]}"
    for text, parts in ((TEXTS[0], 1), (several, 2)):
        answer = server.post("/v1/trace", {"text": text}).json()
        assert answer["parts"] == parts
        assert answer["target"] == server.translate(text)[0]["text"]
        assert answer["tokens"]["source"][:-1] == engine.tokenizer.source.pieces(
            engine.tokenizer.source.encode([text])[0]
        )


def test_models_list_their_examples(taught, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(taught, folder)
    (folder / "examples.txt").write_text("# Dogs,\n# and cats.\n\nThe dog.\n  The cat. \n", "utf-8")
    with serving(f"with={folder}", f"without={taught}", "coref/states/step-00000080") as server:
        models = server.get("/v1/models").json()["data"]
    told = {model["name"]: (model["examples"], model["about"]) for model in models}
    assert told["with"] == (["The dog.", "The cat."], "Dogs, and cats.")
    assert told["without"] == ([], None)
    assert len(told["step-00000080"][0]) == 4


def test_trace_contains_the_model_config_and_input_ids(server, engine):
    answer = server.post("/v1/trace", {"text": TEXTS[0], "target": "Der Hund 🦊"}).json()
    assert answer["config"] == engine.model.config.model_dump()
    assert answer["ids"]["source"] == [*engine.tokenizer.source.encode([TEXTS[0]])[0], END]
    assert answer["ids"]["target"] == [START, *engine.tokenizer.encode(["Der Hund 🦊"])[0]]
    for side, stack in (("source", "encoder"), ("target", "decoder")):
        assert engine.tokenizer.pieces(answer["ids"][side]) == answer["tokens"][side]
        name = f"{stack}.embedding.tokens"
        embedded = read_trace(server.get(f"/v1/trace/{answer['id']}", params={"names": name, "dtype": "f32"}).content)[
            name
        ]
        rows = [server.get(f"/v1/models/tiny-en-de/weights/{name}.weight?row={i}") for i in answer["ids"][side]]
        assert np.array_equal(embedded.numpy(), [floats(row) for row in rows])


def test_rows_of_a_tensor_equal_the_whole(server, engine):
    words = " ".join(TEXTS).split()
    while len(engine.tokenizer.source.encode([" ".join(words)])[0]) > 505:
        words.pop()
    answer = server.post("/v1/trace", {"text": " ".join(words), "target": "Der Hund"}).json()
    at, looks = f"/v1/trace/{answer['id']}", "encoder.layers.1.self_attention.probabilities"
    whole = read_trace(server.get(at, params={"names": ["logits", looks], "dtype": "f32"}).content)
    for name, row in (("logits", 0), ("logits", 2), (looks, 1)):
        expected, asked = whole[name].numpy()[row], {"row": row, "dtype": "f32"}
        count = 2 if name == looks else 1
        pieces = [server.get(f"{at}/{name}", params={**asked, "piece": piece}) for piece in range(count)]
        assert {one.headers["x-pieces"] for one in pieces} == {str(count)}
        assert np.array_equal(np.concatenate([floats(one) for one in pieces]).reshape(expected.shape), expected)
    problem(server.get(f"{at}/{looks}", params={"row": 1, "piece": 2, "dtype": "f32"}), 404, "not-found")
    rows = len(whole["logits"].values)
    problem(server.get(f"{at}/logits", params={"row": rows}), 404, "not-found", rows)
    problem(server.get(f"{at}/logits", params={"row": -1}), 422, "invalid")


def test_weights_equal_those_of_the_model(server, engine):
    at = "/v1/models/tiny-en-de/weights"
    for name, weight in engine.model.state_dict().items():
        shape = ",".join(map(str, weight.shape))
        if weight.dim() == 1:
            answer = server.get(f"{at}/{name}")
            assert floats(answer).tobytes() == weight.numpy().tobytes()
        else:
            row = len(weight) - 1
            answer = server.get(f"{at}/{name}", params={"row": row})
            assert floats(answer).tobytes() == weight[row].numpy().tobytes()
        assert answer.headers["x-shape"] == shape
    tied = ("classifier.weight", "decoder.embedding.tokens.weight", "encoder.embedding.tokens.weight")
    assert engine.model.config.tie == "all"
    assert len({server.get(f"{at}/{name}?row=7").content for name in tied}) == 1
    problem(server.get(f"{at}/{tied[0]}"), 422, "invalid", "row", engine.tokenizer.size)
    problem(server.get(f"{at}/{tied[0]}?row={engine.tokenizer.size}"), 404, "not-found")
    problem(server.get(f"{at}/{tied[0]}?row=first"), 422, "invalid")
    problem(server.get(f"{at}/no.such.weight"), 404, "not-found")
    problem(server.get(f"/v1/models/other/weights/{tied[0]}?row=0"), 404, "not-found")


def test_vocabulary_entries(server, engine):
    ids = [5, 0, 5, 17]
    answer = server.get("/v1/models/tiny-en-de/pieces", params={"ids": ids})
    assert answer.json() == {"pieces": engine.tokenizer.pieces(ids)}
    assert server.get("/v1/models/tiny-en-de/pieces").json() == {"pieces": []}
    size = engine.tokenizer.size
    problem(server.get("/v1/models/tiny-en-de/pieces", params={"ids": [size]}), 404, "not-found", size)
    problem(server.get("/v1/models/tiny-en-de/pieces", params={"ids": [-1]}), 404, "not-found")


def test_query_equals_input_times_a_weight_row(server):
    """The numbers that the page shows are enough to compute a query by hand."""
    answer = server.post("/v1/trace", {"text": TEXTS[0]}).json()
    path = "decoder.layers.1.self_attention"
    packed = server.get(f"/v1/trace/{answer['id']}", params={"names": [f"{path}.input", f"{path}.q"], "dtype": "f32"})
    x, q = (read_trace(packed.content)[f"{path}.{name}"].numpy() for name in ("input", "q"))
    head, position, channel = 1, 2, 3
    row = head * q.shape[2] + channel
    weights = floats(server.get(f"/v1/models/tiny-en-de/weights/{path}.query_key_value.weight", params={"row": row}))
    assert q[head, position, channel] == pytest.approx(x[position] @ weights, abs=1e-5)


def test_beams_contain_all_hypotheses(server, engine):
    answer = server.post("/v1/beams", {"text": TEXTS[0], "beams": 3}).json()
    expected = engine.tree(TEXTS[0], beams=3)
    assert [one["token"] for one in answer["beams"]] == [
        engine.tokenizer.pieces([node.token])[0] for node in expected.nodes
    ]
    assert [one["text"] for one in answer["beams"]] == [
        engine.tokenizer.decode(expected.ids(i)) for i in range(len(expected.nodes))
    ]
    assert answer["translations"][0]["text"] == engine.translate(TEXTS[0], beams=3)[0].text
    best = max((one for one in answer["beams"] if one["fate"] == "ended"), key=lambda one: one["score"])
    assert best["score"] == pytest.approx(answer["translations"][0]["score"], abs=1e-4)
    assert best["text"] == answer["translations"][0]["text"]
    begun = server.post("/v1/beams", {"text": TEXTS[0], "beams": 2, "prefix": "Die"}).json()
    assert all(one["text"] for one in begun["beams"])
    assert begun["translations"][0]["text"] in [one["text"] for one in begun["beams"] if one["fate"] == "ended"]


def test_answers_do_not_depend_on_load(server):
    """Greedy, beam search and sampling at the same time and in any order give the same answers as alone."""
    asked = [{"text": text, **more} for text in TEXTS[:12] for more in ({"beams": 1}, {}, {"sample": True, "seed": 2})]
    expected = [server.translate(**one)[0]["text"] for one in asked]
    for seed in (1, 2):
        order = list(range(len(asked)))
        random.Random(seed).shuffle(order)
        with ThreadPoolExecutor(32) as pool:
            found = list(pool.map(lambda i: server.translate(**asked[i])[0]["text"], order))
        assert found == [expected[i] for i in order]


def test_libretranslate_client(server, engine):
    client = libretranslatepy.LibreTranslateAPI(f"{server.url}/")
    expected = [one.text for one in engine.translate(TEXTS[:2])]
    assert client.translate(TEXTS[0], "en", "de") == expected[0]
    assert client.languages() == [{"code": "en", "name": "English", "targets": ["de"]}]
    answer = server.post("/translate", {"q": TEXTS[:2], "source": "auto", "target": "de", "format": "text"})
    assert answer.json() == {"translatedText": expected}
    several = server.post("/translate", {"q": TEXTS[0], "source": "en", "target": "de", "alternatives": 2}).json()
    assert several["translatedText"] == expected[0]
    assert len(several["alternatives"]) == 2
    answer = server.post("/translate", {"q": "x", "source": "en", "target": "fr"})
    detail = problem(answer, 404, "not-found", "en", "fr", "languages")
    assert server.post("/translate", {"q": "x", "source": "en", "target": "fr"}).json()["error"] == detail
    problem(server.client.post("/translate", content=b"q=x", headers={"content-type": "text/plain"}), 415, "wrong-type")
    form = {"content-type": "application/x-www-form-urlencoded"}
    problem(server.client.post("/translate", content=b"q=%ff&\xff", headers=form), 400, "malformed")


def test_curl(server):
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    body = json.dumps({"text": TEXTS[0]})
    command = ["curl", "-sS", f"{server.url}/v1/translate", "-H", "content-type: application/json", "-d", body]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["translations"] == server.translate(TEXTS[0])


def test_invalid_requests_get_a_problem_that_names_the_field(server):
    def send(content, **headers):
        return server.client.post("/v1/translate", content=content, headers={**JSON, **headers})

    problem(send(b'{"text": '), 400, "malformed", 9)
    problem(send(b'{"text": "\xff"}'), 400, "malformed")
    problem(send(b"[" * 100_000), 400, "malformed")
    problem(send(b"[]"), 422, "invalid")
    problem(send(b'{"text": "\\ud800"}'), 422, "invalid", "text")
    problem(send(b'{"text": "x", "beams": NaN}'), 422, "invalid", "beams")
    problem(server.client.post("/v1/translate", content=b"text=x"), 415, "wrong-type")
    for body, words in (
        ({"txt": "x"}, ("text",)),
        ({"text": "x", "beams": 0}, ("beams", 1)),
        ({"text": "x", "beams": "4"}, ("beams", "integer")),
        ({"text": "x", "top_p": True}, ("top_p", "number")),
        ({"text": "x", "beam": 2}, ("beam",)),
        ({"text": "x", "beams": 17}, ("beams", 17, 16)),
        ({"text": "x", "nbest": 17}, ("beams", 17, 16)),
        ({"text": "x\ny", "prefix": "z"}, ("prefix",)),
    ):
        problem(server.post("/v1/translate", body), 422, "invalid", *words)
    for name in ("other", "../../etc/passwd", "/etc", "", "\0"):
        detail = problem(server.post("/v1/translate", {"text": "x", "model": name}), 404, "not-found", "tiny-en-de")
        assert "etc" not in detail
    problem(server.get("/nothing"), 404, "not-found")
    refused = server.get("/v1/translate")
    problem(refused, 405, "wrong-method")
    assert refused.headers["allow"] == "POST"
    problem(server.post("/v1/score", {"pairs": [{"source": "x " * 3000, "target": "y"}]}), 413, "too-large", "text")


def test_security_headers(server):
    for answer in (server.get("/healthz"), server.get("/nothing"), server.post("/v1/translate", {"text": "a"})):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "img-src 'self' data: blob:;" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert len(answer.headers["x-request-id"]) == 16
        assert "server" not in answer.headers
        assert "access-control-allow-origin" not in answer.headers
    assert server.get("/healthz", headers={"x-request-id": "my-own.1"}).headers["x-request-id"] == "my-own.1"
    assert server.get("/healthz", headers={"x-request-id": "a b\\"}).headers["x-request-id"] != "a b\\"


def test_metrics_and_logs_contain_no_text(server):
    def value(name, **labels):
        families = text_string_to_metric_families(server.get("/metrics").text)
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(one.value for one in samples if labels.items() <= one.labels.items())

    requests = {"name": "sightline_requests_total", "route": "/v1/translate", "status": "200"}
    wait_until(lambda: value("sightline_requests_active") == 1)  # the request for the metrics
    before = value(**requests)
    server.translate("a secret sentence", prefix="geheim")
    wait_until(lambda: value(**requests) == before + 1)
    wait_until(lambda: value("sightline_batch_sentences_count") >= 1)
    assert value("sightline_model_loaded", model="tiny-en-de") == 1
    number = server.get("/healthz").headers["x-request-id"]
    wait_until(lambda: number in server.log)
    (event,) = [one for one in server.events if one.get("request") == number]
    assert event["route"] == "/healthz"
    assert event["status"] == 200
    for word in ("secret", "geheim", *TEXTS[:4]):
        assert word not in server.log


def test_disconnected_clients_are_cancelled(server):
    """Each of these requests would take longer than the client's timeout: if one of them were still searched, the last
    one would not be answered in time."""
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({"text": [" ".join(TEXTS[:4])] * 80, "beams": 8}).encode()
    head = "POST /v1/translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"

    def count(name):
        line = next((line for line in server.get("/metrics").text.splitlines() if line.startswith(name)), "0")
        return float(line.split()[-1])

    cancelled = 'sightline_requests_total{route="/v1/translate",status="499"}'
    before = count(cancelled)
    for _ in range(8):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(head.encode() + body)
            wait_until(lambda: count("sightline_requests_active ") > 1)
        wait_until(lambda: count("sightline_requests_active ") == 1)
    assert server.translate(TEXTS[0])
    wait_until(lambda: count("sightline_requests_waiting ") == 0)
    assert count(cancelled) > before


def test_limits(small):
    def check(body, *words, status=413, kind="too-large", path="/v1/translate"):
        problem(small.post(path, body), status, kind, *words)

    check({"text": "x" * 3000}, "2000 bytes")
    check({"text": "x" * 301}, "301 characters", 300)
    check({"text": ["x"] * 4}, "4 texts", 3)
    assert small.post("/v1/translate", {"text": ["x"] * 3}).status_code == 200
    check({"text": "x y z " * 40, "beams": 3}, 603, 400)
    for path, more in (("translate", {}), ("trace", {}), ("trace", {"target": "y"}), ("beams", {})):
        check({"text": "x", "beams": 5, **more}, "beams", 5, 3, status=422, kind="invalid", path=f"/v1/{path}")
    long = "x " * 20  # 40 tokens
    for more, name in (({}, "text"), ({"target": "x"}, "text"), ({"text": "x", "target": long}, "target")):
        check({"text": long, **more}, name, 40, 30, path="/v1/trace")

    def parts():
        yield b'{"text": "'
        yield b"x" * 2000
        yield b'"}'

    problem(small.client.post("/v1/translate", content=parts(), headers=JSON), 413, "too-large")
    host, port = small.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = "POST /v1/translate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer 0123456789abcdef\r\n"
        connection.sendall(f"{head}Content-Length: 50\r\n\r\n{{".encode())
        connection.settimeout(60)
        answer = b""
        while some := connection.recv(4000):
            answer += some
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"urn:sightline:problem:too-slow" in answer


def talk(server, data, seconds=60):
    """Send bytes; return the answer, up to the end of the connection."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=seconds) as connection:
        connection.sendall(data)
        answer = b""
        while some := connection.recv(4000):
            answer += some
    return answer


def test_default_beams_are_capped(small):
    text, target = TEXTS[0], "Die"
    for path, body in (
        ("/v1/translate", {"text": text}),
        ("/v1/beams", {"text": text}),
        ("/v1/alternatives", {"text": text, "target": target, "position": 1}),
        ("/v1/trace", {"text": text}),
        ("/v1/trace", {"text": text, "target": target}),
        ("/translate", {"q": text, "source": "en", "target": "de"}),
    ):
        answer = small.post(path, body)
        assert answer.status_code == 200, (path, answer.text)
        if not path.startswith("/translate"):
            problem(small.post(path, body | {"beams": 4}), 422, "invalid")
    for schema in small.get("/openapi.json").json()["components"]["schemas"].values():
        beams = schema.get("properties", {}).get("beams", {})
        assert "default" not in beams or beams["default"] <= beams["maximum"] <= 3  # an answer has no default


def test_options_of_a_search_are_capped(local):
    limits = {"max_nbest": 2, "max_groups": 2, "max_patience": 1.5, "max_ratio": 1.5, "max_extra": 7, "max_top_k": 9}
    _, send = local(**limits)
    document, answer = send(("GET", "/openapi.json"), ("POST", "/v1/translate", {"text": TEXTS[0]}))
    assert answer.status_code == 200
    fields = document.json()["components"]["schemas"]["TranslateRequest"]["properties"]
    for cap, most in limits.items():
        name = cap if cap in fields else cap.removeprefix("max_")
        assert fields[name]["maximum"] == most >= fields[name]["default"]
        within, above = send(*(("POST", "/v1/translate", {"text": "x", name: value}) for value in (most, most * 2)))
        assert within.status_code == 200, within.text
        problem(above, 422, "invalid", name, f"{most:g}", f"{most * 2:g}")


@pytest.mark.parametrize(("architecture", "task"), [("decoder-only", "write"), ("encoder-only", "read")])
def test_models_that_do_not_translate_answer_only_for_traces(taught, tmp_path, architecture, task):
    stack = {"layers": 1, "heads": 2, "d_ff": 8}
    tokenizer = load_tokenizer(taught)
    config = ModelConfig(architecture=architecture, vocab_size=tokenizer.size, d_model=8, encoder=stack, decoder=stack)
    save_model(build(config), tmp_path / "other", tokenizer)
    loaded = []

    def load(folder):
        loaded.append(folder)
        return sightline.load(folder, device="cpu")

    app = create_app(Service(Models({"other": tmp_path / "other"}, load), ServeConfig()))

    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://sightline") as client:
            (about,) = (await client.get("/v1/models")).json()["data"]
            assert (about["task"], about["loaded"]) == (task, False)
            for path, body in (
                ("translate", {"text": "x"}),
                ("translate/stream", {"text": "x"}),
                ("score", {"pairs": [{"source": "x", "target": "y"}]}),
                ("alternatives", {"text": "x", "target": "y", "position": 0}),
                ("beams", {"text": "x"}),
            ):
                problem(await client.post(f"/v1/{path}", json=body), 422, "invalid", "model", "other", task)
            assert loaded == [], "a model of another task is not loaded"
            problem(await client.post("/v1/trace", json={"text": "x", "target": "y"}), 422, "invalid", "target")
            assert (await client.post("/v1/trace", json={"text": "x"})).status_code == 200
            assert len((await client.get("/v1/models/other/pieces?ids=5")).json()["pieces"]) == 1

    asyncio.run(ask())
    app.state.service.close()


def test_bundled_models_are_served_by_default():
    with serving() as server:
        assert [one["name"] for one in server.get("/v1/models").json()["data"]] == ["en-fr", "coref"]


def test_request_heads_are_limited_in_time_and_size(small):
    for data, status, kind in (
        (b"P", b"408", b"too-slow"),
        (b"POST /v1/translate HTTP/1.1\r\nHost: x\r\nX-", b"408", b"too-slow"),
        (b"GET / HTTP/1.1\r\n" + b"X-A: b\r\n" * 9_000, b"413", b"too-large"),
        (b"\x16\x03\x01 not HTTP\r\n\r\n", b"400", b"malformed"),
    ):
        answer = talk(small, data)
        assert answer.startswith(b"HTTP/1.1 " + status), answer
        assert b"application/problem+json" in answer
        assert b"urn:sightline:problem:" + kind in answer
        assert b"default-src 'none'" in answer
    assert talk(small, b"") == b""
    whole = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    assert talk(small, whole + whole + b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n").count(b"200 OK") == 3


def test_api_keys(small):
    for headers in (
        {},
        {"authorization": "Bearer 0123456789abcdee"},
        {"authorization": "Basic x"},
        {"x-api-key": "é".encode()},
    ):
        with httpx.Client(base_url=small.url, headers=headers) as client:
            answer = client.post("/v1/translate", json={"text": "a"})
            problem(answer, 401, "unauthorised")
            assert answer.headers["www-authenticate"] == "Bearer"
            problem(client.get("/metrics"), 401, "unauthorised")
            assert client.get("/").status_code in (200, 404)  # the page, if it is built
            problem(client.get("/assets/none.js"), 404, "not-found")
            assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
    with httpx.Client(base_url=small.url, headers={"x-api-key": "fedcba9876543210"}) as client:
        assert client.post("/v1/translate", json={"text": "a"}).status_code == 200
    client = libretranslatepy.LibreTranslateAPI(f"{small.url}/", "fedcba9876543210")
    assert isinstance(client.translate("a", "en", "de"), str)
    with pytest.raises(Exception, match="HTTP Error 404"):  # the key is valid, the language is not
        client.translate("a", "en", "fr")
    with pytest.raises(Exception, match="HTTP Error 401"):
        libretranslatepy.LibreTranslateAPI(f"{small.url}/", "wrong").translate("a", "en", "de")
    assert any(one.get("key") == "bert" for one in small.events)
    assert "fedcba9876543210" not in small.log


@pytest.fixture
def clock(monkeypatch):
    """The clock of the rate limit; a test moves it."""

    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(access, "time", clock)
    return clock


def test_rate_limit_allows_ten_seconds_worth_of_requests_at_once(clock):
    keys = Keys({"anna": "0123456789abcdef"}, rate=600)
    assert [keys.take("anna") for _ in range(101)] == [0.0] * 100 + [pytest.approx(0.1)]
    clock.now += 1
    assert [keys.take("anna") for _ in range(11)] == [0.0] * 10 + [pytest.approx(0.1)]


@pytest.fixture
def local(taught):
    """Makes a service in this process; returns it, and a function that gets the answers to several requests."""
    services = []

    def make(keys=None, **limits):
        service = Service(
            Models({"one": taught}, lambda folder: sightline.load(folder, backend="torch")), ServeConfig(**limits)
        )
        services.append(service)
        app = create_app(service, keys)

        def send(*requests, meanwhile=lambda: None, **headers):
            async def client():
                transport = httpx.ASGITransport(app)
                async with httpx.AsyncClient(transport=transport, base_url="http://sightline", headers=headers) as http:
                    waiting = [
                        asyncio.create_task(http.request(*one[:2], json=one[2] if one[2:] else None))
                        for one in requests
                    ]
                    await asyncio.to_thread(meanwhile)
                    return await asyncio.gather(*waiting)

            return asyncio.run(client())

        return service, send

    yield make
    for service in services:
        service.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("translate", {"text": [TEXTS[0], TEXTS[1], TEXTS[0]], "align": True, "details": True}),
        ("translate", {"text": TEXTS[0], "prefix": "Die", "forbid": ["Hund"]}),
        (
            "score",
            {"pairs": [{"source": TEXTS[0], "target": "Die Katze."}, {"source": TEXTS[0], "target": "Ein Hund."}]},
        ),
        ("alternatives", {"text": TEXTS[0], "target": "Die Katze.", "position": 1}),
        ("beams", {"text": TEXTS[0], "prefix": "Die"}),
        ("trace", {"text": TEXTS[0]}),
        ("trace", {"text": f"{TEXTS[0]} {TEXTS[1]}"}),
        ("trace", {"text": TEXTS[0], "target": "Die Katze."}),
        ("trace", {"text": TEXTS[0], "prefix": "Die"}),
    ],
)
def test_each_text_is_tokenised_once(local, monkeypatch, path, body):
    _, send = local()
    encoded = []
    for name in ("encode", "encode_with_spans"):
        original = getattr(Tokenizer, name)

        def count(tokenizer, texts, original=original):
            encoded.extend(texts)
            return original(tokenizer, texts)

        monkeypatch.setattr(Tokenizer, name, count)
    (answer,) = send(("POST", f"/v1/{path}", body))
    assert answer.status_code == 200, answer.text
    assert len(encoded) == len(set(encoded)) > 0


def test_traced_ids_are_the_ids_that_were_written(local, engine, monkeypatch):
    """A text can be tokenised in several ways. A trace has the ids of the translation, whatever its text gives."""
    service, send = local()
    service.models.load_first()
    tokenizer = service.models.entries["one"].engine.tokenizer
    for text in (*TEXTS[:5], f"{TEXTS[0]} {TEXTS[1]}"):
        (result,) = engine.translate([text])
        with monkeypatch.context() as patch:
            patch.setattr(tokenizer, "decode", lambda ids: "Die Katze.")
            (answer,) = send(("POST", "/v1/trace", {"text": text}))
        assert answer.json()["ids"]["target"] == [START, *result.ids]
        assert "Katze" in answer.json()["target"]


@pytest.mark.usefixtures("clock")
def test_requests_beyond_the_rate_limit_are_refused(local):
    _, send = local({"anna": "0123456789abcdef", "bert": "fedcba9876543210"}, rate=12)
    answers = send(*[("GET", "/v1/models")] * 4, **{"x-api-key": "fedcba9876543210"})
    assert sorted(one.status_code for one in answers) == [200, 200, 429, 429]
    for answer in answers:
        if answer.status_code == 429:
            problem(answer, 429, "too-many")
            assert answer.headers["retry-after"] == "5"
    assert send(("GET", "/v1/models"), **{"x-api-key": "0123456789abcdef"})[0].status_code == 200


def test_full_queue_returns_service_overloaded(local):
    """The thread of the model is held until `max_queue` requests wait for it and the others are refused."""
    service, send = local(max_queue=4)
    request = ("POST", "/v1/translate", {"text": TEXTS[0]})
    (expected,) = send(request)
    (worker,) = service.workers.values()
    held, release = threading.Event(), threading.Event()
    worker.call(lambda: held.set() or release.wait(120))
    assert held.wait(60)
    labels = {"route": "/v1/translate", "status": "503"}

    def meanwhile():
        value = service.metrics.registry.get_sample_value
        wait_until(lambda: value("sightline_requests_total", labels) == 6)
        assert service.waiting == 4
        release.set()

    answers = send(*[request] * 10, meanwhile=meanwhile)
    busy = [answer for answer in answers if answer.status_code != 200]
    assert len(busy) == 6
    for answer in busy:
        problem(answer, 503, "busy", 4)
        assert answer.headers["retry-after"] == "1"
    assert all(one.json() == expected.json() for one in answers if one.status_code == 200)
    assert send(request)[0].status_code == 200


def test_cors_allows_only_configured_origins(small):
    for origin, allowed in (("https://example.org", True), ("https://example.com", False)):
        asked = {"origin": origin, "access-control-request-method": "POST"}
        answer = small.client.options("/v1/translate", headers=asked)
        assert ("access-control-allow-origin" in answer.headers) == allowed
        plain = small.get("/v1/models", headers={"origin": origin})
        assert plain.headers.get("access-control-allow-origin") == (origin if allowed else None)
        if allowed:
            assert {"X-Pieces", "X-Dtype", "X-Shape"} <= {*plain.headers["access-control-expose-headers"].split(", ")}


def test_too_many_connections_return_service_overloaded(taught):
    """One request is unfinished: its body is still on the way. The next one is refused."""
    with serving(taught, "--set", "max_requests=1", "--set", "receive=120") as server:
        host, port = server.url.removeprefix("http://").split(":")
        body = json.dumps({"text": TEXTS[0]}).encode()
        head = "POST /v1/translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        with socket.create_connection((host, int(port)), timeout=120) as connection:
            connection.sendall(head.encode() + body[:5])
            wait_until(lambda: server.get("/v1/models").status_code == 503)
            answer = server.post("/v1/translate", {"text": "a"})
            problem(answer, 503, "busy", 1)
            assert answer.headers["retry-after"] == "1"
            connection.sendall(body[5:])
            found = b""
            while some := connection.recv(4000):
                found += some
        assert found.startswith(b"HTTP/1.1 200")
        wait_until(lambda: server.get("/v1/models").status_code == 200)
        assert json.loads(found.partition(b"\r\n\r\n")[2])["translations"] == server.translate(TEXTS[0])


def test_deadline(taught):
    with serving(taught, "--set", "deadline=0.2", "--backend", "torch") as server:
        problem(server.post("/v1/translate", {"text": TEXTS * 6, "beams": 8}), 503, "deadline", 0.2)
        wait_until(lambda: server.post("/v1/translate", {"text": "a", "beams": 1}).status_code == 200)


def test_models_are_loaded_on_demand_within_the_memory_budget(taught, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(taught, other)
    memory = 1.5 * (taught / "model.safetensors").stat().st_size / 2**30
    with serving(f"one={taught}", f"two={other}", "--set", f"memory={memory:.9f}", "--backend", "torch") as server:

        def loaded():
            return [one["loaded"] for one in server.get("/v1/models").json()["data"]]

        expected = server.translate(TEXTS[:3])
        assert loaded() == [True, False]
        assert server.translate(TEXTS[:3], model="two") == expected
        assert loaded() == [False, True]
        with ThreadPoolExecutor(8) as pool:  # models are unloaded meanwhile
            found = list(pool.map(lambda i: server.translate(TEXTS[:3], model=("one", "two")[i % 2]), range(16)))
        assert all(one == expected for one in found)
        assert sum(loaded()) == 1
        (other / "model.safetensors").write_bytes(b"nothing")
        server.translate("a", model="one")
        detail = problem(server.post("/v1/translate", {"text": "a", "model": "two"}), 503, "unavailable", "two")
        assert str(other) not in detail


def test_reload_on_sighup_drops_no_request(taught, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(taught, folder)
    with serving(folder, "--backend", "torch") as server, ThreadPoolExecutor(8) as pool:
        before = server.translate(TEXTS[0], details=True)
        running = [pool.submit(server.translate, TEXTS[i % 40]) for i in range(60)]
        model = load_model(folder)
        model.classifier.weight.data.mul_(0.5)
        save_model(model, folder, load_tokenizer(folder))
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: server.translate(TEXTS[0], details=True) != before)
        assert all(one.result() for one in running)
        (folder / "model.safetensors").write_bytes(b"nothing")
        after = server.translate(TEXTS[0], details=True)
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "reload failed" in server.log)
        assert server.translate(TEXTS[0], details=True) == after


def test_graceful_shutdown(taught):
    """Clients send requests until the service refuses one. Requests that were in progress are answered; no client gets
    half an answer or a closed connection."""
    outcomes = []

    async def client(server, number):
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:
            answer = None
            while answer is None or answer.status_code == 200:
                answer = await http.post("/v1/translate", json={"text": TEXTS[number % 40], "beams": 4})
                outcomes.append((answer.status_code, time.monotonic()))
            problem(answer, 503, "stopping")

    async def load(server):
        clients = [asyncio.create_task(client(server, number)) for number in range(16)]
        while len(outcomes) < 24:
            await asyncio.sleep(0.01)
        assert not any(task.done() for task in clients)
        server.process.send_signal(signal.SIGTERM)
        stopped = time.monotonic()
        await asyncio.gather(*clients)
        return stopped

    with serving(taught, "--backend", "torch") as server:
        stopped = asyncio.run(load(server))
        assert server.process.wait(60) == 0
    assert {kind for kind, when in outcomes if when <= stopped} == {200}
    assert [kind for kind, when in outcomes if when > stopped].count(503) == 16


def test_restart_after_kill(taught):
    with serving(taught) as server:
        answer = server.translate(TEXTS[0])
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    with serving(taught) as again:
        assert again.translate(TEXTS[0]) == answer


def test_trace_store_is_thread_safe(engine):
    """One thread adds traces, which drops older ones, while others read them."""
    seen, numbers, wrong = engine.trace(TEXTS[0]), [], []
    traces = Traces(1e-3)

    def ask():
        while len(numbers) < 3000:
            for number in numbers[-40:]:
                try:
                    traces.get(number)
                except Problem:
                    pass
                except Exception as error:
                    wrong.append(error)

    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask) for _ in range(2)]
        while len(numbers) < 3000:
            numbers.append(traces.add(seen, engine))
        for one in asked:
            one.result()
    assert wrong == []
    assert traces.get(numbers[-1]).trace is seen
    with pytest.raises(Problem):
        traces.get(numbers[0])


@pytest.mark.parametrize("wrong", ["missing", "damaged", "truncated", "port in use", "option"])
def test_serve_refuses_to_start(taught, tmp_path, wrong):
    folder = tmp_path / "model"
    shutil.copytree(taught, folder)
    weights = folder / "model.safetensors"
    arguments, expected = [folder], str(folder)
    with socket.create_server(("127.0.0.1", 0)) as other:
        if wrong == "missing":
            arguments, expected = [tmp_path / "none"], str(tmp_path / "none")
        elif wrong == "damaged":
            weights.write_bytes(b"x" * 5000)
        elif wrong == "truncated":
            weights.write_bytes(weights.read_bytes()[:-100])
        elif wrong == "port in use":
            arguments, expected = [folder, "--port", other.getsockname()[1]], "--port"
        else:
            arguments, expected = [folder, "--set", "max_beam=3"], "max_beams"
        command = [sys.executable, "-m", "sightline.cli.main", "serve", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert expected in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_invalid_model_names(taught):
    with raises(InputError, option="models"):
        named([])
    with raises(InputError, option="models", value="taught"):
        named([str(taught), str(taught)])
    with raises(InputError, option="models", value="a b"):
        named([f"a b={taught}"])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# a comment\nanna", "line 2"),
        ("anna short", "line 1"),
        ("anna 0123456789abcdef\nanna 0123456789abcdee", "line 2"),
        ("anna 0123456789 abcdef", "line 1"),
        ("", "keys"),
    ],
)
def test_invalid_key_files(tmp_path, text, line):
    (tmp_path / "keys").write_text(text)
    with raises(InputError, option="keys") as caught:
        read_keys(tmp_path / "keys")
    assert str(tmp_path / "keys") in str(caught.value)
    assert line in str(caught.value)


def test_unusable_hosts_and_ports():
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        raises(InputError, option="port", value=other.getsockname()[1]),
    ):
        bind("127.0.0.1", other.getsockname()[1])
    with raises(InputError, option="host", value="a..b"):
        bind("a..b", 0)


def test_public_service_without_keys_warns(taught):
    with serving(taught, "--host", "0.0.0.0") as server:
        assert "0.0.0.0" in server.log.splitlines()[0]
        assert "--keys" in server.log.splitlines()[0]
        port = server.url.rsplit(":", 1)[1]
        assert httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=60).status_code == 200


def test_openapi_document_matches_the_service(server, tmp_path):
    document = server.get("/openapi.json").json()
    assert document["paths"].keys() >= {"/v1/translate", "/v1/translate/stream", "/v1/score", "/v1/trace", "/v1/beams"}
    assert all(route["post"].get("requestBody") for route in document["paths"].values() if "post" in route)
    check_document(server, tmp_path)
