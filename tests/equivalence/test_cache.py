"""Generating through a cache gives what the full pass gives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.errors import InputError
from support import VARIANTS, difference, every_variant, ids, packed, pad, translator, writer


@st.composite
def cuts(draw, length=9):
    """A way to cut a sequence into chunks."""
    places = sorted(draw(st.sets(st.integers(1, length - 1))))
    return list(zip([0, *places], [*places, length], strict=True))


@settings(max_examples=30)
@given(variant=st.sampled_from(list(VARIANTS)), chunks=cuts(), static=st.booleans(), seed=st.integers(0, 10**6))
@torch.no_grad()
def test_cached_equals_uncached_equals_chunked(variant, chunks, static, seed):
    torch.manual_seed(seed)
    model = translator(variant)
    source, layout = pad([ids(7), ids(4), ids(1)])
    target = ids(3, 9)
    full = model(source, target, layout)
    cache = model.new_cache(model.encoder(source, layout), layout, capacity=12, static=static)
    steps = [model.step(target[:, a:b], cache) for a, b in chunks]
    assert difference(torch.cat(steps, 1), full) <= 1e-5

    model = writer(variant)
    full = model(target)
    cache = model.new_cache(3, capacity=12, static=static)
    steps = [model(target[:, a:b], None, cache) for a, b in chunks]
    assert difference(torch.cat(steps, 1), full) <= 1e-5


@every_variant
@torch.no_grad()
def test_beams_share_the_memory_of_their_sentence(variant):
    model = translator(variant)
    source, layout = pad([ids(6), ids(3)])
    encoded = model.encoder(source, layout)
    cache = model.new_cache(encoded, layout, capacity=8, beams=3)
    heads, d_k = model.config.decoder.heads, model.config.d_model // model.config.decoder.heads
    for memory in cache.memory:
        assert memory.keys.shape == memory.values.shape == (2, heads, 6, d_k)  # once a sentence, not once a beam
    target = ids(6, 5)
    expected = model(source.repeat_interleave(3, 0), target, layout.repeat_interleave(3, 0))
    steps = [model.step(target[:, :2], cache), model.step(target[:, 2:3], cache), model.step(target[:, 3:], cache)]
    assert difference(torch.cat(steps, 1), expected) <= 1e-5


@every_variant
@torch.no_grad()
def test_reordered_rows_go_on_from_where_they_came(variant):
    model = translator(variant)
    source, layout = pad([ids(6), ids(3)])
    cache = model.new_cache(model.encoder(source, layout), layout, capacity=8, beams=3)
    first, second = ids(6, 4), ids(6, 2)
    model.step(first, cache)
    order = torch.tensor([2, 0, 0, 3, 5, 3])
    cache.reorder(order)
    after = model.step(second, cache)
    history = torch.cat([first[order], second], 1)
    expected = model(source.repeat_interleave(3, 0), history, layout.repeat_interleave(3, 0))
    assert difference(after, expected[:, 4:]) <= 1e-5


@every_variant
@torch.no_grad()
def test_prompts_of_unequal_length(variant):
    model = writer(variant)
    prompts = [ids(5), ids(2), ids(3)]
    rows, layout = pad(prompts)
    cache = model.new_cache(3, capacity=8)
    model(rows, layout, cache)
    assert cache.lengths.tolist() == [5, 2, 3]
    more = ids(3, 2)
    logits = torch.cat([model(more[:, :1], None, cache), model(more[:, 1:], None, cache)], 1)
    for i, prompt in enumerate(prompts):
        alone = model(torch.cat([prompt, more[i]])[None])[0, -2:]
        assert difference(logits[i], alone) <= 1e-5


@torch.no_grad()
def test_the_caller_owns_all_state():
    model = translator()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    source, target = ids(1, 4), ids(1, 6)
    encoded = model.encoder(source)
    one, other = model.new_cache(encoded, capacity=6), model.new_cache(encoded, capacity=6)
    together = []
    for i in range(6):  # two generations at once, in turns
        together.append(model.step(target[:, i : i + 1], one))
        model.step(ids(1, 1), other)
    assert difference(torch.cat(together, 1), model(source, target)) <= 1e-5
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@torch.no_grad()
def test_rows_of_unequal_length_are_reordered_with_their_lengths():
    model = writer()
    prompts = [ids(5), ids(2), ids(3)]
    rows, layout = pad(prompts)
    cache = model.new_cache(3, capacity=8)
    model(rows, layout, cache)
    cache.reorder(torch.tensor([1, 2, 2]))
    more = ids(3, 2)
    logits = model(more, None, cache)
    for i, prompt in enumerate([prompts[1], prompts[2], prompts[2]]):
        assert difference(logits[i], model(torch.cat([prompt, more[i]])[None])[0, -2:]) <= 1e-5


@torch.no_grad()
def test_under_autocast():
    model, target = writer(), ids(2, 6)
    with torch.autocast("cpu", torch.bfloat16):
        full = model(target)
        cache = model.new_cache(2, capacity=6)
        steps = torch.cat([model(target[:, i : i + 1], None, cache) for i in range(6)], 1)
    assert difference(steps.float(), full.float()) <= 2e-2 * full.abs().max().item()


def test_no_gradient_goes_through_a_cache():
    model = writer()
    cache = model.new_cache(1, capacity=4)
    model(ids(1, 2), None, cache)
    model(ids(1, 2), None, cache).sum().backward()
    assert not cache.keys.requires_grad


def test_what_was_refused_leaves_the_cache_as_it_was():
    model = writer()
    cache = model.new_cache(1, capacity=4)
    target = ids(1, 4)
    with torch.no_grad():
        model(target[:, :3], None, cache)
        with pytest.raises(InputError, match="holds 4 positions a row and cannot take 5"):
            model(ids(1, 2), None, cache)
        with pytest.raises(IndexError):
            model(torch.tensor([[999]]), None, cache)
        assert difference(model(target[:, 3:], None, cache), model(target)[:, 3:]) <= 1e-5


@torch.no_grad()
def test_unequal_chunks_use_no_more_room_than_they_need():
    model = writer()
    cache = model.new_cache(2, capacity=6)
    chunk = torch.tensor([[True, True, True], [True, False, False]])
    model(ids(2, 3), chunk, cache)
    model(ids(2, 3), chunk.flip(0), cache)
    assert cache.lengths.tolist() == [4, 4]
    model(ids(2, 2), None, cache)
    assert cache.lengths.tolist() == [6, 6]


def test_a_full_cache_says_so():
    model = writer()
    cache = model.new_cache(1, capacity=4)
    model(ids(1, 3), None, cache)
    with pytest.raises(InputError, match="holds 4 positions a row and cannot take 5"):
        model(ids(1, 2), None, cache)
    with pytest.raises(InputError, match="5000 positions: model.positions.max_length allows 1 to 4096"):
        model.new_cache(1, capacity=5000)
    fixed = model.new_cache(1, capacity=4, static=True)
    with pytest.raises(InputError, match="holds 4 positions a row and cannot take 5"):
        [model(ids(1, 1), None, fixed) for _ in range(5)]
    with pytest.raises(InputError, match="the cache has 1 rows, and ids of 2 rows do not fit it"):
        model(ids(2, 1), None, model.new_cache(1, capacity=4))
    with pytest.raises(InputError, match="the cache has 3 rows, and an order of 1 does not fit it"):
        model.new_cache(3, capacity=4).reorder.__wrapped__(model.new_cache(3, capacity=4), torch.tensor([2]))
    with pytest.raises(InputError, match="at least one row"):
        translator().new_cache(torch.randn(2, 3, 24), capacity=4, beams=0)
    with pytest.raises(InputError, match="cannot take a packed row"):
        row, packing = packed([ids(2), ids(1)])
        model(row, packing, model.new_cache(1, capacity=4))
