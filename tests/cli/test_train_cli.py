"""`sightline train` from files to a model, and its errors."""

import json
import re

import pytest
from safetensors.torch import load_file

from runs import OPTIONS, files, metrics, on_pairs, sightline, train_here, write_pairs
from sightline.cli.main import main
from sightline.data.builtin import generate
from sightline.errors import CheckpointError, ConfigError, InputError, TrainingError
from sightline.model_folder import load_model, load_tokenizer
from sightline.train.run import RunOptions, TextFiles, train_files
from support import difference, raises

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


KIND_FILES = [("pairs", "train.tsv"), ("texts", "a.txt")]
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
    assert "\x1b" not in done.stderr  # plain lines without a terminal
    assert "\r" not in done.stderr
    assert re.search(r"^step \d+/\d+  epoch \d+\.\d  loss \d", done.stderr, re.MULTILINE)


def test_command_equals_library(corpus, tmp_path):
    train_here(corpus, tmp_path / "here", "train.average=2", "train.validate_every=5")
    train = on_pairs(corpus, "train.average=2", "train.validate_every=5")
    done = sightline(tmp_path, *train, "--out", tmp_path / "there", "--tensorboard", "--plain")
    assert done.returncode == 0, done.stderr
    here, there = files(tmp_path / "here"), files(tmp_path / "there")
    boards = [name for name in there if name.startswith("tensorboard/")]
    assert len(boards) == 1
    assert {name: there[name] for name in here} == here


def test_preset_is_chosen_by_the_size_of_the_corpus(corpus, tmp_path):
    out = tmp_path / "run"
    sets = options("train.steps=1", "train.batch_tokens=512", "data.vocab_size=340", "data.bpe_dropout=0.0")
    done = sightline(tmp_path, "train", "--pairs", corpus / "train.tsv", "--out", out, "--device", "cpu", *sets)
    assert done.returncode == 0, done.stderr
    assert "120 examples of training text: using preset tiny" in done.stderr
    assert "WARNING: the model has" in done.stderr  # 120 pairs are too few for this preset
    assert any(line["event"] == "warned" and "overfit" in line["text"] for line in metrics(out))


@pytest.mark.parametrize(("steps", "warmup", "warned"), [(24, 13, True), (24, 12, False), (12, 13, False)])
def test_long_warm_up_is_warned_of(steps, warmup, warned, corpus, tmp_path):
    out = tmp_path / "run"
    done = sightline(tmp_path, *on_pairs(corpus, f"train.steps={steps}", f"train.warmup={warmup}"), "--out", out)
    assert done.returncode == 0, done.stderr
    found = [line for line in done.stderr.splitlines() if line.startswith("WARNING") and "train.warmup" in line]
    assert len(found) == warned
    assert all("first 13 of 24 steps" in line and "set `train.warmup` to 2" in line for line in found)


# --- Training from a model


def first_loss(out):
    return next(line["loss"] for line in metrics(out) if line["event"] == "progress")


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "run"
    train_here(corpus, out, "train.steps=150", "train.learning_rate=0.01", validated=False)
    return out


@pytest.mark.parametrize("vocab_size", [None, 360])
def test_training_from_a_model_with_its_vocabulary_or_a_new_one(vocab_size, corpus, trained, tmp_path):
    """A new vocabulary changes the rows of the embedding, and no other weight."""
    (tmp_path / "on.toml").write_text(OPTIONS.replace("vocab_size = 340", "") + "report_every = 1\n")
    sets = options("train.learning_rate=1e-8", *([f"data.vocab_size={vocab_size}"] if vocab_size else []))
    train = ["train", "--pairs", corpus / "train.tsv", "--config", tmp_path / "on.toml", "--device", "cpu"]
    done = sightline(tmp_path, *train, "--from", trained, "--out", tmp_path / "on", *sets)
    assert done.returncode == 0, done.stderr
    train_here(
        corpus, tmp_path / "new", "train.report_every=1", f"data.vocab_size={vocab_size or 340}", validated=False
    )
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


