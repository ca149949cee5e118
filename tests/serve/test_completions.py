"""The routes of OpenAI's API: its official client, sync and async, against the real command line."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

import sightline
from serving import check_document, problem, serving
from sightline.config import ServeConfig
from sightline.data.builtin import generate
from sightline.errors import InputError
from sightline.serve.app import create_app
from sightline.serve.models import Models
from sightline.serve.service import Service

TEXTS = [pair.source for pair in generate("test", 12)]
MODEL = "writing"


@pytest.fixture(scope="module")
def engine(writing):
    return sightline.load(writing, device="cpu")


@pytest.fixture(scope="module")
def server(writing, taught):
    with serving(f"tiny-en-de={taught}", writing, "--set", "max_nbest=4", "--set", "max_top_k=50") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    """Without keys in the service, any key is accepted."""
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="anything", max_retries=0)


def create(client, **more):
    return client.completions.create(**{"model": MODEL, "prompt": TEXTS[0], "max_tokens": 20, **more})


def ids_of(engine, text):
    return engine.tokenizer.encode([text])[0]


def test_a_continuation_is_the_engines(client, engine):
    found = create(client, seed=5)
    (expected,) = engine.complete(TEXTS[0], max_tokens=20, seed=5)
    (choice,) = found.choices
    assert (choice.text, choice.finish_reason, choice.index) == (expected.text, expected.finish_reason, 0)
    assert choice.logprobs is None
    assert (found.object, found.model) == ("text_completion", MODEL)
    assert found.id.startswith("cmpl-")
    read, written = len(ids_of(engine, TEXTS[0])), len(expected.ids)
    assert found.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"temperature": 0}, {"beams": 1}),
        ({"seed": 3, "temperature": 2, "top_p": 0.8}, {"seed": 3, "temperature": 2.0, "top_p": 0.8}),
        ({"seed": 3, "top_p": 0}, {"beams": 1}),
        ({"temperature": 0, "frequency_penalty": 1.5}, {"beams": 1, "frequency_penalty": 1.5}),
        ({"temperature": 0, "presence_penalty": 2}, {"beams": 1, "presence_penalty": 2.0}),
        ({"temperature": 0, "logit_bias": {"40": 100}}, {"beams": 1, "bias": {40: 100.0}}),
        ({"seed": 1, "extra_body": {"top_k": 5, "min_p": 0.1}}, {"seed": 1, "top_k": 5, "min_p": 0.1}),
        (
            {"temperature": 0, "extra_body": {"repetition_penalty": 1.9}},
            {"beams": 1, "repetition_penalty": 1.9},
        ),
    ],
    ids=str,
)
def test_options_of_a_search(client, engine, fields, options):
    (expected,) = engine.complete(TEXTS[1], max_tokens=20, **options)
    assert create(client, prompt=TEXTS[1], **fields).choices[0].text == expected.text


def test_prompts_are_texts_or_ids(client, engine):
    texts = TEXTS[:3]
    ids = [ids_of(engine, text) for text in texts]
    expected = [create(client, prompt=text, temperature=0).choices[0].text for text in texts]
    assert create(client, prompt=ids[1], temperature=0).choices[0].text == expected[1]
    for prompt in (texts, ids):
        choices = create(client, prompt=prompt, temperature=0).choices
        assert [one.index for one in choices] == [0, 1, 2]
        assert [one.text for one in choices] == expected
    empty = create(client, prompt="", temperature=0)
    assert empty.choices[0].text == engine.complete("", beams=1, max_tokens=20)[0].text
    assert empty.usage.prompt_tokens == 0


def test_max_tokens_is_16_by_default(client):
    found = client.completions.create(model=MODEL, prompt=TEXTS[0], temperature=0, logit_bias={"2": -100})
    assert found.usage.completion_tokens == 16
    assert found.choices[0].finish_reason == "length"


def test_several_choices_differ_and_a_seed_repeats_them(client):
    found = create(client, prompt=TEXTS[:2], n=3, seed=-7)
    texts = [one.text for one in found.choices]
    assert [one.index for one in found.choices] == list(range(6))
    assert len(set(texts)) == 6
    assert texts == [one.text for one in create(client, prompt=TEXTS[:2], n=3, seed=-7).choices]
    assert texts[0] == create(client, seed=-7).choices[0].text
    assert len({create(client).choices[0].text for _ in range(3)}) == 3, "without a seed, answers differ"


def test_log_probabilities_of_tokens_and_of_the_likeliest(client, engine):
    found = create(client, seed=2, logprobs=3).choices[0]
    (expected,) = engine.complete(TEXTS[0], seed=2, max_tokens=20, top=3)
    written = len(expected.ids)
    assert found.logprobs.token_logprobs == pytest.approx(expected.log_probs[:written], abs=1e-4)
    assert found.logprobs.tokens == [engine.tokenizer.token_text(one) for one in expected.ids]
    for token, own, likely, best in zip(
        found.logprobs.tokens, found.logprobs.token_logprobs, found.logprobs.top_logprobs, expected.top, strict=False
    ):
        assert likely[token] == pytest.approx(own, abs=1e-6)
        assert sorted(likely.values(), reverse=True)[:3] == pytest.approx([one.log_prob for one in best][:3], abs=1e-4)
        assert len(likely) in (3, 4)
    check_offsets(found)
    none = create(client, seed=2, logprobs=0).choices[0].logprobs
    assert (none.tokens, none.top_logprobs) == (found.logprobs.tokens, None)


def check_offsets(choice):
    offsets = choice.logprobs.text_offset
    assert len(offsets) == len(choice.logprobs.tokens)
    assert offsets == sorted(offsets)
    before, checked = "", 0
    for offset, token in zip(offsets, choice.logprobs.tokens, strict=True):
        if not (before + token).count("<0x"):  # the text of a byte is known when its character is complete
            assert choice.text[offset:].startswith(token if offset else token.lstrip())
            checked += 1
        before = token
    assert checked > 2


def test_echo_returns_the_prompt_and_its_log_probabilities(client, engine):
    plain, found = create(client, seed=4), create(client, seed=4, echo=True)
    assert found.choices[0].text == TEXTS[0] + plain.choices[0].text
    scored = engine.score(TEXTS[0], top=2)
    (choice,) = create(client, seed=4, echo=True, logprobs=2).choices
    count = len(scored.ids)
    assert choice.logprobs.token_logprobs[:count] == pytest.approx(scored.log_probs, abs=1e-4)
    assert choice.logprobs.tokens[:count] == [engine.tokenizer.token_text(one) for one in scored.ids]
    assert choice.logprobs.text_offset[count] == len(TEXTS[0])
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == len(choice.logprobs.top_logprobs)
    check_offsets(choice)
    # lm-evaluation-harness asks for no new tokens at all.
    (alone,) = create(client, max_tokens=0, echo=True, logprobs=2).choices
    assert (alone.text, alone.finish_reason) == (TEXTS[0], "length")
    assert alone.logprobs.token_logprobs == pytest.approx(scored.log_probs, abs=1e-4)
    assert create(client, max_tokens=0).usage.completion_tokens == 0


def test_a_stop_string_ends_the_text(client, engine):
    whole = create(client, seed=6, max_tokens=40).choices[0].text
    stop = whole[9:12]
    found = create(client, seed=6, max_tokens=40, stop=[stop, "never there"], logprobs=0)
    (choice,) = found.choices
    assert choice.text == whole[: whole.index(stop)]
    assert choice.finish_reason == "stop"
    assert found.usage.completion_tokens == len(choice.logprobs.tokens)
    assert all(offset < max(1, len(choice.text)) for offset in choice.logprobs.text_offset)
    assert create(client, seed=6, max_tokens=40, stop=stop).choices[0].text == choice.text


def collected(chunks):
    """Return the choices that chunks make: their text, log-probabilities and reason."""
    texts, tokens, reasons = {}, {}, {}
    for chunk in chunks:
        for choice in chunk.choices:
            assert choice.index not in reasons, "no chunk follows the last one of a choice"
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            if choice.logprobs:
                for name, values in choice.logprobs.model_dump(exclude_none=True).items():
                    tokens.setdefault((choice.index, name), []).extend(values)
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    return texts, tokens, reasons


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"seed": 8, "n": 3, "prompt": TEXTS[:2]},
        {"seed": 8, "echo": True, "logprobs": 2},
        {"seed": 8, "logprobs": 1, "n": 2, "stop": ["e", "zz"]},
        {"seed": 8, "max_tokens": 0, "echo": True, "logprobs": 1},
    ],
    ids=str,
)
def test_a_stream_equals_the_whole_answer(client, fields):
    whole, chunks = create(client, **fields), list(create(client, stream=True, **fields))
    texts, tokens, reasons = collected(chunks)
    for choice in whole.choices:
        assert texts[choice.index] == choice.text
        assert reasons[choice.index] == choice.finish_reason
        for name, values in (choice.logprobs.model_dump(exclude_none=True) if choice.logprobs else {}).items():
            mine = tokens.get((choice.index, name), [])
            if name == "token_logprobs":
                assert mine == pytest.approx(values, abs=1e-4)
            elif name == "top_logprobs":
                assert [sorted(one) for one in mine] == [sorted(one) for one in values]
            else:
                assert mine == values
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)
    if fields.get("max_tokens") != 0:
        assert len(chunks) > len(whole.choices)


def events(server, **fields):
    """Return the data of the events of a streamed answer, as they are sent."""
    body = {"model": MODEL, "prompt": TEXTS[0], "stream": True, "max_tokens": 12, "seed": 1, **fields}
    with server.client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    return [line.removeprefix("data: ") for line in lines]


def test_each_chunk_has_a_finish_reason_and_the_last_is_done(server):
    """Others leave out `finish_reason: null` (vllm#19650) or end with null (vllm#27572)."""
    *chunks, done = events(server, n=2)
    assert done == "[DONE]"
    choices = [choice for chunk in chunks for choice in json.loads(chunk)["choices"]]
    assert all("finish_reason" in choice and "logprobs" in choice for choice in choices)
    for index in (0, 1):
        *before, last = [choice["finish_reason"] for choice in choices if choice["index"] == index]
        assert set(before) <= {None}
        assert last in ("stop", "length")


def test_the_usage_is_in_a_chunk_of_its_own(server, client):
    """Others send it in another chunk, or with choices (llama.cpp#22081, llama-cpp-python#1640)."""
    *chunks, last, done = events(server, stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert json.loads(last)["choices"] == []
    whole = create(client, seed=1, max_tokens=12).usage
    assert json.loads(last)["usage"] == whole.model_dump(exclude_none=True)
    assert all(json.loads(chunk)["usage"] is None for chunk in chunks)
    for options in ({}, {"stream_options": {"include_usage": False}}, {"stream_options": None}):
        assert all("usage" not in json.loads(chunk) for chunk in events(server, **options)[:-1])


def test_no_chunk_has_a_part_of_a_stop_string(server, client):
    whole = create(client, seed=1, max_tokens=40).choices[0].text
    for begin in range(3, len(whole) - 6, 6):
        stop = whole[begin : begin + 4]
        parts = [json.loads(one)["choices"][0]["text"] for one in events(server, max_tokens=40, stop=stop)[:-1]]
        assert "".join(parts) == whole[: whole.index(stop)]


def test_the_async_client(server, engine):
    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
            found, stream = await asyncio.gather(create(client, seed=3), create(client, seed=3, stream=True))
            texts, _, _ = collected([chunk async for chunk in stream])
            assert texts == {0: found.choices[0].text}
            many = await asyncio.gather(*(create(client, prompt=text, temperature=0) for text in TEXTS))
            for text, one in zip(TEXTS, many, strict=True):
                assert one.choices[0].text == engine.complete(text, beams=1, max_tokens=20)[0].text
            with pytest.raises(openai.BadRequestError):
                await create(client, suffix="x")
            return [one.id async for one in client.models.list()]

    assert asyncio.run(ask()) == ["tiny-en-de", MODEL]


def test_requests_with_other_seeds_share_batches(server, client):
    """Each answer is the same as alone, and some batches have several requests."""

    def batches():
        lines = server.get("/metrics").text.splitlines()
        (line,) = [one for one in lines if one.startswith("sightline_batch_sentences_count")]
        return float(line.split()[1])

    alone = [create(client, prompt=text, seed=i, max_tokens=60).choices[0].text for i, text in enumerate(TEXTS)]
    before = batches()
    with ThreadPoolExecutor(12) as pool:
        found = list(
            pool.map(
                lambda i: create(client, prompt=TEXTS[i % 12], seed=i % 12, max_tokens=60).choices[0].text, range(36)
            )
        )
    assert found == alone * 3
    assert batches() - before < 36


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"suffix": "end"}, openai.BadRequestError, "suffix"),
        ({"best_of": 2}, openai.BadRequestError, "best_of"),
        ({"n": 5}, openai.BadRequestError, "n"),
        ({"n": 0}, openai.BadRequestError, "n"),
        ({"max_tokens": -1}, openai.BadRequestError, "max_tokens"),
        ({"logprobs": 21}, openai.BadRequestError, "logprobs"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"stop": ""}, openai.BadRequestError, "stop"),
        ({"logit_bias": {"x": 1}}, openai.BadRequestError, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, openai.BadRequestError, "logit_bias"),
        ({"prompt": [5, 99999]}, openai.BadRequestError, "prompt"),
        ({"prompt": []}, openai.BadRequestError, "prompt"),
        ({"prompt": "x " * 200}, openai.BadRequestError, "prompt"),
        ({"stream_options": {"include_usage": True}}, openai.BadRequestError, "stream_options"),
        ({"extra_body": {"top_k": 51}}, openai.BadRequestError, "top_k"),
        ({"extra_body": {"temprature": 1}}, openai.BadRequestError, "temprature"),
        ({"model": "tiny-en-de"}, openai.BadRequestError, "model"),
        ({"model": "other"}, openai.NotFoundError, "model"),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_name_the_field(client, fields, error, param, stream):
    if stream and "stream_options" in fields:
        pytest.skip("a stream has these options")
    with pytest.raises(error) as raised:
        create(client, stream=stream, **fields)
    found = raised.value
    assert (found.param, found.type) == (param, "invalid_request_error")
    assert found.code == ("model_not_found" if error is openai.NotFoundError else "invalid")
    assert found.body["message"].endswith(".")
    assert param in found.body["message"] or error is openai.NotFoundError


