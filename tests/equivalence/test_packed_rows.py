"""Packed rows equal padded rows: the same scores, loss and gradients."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.data.batches import collate, plan_shared
from sightline.data.builtin import generate
from sightline.data.corpus import Dialogue, Table, Text
from sightline.data.examples import DialogueExamples, ReplyExamples, TextExamples
from sightline.model.mask import PackedRows
from sightline.special import END, PAD, START
from sightline.text.tokenizer import Tokenizer
from sightline.train.step import Objective
from support import difference, reader, store_of, translator, writer

PAIRS = [(pair.source, pair.target) for pair in generate("train", 60)]
TOKENIZER = Tokenizer.train([text for pair in PAIRS for text in pair], 340)
TURNS = [" ".join(text.split()[:4]) for pair in PAIRS for text in pair]
DIALOGUES = [TURNS[i : i + 2 + i % 3] for i in range(40)]
SIZE = {"vocab_size": TOKENIZER.size, "dropout": 0.0}
MODELS = {
    "pairs": (translator, "paper"),
    "rotary pairs": (translator, "rotary"),
    "text": (writer, "learned"),
    "dialogues": (writer, "paper"),
    "replies": (translator, "pre-norm"),
    "read text": (reader, "learned"),
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    pairs, text, dialogues = folder / "a.tsv", folder / "a.txt", folder / "a.jsonl"
    words = [(f"{s} {s}" if i % 5 == 0 else s, t[: 1 + 7 * i]) for i, (s, t) in enumerate(PAIRS)]
    pairs.write_text("".join(f"{s}\t{t}\n" for s, t in words))
    text.write_text("".join(f"{t}\n\n" for _, t in PAIRS))
    dialogues.write_text("".join(json.dumps(turns) + "\n" for turns in DIALOGUES))
    found = {
        "pairs": store_of([Table(pairs)], TOKENIZER, folder / "cache"),
        "text": store_of([Text(text)], TOKENIZER, folder / "cache", TextExamples(23)),
        "dialogues": store_of([Dialogue(dialogues)], TOKENIZER, folder / "cache", DialogueExamples(100)),
        "replies": store_of([Dialogue(dialogues)], TOKENIZER, folder / "cache", ReplyExamples(100)),
    }
    return {**found, "rotary pairs": found["pairs"], "read text": found["text"]}


def rows_of(store, chosen, budget):
    """The same sentences in two ways, batch by batch."""
    target = store.target.lengths
    source = target if store.source is None else store.source.lengths
    for shared in plan_shared(source, target, budget, 0, 0, np.array(chosen)):
        yield collate(store, shared), collate(store, shared.pairs)


def exercise(kind, batch):
    """Let a reader predict the tokens that it reads."""
    if kind != "read text":
        return batch
    _, text, _, layout, _ = batch.inputs
    return batch._replace(inputs=batch.inputs._replace(source=text, source_layout=layout), targets=text)


def tokens(batch):
    """The cells of the target that are tokens, sentence by sentence."""
    row, column = (batch.inputs.target != PAD).nonzero(as_tuple=True)
    if isinstance(batch.inputs.target_layout, PackedRows):
        order = np.lexsort(
            (batch.inputs.target_layout.position[row, column], batch.inputs.target_layout.sentence[row, column])
        )
        row, column = row[order], column[order]
    return row, column


def sequences(batch):
    """The tokens that each sequence reads after START, and those that it predicts."""
    given, found = batch.inputs.target[tokens(batch)].tolist(), batch.targets[tokens(batch)].tolist()
    starts = [i for i, token in enumerate(given) if token == START] + [len(given)]
    for first, last in pairwise(starts):
        yield given[first + 1 : last], found[first:last]


def loss_and_gradients(model, batch):
    model.zero_grad()
    loss = Objective(model, 0.1)(batch)
    loss.smoothed.backward()
    return loss, [p.grad.clone() for p in model.parameters()]


def close(one, other):
    return difference(one, other) <= 1e-5 * max(1.0, one.abs().max().item())


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=5)
@given(data=st.data(), budget=st.sampled_from([128, 192, 512]), seed=st.integers(0, 10**6))
def test_packed_equals_padded(kind, stores, data, budget, seed):
    make, variant = MODELS[kind]
    store = stores[kind]
    chosen = data.draw(st.lists(st.integers(0, len(store) - 1), min_size=1, max_size=14))
    torch.manual_seed(seed)
    model = make(variant, **SIZE).double()  # in float32, a ReLU near 0 can be on in one pass and off in the other
    for batches in rows_of(store, chosen, budget):
        shared, other = (exercise(kind, batch) for batch in batches)
        found = model.classifier(model.hidden(shared.inputs))[tokens(shared)]
        loss, gradients = loss_and_gradients(model, shared)
        assert other.tokens == shared.tokens
        assert close(model.classifier(model.hidden(other.inputs))[tokens(other)], found)
        assert torch.equal(other.targets[tokens(other)], shared.targets[tokens(shared)])
        other_loss, other_gradients = loss_and_gradients(model, other)
        assert close(other_loss.smoothed, loss.smoothed)
        assert close(other_loss.nll, loss.nll)
        assert all(close(a, b) for a, b in zip(other_gradients, gradients, strict=True))


@pytest.mark.parametrize("kind", MODELS)
def test_unused_cells_have_no_effect(kind, stores):
    make, variant = MODELS[kind]
    model = make(variant, **SIZE)
    for shared, _ in rows_of(stores[kind], range(15), 256):
        batch = exercise(kind, shared)

        def scribbled(ids):
            return None if ids is None else torch.where(ids == PAD, torch.randint_like(ids, 4, TOKENIZER.size), ids)

        given = batch.inputs
        changed = given._replace(source=scribbled(given.source), target=scribbled(given.target))
        other = batch._replace(inputs=changed)
        assert (other.inputs.target != batch.inputs.target).any()
        (loss, gradients), (same, same_gradients) = (loss_and_gradients(model, b) for b in (batch, other))
        assert difference(loss.smoothed, same.smoothed) <= 1e-6 * loss.smoothed.item()
        assert difference(loss.nll, same.nll) <= 1e-6 * loss.nll.item()
        for a, b in zip(gradients, same_gradients, strict=True):
            assert difference(a, b) <= 1e-6 * max(1.0, a.abs().max().item())


@pytest.mark.parametrize("place", [0, 1], ids=["packed", "padded"])
def test_only_replies_are_in_the_loss(place, stores):
    """The loss has every token of a reply and its END, no token of the user, and nothing after the last turn."""
    store = stores["dialogues"]
    for batches in rows_of(store, range(len(store)), 512):
        batch = batches[place]
        for read, found in sequences(batch):
            expected, reply = [], False
            for token in read:
                expected.append(token if reply else PAD)
                reply ^= token == END
            assert found == [*expected, PAD]  # the END of the last turn is predicted, but no token after it
        assert batch.tokens == (batch.targets[tokens(batch)] != PAD).sum()


@pytest.mark.parametrize("place", [0, 1], ids=["packed", "padded"])
def test_the_end_of_a_cut_text_is_not_in_the_loss(place, stores):
    store = stores["text"]
    for batches in rows_of(store, range(len(store)), 512):
        for read, found in sequences(batches[place]):
            assert found == [*read, PAD]


def test_twice_equals_two_passes(stores):
    model = translator(**SIZE)
    for batch in next(rows_of(stores["pairs"], range(12), 512)):
        both = batch.twice()
        one, other = model.hidden(both.inputs).chunk(2)
        assert difference(one, other) <= 1e-6
        assert difference(one, model.hidden(batch.inputs)) <= 1e-5
        assert both.tokens == 2 * batch.tokens