def test_training_from_a_model_keeps_its_options_but_dropout(corpus, trained, refused, tmp_path):
    train = ["--pairs", corpus / "train.tsv", "--from", trained]
    found = refused(*train, *options("model.encoder.heads=1"))
    assert "`model.encoder.heads`" in found
    assert "--from" in found
    file = tmp_path / "other.toml"
    file.write_text('[model]\nnorm = "pre"\n')
    assert "`model.norm`" in refused(*train, "--config", file)
    more = options("model.dropout=0.3", "train.steps=1", "model.d_model=16")  # the value of the model
    done = sightline(tmp_path, "train", *train, "--out", tmp_path / "on", "--device", "cpu", *more)
    assert done.returncode == 0, done.stderr
    before, after = load_model(trained).config, load_model(tmp_path / "on").config
    assert after == before.model_copy(update={"dropout": 0.3})


def test_layer_as_wide_as_the_vocabulary_is_kept_with_a_new_vocabulary(corpus, tmp_path):
    wide = [f"model.{stack}={{layers = 1, heads = 2, d_ff = 340}}" for stack in ("encoder", "decoder")]
    train_here(corpus, tmp_path / "old", "train.steps=1", *wide, validated=False)
    assert load_tokenizer(tmp_path / "old").size == 340
    more = ["train.steps=1", "train.learning_rate=1e-9", "data.vocab_size=350", *wide]
    train_here(corpus, tmp_path / "new", *more, start=tmp_path / "old", validated=False)
    old, new = (load_file(tmp_path / name / "model.safetensors") for name in ("old", "new"))
    name = "encoder.layers.0.feed_forward.inner.weight"
    assert difference(old[name], new[name]) <= 1e-6


# --- Errors


@pytest.fixture
def refused(tmp_path, monkeypatch, capfd):
    """Run a command that must exit with 2 and change no file; return the last line of stderr. It runs in this process,
    which is faster; `test_exit_status_of_the_process` runs a separate one."""

    def run(*arguments, out="run"):
        def here():
            return {path: path.read_bytes() for path in (tmp_path / out).rglob("*") if path.is_file()}

        before = here()
        words = ["sightline", "train", "--device", "cpu", *arguments, "--out", tmp_path / out]
        monkeypatch.setattr("sys.argv", [str(word) for word in words])
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capfd.readouterr()
        assert stopped.value.code == 2
        assert captured.out == ""
        assert here() == before
        assert before or not (tmp_path / out).exists()
        return captured.err.splitlines()[-1]

    return run


def bad(folder, name, content):
    path = folder / name
    path.write_bytes(content)
    return path


GOOD = "".join(f"{s}\t{t}\n" for s, t in PAIRS).encode()


@pytest.mark.parametrize(
    ("content", "place", "word"),
    [
        (GOOD + b"caf\xe9\tx\n", "bad.tsv:121", "UTF-8"),
        (b"", "bad.tsv", "empty"),
        (GOOD + b"x" * 100_001 + b"\ty\n", "bad.tsv:121", "100,003"),
        ("".join(f"{s}\t{s}\n" for s, _ in PAIRS).encode(), "bad.tsv", "120 of 120"),
        (GOOD + b"no tab\n", "bad.tsv:121", "tab"),
    ],
    ids=["bad UTF-8", "empty", "absurd line", "one language twice", "no tab"],
)
def test_errors_in_a_file_name_file_and_line(content, place, word, corpus, refused, tmp_path):
    path = bad(tmp_path, "bad.tsv", content)
    found = refused("--pairs", path, "--config", corpus / "options.toml")
    assert found.startswith(f"{tmp_path}/{place}: ")
    assert word in found