@pytest.fixture
def app(writing):
    """The service in this process, with its engine."""
    engine = sightline.load(writing, device="cpu")
    service = Service(Models({MODEL: writing}, lambda _: engine), ServeConfig())
    app = create_app(service)
    yield app, engine
    service.close()


def test_an_error_within_a_stream_is_an_event(app, monkeypatch):
    app, engine = app
    steps = engine.model.step

    def fail(tokens, state):
        if fail.count == 5:
            raise InputError("The sixth step fails.", option="seed")
        fail.count += 1
        return steps(tokens, state)

    fail.count = 0
    monkeypatch.setattr(engine.model, "step", fail)

    async def ask():
        transport = httpx.AsyncClient(transport=httpx.ASGITransport(app))
        async with openai.AsyncOpenAI(base_url="http://sightline/v1", api_key="x", http_client=transport) as client:
            stream = await create(client, stream=True, logit_bias={"2": -100})
            assert (await anext(stream)).choices
            with pytest.raises(openai.APIError) as raised:
                assert not [chunk async for chunk in stream if chunk.usage]
            return raised.value

    error = asyncio.run(ask())
    assert (error.message, error.type, error.param) == ("The sixth step fails.", "invalid_request_error", "seed")


def test_a_client_that_disconnects_frees_its_slot(app, monkeypatch, caplog):
    """The model stops at the tenth step until the connection is closed, and makes no more than a few steps after it."""
    app, engine = app
    steps, closed, written = engine.model.step, threading.Event(), threading.Event()
    counted = []

    def count(tokens, state):
        counted.append(1)
        if len(counted) == 10:
            assert closed.wait(60)
        return steps(tokens, state)

    monkeypatch.setattr(engine.model, "step", count)
    body = {"prompt": "", "max_tokens": 120, "stream": True, "logit_bias": {"2": -100}}
    messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    headers = [(b"content-type", b"application/json"), (b"host", b"sightline")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": headers}

    async def receive():
        if messages:
            return messages.pop()
        while not written.is_set():
            await asyncio.sleep(0.001)
        return {"type": "http.disconnect"}

    async def send(message):
        if message.get("body"):
            written.set()

    more = {"http_version": "1.1", "root_path": "", "asgi": {"version": "3.0", "spec_version": "2.3"}}
    asyncio.run(app({**scope, **more}, receive, send))
    closed.set()
    app.state.service.close()
    assert 1 <= len(counted) <= 12
    assert [one.levelname for one in caplog.records if "error" in one.about] == []


def test_keys_are_checked_if_there_are_any(writing, tmp_path):
    keys = tmp_path / "keys.txt"
    keys.write_text("anna 0123456789abcdef\n")
    with serving(writing, "--keys", keys) as server:
        url = f"{server.url}/v1"
        assert create(openai.OpenAI(base_url=url, api_key="0123456789abcdef"), seed=1).choices
        with pytest.raises(openai.AuthenticationError) as raised:
            create(openai.OpenAI(base_url=url, api_key="wrong", max_retries=0))
        assert raised.value.type == "authentication_error"
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=url, api_key="wrong", max_retries=0).models.list()


