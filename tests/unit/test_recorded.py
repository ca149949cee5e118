"""A search with recorded steps, whose slots have more room than it needs, finds what an eager search finds: on a GPU,
where steps are CUDA graphs, and on a CPU, where each step is computed in the slot."""

import contextlib
import random

import pytest
import torch

from searching import ARCHITECTURES, model_of, request_of
from sightline.config import SearchConfig
from sightline.search import driver, recorded
from sightline.search.beam import Beams
from sightline.search.driver import search, steps
from sightline.search.recorded import POOLS, GraphPool, graph_pool, structure
from sightline.search.sampling import Samples
from sightline.search.types import Constraints, Limits

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
on_cuda = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")


@pytest.fixture(params=ARCHITECTURES)
def model(request):
    torch.set_float32_matmul_precision("highest")
    return model_of(request.param, "pre-norm", 3, vocab_size=600).to(DEVICE)


@pytest.fixture
def pool(model, monkeypatch):
    """The graph pool of the model, which searches use on a CPU too."""
    pool = GraphPool(model)

    @contextlib.contextmanager
    def take(_):
        assert pool.locked.acquire(blocking=False)
        try:
            yield pool
        finally:
            pool.locked.release()

    monkeypatch.setattr(driver, "graph_pool", take)
    monkeypatch.setattr(recorded, "FEW", 8)  # so that batches shrink
    return pool


def texts(count, longest=20):
    chance = random.Random(count)
    return [[chance.randrange(4, 600) for _ in range(chance.randrange(longest))] for _ in range(count)]


def requests_of(model, count, options, cut=False, longest=20):
    constraints = [Constraints(prefix=[5, 6][: i % 3]) for i in range(count)]
    both = zip(texts(count, longest), constraints, strict=True)
    found = [request_of(model, text, options, own) for text, own in both]
    return [request._replace(limits=request.limits._replace(cut=cut)) for request in found]


def eagerly(monkeypatch, *arguments):
    with monkeypatch.context() as patch:
        patch.setattr(driver, "graph_pool", lambda _: contextlib.nullcontext())
        return search(*arguments)


