"""Batches: every pair once an epoch, within the budget, in an order that is a pure function."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.data.batches import collate, plan
from sightline.data.builtin import generate
from sightline.data.corpus import Table
from sightline.errors import InputError
from sightline.special import END, PAD, START
from sightline.text.tokenizer import Tokenizer
from support import raises, store_of

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=200)


@settings(max_examples=60)
@given(lengths=LENGTHS, budget=st.integers(41, 400), seed=st.integers(0, 99), epoch=st.integers(0, 9))
def test_each_pair_once_within_the_batch_size(lengths, budget, seed, epoch):
    source, target = np.array(lengths, np.int32).T
    batches = plan(source, target, budget, seed, epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch)
        assert len(batch) * (max(source[batch].max(), target[batch].max()) + 1) <= budget
    again = plan(source, target, budget, seed, epoch)
    assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))


def test_epochs_and_seeds_differ_with_little_padding():
    chance = np.random.default_rng(0)
    target = chance.integers(3, 60, 20_000).astype(np.int32)
    source = np.maximum(1, target + chance.integers(-3, 4, 20_000)).astype(np.int32)
    one, two, three = (plan(source, target, 4096, *key) for key in ((0, 0), (0, 1), (1, 0)))
    assert not np.array_equal(one[0], two[0])
    assert not np.array_equal(one[0], three[0])
    groups = [{tuple(sorted(batch)) for batch in batches} for batches in (one, two)]
    assert len(groups[0] & groups[1]) < 0.1 * len(groups[0])  # other batches, not only another order
    cells = sum(len(b) * target[b].max() for b in one)
    assert target.sum() / cells > 0.97


def test_batches_smaller_than_the_longest_sentence():
    with raises(InputError, option="batch_tokens", value=30, match="41"):
        plan(np.array([5], np.int32), np.array([40], np.int32), 30, 0, 0)


@torch.no_grad()
def test_a_batch_has_the_tokens_of_its_pairs(tmp_path):
    pairs = [(p.source, p.target) for p in generate("train", 40)]
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"{s}\t{t}\n" for s, t in pairs))
    tokenizer = Tokenizer.train([text for pair in pairs for text in pair], 500)
    store = store_of([Table(path)], tokenizer, tmp_path)
    padded = collate(store, range(7))
    assert padded.tokens == int((padded.targets != PAD).sum())
    assert (padded.inputs.target[:, 0] == START).all()
    for row, (source, target) in enumerate(pairs[:7]):
        assert tokenizer.decode(padded.inputs.source[row]) == source
        assert padded.inputs.source[row][padded.inputs.source_layout[row]][-1] == END
        assert tokenizer.decode(padded.inputs.target[row]) == tokenizer.decode(padded.targets[row]) == target