def test_models_have_our_fields_inside_openais(client, server):
    models = client.models.list().data
    assert [(one.id, one.object, one.owned_by) for one in models] == [
        ("tiny-en-de", "model", "sightline"),
        (MODEL, "model", "sightline"),
    ]
    assert all(one.created > 1_500_000_000 for one in models)
    assert [one.task for one in models] == ["translate", "write"]
    assert client.models.retrieve(MODEL).model_dump() == models[1].model_dump()
    with pytest.raises(openai.NotFoundError) as raised:
        client.models.retrieve("other")
    assert raised.value.code == "model_not_found"
    assert server.get("/v1/models").json()["object"] == "list"


def test_the_route_is_there_if_a_model_writes(taught):
    with serving(taught) as server:
        assert "/v1/completions" not in server.get("/openapi.json").json()["paths"]
        answer = server.post("/v1/completions", {"prompt": "x"})
        problem(answer, 404, "not-found")
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_the_model_is_the_first_that_writes_by_default(server, client):
    answer = server.post("/v1/completions", {"prompt": TEXTS[0], "seed": 1, "max_tokens": 20})
    assert answer.json()["model"] == MODEL
    assert answer.json()["choices"][0]["text"] == create(client, seed=1).choices[0].text


def test_openapi_document_matches_the_service(server, tmp_path):
    """An invalid request has OpenAI's status, 400."""
    assert "/v1/completions" in server.get("/openapi.json").json()["paths"]
    check_document(server, tmp_path, "--include-path", "/v1/completions", "--include-path", "/v1/models", also=[400])