OPTIONS = [
    {"beams": 1},
    {"beams": 4, "nbest": 4},
    {"beams": 5, "length_penalty": 0.0, "stop": "best"},
    {"beams": 6, "groups": 3, "nbest": 6},
    {"beams": 3, "min_ratio": 0.9, "max_ratio": 1.0},
    {"beams": 3, "nbest": 3, "sample": True, "top_k": 7},
    {"beams": 2, "nbest": 2, "sample": True, "top_p": 0.9, "temperature": 0.7},
    {"beams": 3, "presence_penalty": 0.7, "frequency_penalty": 0.5, "repetition_penalty": 1.3},
    {"beams": 2, "sample": True, "frequency_penalty": -0.5, "repetition_penalty": 1.2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("cut", [False, True])
def test_recorded_steps_find_the_same(model, pool, monkeypatch, options, cut):
    options = SearchConfig(**{"max_ratio": 1.0, **options})
    for count in (1, 19):
        requests = requests_of(model, count, options, cut)
        expected = eagerly(monkeypatch, model, requests, options)
        for mine, theirs in zip(search(model, requests, options), expected, strict=True):
            assert [one.ids for one in mine] == [one.ids for one in theirs]
            for one, other in zip(mine, theirs, strict=True):
                assert one.score == pytest.approx(other.score, rel=1e-6, abs=1e-5)
                assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)
    assert len(pool.slots) > 2  # batches have shrunk
    assert not pool.locked.locked()


def test_options_that_keep_the_structure_share_a_slot(model, pool, monkeypatch):
    """Temperature, top-p and penalties are tensors: a search with other values reuses the steps and finds its own."""
    samples = [{"temperature": 0.5}, {"temperature": 1.5, "top_p": 0.8}, {"min_p": 0.2}, {"seed": 9}]
    penalised = [{"repetition_penalty": 1.1}, {"repetition_penalty": 1.4, "presence_penalty": 0.5}]
    beams = [{"length_penalty": 0.0}, {"length_penalty": 2.0, "nbest": 3}, {"patience": 1.0}, {"nbest": 2}]
    for same, varied in (({"beams": 2, "sample": True}, samples), ({"beams": 3}, beams), ({"beams": 1}, penalised)):
        slots, differ = None, 0
        for more in varied:
            options = SearchConfig(max_ratio=1.0, **same, **more)
            requests = requests_of(model, 3, options)
            expected = eagerly(monkeypatch, model, requests, options)
            for mine, theirs in zip(search(model, requests, options), expected, strict=True):
                differ += [one.ids for one in mine] != [one.ids for one in theirs]
            slots = slots or set(pool.slots)
            assert set(pool.slots) == slots
        # Of 600 tokens, one may end within 1e-6 of a draw; that is not known before.
        assert differ <= ("sample" in same)
    (request,) = requests_of(model, 1, SearchConfig())
    five, seven = (Samples([request], SearchConfig(sample=True, top_k=k), model.device) for k in (5, 7))
    assert structure(five) == structure(seven)
    later = request._replace(limits=request.limits._replace(least=1))
    plain, least = (Beams([one], SearchConfig(beams=2), model.device) for one in (request, later))
    assert structure(plain) != structure(least)


def test_streamed_steps_find_the_same(model, pool, monkeypatch):
    for beams in (1, 4):
        options = SearchConfig(beams=beams, max_ratio=1.0)
        requests = requests_of(model, 19, options)
        streamed = range(0, 19, 3) if beams == 1 else ()
        expected = eagerly(monkeypatch, model, requests, options)
        answers, tokens = {}, {}
        for update in steps(model, requests, options, streamed=streamed, eager=True):
            answers |= update.answers
            for i, token in update.tokens.items():
                tokens.setdefault(i, []).append(token.id)
        assert [answers[i][0].ids for i in range(19)] == [best.ids for (best,) in expected]
        assert [tokens.get(i, []) for i in streamed] == [expected[i][0].ids for i in streamed]
        assert not pool.locked.locked()


def test_a_closed_stream_releases_the_pool(model, pool):
    options = SearchConfig(beams=1)
    requests = requests_of(model, 2, options)
    updates = steps(model, requests, options, streamed=[0])
    next(updates)
    assert pool.locked.locked()
    updates.close()
    assert not pool.locked.locked()


def test_a_longer_search_gets_larger_storage(model, pool, monkeypatch):
    options, size = SearchConfig(beams=2, max_ratio=1.0), len(pool.storage)
    for longest in (5, 60, 5):
        requests = requests_of(model, 9, options, longest=longest)
        expected = eagerly(monkeypatch, model, requests, options)
        assert [best.ids for (best,) in search(model, requests, options)] == [best.ids for (best,) in expected]
        assert len(pool.storage) >= size
        size = len(pool.storage)


def test_a_cpu_records_nothing():
    with graph_pool(model_of("encoder-decoder")) as pool:
        assert pool is None


@on_cuda
def test_hooks_and_moved_weights_are_not_served_by_old_graphs(model):
    options = SearchConfig(beams=2)
    search(model, requests_of(model, 5, options), options)
    first = POOLS[model]
    assert any(slot.graphs for slot in first.slots.values())
    hook = model.decoder.register_forward_hook(lambda *_: None)
    with graph_pool(model) as pool:
        assert pool is None
    hook.remove()
    model.classifier.weight.data = model.classifier.weight.data.flip(0).clone()
    if model.config.tie != "none":
        model.decoder.embedding.tokens.weight.data = model.classifier.weight.data
    with graph_pool(model) as pool:
        assert pool is not None
        assert pool is not first


@on_cuda
def test_one_search_at_a_time_has_the_pool(model):
    options = SearchConfig(beams=1)
    requests = requests_of(model, 2, options)
    updates = steps(model, requests, options, streamed=[0])
    next(updates)
    with graph_pool(model) as pool:
        assert pool is None
    assert search(model, requests, options)
    updates.close()


def test_a_slot_takes_texts_with_different_limits(model, pool, monkeypatch):
    options = SearchConfig(beams=2)
    requests = [
        request._replace(limits=Limits(n, cut=n % 2 == 0))
        for n, request in enumerate(requests_of(model, 9, SearchConfig(beams=2, max_ratio=1.0)), 4)
    ]
    expected = eagerly(monkeypatch, model, requests, options)
    assert [best.ids for (best,) in search(model, requests, options)] == [best.ids for (best,) in expected]
