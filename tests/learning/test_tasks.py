"""Tasks: each kind of text trains a model that its engine uses; a new task needs no change elsewhere."""

import json
import re
from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

import sightline
from runs import OPTIONS, write_pairs
from serving import serving
from sightline.data import corpus as corpora
from sightline.data.builtin import generate
from sightline.data.corpus import lines
from sightline.data.examples import chunks, flat
from sightline.data.store import Counts, Examples
from sightline.engine import Chat, Reader, Translator, Writer
from sightline.errors import InputError
from sightline.evaluate.scores import values
from sightline.interop.hugging_face_files import read_hugging_face
from sightline.model_folder import ModelFolder, load_model, save_model
from sightline.runs import Progress, Validated
from sightline.special import START, UNKNOWN
from sightline.train.run import RunOptions, TextFiles, train_files
from sightline.train.tasks import TRANSLATE
from support import raises

SENTENCES = [pair.source for pair in generate("train", 300)]


@pytest.fixture
def folder(tmp_path):
    write_pairs(tmp_path, train=600, test=20)
    turns = [SENTENCES[i : i + 4] for i in range(0, 240, 4)]
    (tmp_path / "talk.jsonl").write_text("".join(json.dumps({"turns": one}) + "\n" for one in turns))
    (tmp_path / "dev.jsonl").write_text(json.dumps({"turns": SENTENCES[-4:]}))
    (tmp_path / "text.txt").write_text("\n\n".join(SENTENCES))
    (tmp_path / "dev.txt").write_text("\n\n".join(SENTENCES[-9:]))
    for name in ("encoder-decoder", "decoder-only", "encoder-only"):
        text = OPTIONS.replace("[model]", f'[model]\narchitecture = "{name}"')
        (tmp_path / f"{name}.toml").write_text(text)
    return tmp_path


def trained(folder, architecture="encoder-decoder", valid=None, score=None, task=None, sets=(), **files):
    """Train a small model on files of the folder, and return its folder and its events."""
    events = []
    texts = TextFiles(**{kind: [(str(folder / name), 1.0)] for kind, name in files.items()})
    validation = TextFiles(**{kind: [(str(folder / valid), 1.0)] for kind in files}) if valid else TextFiles()
    out = folder / "run"
    config = None if architecture is None else str(folder / f"{architecture}.toml")
    options = RunOptions(out, texts, validation, config=config, set=sets, cache=folder / "cache", device="cpu")
    train_files(options, events.append, score=score, task=task)
    return out, events


# --- A new task


@dataclass(frozen=True)
class Reversed:
    """Lines as sources, with their tokens in reverse order as targets."""

    versions: int = 1

    def __call__(self, corpus, tokenizer):
        for texts in chunks(lines(corpus.path), len):
            ids = [one[:8] for one in tokenizer.encode(texts) if one]
            sides = {"source": flat(tokenizer, ids), "target": flat(tokenizer, [one[::-1] for one in ids])}
            yield Examples(len(texts), Counts(len(ids)), [sides])

    def check(self, counts):
        assert counts.kept


REVERSE = replace(
    TRANSLATE,
    texts=lambda corpus, read: ((line,) for line in lines(corpus.path, read)),
    examples=lambda _: Reversed(),
    valid_examples=None,
    answer=None,
    source_length=lambda *_: 64,
)