def test_files_of_unequal_length_and_missing_files_are_named(corpus, refused, tmp_path):
    short = bad(tmp_path, "short.de", "".join(f"{t}\n" for _, t in PAIRS[:-1]).encode())
    config = ["--config", corpus / "options.toml"]
    found = refused("--source", corpus / "a.en", "--target", short, *config)
    assert all(part in found for part in (f"{corpus}/a.en", "120", str(short), "119"))
    missing = tmp_path / "nothing.tsv"
    found = refused("--pairs", corpus / "train.tsv", "--valid", missing, *config)
    assert found.startswith(f"{missing}: ")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--pairs", "train.tsv", "--set", "train.learning_rat=1"], ["train.learning_rat"]),
        (["--pairs", "train.tsv", "--source", "a.en"], ["--source", "--target", "1 and 0"]),
        (["--source", "a.en", "--target", "a.de", "--valid-source", "a.en"], ["--valid-source", "--valid-target"]),
        (["--pairs", "train.tsv", "--text", "a.txt"], ["--text"]),
        (["--text", "a.txt", "--valid-source", "a.en", "--valid-target", "a.de"], ["--valid-source", "--valid"]),
        ([], ["--source", "--target", "--pairs", "--text", "--dialogue"]),
        (["--text", "a.txt", "--config", "options.toml"], ["`model.architecture`", "decoder-only"]),
        (["--resume"], ["--resume"]),
        (["--pairs", "train.tsv", "--from", "nowhere"], ["nowhere"]),
        (["--pairs", "train.tsv", "--device", "gpu"], ["--device", "gpu"]),
    ],
)
def test_conflicting_or_missing_options_are_named(arguments, named, corpus, refused):
    found = refused(*[corpus / word if (corpus / word).is_file() else word for word in arguments])
    assert all(part in found for part in named), found


