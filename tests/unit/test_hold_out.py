"""Where no text to test on is named, some of the training text is held out, and is not trained on."""

import numpy as np

from runs import write_pairs
from sightline.data.corpus import Table
from sightline.data.feed import Feed, Place
from sightline.evaluate.scores import values
from sightline.runs import Validated
from sightline.text.tokenizer import Tokenizer
from sightline.train.run import RunOptions, TextFiles, train_files
from support import store_of


def test_held_out_pairs_are_validated_and_not_trained(tmp_path):
    path, _ = write_pairs(tmp_path, train=600)
    tokenizer = Tokenizer.train(path.read_text().replace("\t", "\n").splitlines(), 340)
    store = store_of([Table(path)], tokenizer, tmp_path / "cache")
    held = np.array(sorted(i for i, _ in store.sample[:12]))
    rest = np.setdiff1d(np.arange(600), held)
    for rows in ("padded", "shared"):
        for only in (held, rest):
            feed = Feed([store], batch_tokens=256, seed=1, rows=rows, only=only)
            for epoch in (0, 1):
                chosen = [getattr(batch, "pairs", batch) for batch in feed.plan(epoch)]
                assert sorted(np.concatenate(chosen)) == only.tolist()
            assert feed.batch(Place()).tokens > 0


def test_a_run_without_validation_text_holds_some_out(tmp_path):
    path, _ = write_pairs(tmp_path, train=600)
    events, notes = [], []
    options = RunOptions(
        tmp_path / "run",
        TextFiles(pairs=[(str(path), 1.0)]),
        config=str(tmp_path / "options.toml"),
        set=["train.steps=2"],
        cache=tmp_path / "cache",
        device="cpu",
    )
    train_files(options, events.append, notes.append, values)
    (tested,) = [event for event in events if isinstance(event, Validated)]
    assert set(tested.scores) == {"bleu", "chrf"}
    assert any("12 training examples are held out" in note for note in notes)
    texts = {tuple(line.split("\t")) for line in path.read_text().splitlines()}
    assert all((source, reference) in texts for source, reference, _ in tested.samples)
