"""The chat: replies of encoder-decoder and decoder-only models, streamed or whole, and traces of what was written."""

from itertools import chain

import pytest
import torch

import sightline
from sightline.config import ModelConfig, SearchConfig
from sightline.data.builtin import generate
from sightline.engine import Chat, Reply
from sightline.errors import ConfigError, InputError
from sightline.model_folder import save_model
from sightline.special import END, START
from sightline.text.dialogue import ROLE_TOKENS, DialogueFormat, Turn, alternating_turns
from sightline.text.tokenizer import Tokenizer
from support import difference, raises, random_weights

LINES = [text for pair in generate("train", 300) for text in (pair.source, pair.target)]
VOCABULARIES = {"plain": Tokenizer.train(LINES, 500), "roles": Tokenizer.train(LINES, 500, [*ROLE_TOKENS.values()])}
STACK = {"layers": 1, "heads": 4, "d_ff": 48}
POSITIONS = 64
HISTORIES = [
    ["The dog sleeps."],
    ["The dog sleeps.", "Good.", "Why is it good?"],
    ["Hello", "", "The cat sees the dog."],
    ["x"],
    [""],
]
SEARCHES = [{"beams": 1}, {"n": 3, "beams": 4}, {"n": 3, "temperature": 2.0, "seed": 3}]
every_search = pytest.mark.parametrize("options", SEARCHES, ids=["greedy", "beams", "samples"])


@pytest.fixture(
    scope="module",
    params=[(architecture, kind) for architecture in ("encoder-decoder", "decoder-only") for kind in VOCABULARIES],
    ids="-".join,
)
def chat(request, tmp_path_factory):
    """A dialogue model with random weights that ends its replies now and then, loaded from disk."""
    architecture, kind = request.param
    torch.manual_seed(4)
    tokenizer, folder = VOCABULARIES[kind], tmp_path_factory.mktemp("chat")
    sizes = {"d_model": 32, "encoder": STACK, "decoder": STACK, "positions": {"max_length": POSITIONS}}
    config = ModelConfig(architecture=architecture, vocab_size=tokenizer.size, classifier_bias=True, **sizes)
    model = random_weights(sightline.build(config))
    with torch.no_grad():
        model.classifier.bias[END] += 1.0
    save_model(model, folder, tokenizer, task="chat")
    engine = sightline.load(folder, device="cpu")
    assert isinstance(engine, Chat)
    return engine


def read(chat, history):
    """Return what the encoder (None without one) and the decoder read before the reply, by the format of training."""
    turns = [*alternating_turns(history), Turn("assistant", "")]
    form = DialogueFormat(chat.tokenizer)
    encoded = form.encode(turns)
    if chat.history_in == "target":
        return None, [START, *form.training_sequence(turns, encoded, 1000)[0][:-1]]
    *_, (source, target, _) = form.training_pairs(turns, encoded, 1000, 1000)
    return [*source, END], [START, *target]


@torch.no_grad()
def logits(chat, source, target):
    """Return the scores after each token of the target, by one pass without a cache."""
    sides = [side for side in (source, target) if side is not None]
    return chat.model(*(torch.tensor([side]) for side in sides))[0]


@pytest.mark.parametrize("history", HISTORIES, ids=len)
def test_greedy_replies_take_the_likeliest_token_each_time(chat, history):
    (found,) = chat.reply(history, max_tokens=8, beams=1)
    (source, begin), expected = read(chat, history), []
    while len(expected) < 8:
        scores = logits(chat, source, [*begin, *expected])[-1]
        scores[[0, 1, 3]] = -torch.inf
        if (best := int(scores.argmax())) == END:
            break
        expected.append(best)
    assert found.ids == expected
    assert found.segments[0].source_ids == (begin if source is None else source)
    assert found.text == chat.tokenizer.decode(expected)
    assert found.finish_reason == ("length" if len(expected) == 8 else "stop")


@every_search
@pytest.mark.parametrize("history", HISTORIES[:3], ids=len)
def test_traces_have_the_ids_that_were_read_and_written(chat, options, history):
    (source, begin) = read(chat, history)
    for one in chat.reply(history, max_tokens=10, **options):
        (segment,), trace = one.segments, chat.trace(one)
        target = [*begin, *segment.ids]
        assert trace.ids == ({"target": target} if source is None else {"source": source, "target": target})
        written = [*segment.ids, END][: len(segment.log_probs)]
        log_probs = trace["logits"].values[len(begin) - 1 :].log_softmax(-1)
        assert log_probs[range(len(written)), written].tolist() == pytest.approx(segment.log_probs, abs=1e-4)
        assert difference(trace["logits"].values, logits(chat, source, target)) <= 1e-5


def test_a_trace_of_a_history_has_the_models_own_reply(chat):
    (greedy,) = chat.reply(HISTORIES[1], beams=1, max_tokens=7)
    assert chat.trace(HISTORIES[1], max_tokens=7).ids == chat.trace(greedy).ids


