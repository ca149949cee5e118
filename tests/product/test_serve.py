"""The service: the real command line in a process of its own, asked by real clients."""

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import libretranslatepy
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import sightline
from serving import problem, serving
from sightline.data.builtin import generate
from sightline.model_folder import load_model, load_tokenizer, save_model
from sightline.serve.problems import Problem
from sightline.serve.service import Traces
from sightline.special import END, START
from sightline.trace.pack import PIECE, read

TEXTS = [pair.source for pair in generate("test", 40)]
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def engine(taught):
    return sightline.load(taught, device="cpu")


@pytest.fixture(scope="module", params=["auto", "torch"])
def server(taught, request):
    with serving(f"tiny-en-de={taught}", "--engine", request.param) as server:
        yield server


@pytest.fixture(scope="module")
def small(taught):
    """One with low limits, and keys."""
    limits = {"max_body": 2000, "max_texts": 3, "max_characters": 300, "max_tokens": 400, "max_beams": 3}
    limits |= {"max_traced": 30, "receive": 1, "rate": 600}
    keys = taught.parent / "keys.txt"
    keys.write_text("# who may ask\nanna 0123456789abcdef\n\nbert fedcba9876543210\n")
    sets = [part for name, value in limits.items() for part in ("--set", f"{name}={value}")]
    with serving(f"tiny-en-de={taught}", "--keys", keys, "--allow-origin", "https://example.org", *sets) as server:
        server.client.headers["authorization"] = "Bearer 0123456789abcdef"
        yield server


