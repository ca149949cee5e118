"""Decoding through a cache gives the same scores as the full pass."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.errors import InputError
from sightline.model.cache import Cache
from sightline.model.protocol import Generative, Inputs
from sightline.search.recorded import StaticCache
from support import VARIANTS, difference, every_variant, ids, packed, pad, raises, static_cache, translator, writer

both_models = pytest.mark.parametrize("make", [translator, writer])
every_cache = pytest.mark.parametrize("static", [False, True], ids=["growing", "static"])


def sources(model, *lengths):
    """Inputs with sources of these lengths, for a model that has an encoder; their number of sentences."""
    if model.config.architecture == "decoder-only":
        return Inputs(target=ids(len(lengths), 0))
    source, layout = pad([ids(n) for n in lengths])
    return Inputs(source, source_layout=layout)


def full(model, inputs, target, beams=1):
    """The scores of one pass without a cache."""
    rows = (x if x is None else x.repeat_interleave(beams, 0) for x in (inputs.source, inputs.source_layout))
    source, layout = rows
    return model.classifier(model.hidden(Inputs(source, target, layout)))


def start(model, inputs, static, **more):
    return static_cache(model, inputs, **more) if static else model.start(inputs, **more)


def steps(model, target, cache):
    return torch.stack([model.step(target[:, i : i + 1], cache) for i in range(target.shape[1])], 1)


@settings(max_examples=30)
@given(
    make=st.sampled_from([translator, writer]),
    variant=st.sampled_from(list(VARIANTS)),
    prefix=st.integers(0, 8),
    static=st.booleans(),
    seed=st.integers(0, 10**6),
)
@torch.no_grad()
def test_cached_equals_uncached(make, variant, prefix, static, seed):
    torch.manual_seed(seed)
    model = make(variant)
    inputs, target = sources(model, 7, 4, 1), ids(3, 9)
    expected = full(model, inputs, target)
    cache = start(model, inputs._replace(target=target[:, :prefix]), static, capacity=12)
    assert difference(steps(model, target[:, prefix:], cache), expected[:, prefix:]) <= 1e-5


@pytest.mark.parametrize("make", [translator, writer])
def test_models_are_generative(make):
    assert isinstance(make(), Generative)
    assert make().device.type == "cpu"


@every_variant
@torch.no_grad()
def test_the_hidden_vectors_are_those_of_forward(variant):
    (source, layout), target = pad([ids(6), ids(3)]), ids(2, 5)
    model = translator(variant)
    hidden = model.hidden(Inputs(source, target, layout))
    assert torch.equal(model.classifier(hidden), model(source, target, layout))
    model = writer(variant)
    assert torch.equal(
        model.classifier(model.hidden(Inputs(target=source, target_layout=layout))), model(source, layout)
    )


@every_cache
@every_variant
@torch.no_grad()
def test_beams_share_the_keys_of_their_source(variant, static):
    model = translator(variant)
    inputs = sources(model, 6, 3)
    cache = start(model, inputs, static, capacity=8, beams=3)
    heads, d_k = model.config.decoder.heads, model.config.d_model // model.config.decoder.heads
    for layer in cache.cross:
        assert layer.keys.shape == layer.values.shape == (2, heads, 6, d_k)  # per sentence, not per beam
    target = ids(6, 5)
    assert difference(steps(model, target, cache), full(model, inputs, target, beams=3)) <= 1e-5


@both_models
@every_cache
@every_variant
@torch.no_grad()
def test_reordered_rows_continue_the_rows_they_copy(variant, make, static):
    model = make(variant)
    inputs = sources(model, 6, 3)
    cache = start(model, inputs, static, capacity=8, beams=3)
    first, second = ids(6, 4), ids(6, 2)
    steps(model, first, cache)
    order = torch.tensor([2, 0, 0, 3, 5, 3])
    cache.reorder(order)
    expected = full(model, inputs, torch.cat([first[order], second], 1), beams=3)
    assert difference(steps(model, second, cache), expected[:, 4:]) <= 1e-5


@both_models
@torch.no_grad()
def test_selected_sentences_continue(make):
    model = make()
    inputs = sources(model, 6, 3, 5)
    cache = model.start(inputs, capacity=8, beams=2)
    first, second = ids(6, 3), ids(4, 2)
    steps(model, first, cache)
    order = torch.tensor([1, 0, 2, 2, 5, 4])
    cache.reorder(order)
    cache.select(torch.tensor([2, 0]))
    assert (cache.sentences, cache.beams) == (2, 2)
    history = torch.cat([first[order[[4, 5, 0, 1]]], second], 1)
    kept = Inputs(*(x if x is None else x[[2, 0]] for x in inputs))
    assert difference(steps(model, second, cache), full(model, kept, history, beams=2)[:, 3:]) <= 1e-5


@both_models
@every_cache
@every_variant
@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_prompts_of_unequal_length(variant, make, static, beams):
    """A prompt without tokens is one too."""
    model = make(variant)
    prompts = [ids(5), ids(0), ids(3)]
    rows, layout = pad(prompts)
    inputs = sources(model, 6, 3, 5)
    inputs = inputs._replace(target=rows, target_layout=layout)
    cache = start(model, inputs, static, capacity=8, beams=beams)
    assert cache.lengths.tolist() == [n for n in (5, 0, 3) for _ in range(beams)]
    more = ids(3 * beams, 2)
    found = steps(model, more, cache)
    for i in range(3 * beams):
        sentence = i // beams
        alone = Inputs(*(x if x is None else x[[sentence]] for x in (inputs.source, None, inputs.source_layout)))
        history = torch.cat([prompts[sentence], more[i]])[None]
        assert difference(found[i], full(model, alone, history)[0, -2:]) <= 1e-5


@both_models
@torch.no_grad()
def test_prompts_are_read_once_per_sentence(make):
    model, read = make(), []
    handle = model.decoder.embedding.register_forward_hook(lambda _, args, __: read.append(tuple(args[0].shape)))
    model.start(sources(model, 6, 3)._replace(target=ids(2, 4)), capacity=8, beams=3)
    handle.remove()
    assert read == [(2, 4)]


@both_models
@torch.no_grad()
def test_storage_of_a_static_cache_is_used_again(make):
    """As a recorded search does: caches of several shapes in one memory, filled, reordered, taken out and filled."""
    model = make()
    config = model.config
    storage = torch.full((StaticCache.storage_size(config, 4, 2, 16, 8),), 3.0)
    source = 8 if make is translator else 0
    large, small = StaticCache(config, 4, 2, 16, source, storage), StaticCache(config, 2, 2, 12, source, storage)
    for _ in range(2):
        rows, layout = pad([ids(2), ids(4), ids(3)])
        inputs = sources(model, 6, 3, 5)
        large.copy_from(model.start(inputs._replace(target=rows, target_layout=layout), capacity=rows.shape[1]))
        assert large.lengths.tolist() == [2, 2, 4, 4, 3, 3, 0, 0]
        first = ids(8, 3)
        model.step(first[:, :1], large)
        large.reorder(torch.tensor([1, 0, 2, 2, 5, 4, 6, 7]))
        steps(model, first[:, 1:], large)
        small.copy_from(large.extract(torch.tensor([2, 1]), 7))
        assert small.lengths.tolist() == [6, 6, 7, 7]
        assert small.keys.data_ptr() == large.keys.data_ptr() == storage.data_ptr()
        last = ids(4, 1)
        found = steps(model, last, small)
        for i, (sentence, row, before) in enumerate([(2, 4, 5), (2, 5, 4), (1, 2, 2), (1, 3, 2)]):
            written = torch.cat([first[before, :1], first[row, 1:], last[i]])
            history = torch.cat([rows[sentence][layout[sentence]], written])[None]
            alone = Inputs(*(x if x is None else x[[sentence]] for x in (inputs.source, None, inputs.source_layout)))
            assert difference(found[i, -1], full(model, alone, history)[0, -1]) <= 1e-5


@torch.no_grad()
def test_the_caller_owns_all_state():
    model = translator()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    source, target = ids(1, 4), ids(1, 6)
    one, other = (model.start(Inputs(source), capacity=6) for _ in range(2))
    together = []
    for i in range(6):  # two generations at once, in turns
        together.append(model.step(target[:, i : i + 1], one))
        model.step(ids(1, 1), other)
    assert difference(torch.stack(together, 1), model(source, target)) <= 1e-5
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@torch.no_grad()
def test_rows_of_unequal_length_are_reordered_with_their_lengths():
    model = writer()
    prompts = [ids(5), ids(2)]
    rows, layout = pad(prompts)
    cache = model.start(Inputs(target=rows, target_layout=layout), capacity=9, beams=2)
    first = ids(4, 2)
    steps(model, first, cache)
    cache.reorder(torch.tensor([1, 1, 3, 2]))
    more = ids(4, 2)
    found = steps(model, more, cache)
    for i, row in enumerate([1, 1, 3, 2]):
        history = torch.cat([prompts[i // 2], first[row], more[i]])[None]
        assert difference(found[i], model(history)[0, -2:]) <= 1e-5


@torch.no_grad()
def test_under_autocast():
    model, target = writer(), ids(2, 6)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(target)
        found = steps(model, target, model.start(Inputs(target=target[:, :0]), capacity=6))
    assert difference(found.float(), expected.float()) <= 2e-2 * expected.abs().max().item()


def test_no_gradient_goes_through_a_cache():
    model = writer()
    cache = model.start(Inputs(target=ids(1, 2)), capacity=4)
    model.step(ids(1, 1), cache)
    model.step(ids(1, 1), cache).sum().backward()
    assert not cache.keys.requires_grad


@torch.no_grad()
def test_a_refused_step_does_not_change_the_cache():
    model = writer()
    target = ids(1, 4)
    cache = model.start(Inputs(target=target[:, :3]), capacity=4)
    with raises(InputError):
        model.step(ids(2, 1), cache)
    with pytest.raises(IndexError):
        model.step(torch.tensor([[999]]), cache)
    assert difference(model.step(target[:, 3:], cache), model(target)[:, 3]) <= 1e-5
    with raises(InputError, option="capacity", value=4):
        model.step(ids(1, 1), cache)


@every_cache
def test_a_full_cache_raises(static):
    model = writer()
    cache = start(model, Inputs(target=ids(1, 3)), static, capacity=4)
    model.step(ids(1, 1), cache)
    with raises(InputError, option="capacity", value=4):
        model.step(ids(1, 1), cache)


@pytest.mark.medium  # needs the checks of shapes
def test_invalid_shapes_are_refused():
    model = writer()
    cache = model.start(Inputs(target=ids(3, 1)), capacity=4)
    with raises(InputError, option="capacity", value=5000):
        model.start(Inputs(target=ids(1, 0)), capacity=5000)
    with raises(InputError, option="capacity", value=2):
        model.start(Inputs(target=ids(1, 3)), capacity=2)
    with raises(InputError, option="beams", value=0):
        model.start(Inputs(target=ids(1, 0)), beams=0, capacity=4)
    with raises(InputError, match="3 rows"):
        cache.reorder.__wrapped__(cache, torch.tensor([2]))
    with raises(InputError, match="PackedRows"):
        row, packing = packed([ids(2), ids(1)])
        model.start(Inputs(target=row, target_layout=packing), capacity=4)
    with raises(InputError, option="target"):
        model.start(Inputs(), capacity=4)
    with raises(InputError, option="source"):
        translator().start(Inputs(target=ids(1, 1)), capacity=4)
    with raises(InputError, match="one token"):
        model.decoder(ids(1, 2), None, (), static_cache(model, Inputs(target=ids(1, 0)), capacity=4))
    with raises(InputError, match="sentences"):
        Cache(model.config, 2, 2, 4, like=model.classifier.weight).copy_from(
            model.start(Inputs(target=ids(3, 1)), capacity=4)
        )