def test_a_new_task_trains_generates_is_served_and_traced(folder):
    """It is made of the translation task; nothing else knows it."""
    generator = torch.Generator().manual_seed(0)
    letters = torch.randint(0, 6, (4000, 6), generator=generator).tolist()
    (folder / "letters.txt").write_text("".join(" ".join("abcdef"[i] for i in row) + "\n" for row in letters))
    sizes = ["model.d_model=64", "model.dropout=0", "model.encoder.heads=4", "model.decoder.heads=4"]
    sizes += ["model.encoder.d_ff=128", "model.decoder.d_ff=128", "model.encoder.layers=2", "model.decoder.layers=2"]
    steps = ["train.steps=500", "train.learning_rate=0.003", "train.smoothing=0", "train.batch_tokens=1024"]
    out, _ = trained(folder, texts="letters.txt", task=REVERSE, sets=[*sizes, *steps, "data.vocab_size=300"])
    engine = sightline.load(out, device="cpu")
    new = [" ".join("abcdef"[i] for i in row) for row in torch.randint(0, 6, (50, 6), generator=generator).tolist()]
    found = engine.translate(new, beams=1)
    right = [result.ids == engine.tokenizer.encode([text])[0][::-1] for text, result in zip(new, found, strict=True)]
    assert sum(right) >= 45
    trace = engine.trace(found[0])
    assert trace.ids["target"] == [START, *found[0].ids]
    assert max(trace.check().values()) < 1e-5
    with serving(f"reverse={out}") as server:
        assert [one["text"] for one in server.translate(new[:5], beams=1)] == [one.text for one in found[:5]]
        traced = server.post("/v1/trace", {"text": new[0], "beams": 1}).json()
        assert traced["ids"] == trace.ids


# --- Each task


@pytest.mark.parametrize("architecture", ["encoder-decoder", "decoder-only"])
def test_dialogues_train_both_architectures(architecture, folder):
    out, events = trained(folder, architecture, valid="talk.jsonl", dialogues="talk.jsonl")
    engine = sightline.load(out, device="cpu")
    assert isinstance(engine, Chat)
    assert engine.tokenizer.token_id("<|user|>") is not None
    assert [event.loss for event in events if isinstance(event, Validated)]
    (reply,) = engine.reply(SENTENCES[:3], beams=1, max_tokens=8)
    trace = engine.trace(reply)
    assert trace.ids["target"][-len(reply.ids) :] == reply.ids
    assert ("source" in trace.ids) == (architecture == "encoder-decoder")


@pytest.mark.parametrize(("architecture", "kind"), [("decoder-only", Writer), ("encoder-only", Reader)])
def test_plain_text_trains_writers_and_readers(architecture, kind, folder):
    out, _ = trained(folder, architecture, texts="text.txt")
    engine = sightline.load(out, device="cpu")
    assert isinstance(engine, kind)
    assert (engine.tokenizer.mask_id == UNKNOWN) == (kind is Writer)  # a reader's vocabulary has a mask
    assert engine.trace(SENTENCES[0]).names()


def test_pairs_train_translators(folder):
    out, _ = trained(folder, pairs="train.tsv")
    assert isinstance(sightline.load(out, device="cpu"), Translator)
    assert ModelFolder(out).trained_source_length == 1


def test_an_imported_bert_trains_with_its_own_mask(folder, monkeypatch):
    """The batches mask by [MASK], and the model's row for it is trained; UNKNOWN does not occur in them."""
    words = sorted({word for text in SENTENCES for word in re.findall(r"[a-z]+|\S", text.lower())})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    bert = folder / "bert"
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    BertForMaskedLM(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=64, **sizes)).save_pretrained(bert)
    (bert / "vocab.txt").write_text("".join(f"{entry}\n" for entry in vocabulary))
    model, tokenizer = read_hugging_face(bert)
    save_model(model, folder / "imported", tokenizer)
    seen, hidden = Counter(), type(model).hidden

    def counted(self, inputs):
        seen.update(inputs.source.flatten().tolist())
        return hidden(self, inputs)

    monkeypatch.setattr(type(model), "hidden", counted)
    out, events = folder / "run", []
    texts = TextFiles(texts=[(str(folder / "text.txt"), 1.0)])
    steps = ["train.steps=30", "train.learning_rate=0.01", "train.schedule=constant", "train.report_every=10"]
    options = RunOptions(out, texts, init_from=str(folder / "imported"), set=steps, cache=folder / "c", device="cpu")
    train_files(options, events.append)
    mask = tokenizer.token_id("[MASK]")
    assert seen[mask] > 100
    assert seen[UNKNOWN] == 0
    losses = [event.loss for event in events if isinstance(event, Progress)]
    assert losses[-1] < losses[0]
    before, after = (load_model(path).encoder.embedding.tokens.weight[mask] for path in (folder / "imported", out))
    assert not torch.equal(before, after)
    engine = sightline.load(out, device="cpu")
    (filled,) = engine.fill("the [MASK] sleeps .")
    assert mask in engine.trace(filled).ids["source"]