def test_exit_status_of_the_process(corpus, tmp_path):
    path = bad(tmp_path, "bad.tsv", GOOD + b"no tab\n")
    done = sightline(tmp_path, "train", "--pairs", path, "--config", corpus / "options.toml", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"{path}:121: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_existing_model_is_not_overwritten_and_resumed_run_keeps_its_configuration(corpus, refused, tmp_path):
    train_here(corpus, tmp_path / "run", "train.steps=1")
    found = refused("--pairs", corpus / "train.tsv", "--config", corpus / "options.toml")
    assert all(part in found for part in ("--out", f"{tmp_path}/run", "--resume"))
    for flag, value in (("--set", "train.steps=9"), ("--preset", "tiny"), ("--config", "x.toml"), ("--from", "x")):
        assert flag in refused("--resume", flag, value)


def test_library_errors_name_option_and_value(corpus, tmp_path):
    pairs, text = (TextFiles(**{kind: [(str(corpus / file), 1.0)]}) for kind, file in KIND_FILES)
    config = str(corpus / "options.toml")
    run = tmp_path / "run"
    train_here(corpus, run, "train.steps=1")
    for options, kind, option, value in [
        (RunOptions(run, pairs), InputError, "out", run),
        (RunOptions(tmp_path / "no"), InputError, "pairs", None),
        (RunOptions(tmp_path / "no", pairs._replace(texts=text.texts)), InputError, "text", None),
        (RunOptions(tmp_path / "no", text, config=config), InputError, "model.architecture", "encoder-decoder"),
        (RunOptions(tmp_path / "no", resume=True), CheckpointError, "resume", True),
        (RunOptions(run, resume=True, set=["train.steps=9"]), InputError, "set", ["train.steps=9"]),
        (RunOptions(run, resume=True, device="gpu"), InputError, "device", "gpu"),
        (
            RunOptions(tmp_path / "no", pairs, init_from=str(run), set=["model.encoder.heads=1"]),
            InputError,
            "model.encoder.heads",
            1,
        ),
        (
            RunOptions(tmp_path / "no", pairs, config=config, set=["model.source_end=false"], device="cpu"),
            ConfigError,
            "model.source_end",
            False,
        ),
        (
            RunOptions(tmp_path / "no", pairs, config=config, set=["train.graphs=true"], device="cpu"),
            TrainingError,
            "train.graphs",
            True,
        ),
    ]:
        with raises(kind, option=option, value=value):
            train_files(options._replace(cache=corpus / "cache"), lambda _: None)


def test_runs_of_version_0_1_are_refused(corpus, tmp_path):
    run = tmp_path / "run"
    train_here(corpus, run, "train.steps=1")
    about = json.loads((run / "run.json").read_text())
    about["start"] = about.pop("init_from")
    del about["format"]
    (run / "run.json").write_text(json.dumps(about))
    with raises(CheckpointError, match="another version"):
        train_here(corpus, run, resume=True)


def test_run_is_resumed_with_moved_files_but_not_with_changed_text(corpus, refused, tmp_path):
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
    changed = f"{out}: the training data has changed"
    assert changed in refused("--resume", "--pairs", f"{moved / 'train.tsv'}*2", *given[2:])
    assert changed in refused("--resume", *given[:2], "--valid", moved / "train.tsv")
    (moved / "train.tsv").write_text((moved / "train.tsv").read_text() + "A dog.\tEin Hund.\n")
    assert changed in refused("--resume", *given)
    assert files(out) == begun


def test_run_with_dropout_of_merges_needs_the_same_tokens(corpus, tmp_path):
    """Another process draws other splits, so a store that is made again is other text."""
    out = tmp_path / "run"
    given = on_pairs(corpus, "train.steps=2", "data.bpe_dropout=0.2", "data.readings=2")
    assert sightline(tmp_path, *given, "--out", out, "--cache", tmp_path / "tokens").returncode == 0
    resume = ("train", "--resume", "--out", out, "--device", "cpu", "--cache")
    assert sightline(tmp_path, *resume, tmp_path / "tokens").returncode == 0
    refused = sightline(tmp_path, *resume, tmp_path / "made again")
    assert refused.returncode == 2
    assert "the training data has changed" in refused.stderr


def test_nan_loss_ends_the_run(corpus, tmp_path):
    train = on_pairs(corpus, "train.learning_rate=1e30", "train.warmup=0", "train.report_every=2")
    done = sightline(tmp_path, *train, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "NaN" in done.stderr.splitlines()[-1]


def test_sources_that_contain_targets_are_warned_of_once(corpus, tmp_path):
    leaking = "".join(f"{s} {t}\t{t}\n" for s, t in PAIRS)
    (tmp_path / "train.tsv").write_text(leaking)
    for name in ("dev.tsv", "options.toml"):
        (tmp_path / name).write_bytes((corpus / name).read_bytes())
    train_here(tmp_path, tmp_path / "run", "train.steps=2")
    warned = [line["text"] for line in metrics(tmp_path / "run") if line["event"] == "warned"]
    assert sum("source contains the target" in text for text in warned) == 1
    before = metrics(tmp_path / "run")
    done = sightline(tmp_path, "train", "--resume", "--out", tmp_path / "run", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert metrics(tmp_path / "run") == before


def test_metrics_escape_unicode_line_separators(corpus, tmp_path):
    """Some readers end a line at them."""
    odd = "a\u2028b\u2029c\x85d"
    (tmp_path / "dev.tsv").write_text("".join(f"{s} {odd}\t{t} {odd}\n" for s, t in PAIRS[:3]))
    for name in ("train.tsv", "options.toml"):
        (tmp_path / name).write_bytes((corpus / name).read_bytes())
    train_here(tmp_path, tmp_path / "run", "train.validate_every=5", "train.save_every=5")
    lines = metrics(tmp_path / "run")
    assert [line["samples"][0][0] for line in lines if line["event"] == "validated"] == [f"{PAIRS[0][0]} {odd}"] * 3
    train_here(tmp_path, tmp_path / "run", resume=True)
    assert metrics(tmp_path / "run") == lines


def test_automatic_batch_size_is_stored_with_the_run(corpus, tmp_path):
    train_here(corpus, tmp_path / "run", "train.batch_tokens=auto", "train.steps=1")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["config"]["train"]["batch_tokens"] == 4096
