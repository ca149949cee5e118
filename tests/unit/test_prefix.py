"""The cache of a prefix: a text that grew finds what it finds without, and only its new tokens are read."""

import pytest
import torch

from searching import model_of
from sightline.config import SearchConfig
from sightline.engine import Writer
from sightline.model_folder import load_tokenizer
from sightline.search import driver, prefix
from sightline.search.prefix import PrefixCache
from sightline.special import START

LONG = [(7 * i) % 250 + 10 for i in range(60)]
SEARCHES = [{"beams": 1}, {"n": 3, "beams": 4}, {"n": 2, "seed": 3}, {"beams": 1, "frequency_penalty": 1.0}]


@pytest.fixture(scope="module")
def tokenizer(writing):
    return load_tokenizer(writing)


@pytest.fixture(params=["paper", "rotary"])
def writer(request, tokenizer):
    return writer_of(request.param, tokenizer)


def writer_of(variant, tokenizer):
    model = model_of("decoder-only", variant, 5, 0.5, vocab_size=tokenizer.size)
    return Writer(model, tokenizer)


def complete(writer, ids, n=1, beams=None, **options):
    search = SearchConfig(beams=max(beams or 1, n), nbest=n, sample=beams is None, **options)
    (found,) = writer.run(writer.plan([ids], search, max_tokens=12))
    return found


@pytest.fixture
def read(monkeypatch):
    """Return the numbers of positions that the decoder reads at once."""

    def watch(writer):
        counts, forward = [], writer.model.decoder.forward

        def counting(ids, *rest):
            counts.append(ids.shape[1])
            return forward(ids, *rest)

        monkeypatch.setattr(writer.model.decoder, "forward", counting)
        return counts

    return watch


@pytest.mark.parametrize("options", SEARCHES, ids=str)
def test_a_text_that_grew_gives_the_same(writer, tokenizer, options):
    other = Writer(writer.model, tokenizer)
    texts = [LONG[:30], LONG[:40], LONG[:34], [*LONG[:38], 9, 9], LONG]
    texts.append([*LONG, *complete(writer, LONG, beams=1)[0].ids])
    for ids in texts:
        other.torch.prefixes.clear()
        mine, theirs = complete(writer, ids, **options), complete(other, ids, **options)
        assert [one.ids for one in mine] == [one.ids for one in theirs]
        for one, same in zip(mine, theirs, strict=True):
            assert one.log_probs == pytest.approx(same.log_probs, abs=1e-4)


def test_only_new_tokens_are_read(writer, read):
    counts = read(writer)
    (found,) = complete(writer, LONG[:30], beams=1)
    assert counts[0] == 30  # START and all but the last
    counts.clear()
    complete(writer, LONG[:50], beams=1)
    assert counts[0] == 19  # and the last of the text before was read by a step
    counts.clear()
    complete(writer, [*LONG[:30], *found.ids[:5], 77], beams=1)
    assert counts[0] == (1 if len(found.ids) >= 5 else counts[0])
    counts.clear()
    complete(writer, [*LONG[:20], 5, 5, 5], beams=1)
    assert counts[0] == 2
    counts.clear()
    complete(writer, LONG[:10], beams=1)
    assert counts[0] == 10, "short texts are read as they are"
    counts.clear()
    writer.run(writer.plan([LONG[:50]] * 3, SearchConfig(beams=1, sample=True), max_tokens=3, seeds=[(1,), (2,), (3,)]))
    assert counts[0] == 1, "requests for the same text share its keys"


def test_streams_that_are_closed_keep_their_keys(writer, read):
    counts = read(writer)
    plan = writer.plan([LONG[:30]], SearchConfig(beams=1), max_tokens=12)
    updates = writer.steps(plan.requests, plan.options, streamed=[0])
    next(updates)
    updates.close()
    counts.clear()
    complete(writer, LONG[:31], beams=1)
    assert max(counts) == 1


def test_changed_models_read_all(writer, read):
    counts = read(writer)
    plain = complete(writer, LONG[:40], beams=1)[0].ids
    counts.clear()
    with writer.what_if(remove_heads={"decoder.layers.0.self_attention": [0]}):
        changed = complete(writer, LONG[:40], beams=1)[0].ids
    assert counts[0] == 40
    counts.clear()
    assert complete(writer, LONG[:40], beams=1)[0].ids == plain
    assert counts[0] == 1, "those of the what-if are not kept"
    with torch.no_grad():
        writer.model.decoder.embedding.tokens.weight.mul_(0.5)
    counts.clear()
    complete(writer, LONG[:40], beams=1)
    assert counts[0] == 40
    assert changed is not None


def test_a_what_if_between_two_steps_keeps_nothing(writer, read):
    counts = read(writer)
    plan = writer.plan([LONG[:40]], SearchConfig(beams=1), max_tokens=12)
    updates = writer.steps(plan.requests, plan.options, streamed=[0])
    next(updates)
    with writer.what_if(remove_heads={"decoder.layers.0.self_attention": [0]}):
        next(updates)
    updates.close()
    counts.clear()
    complete(writer, LONG[:40], beams=1)
    assert counts[0] == 40


def test_a_near_tie_is_searched_again_without_kept_keys(writer, read, monkeypatch):
    expected = complete(writer, LONG[:40], beams=1)[0].ids
    monkeypatch.setattr(driver, "TIE", 100.0)
    counts = read(writer)
    assert complete(writer, LONG[:40], beams=1)[0].ids == expected
    assert 40 in counts
    plan = writer.plan([LONG[:40]], SearchConfig(beams=1), max_tokens=12)
    updates = list(writer.steps(plan.requests, plan.options, streamed=[0]))
    assert [token.id for update in updates for token in update.tokens.values()] == expected


def test_memory_is_limited(writer, monkeypatch):
    kept = writer.torch.prefixes
    for first in range(20):
        complete(writer, [first + 10, *LONG[:30]], beams=1)
    assert len(kept._kept) == prefix.MAX_ENTRIES
    monkeypatch.setattr(prefix, "MAX_BYTES", 3 * kept._kept[0].bytes)
    complete(writer, [99, *LONG[:30]], beams=1)
    assert 1 <= len(kept._kept) <= 3
    writer.close()
    assert kept._kept == []


def test_an_extended_text_replaces_its_beginning(writer):
    kept = writer.torch.prefixes
    complete(writer, LONG[:30], beams=1)
    complete(writer, LONG[:30], beams=1)
    assert len(kept._kept) == 1
    assert kept._kept[0].ids[:31] == [START, *LONG[:30]]
    assert isinstance(kept, PrefixCache)