def test_text_and_model_must_fit(folder):
    for architecture, files in [("encoder-only", {"pairs": "train.tsv"}), ("encoder-decoder", {"texts": "text.txt"})]:
        with raises(InputError, option="model.architecture", value=architecture):
            trained(folder, architecture, **files)
    options = RunOptions(
        folder / "run",
        TextFiles(pairs=[(str(folder / "train.tsv"), 1.0)]),
        TextFiles(texts=[(str(folder / "text.txt"), 1.0)]),
    )
    with raises(InputError, option="valid", value="text"):
        train_files(options, lambda _: None)


# --- Reading


READ = {
    "pairs": ({"pairs": "train.tsv"}, "dev.tsv", "encoder-decoder", ()),
    "pairs, preset by size": ({"pairs": "train.tsv"}, "dev.tsv", None, ("train.steps=1", "train.batch_tokens=512")),
    "held out": ({"pairs": "train.tsv"}, None, "encoder-decoder", ()),
    "BPE-dropout": ({"pairs": "train.tsv"}, "dev.tsv", "encoder-decoder", ("data.bpe_dropout=0.1", "data.readings=3")),
    "text": ({"texts": "text.txt"}, "dev.txt", "decoder-only", ()),
    "dialogues": ({"dialogues": "talk.jsonl"}, "dev.jsonl", "encoder-decoder", ()),
}


@pytest.mark.parametrize("case", READ)
def test_raw_files_are_read_at_most_twice_before_the_first_step(case, folder, monkeypatch):
    """Once to count, hash and sample them, and once to tokenise them; once if they are tokenised already."""
    files, valid, architecture, sets = READ[case]
    read = Counter()
    original = corpora.raw_lines
    monkeypatch.setattr(corpora, "raw_lines", lambda path: (read.update([path.name]), original(path))[1])
    trained(folder, architecture, valid, values, sets=sets, **files)
    named = {*files.values(), *([valid] if valid else [])}
    assert read == dict.fromkeys(named, 2)
    read.clear()
    (folder / "run").rename(folder / "first")
    trained(folder, architecture, valid, values, sets=sets, **files)
    assert read == dict.fromkeys(named, 1)


def test_references_are_the_users_text(folder):
    """Not the text of their ids: spaces at the end and twice in a row are lost in ids."""
    text = "".join(
        f"{s}  {i}\t{t}  {i} \n" for i, (s, t) in enumerate(zip(SENTENCES, reversed(SENTENCES), strict=True))
    )
    rows = {tuple(line.split("\t")) for line in (text * 2).splitlines()}
    (folder / "train.tsv").write_text(text * 2)
    for valid in ("train.tsv", None):
        given = []

        def score(_, references, given=given):
            given.extend(references)
            return {}

        _, events = trained(folder, valid=valid, score=score, pairs="train.tsv")
        samples = [sample for event in events if isinstance(event, Validated) for sample in event.samples]
        assert samples
        assert all((source, reference) in rows for source, reference, _ in samples)
        assert {*given} <= {reference for _, reference in rows}
        (folder / "run").rename(folder / f"run {valid}")


def test_held_out_text_is_the_same_for_every_seed(folder):
    samples = []
    for seed in (1, 2):
        out, events = trained(folder, sets=[f"train.seed={seed}"], pairs="train.tsv", score=values)
        samples.append([sample[:2] for sample in next(e for e in events if isinstance(e, Validated)).samples])
        out.rename(folder / f"run {seed}")
    assert samples[0] == samples[1] != []
