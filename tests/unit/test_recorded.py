"""Search on a stage, whose places have more room than it needs, finds what the plain one finds; on a GPU, where its
steps are recorded, as well as here, where each is done."""

import random

import pytest
import torch

from sightline.config import SearchConfig
from sightline.search import find as finding
from sightline.search import recorded
from sightline.search.find import find, follow, stream
from sightline.search.hypothesis import Wish
from sightline.search.recorded import STAGES, Stage, stage_of
from support import translator

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
on_cuda = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")


@pytest.fixture
def model():
    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(3)
    return translator("pre-norm", vocab_size=600).eval().to(DEVICE)


@pytest.fixture
def staged(model, monkeypatch):
    """The stage, also where there is no GPU."""
    stage = Stage(model)

    def take(_):
        assert stage.taken.acquire(blocking=False)
        return stage

    monkeypatch.setattr(finding, "stage_of", take)
    monkeypatch.setattr(recorded, "FEW", 8)  # so that some leave
    return stage


def sources(count, longest=20):
    chance = random.Random(count)
    return [[chance.randrange(4, 600) for _ in range(chance.randrange(longest))] for _ in range(count)]


def plainly(model, monkeypatch, *arguments):
    with monkeypatch.context() as patch:
        patch.setattr(finding, "stage_of", lambda _: None)
        return find(model, *arguments)


OPTIONS = [
    {"beams": 1},
    {"beams": 4, "nbest": 4},
    {"beams": 5, "length_penalty": 0.0, "stop": "best"},
    {"beams": 6, "groups": 3, "nbest": 6},
    {"beams": 3, "min_ratio": 0.9, "max_ratio": 1.0},
    {"beams": 3, "nbest": 3, "sample": True, "top_k": 7},
    {"beams": 2, "nbest": 2, "sample": True, "top_p": 0.9, "temperature": 0.7},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_what_is_found_is_the_same(model, staged, monkeypatch, options):
    config = SearchConfig(**{"max_ratio": 1.0, **options})
    for count in (1, 19):
        texts = sources(count)
        wishes = [Wish(prefix=[5, 6][: i % 3]) for i in range(count)]
        expected = plainly(model, monkeypatch, texts, config, wishes)
        for mine, theirs in zip(find(model, texts, config, wishes), expected, strict=True):
            assert [one.ids for one in mine] == [one.ids for one in theirs]
            for one, other in zip(mine, theirs, strict=True):
                assert one.score == pytest.approx(other.score, rel=1e-6, abs=1e-5)
                assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)
    assert len(staged.places) > 2  # sentences that were done have left
    assert not staged.taken.locked()


def test_what_is_followed_is_the_same(model, staged, monkeypatch):
    texts = sources(19)
    for config in (SearchConfig(beams=1, max_ratio=1.0), SearchConfig(beams=4, max_ratio=1.0)):
        aloud = range(0, 19, 3) if config.beams == 1 else ()
        expected = plainly(model, monkeypatch, texts, config)
        answers, told = {}, {}
        for tokens, found in follow([model], texts, config, [Wish()] * 19, aloud=aloud):
            answers |= found
            for i, token in tokens.items():
                told.setdefault(i, []).append(token)
        assert [answers[i][0].ids for i in range(19)] == [best.ids for (best,) in expected]
        assert [told.get(i, []) for i in aloud] == [expected[i][0].ids for i in aloud]
        assert not staged.taken.locked()


def test_a_stream_gives_the_stage_back(model, staged):
    tokens = stream(model, [7, 8, 9], SearchConfig(beams=1), Wish())
    first = next(tokens)
    assert staged.taken.locked()
    tokens.close()
    assert not staged.taken.locked()
    assert next(stream(model, [7, 8, 9], SearchConfig(beams=1), Wish())) == first


def test_a_longer_search_gets_a_greater_stage(model, staged, monkeypatch):
    config = SearchConfig(beams=2, max_ratio=1.0)
    small = len(staged.vectors)
    for longest in (5, 60, 5):
        texts = sources(9, longest)
        found, expected = find(model, texts, config), plainly(model, monkeypatch, texts, config)
        assert [best.ids for (best,) in found] == [best.ids for (best,) in expected]
        assert len(staged.vectors) >= small
        small = len(staged.vectors)


def test_without_a_gpu_nothing_is_recorded():
    assert stage_of([translator("paper")]) is None


@on_cuda
def test_who_looks_into_a_model_or_moves_its_weights_is_not_served_by_old_recordings(model):
    config, texts = SearchConfig(beams=2), sources(5)
    find(model, texts, config)
    first = STAGES[model]
    assert any(place.recorded for place in first.places.values())
    looking = model.encoder.register_forward_hook(lambda *_: None)
    assert stage_of([model]) is None
    looking.remove()
    model.classifier.weight.data = model.classifier.weight.data.flip(0).clone()
    if model.config.tie != "none":
        model.decoder.embedding.tokens.weight.data = model.classifier.weight.data
    stage = stage_of([model])
    assert stage is not None
    assert stage is not first
    stage.taken.release()


@on_cuda
def test_only_one_search_at_a_time_has_the_stage(model):
    tokens = stream(model, [7, 8, 9], SearchConfig(beams=1), Wish())
    next(tokens)
    assert stage_of([model]) is None
    assert find(model, [[7, 8, 9]], SearchConfig(beams=1))
    tokens.close()