def test_what_is_translated_is_what_the_engine_writes(server, engine):
    for options in (
        {"beam": 1},
        {},
        {"beam": 3, "nbest": 2, "details": True},
        {"align": True},
        {"beam": 2, "sample": True},
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
    (one,) = server.translate(TEXTS[0], prefix="Die", beam=2)
    assert one["text"].startswith("Die")
    word = server.translate(TEXTS[0])[0]["text"].split()[1]
    assert word not in server.translate(TEXTS[0], without=[word])[0]["text"].split()
    assert "Garten" in server.translate(TEXTS[0], within=["Garten"])[0]["text"]


def test_texts_keep_their_lines_and_empty_ones_stay_empty(server, engine):
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


def test_a_stream_tells_the_text_as_it_grows(server, engine):
    for text in (TEXTS[0], f"{TEXTS[1]}\n{TEXTS[2]}", "", "🦊 ü"):
        answer = server.post("/v1/translate/stream", {"text": text})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        *told, (last, whole) = events(answer)
        assert last == "done"
        assert {kind for kind, _ in told} <= {"token"}
        assert "".join(one["text"] for _, one in told) == whole["text"] == engine.translate(text, beam=1)[0].text
    assert len(events(server.post("/v1/translate/stream", {"text": TEXTS[0]}))) > 5
    sampled = {"text": TEXTS[0], "sample": True, "seed": 3, "temperature": 2.0}
    drawn = events(server.post("/v1/translate/stream", sampled))[-1][1]["text"]
    assert drawn == engine.translate(TEXTS[0], beam=1, sample=True, seed=3, temperature=2.0)[0].text


def test_scores_are_those_of_the_engine(server, engine):
    targets = [one.text for one in engine.translate(TEXTS[:3])]
    pairs = [{"source": source, "target": target} for source, target in zip(TEXTS[:3], targets, strict=True)]
    answer = server.post("/v1/score", {"pairs": pairs}).json()
    for mine, theirs in zip(answer["scores"], engine.score(TEXTS[:3], targets), strict=True):
        assert mine["tokens"] == theirs.tokens
        assert mine["log_prob"] == pytest.approx(theirs.log_prob, abs=1e-4)
    found = server.post("/v1/alternatives", {"text": TEXTS[0], "target": targets[0], "position": 2}).json()
    expected = engine.alternatives(TEXTS[0], targets[0], 2)
    assert [one["text"] for one in found["alternatives"]] == [one.text for one in expected]


def test_a_trace_is_fetched_piece_by_piece(server, engine):
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
        assert np.allclose(read(packed.content)[name].numpy(), theirs, atol=tolerance)
        plain = server.get(f"/v1/trace/{answer['id']}/{name}", params={"dtype": dtype})
        assert plain.headers["x-pieces"] == "1"
        assert np.allclose(np.frombuffer(plain.content, kind).reshape(about["shape"]), theirs, atol=tolerance)
    whole = read(server.get(f"/v1/trace/{answer['id']}").content)
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


def test_a_trace_tells_in_how_many_parts_a_text_is_translated(server, engine):
    several = f"{TEXTS[0]} {TEXTS[1]}"
    for text, parts in ((TEXTS[0], 1), (several, 2)):
        answer = server.post("/v1/trace", {"text": text}).json()
        assert answer["parts"] == parts
        assert answer["target"] == server.translate(text)[0]["text"]
        assert answer["tokens"]["source"][:-1] == engine.tokenizer.source.pieces(
            engine.tokenizer.source.encode([text])[0]
        )


def test_models_tell_what_to_try(taught, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(taught, folder)
    (folder / "examples.txt").write_text("# Dogs,\n# and cats.\n\nThe dog.\n  The cat. \n", "utf-8")
    with serving(f"with={folder}", f"without={taught}", "coref/states/step-00000080") as server:
        models = server.get("/v1/models").json()["models"]
    told = {model["name"]: (model["examples"], model["about"]) for model in models}
    assert told["with"] == (["The dog.", "The cat."], "Dogs, and cats.")
    assert told["without"] == ([], None)
    assert len(told["step-00000080"][0]) == 4


def test_a_trace_tells_the_model_and_what_it_was_given(server, engine):
    answer = server.post("/v1/trace", {"text": TEXTS[0], "target": "Der Hund 🦊"}).json()
    assert answer["config"] == engine.model.config.model_dump()
    assert answer["ids"]["source"] == [*engine.tokenizer.source.encode([TEXTS[0]])[0], END]
    assert answer["ids"]["target"] == [START, *engine.tokenizer.encode(["Der Hund 🦊"])[0]]
    for side, stack in (("source", "encoder"), ("target", "decoder")):
        assert engine.tokenizer.pieces(answer["ids"][side]) == answer["tokens"][side]
        name = f"{stack}.embedding.tokens"
        embedded = read(server.get(f"/v1/trace/{answer['id']}", params={"names": name, "dtype": "f32"}).content)[name]
        rows = [server.get(f"/v1/models/tiny-en-de/weights/{name}.weight?row={i}") for i in answer["ids"][side]]
        assert np.array_equal(embedded.numpy(), [floats(row) for row in rows])


def test_a_row_of_a_tensor_is_that_of_the_whole(server, engine):
    words = " ".join(TEXTS).split()
    while len(engine.tokenizer.source.encode([" ".join(words)])[0]) > 505:
        words.pop()
    answer = server.post("/v1/trace", {"text": " ".join(words), "target": "Der Hund"}).json()
    at, looks = f"/v1/trace/{answer['id']}", "encoder.layers.1.self_attention.probabilities"
    whole = read(server.get(at, params={"names": ["logits", looks], "dtype": "f32"}).content)
    for name, row in (("logits", 0), ("logits", 2), (looks, 1)):
        expected, asked = whole[name].numpy()[row], {"row": row, "dtype": "f32"}
        count = 2 if name == looks else 1
        pieces = [server.get(f"{at}/{name}", params={**asked, "piece": piece}) for piece in range(count)]
        assert {one.headers["x-pieces"] for one in pieces} == {str(count)}
        assert np.array_equal(np.concatenate([floats(one) for one in pieces]).reshape(expected.shape), expected)
    problem(server.get(f"{at}/{looks}", params={"row": 1, "piece": 2, "dtype": "f32"}), 404, "not-found")
    detail = problem(server.get(f"{at}/logits", params={"row": len(whole["logits"].values)}), 404, "not-found")
    assert detail == f"there are {len(whole['logits'].values)} rows, the first of which is 0."
    problem(server.get(f"{at}/logits", params={"row": -1}), 422, "invalid")


def test_weights_are_those_of_the_model(server, engine):
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
    assert problem(server.get(f"{at}/{tied[0]}"), 422, "invalid").startswith("row: this is a matrix of ")
    problem(server.get(f"{at}/{tied[0]}?row={engine.tokenizer.size}"), 404, "not-found")
    problem(server.get(f"{at}/{tied[0]}?row=first"), 422, "invalid")
    problem(server.get(f"{at}/no.such.weight"), 404, "not-found")
    problem(server.get(f"/v1/models/other/weights/{tied[0]}?row=0"), 404, "not-found")


def test_entries_of_a_vocabulary_are_told(server, engine):
    ids = [5, 0, 5, 17]
    answer = server.get("/v1/models/tiny-en-de/pieces", params={"ids": ids})
    assert answer.json() == {"pieces": engine.tokenizer.pieces(ids)}
    assert server.get("/v1/models/tiny-en-de/pieces").json() == {"pieces": []}
    problem(server.get("/v1/models/tiny-en-de/pieces", params={"ids": [engine.tokenizer.size]}), 404, "not-found")
    problem(server.get("/v1/models/tiny-en-de/pieces", params={"ids": [-1]}), 404, "not-found")


def test_a_query_is_what_enters_times_a_row_of_weights(server):
    """All that the page shows of a number is enough to compute it by hand."""
    answer = server.post("/v1/trace", {"text": TEXTS[0]}).json()
    path = "decoder.layers.1.self_attention"
    packed = server.get(f"/v1/trace/{answer['id']}", params={"names": [f"{path}.input", f"{path}.q"], "dtype": "f32"})
    x, q = (read(packed.content)[f"{path}.{name}"].numpy() for name in ("input", "q"))
    head, position, channel = 1, 2, 3
    row = head * q.shape[2] + channel
    weights = floats(server.get(f"/v1/models/tiny-en-de/weights/{path}.query_key_value.weight", params={"row": row}))
    assert q[head, position, channel] == pytest.approx(x[position] @ weights, abs=1e-5)


def test_beams_are_shown_with_what_became_of_them(server, engine):
    answer = server.post("/v1/beams", {"text": TEXTS[0], "beam": 3}).json()
    expected = engine.beams(TEXTS[0], beam=3)
    assert [one["token"] for one in answer["beams"]] == [
        engine.tokenizer.pieces([node.token])[0] for node in expected.nodes
    ]
    assert [one["text"] for one in answer["beams"]] == [
        engine.tokenizer.decode(expected.ids(i)) for i in range(len(expected.nodes))
    ]
    assert answer["translations"][0]["text"] == engine.translate(TEXTS[0], beam=3)[0].text
    best = max((one for one in answer["beams"] if one["fate"] == "ended"), key=lambda one: one["score"])
    assert best["score"] == pytest.approx(answer["translations"][0]["score"], abs=1e-4)
    assert best["text"] == answer["translations"][0]["text"]
    begun = server.post("/v1/beams", {"text": TEXTS[0], "beam": 2, "prefix": "Die"}).json()
    assert all(one["text"] for one in begun["beams"])
    assert begun["translations"][0]["text"] in [one["text"] for one in begun["beams"] if one["fate"] == "ended"]


def test_the_same_request_has_the_same_answer_whatever_the_load(server):
    """Greedy, by beams, drawn and streamed, all at once and in any order; each is what it is alone."""
    asked = [{"text": text, **more} for text in TEXTS[:12] for more in ({"beam": 1}, {}, {"sample": True, "seed": 2})]
    expected = [server.translate(**one)[0]["text"] for one in asked]
    for seed in (1, 2):
        order = list(range(len(asked)))
        random.Random(seed).shuffle(order)
        with ThreadPoolExecutor(32) as pool:
            found = list(pool.map(lambda i: server.translate(**asked[i])[0]["text"], order))
        assert found == [expected[i] for i in order]


def test_clients_of_libretranslate_work(server, engine):
    client = libretranslatepy.LibreTranslateAPI(f"{server.url}/")
    expected = [one.text for one in engine.translate(TEXTS[:2])]
    assert client.translate(TEXTS[0], "en", "de") == expected[0]
    assert client.languages() == [{"code": "en", "name": "English", "targets": ["de"]}]
    answer = server.post("/translate", {"q": TEXTS[:2], "source": "auto", "target": "de", "format": "text"})
    assert answer.json() == {"translatedText": expected}
    several = server.post("/translate", {"q": TEXTS[0], "source": "en", "target": "de", "alternatives": 2}).json()
    assert several["translatedText"] == expected[0]
    assert len(several["alternatives"]) == 2
    detail = problem(server.post("/translate", {"q": "x", "source": "en", "target": "fr"}), 404, "not-found")
    assert detail == "there is no model from en to fr; see /languages."
    assert server.post("/translate", {"q": "x", "source": "en", "target": "fr"}).json()["error"] == detail
    problem(server.client.post("/translate", content=b"q=x", headers={"content-type": "text/plain"}), 415, "wrong-type")
    form = {"content-type": "application/x-www-form-urlencoded"}
    problem(server.client.post("/translate", content=b"q=%ff&\xff", headers=form), 400, "malformed")


def test_curl_works(server):
    if not shutil.which("curl"):
        pytest.skip("there is no curl here")
    body = json.dumps({"text": TEXTS[0]})
    command = ["curl", "-sS", f"{server.url}/v1/translate", "-H", "content-type: application/json", "-d", body]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["translations"] == server.translate(TEXTS[0])


def test_what_is_wrong_with_a_request_is_told_in_one_sentence(server):
    def send(content, **headers):
        return server.client.post("/v1/translate", content=content, headers={**JSON, **headers})

    assert problem(send(b'{"text": '), 400, "malformed") == "the body is no JSON: Expecting value at character 9."
    problem(send(b'{"text": "\xff"}'), 400, "malformed")
    problem(send(b"[" * 100_000), 400, "malformed")
    assert problem(send(b"[]"), 422, "invalid")
    assert problem(send(b'{"text": "\\ud800"}'), 422, "invalid")
    assert problem(send(b'{"text": "x", "beam": NaN}'), 422, "invalid")
    problem(server.client.post("/v1/translate", content=b"text=x"), 415, "wrong-type")
    for body, detail in (
        ({"txt": "x"}, "text: Field required."),
        ({"text": "x", "beam": 0}, "beam: Input should be greater than or equal to 1."),
        ({"text": "x", "beam": "4"}, "beam: Input should be a valid integer."),
        ({"text": "x", "top_p": True}, "top_p: Input should be a valid number."),
        ({"text": "x", "beams": 2}, "beams: there is no such option here; see /openapi.json for those there are."),
        ({"text": "x", "beam": 17}, "beam: 17 are too many; ask for 16 at most."),
        ({"text": "x", "nbest": 17}, "beam: 17 are too many; ask for 16 at most."),
        ({"text": "x\ny", "prefix": "z"}, "a prefix is for a text of one part, and this one is translated in several."),
    ):
        assert problem(server.post("/v1/translate", body), 422, "invalid") == detail
    for name in ("other", "../../etc/passwd", "/etc", "", "\0"):
        found = problem(server.post("/v1/translate", {"text": "x", "model": name}), 404, "not-found")
        assert found == "there is no model of this name; there are tiny-en-de."
    problem(server.get("/nothing"), 404, "not-found")
    refused = server.get("/v1/translate")
    problem(refused, 405, "wrong-method")
    assert refused.headers["allow"] == "POST"
    problem(server.post("/v1/score", {"pairs": [{"source": "x " * 3000, "target": "y"}]}), 413, "too-large")


def test_every_answer_has_the_headers_of_a_careful_service(server):
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


def test_metrics_and_logs_tell_what_happened_but_not_what_was_said(server):
    def value(name, **labels):
        families = text_string_to_metric_families(server.get("/metrics").text)
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(one.value for one in samples if labels.items() <= one.labels.items())

    before = value("sightline_requests_total", route="/v1/translate", status="200")
    server.translate("a secret sentence", prefix="geheim")
    assert value("sightline_requests_total", route="/v1/translate", status="200") == before + 1
    assert value("sightline_batch_sentences_count") >= 1
    assert value("sightline_model_loaded", model="tiny-en-de") == 1
    assert value("sightline_requests_active") == 1  # this one
    number = server.get("/healthz").headers["x-request-id"]
    deadline = time.monotonic() + 5
    while number not in server.log and time.monotonic() < deadline:
        time.sleep(0.01)
    (event,) = [one for one in server.events if one.get("request") == number]
    assert event["route"] == "/healthz"
    assert event["status"] == 200
    for word in ("secret", "geheim", *TEXTS[:4]):
        assert word not in server.log


def test_who_leaves_is_forgotten(server):
    """Clients that hang up in the middle do not keep others from being answered, and nothing stays behind."""
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({"text": TEXTS * 2, "beam": 4}).encode()
    head = "POST /v1/translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    for _ in range(20):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(head.encode() + body)
            time.sleep(0.01)
    began = time.monotonic()
    assert server.translate(TEXTS[0])
    assert time.monotonic() - began < 10

    def count(name):
        line = next(line for line in server.get("/metrics").text.splitlines() if line.startswith(name))
        return float(line.split()[-1])

    deadline = time.monotonic() + 20
    while count("sightline_requests_waiting ") > 0 or count("sightline_requests_active ") > 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    gone = 'sightline_requests_total{route="/v1/translate",status="499"}'
    assert count(gone) > 0


def test_limits_keep_the_service_from_drowning(small):
    def refused(body, status=413, kind="too-large", path="/v1/translate"):
        return problem(small.post(path, body), status, kind)

    assert refused({"text": "x" * 3000}) == "the body may have 2000 bytes at most."
    assert refused({"text": "x" * 301}) == "301 characters are too many; send 300 at most."
    assert refused({"text": ["x"] * 4}) == "4 texts are too many; send 3 at most."
    assert small.post("/v1/translate", {"text": ["x"] * 3}).status_code == 200
    assert refused({"text": "x y z " * 40, "beam": 3}).startswith("603 tokens, counted once for every beam, are more")
    for path, more in (("translate", {}), ("trace", {}), ("trace", {"target": "y"}), ("beams", {})):
        found = refused({"text": "x", "beam": 5, **more}, 422, "invalid", f"/v1/{path}")
        assert found == "beam: 5 are too many; ask for 3 at most."
    long = "x " * 20  # 40 tokens
    for more, what in (({}, "text"), ({"target": "x"}, "text"), ({"text": "x", "target": long}, "target")):
        found = refused({"text": long, **more}, path="/v1/trace")
        assert found == f"a {what} of 40 tokens is too long; it may have 30 at most."

    def parts():
        yield b'{"text": "'
        yield b"x" * 2000
        yield b'"}'

    problem(small.client.post("/v1/translate", content=parts(), headers=JSON), 413, "too-large")
    host, port = small.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = "POST /v1/translate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer 0123456789abcdef\r\n"
        connection.sendall(f"{head}Content-Length: 50\r\n\r\n{{".encode())
        connection.settimeout(10)
        answer = connection.recv(4000)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"it must be there within 1 seconds." in answer + connection.recv(4000)


def talk(server, data, seconds=10):
    """What a connection answers to some bytes, until it is closed."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=seconds) as connection:
        connection.sendall(data)
        answer = b""
        while some := connection.recv(4000):
            answer += some
    return answer


def test_who_says_nothing_of_beams_gets_as_many_as_there_may_be(small):
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
            problem(small.post(path, body | {"beam": 4}), 422, "invalid")
    for schema in small.get("/openapi.json").json()["components"]["schemas"].values():
        beam = schema.get("properties", {}).get("beam", {"maximum": 3, "default": 3})
        assert beam["default"] <= beam["maximum"] <= 3


def test_a_head_comes_in_time_and_has_an_end(small):
    for data, status, kind in (
        (b"P", b"408", b"too-slow"),
        (b"POST /v1/translate HTTP/1.1\r\nHost: x\r\nX-", b"408", b"too-slow"),
        (b"GET / HTTP/1.1\r\n" + b"X-A: b\r\n" * 9_000, b"413", b"too-large"),
        (b"\x16\x03\x01 this is no HTTP\r\n\r\n", b"400", b"malformed"),
    ):
        answer = talk(small, data)
        assert answer.startswith(b"HTTP/1.1 " + status), answer
        assert b"application/problem+json" in answer
        assert b"urn:sightline:problem:" + kind in answer
        assert b"default-src 'none'" in answer
    assert talk(small, b"") == b""
    whole = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    assert talk(small, whole + whole + b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n").count(b"200 OK") == 3


def test_keys(small):
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
            assert client.get("/").status_code in (200, 404)  # the page, where it is built
            problem(client.get("/assets/none.js"), 404, "not-found")
            assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
    with httpx.Client(base_url=small.url, headers={"x-api-key": "fedcba9876543210"}) as client:
        assert client.post("/v1/translate", json={"text": "a"}).status_code == 200
    client = libretranslatepy.LibreTranslateAPI(f"{small.url}/", "fedcba9876543210")
    assert isinstance(client.translate("a", "en", "de"), str)
    with pytest.raises(Exception, match="HTTP Error 404"):  # it has a key, but not this language
        client.translate("a", "en", "fr")
    with pytest.raises(Exception, match="HTTP Error 401"):
        libretranslatepy.LibreTranslateAPI(f"{small.url}/", "wrong").translate("a", "en", "de")
    assert any(one.get("key") == "bert" for one in small.events)
    assert "fedcba9876543210" not in small.log


def test_a_key_may_ask_so_often_and_no_more(small):
    """600 a minute are 10 a second; 100 may come at once."""
    with httpx.Client(base_url=small.url, headers={"x-api-key": "fedcba9876543210"}) as client:
        answers = [client.get("/v1/models") for _ in range(130)]
    refused = [one for one in answers if one.status_code == 429]
    assert 5 < len(refused) < 60
    problem(refused[0], 429, "too-many")
    assert refused[0].headers["retry-after"] == "1"
    assert small.get("/v1/models").status_code == 200


def test_other_pages_may_ask_only_if_they_are_named(small):
    for origin, allowed in (("https://example.org", True), ("https://example.com", False)):
        asked = {"origin": origin, "access-control-request-method": "POST"}
        answer = small.client.options("/v1/translate", headers=asked)
        assert ("access-control-allow-origin" in answer.headers) == allowed
        plain = small.get("/v1/models", headers={"origin": origin})
        assert plain.headers.get("access-control-allow-origin") == (origin if allowed else None)
        if allowed:
            assert {"X-Pieces", "X-Dtype", "X-Shape"} <= {*plain.headers["access-control-expose-headers"].split(", ")}


def test_too_many_at_once_are_told_to_come_again(taught):
    with serving(taught, "--set", "max_queue=4", "--set", "max_requests=12") as server:

        def ask(_):
            return server.post("/v1/translate", {"text": TEXTS, "beam": 8})

        with ThreadPoolExecutor(24) as pool:
            answers = list(pool.map(ask, range(24)))
        busy = [answer for answer in answers if answer.status_code == 503]
        assert busy
        for answer in busy:
            problem(answer, 503, "busy")
            assert answer.headers["retry-after"] == "1"
        good = [answer.json()["translations"] for answer in answers if answer.status_code == 200]
        good = [[one["text"] for one in some] for some in good]
        assert len(good) + len(busy) == 24
        assert good
        assert all(one == good[0] for one in good)
        assert server.translate("a")


def test_an_answer_that_takes_too_long_is_given_up(taught):
    with serving(taught, "--set", "deadline=0.2", "--engine", "torch") as server:
        detail = problem(server.post("/v1/translate", {"text": TEXTS * 6, "beam": 8}), 503, "deadline")
        assert detail == "it was not there after 0.2 seconds; ask for less."
        deadline = time.monotonic() + 10
        while server.post("/v1/translate", {"text": "a", "beam": 1}).status_code != 200:
            assert time.monotonic() < deadline


def test_models_are_loaded_when_they_are_asked_for_and_given_up_when_there_is_no_room(taught, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(taught, other)
    memory = 1.5 * (taught / "model.safetensors").stat().st_size / 2**30
    with serving(f"one={taught}", f"two={other}", "--set", f"memory={memory:.9f}", "--engine", "torch") as server:

        def loaded():
            return [one["loaded"] for one in server.get("/v1/models").json()["models"]]

        expected = server.translate(TEXTS[:3])
        assert loaded() == [True, False]
        assert server.translate(TEXTS[:3], model="two") == expected
        assert loaded() == [False, True]
        with ThreadPoolExecutor(8) as pool:  # whatever is given up meanwhile
            found = list(pool.map(lambda i: server.translate(TEXTS[:3], model=("one", "two")[i % 2]), range(16)))
        assert all(one == expected for one in found)
        assert sum(loaded()) == 1
        (other / "model.safetensors").write_bytes(b"nothing")
        server.translate("a", model="one")
        detail = problem(server.post("/v1/translate", {"text": "a", "model": "two"}), 503, "unavailable")
        assert detail == "the model two cannot be loaded; the log says why."
        assert str(other) not in detail


def test_a_model_is_loaded_anew_without_dropping_requests(taught, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(taught, folder)
    with serving(folder, "--engine", "torch") as server, ThreadPoolExecutor(8) as pool:
        before = server.translate(TEXTS[0], details=True)
        running = [pool.submit(server.translate, TEXTS[i % 40]) for i in range(60)]
        model = load_model(folder)
        model.classifier.weight.data.mul_(0.5)
        save_model(model, folder, load_tokenizer(folder))
        server.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 30
        while server.translate(TEXTS[0], details=True) == before:
            assert time.monotonic() < deadline
        assert all(one.result() for one in running)
        (folder / "model.safetensors").write_bytes(b"nothing")
        after = server.translate(TEXTS[0], details=True)
        server.process.send_signal(signal.SIGHUP)
        while "reload failed" not in server.log:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert server.translate(TEXTS[0], details=True) == after


def test_a_service_that_is_stopped_finishes_what_it_has_begun(taught):
    """Clients ask again and again until they are told to go. What was under way is answered; nobody is left with half
    an answer, or finds the door shut."""
    outcomes = []

    async def client(server, number):
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            answer = None
            while answer is None or answer.status_code == 200:
                answer = await http.post("/v1/translate", json={"text": TEXTS[number % 40], "beam": 4})
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

    with serving(taught, "--engine", "torch") as server:
        stopped = asyncio.run(load(server))
        assert server.process.wait(20) == 0
    assert {kind for kind, when in outcomes if when <= stopped} == {200}
    assert [kind for kind, when in outcomes if when > stopped].count(503) == 16


def test_a_service_that_was_killed_serves_again(taught):
    with serving(taught) as server:
        answer = server.translate(TEXTS[0])
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    with serving(taught) as again:
        assert again.translate(TEXTS[0]) == answer


def test_traces_are_remembered_and_forgotten_by_several_threads(engine):
    """One adds, and so forgets older ones, while another asks for all of them."""
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


@pytest.mark.parametrize(
    "wrong", ["missing", "damaged", "cut", "taken", "host", "same name", "bad name", "keys", "option"]
)
def test_what_cannot_be_served_is_told_in_one_sentence(taught, tmp_path, wrong):
    folder = tmp_path / "model"
    shutil.copytree(taught, folder)
    arguments, expected = [folder], ""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        if wrong == "missing":
            arguments, expected = [tmp_path / "none"], f"{tmp_path / 'none'}"
        elif wrong == "damaged":
            (folder / "model.safetensors").write_bytes(b"x" * 5000)
            expected = f"{folder / 'model.safetensors'}: the weights are missing or damaged."
        elif wrong == "cut":
            whole = (folder / "model.safetensors").read_bytes()
            (folder / "model.safetensors").write_bytes(whole[:-100])
            expected = f"{folder / 'model.safetensors'}: the weights are missing or damaged."
        elif wrong == "taken":
            arguments, expected = [folder, "--port", taken.getsockname()[1]], "choose another one by --port."
        elif wrong == "host":
            arguments, expected = [folder, "--host", "a..b"], "of a..b cannot be used"
        elif wrong == "same name":
            arguments, expected = [folder, folder], "two models are called model;"
        elif wrong == "bad name":
            arguments, expected = [f"a b={folder}"], "'a b': a model is called by letters, digits, - _ and .;"
        elif wrong == "keys":
            (tmp_path / "keys").write_text("anna short")
            arguments, expected = [folder, "--keys", tmp_path / "keys"], "line 1: the key of anna is too short"
        else:
            arguments, expected = [folder, "--set", "max_beam=3"], "max_beams"
        command = [sys.executable, "-m", "sightline.cli.main", "serve", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_who_serves_everybody_is_warned(taught):
    with serving(taught, "--host", "0.0.0.0") as server:
        assert "Anybody who reaches 0.0.0.0 may ask: there are no keys (--keys)." in server.log
        port = server.url.rsplit(":", 1)[1]
        assert httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200


def test_the_document_describes_the_service(server, tmp_path):
    """schemathesis makes requests of all kinds from the OpenAPI document; each answer must be as the document says."""
    document = server.get("/openapi.json").json()
    assert document["paths"].keys() >= {"/v1/translate", "/v1/translate/stream", "/v1/score", "/v1/trace", "/v1/beams"}
    assert all(route["post"].get("requestBody") for route in document["paths"].values() if "post" in route)
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--max-examples", "8"]
    command += ["--checks", "all", "--request-timeout", "30", "--suppress-health-check", "all"]
    # What is valid field by field may still ask for what cannot be: a prefix for two lines, samples with given words.
    # And what is too much is refused by a status of its own.
    (tmp_path / "schemathesis.toml").write_text(
        'checks.positive_data_acceptance.expected-statuses = ["2xx", 404, 413, 422]\n'
        "checks.negative_data_rejection.expected-statuses = [400, 404, 405, 413, 415, 422]\n"
    )
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, "NO_COLOR": "1"}
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