@pytest.mark.parametrize("options", [{"beams": 1}, {"seed": 4, "temperature": 2.0}], ids=str)
def test_a_stream_gives_the_same_text(chat, options):
    most = 0
    for history in HISTORIES[:3]:
        pieces = list(chat.stream(history, max_tokens=12, **options))
        assert "".join(pieces) == chat.reply(history, max_tokens=12, **options)[0].text
        most = max(most, len(pieces))
    assert most > 1


@pytest.mark.parametrize("options", [{"beams": 3}, {"beams": 3, "sample": True, "seed": 7}], ids=["beams", "samples"])
def test_the_neighbours_of_a_dialogue_change_nothing(chat, options):
    search = SearchConfig(**options)
    together = chat.run(chat.plan(HISTORIES, search, max_tokens=9))
    for history, found in zip(HISTORIES, together, strict=True):
        (alone,) = chat.run(chat.plan([history], search, max_tokens=9))
        assert [(one.ids, one.text) for one in found] == [(one.ids, one.text) for one in alone]


def test_samples_are_the_default_and_a_seed_repeats_them(chat):
    found = chat.reply(HISTORIES[1], n=3, seed=5, max_tokens=9)
    assert [one.ids for one in found] == [
        one.ids for one in chat.reply(HISTORIES[1], 3, sample=True, seed=5, max_tokens=9)
    ]
    assert [one.ids for one in found] != [one.ids for one in chat.reply(HISTORIES[1], 3, seed=6)]
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


def test_a_string_is_one_turn_and_turns_have_roles(chat):
    def ids(history):
        return chat.plan([history], SearchConfig(), max_tokens=8).requests[0]

    assert ids("Hello") == ids(["Hello"]) == ids([Turn("user", "Hello")])
    turns = [Turn("system", "Be brief."), *alternating_turns(HISTORIES[1])]
    request, expected = ids(turns), DialogueFormat(chat.tokenizer).encode(turns)
    assert [*chain.from_iterable(expected)] == (request.source or request.given[1:][: sum(map(len, expected))])


def test_long_histories_lose_their_oldest_turns(chat):
    text = "The dog sleeps."
    (size,) = {len(ids) for ids in DialogueFormat(chat.tokenizer).encode([Turn("user", text)])}
    plan = chat.plan([[text] * 99], SearchConfig(), max_tokens=20)
    (request,) = plan.requests
    kept = request.source or request.given
    assert kept.count(END) == (POSITIONS if request.source else POSITIONS - 20 - len(chat._begin)) // size
    assert request.limits.most == 20
    system = [Turn("system", "Be brief."), *alternating_turns([text] * 99)]
    (request,) = chat.plan([system], SearchConfig()).requests
    first = DialogueFormat(chat.tokenizer).encode(system[:1])[0]
    assert (request.source or request.given[1:])[: len(first)] == first
    with raises(InputError, match="last turn"):
        chat.reply([text, "Good.", "dog " * 99])


def test_a_reply_ends_at_the_last_position(chat):
    (found,) = chat.reply("The dog sleeps.", max_tokens=1000, beams=1, forbid=[])
    (segment,) = found.segments
    trace = chat.trace(found)
    assert len(trace.ids["target"]) <= POSITIONS
    request = chat.plan(["x"], SearchConfig(), max_tokens=1000).requests[0]
    assert len(request.given) + request.limits.most == POSITIONS
    assert segment.ids == trace.ids["target"][len(request.given if request.source else segment.source_ids) :]


def test_each_text_is_encoded_once(chat, monkeypatch):
    seen, encode = [], chat.tokenizer.encode
    monkeypatch.setattr(chat.tokenizer, "encode", lambda texts: seen.extend(texts) or encode(texts))
    chat.plan([["a", "b", "a"], ["b", "a", "c"]], SearchConfig(), forbid=["c", "d"])
    assert sorted(seen) == ["a", "b", "c", "d"]


def test_forbidden_words_are_not_in_a_reply(chat):
    plain = chat.reply(HISTORIES[0], n=20, seed=1, max_tokens=9)
    words = [token.strip("▁") for one in plain for token in one.tokens if token.startswith("▁") and token[1:].isalpha()]
    (ids,) = chat.tokenizer.encode([words[0]])
    for one in chat.reply(HISTORIES[0], n=20, seed=1, max_tokens=9, forbid=[words[0]]):
        assert all(one.ids[i : i + len(ids)] != ids for i in range(len(one.ids)))


def test_invalid_histories_and_options_are_refused(chat):
    with raises(InputError, option="history", value=0):
        chat.reply([])
    with raises(InputError, option="history", value=2):
        chat.reply(["Hi", "Hello"])
    with raises(InputError, option="history"):
        chat.reply(["Hi", Turn("assistant", "Hello"), "x"])
    with raises(InputError, option="max_tokens", value=0):
        chat.reply("x", max_tokens=0)
    with raises(ConfigError, option="beams", value=2):
        list(chat.stream("x", beams=2))


def test_a_reply_is_readable(chat):
    (found,) = chat.reply(HISTORIES[0], beams=1, max_tokens=4)
    assert isinstance(found, Reply)
    assert repr(found).startswith(f"Reply({found.text!r}, score=")
