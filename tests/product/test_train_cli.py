"""`sightline train`, as a person runs it: from files to a model, and one sentence where that cannot be."""

import json
import re

import pytest
from safetensors.torch import load_file

from runs import OPTIONS, files, metrics, on_pairs, sightline, train_here, write_pairs
from sightline.cli.main import main
from sightline.data.builtin import generate
from sightline.model_folder import load_model, load_tokenizer
from support import difference

PAIRS = [(pair.source, pair.target) for pair in generate("train", 120)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_pairs(folder)
    lines = {
        "a.en": [s for s, _ in PAIRS],
        "a.de": [t for _, t in PAIRS],
        "a.jsonl": [json.dumps({"source": s, "target": t}) for s, t in PAIRS],
        "a.txt": [f"{t}\n" for _, t in PAIRS],
        "talk.jsonl": [json.dumps({"turns": pair}) for pair in PAIRS],
    }
    for name, text in lines.items():
        (folder / name).write_text("".join(f"{line}\n" for line in text))
    for architecture in ("decoder-only", "encoder-only"):
        (folder / f"{architecture}.toml").write_text(
            OPTIONS.replace("[model]", f'[model]\narchitecture = "{architecture}"')
        )
    return folder


def options(*given):
    return [part for option in given for part in ("--set", option)]


KINDS = {
    "tsv": ["--pairs", "train.tsv", "--valid", "dev.tsv", "--config", "options.toml"],
    "parallel": [
        *("--source", "a.en", "--target", "a.de", "--source", "a.en*0.5", "--target", "a.de"),
        *("--valid-source", "a.en", "--valid-target", "a.de", "--config", "options.toml"),
        *options("train.steps=2"),
    ],
    "jsonl": ["--pairs", "a.jsonl*2", "--config", "options.toml", *options("train.rows=shared")],
    "text": ["--text", "a.txt", "--valid", "a.txt", "--config", "decoder-only.toml"],
    "dialogue": ["--dialogue", "talk.jsonl", "--config", "decoder-only.toml", *options("train.rows=shared")],
    "masked words": ["--text", "a.txt", "--valid", "a.txt", "--config", "encoder-only.toml"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_from_files_to_a_model(kind, corpus, tmp_path):
    out = tmp_path / "run"
    given = [corpus / word if (corpus / word.split("*")[0]).is_file() else word for word in KINDS[kind]]
    done = sightline(tmp_path, "train", *given, "--out", out, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{out}\n"
    model, tokenizer = load_model(out), load_tokenizer(out)
    assert model.config.vocab_size == tokenizer.size
    reports = [line for line in metrics(out) if line["event"] == "progress"]
    assert reports[-1]["step"] == (2 if kind == "parallel" else 12)
    assert any(line["event"] == "validated" for line in metrics(out)) == any("--valid" in str(word) for word in given)
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "\x1b" not in done.stderr  # plain lines where nobody looks
    assert "\r" not in done.stderr
    assert re.search(r"^step \d+/\d+  epoch \d+\.\d  loss \d", done.stderr, re.MULTILINE)


def test_what_the_command_does_is_what_the_library_does(corpus, tmp_path):
    train_here(corpus, tmp_path / "here", "train.average=2", "train.validate_every=5")
    train = on_pairs(corpus, "train.average=2", "train.validate_every=5")
    done = sightline(tmp_path, *train, "--out", tmp_path / "there", "--tensorboard", "--plain")
    assert done.returncode == 0, done.stderr
    here, there = files(tmp_path / "here"), files(tmp_path / "there")
    boards = [name for name in there if name.startswith("tensorboard/")]
    assert len(boards) == 1
    assert {name: there[name] for name in here} == here


def test_a_preset_is_chosen_from_the_corpus(corpus, tmp_path):
    out = tmp_path / "run"
    sets = options("train.steps=1", "train.batch_tokens=512", "data.vocab_size=340", "data.bpe_dropout=0.0")
    done = sightline(tmp_path, "train", "--pairs", corpus / "train.tsv", "--out", out, "--device", "cpu", *sets)
    assert done.returncode == 0, done.stderr
    assert "120 lines of training text: preset tiny (choose another with --preset)" in done.stderr
    assert "WARNING: the model has" in done.stderr  # a hundred pairs are far too few for it
    assert any(line["event"] == "warned" and "learn them by heart" in line["text"] for line in metrics(out))


@pytest.mark.parametrize(("steps", "warmup", "warned"), [(24, 13, True), (24, 12, False), (12, 13, False)])
def test_a_run_that_is_all_warm_up_is_told_to_be_so(steps, warmup, warned, corpus, tmp_path):
    out = tmp_path / "run"
    done = sightline(tmp_path, *on_pairs(corpus, f"train.steps={steps}", f"train.warmup={warmup}"), "--out", out)
    assert done.returncode == 0, done.stderr
    told = (
        "the run has 24 steps, and for the first 13 (train.warmup) its learning rate only rises. More epochs, or --set "
        "train.warmup=2, will do better."
    )
    assert (told in done.stderr) == warned
    assert ("train.warmup" in done.stderr) == warned


# --- On from a model


def first_loss(out):
    return next(line["loss"] for line in metrics(out) if line["event"] == "progress")


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "run"
    train_here(corpus, out, "train.steps=150", "train.learning_rate=0.01", tested=False)
    return out


@pytest.mark.parametrize("vocab_size", [None, 360])
def test_it_goes_on_from_a_model_with_its_vocabulary_or_a_new_one(vocab_size, corpus, trained, tmp_path):
    """A new vocabulary is other rows of the embedding; everything between them is kept as it is."""
    (tmp_path / "on.toml").write_text(OPTIONS.replace("vocab_size = 340", "") + "report_every = 1\n")
    sets = options("train.learning_rate=1e-8", *([f"data.vocab_size={vocab_size}"] if vocab_size else []))
    train = ["train", "--pairs", corpus / "train.tsv", "--config", tmp_path / "on.toml", "--device", "cpu"]
    done = sightline(tmp_path, *train, "--from", trained, "--out", tmp_path / "on", *sets)
    assert done.returncode == 0, done.stderr
    train_here(corpus, tmp_path / "new", "train.report_every=1", f"data.vocab_size={vocab_size or 340}", tested=False)
    assert first_loss(tmp_path / "on") < first_loss(tmp_path / "new") - 0.5
    old, on = (load_file(folder / "model.safetensors") for folder in (trained, tmp_path / "on"))
    embedding = "encoder.embedding.tokens.weight"
    same = [name for name in old if name != embedding or vocab_size is None]
    assert all(difference(old[name], on[name]) <= 1e-5 for name in same)
    assert (load_tokenizer(tmp_path / "on").model == load_tokenizer(trained).model) == (vocab_size is None)
    if vocab_size:
        before, after = load_tokenizer(trained), load_tokenizer(tmp_path / "on")
        known = {piece: i for i, piece in enumerate(before.pieces(range(before.size)))}
        kept = [(i, known[piece]) for i, piece in enumerate(after.pieces(range(after.size))) if piece in known]
        assert len(kept) > 300
        mine, theirs = zip(*kept, strict=True)
        assert difference(on[embedding][list(mine)], old[embedding][list(theirs)]) <= 1e-5


def test_a_model_that_is_gone_on_from_stays_what_it_is_and_may_drop_more(corpus, trained, refused, tmp_path):
    train = ["--pairs", corpus / "train.tsv", "--from", trained]
    found = refused(*train, *options("model.encoder.heads=1"))
    assert found == "--from goes on with a model as it is, so model.encoder.heads cannot be set; leave it out."
    file = tmp_path / "other.toml"
    file.write_text('[model]\nnorm = "pre"\n')
    assert "so model.norm cannot be set" in refused(*train, "--config", file)
    more = options("model.dropout=0.3", "train.steps=1", "model.d_model=16")  # as it is
    done = sightline(tmp_path, "train", *train, "--out", tmp_path / "on", "--device", "cpu", *more)
    assert done.returncode == 0, done.stderr
    before, after = load_model(trained).config, load_model(tmp_path / "on").config
    assert after == before.model_copy(update={"dropout": 0.3})


def test_a_width_that_happens_to_be_the_size_of_the_vocabulary_is_not_taken_for_it(corpus, tmp_path):
    wide = [f"model.{stack}={{layers = 1, heads = 2, d_ff = 340}}" for stack in ("encoder", "decoder")]
    train_here(corpus, tmp_path / "old", "train.steps=1", *wide, tested=False)
    assert load_tokenizer(tmp_path / "old").size == 340
    more = ["train.steps=1", "train.learning_rate=1e-9", "data.vocab_size=350", *wide]
    train_here(corpus, tmp_path / "new", *more, start=tmp_path / "old", tested=False)
    old, new = (load_file(tmp_path / name / "model.safetensors") for name in ("old", "new"))
    name = "encoder.layers.0.feed_forward.inner.weight"
    assert difference(old[name], new[name]) <= 1e-6


# --- What cannot be


@pytest.fixture
def refused(tmp_path, monkeypatch, capfd):
    """What the command says when it exits with 2: one sentence. Nothing is left behind, and nothing that was there is
    changed. (Its `main` in this process, which has torch; that the process ends the same way, others show.)"""

    def run(*arguments, out="run"):
        def here():
            return {path: path.read_bytes() for path in (tmp_path / out).rglob("*") if path.is_file()}

        before = here()
        words = ["sightline", "train", *arguments, "--out", tmp_path / out, "--device", "cpu"]
        monkeypatch.setattr("sys.argv", [str(word) for word in words])
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        with pytest.raises(SystemExit) as stopped:
            main()
        told = capfd.readouterr()
        assert stopped.value.code == 2
        assert told.out == ""
        assert here() == before
        assert before or not (tmp_path / out).exists()
        return told.err.splitlines()[-1]

    return run


def bad(folder, name, content):
    path = folder / name
    path.write_bytes(content)
    return path


GOOD = "".join(f"{s}\t{t}\n" for s, t in PAIRS).encode()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (GOOD + b"caf\xe9\tx\n", "bad.tsv:121: byte 4 is not valid UTF-8."),
        (b"", "bad.tsv: the file is empty."),
        (GOOD + b"x" * 100_001 + b"\ty\n", "bad.tsv:121: the line has 100,003 characters; 100,000 is the limit."),
        (
            "".join(f"{s}\t{s}\n" for s, _ in PAIRS).encode(),
            "bad.tsv: source and target are the same in 120 of 120 pairs; is one language given twice?",
        ),
        (GOOD + b"no tab\n", "bad.tsv:121: the line has no tab between source and target."),
    ],
    ids=["bad UTF-8", "empty", "absurd line", "one language twice", "no tab"],
)
def test_what_is_wrong_with_a_file_is_told_with_its_name_and_line(content, sentence, corpus, refused, tmp_path):
    path = bad(tmp_path, "bad.tsv", content)
    found = refused("--pairs", path, "--config", corpus / "options.toml")
    assert found == f"{tmp_path}/{sentence}"


def test_unequal_files_and_missing_ones_are_named(corpus, refused, tmp_path):
    short = bad(tmp_path, "short.de", "".join(f"{t}\n" for _, t in PAIRS[:-1]).encode())
    config = ["--config", corpus / "options.toml"]
    found = refused("--source", corpus / "a.en", "--target", short, *config)
    assert found == f"{corpus}/a.en has 120 lines and {short} has 119; they must have as many."
    missing = tmp_path / "nothing.tsv"
    found = refused("--pairs", corpus / "train.tsv", "--valid", missing, *config)
    assert found == f"{missing}: cannot be read: No such file or directory."


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--pairs", "train.tsv", "--set", "train.learning_rat=1"], "train.learning_rat`"),
        (["--pairs", "train.tsv", "--source", "a.en"], "there are 1 --source and 0 --target; they come in pairs."),
        (["--pairs", "train.tsv", "--text", "a.txt"], "pairs, texts and dialogues train different models"),
        (["--text", "a.txt", "--valid-source", "a.en", "--valid-target", "a.de"], "tested on text of their kind"),
        ([], "there is nothing to train on; name files by --source and --target, --pairs, --text or --dialogue."),
        (["--text", "a.txt", "--config", "options.toml"], "this text needs a model that is decoder-only"),
        (["--resume"], "there is no run here to resume; leave out --resume to begin one."),
        (["--pairs", "train.tsv", "--from", "nowhere"], "no model found: config.json is missing."),
    ],
)
def test_what_cannot_be_asked_for_is_told(arguments, sentence, corpus, refused):
    given = [corpus / word if (corpus / word).is_file() else word for word in arguments]
    assert sentence in refused(*given)


def test_the_process_ends_as_its_main_does(corpus, tmp_path):
    path = bad(tmp_path, "bad.tsv", GOOD + b"no tab\n")
    done = sightline(tmp_path, "train", "--pairs", path, "--config", corpus / "options.toml", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"{path}:121: the line has no tab between source and target.\n"
    assert not (tmp_path / "run").exists()


def test_a_model_is_never_written_over_and_a_run_keeps_its_configuration(corpus, refused, tmp_path):
    train_here(corpus, tmp_path / "run", "train.steps=1")
    found = refused("--pairs", corpus / "train.tsv", "--config", corpus / "options.toml")
    assert found == f"{tmp_path}/run: there is a model here already; add --resume to go on, or choose another --out."
    found = refused("--resume", "--set", "train.steps=9")
    assert "a run that is resumed keeps its configuration; leave out --preset, --config, --set and --from." in found


def test_a_run_is_resumed_with_the_text_it_began_with_wherever_that_is(corpus, refused, tmp_path):
    for name in ("train.tsv", "dev.tsv", "options.toml"):
        (tmp_path / name).write_bytes((corpus / name).read_bytes())
    out = tmp_path / "run"
    train_here(tmp_path, out, "train.steps=2", "train.save_every=1")
    begun = files(out)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).rename(moved / name)
    given = ["--pairs", moved / "train.tsv", "--valid", moved / "dev.tsv"]
    done = sightline(tmp_path, "train", "--resume", *given, "--out", out, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    other = f"{out}: its text is no longer what this run began with, so it cannot go on; begin another one, with --from"
    assert other in refused("--resume", "--pairs", f"{moved / 'train.tsv'}*2", *given[2:])
    assert other in refused("--resume", *given[:2], "--valid", moved / "train.tsv")
    (moved / "train.tsv").write_text((moved / "train.tsv").read_text() + "A dog.\tEin Hund.\n")
    assert other in refused("--resume", *given)
    assert files(out) == begun


def test_a_loss_that_is_no_number_ends_the_run_in_one_sentence(corpus, tmp_path):
    train = on_pairs(corpus, "train.learning_rate=1e30", "train.warmup=0", "train.report_every=2")
    done = sightline(tmp_path, *train, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    sentence = done.stderr.splitlines()[-1]
    assert re.match(r"step \d+: the loss or the gradient is no longer a number; the run stops here\.", sentence)


def test_a_source_that_has_the_target_in_it_is_warned_of_once_and_written_down(corpus, tmp_path):
    leaking = "".join(f"{s} {t}\t{t}\n" for s, t in PAIRS)
    (tmp_path / "train.tsv").write_text(leaking)
    for name in ("dev.tsv", "options.toml"):
        (tmp_path / name).write_bytes((corpus / name).read_bytes())
    train_here(tmp_path, tmp_path / "run", "train.steps=2")
    warned = [line["text"] for line in metrics(tmp_path / "run") if line["event"] == "warned"]
    assert sum("the source has the whole target in it" in text for text in warned) == 1
    before = metrics(tmp_path / "run")
    done = sightline(tmp_path, "train", "--resume", "--out", tmp_path / "run", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert metrics(tmp_path / "run") == before


def test_lines_of_metrics_are_lines_whatever_the_text_is(corpus, tmp_path):
    """Some readers end a line at other characters than we do."""
    odd = "a\u2028b\u2029c\x85d"
    (tmp_path / "dev.tsv").write_text("".join(f"{s} {odd}\t{t} {odd}\n" for s, t in PAIRS[:3]))
    for name in ("train.tsv", "options.toml"):
        (tmp_path / name).write_bytes((corpus / name).read_bytes())
    train_here(tmp_path, tmp_path / "run", "train.validate_every=5", "train.save_every=5")
    lines = metrics(tmp_path / "run")
    assert [line["samples"][0][0] for line in lines if line["event"] == "validated"] == [f"{PAIRS[0][0]} {odd}"] * 3
    train_here(tmp_path, tmp_path / "run", resume=True)
    assert metrics(tmp_path / "run") == lines


def test_a_budget_that_is_found_is_kept_with_the_run(corpus, tmp_path):
    train_here(corpus, tmp_path / "run", "train.batch_tokens=auto", "train.steps=1")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["config"]["train"]["batch_tokens"] == 4096
