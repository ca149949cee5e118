"""A run gives the same result when interrupted and resumed, and with one process or two."""

import json
import os
import random
import resource
import shutil
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

from runs import LIMIT, files, metrics, on_pairs, sightline, start, state, train_here, wait_for, write_pairs
from sightline.config import TrainConfig
from sightline.data.batches import collate
from sightline.data.corpus import Table
from sightline.data.examples import PairExamples
from sightline.data.feed import Place, Update
from sightline.errors import TrainingError
from sightline.model_folder import load_model, load_tokenizer, set_weights
from sightline.runs import Event, Finished, Progress, Saved, Validated
from sightline.train.distributed import World
from sightline.train.optimizer import optimizer_state
from sightline.train.state import last_state
from sightline.train.step import Step
from sightline.train.validate import Validation
from support import difference, raises, store_of


class Crash(Exception):
    """Stands for the end of the process."""


class CrashAt:
    """Raise `Crash` at the n-th event of a run."""

    def __init__(self, count: int) -> None:
        self.left = count

    def __call__(self, event: Event) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_pairs(folder)
    return folder


# --- Resuming

UNEVEN = ["train.report_every=3", "train.validate_every=5", "train.save_every=4"]
RECIPES = {
    "adam": (UNEVEN, 2),
    "muon, running average, mean of states": (
        [
            *UNEVEN,
            "train.optimizer=muon",
            "train.learning_rate=0.02",
            "train.weight_decay=0.1",
            "train.ema=0.9",
            "train.average=2",
            "train.clip=1.0",
        ],
        3,
    ),
    "bpe-dropout, shared rows, r-drop": (
        [
            "train.report_every=2",
            "train.validate_every=7",
            "train.save_every=3",
            "data.bpe_dropout=0.1",
            "data.readings=2",
            "train.rows=shared",
            "train.r_drop=1.0",
            "train.accumulate=3",
        ],
        4,
    ),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_resumed_run_equals_uninterrupted_run(recipe, corpus, tmp_path):
    options, stride = RECIPES[recipe]
    events = []
    train_here(corpus, tmp_path / "whole", *options, also=events.append)
    whole = files(tmp_path / "whole")
    assert isinstance(events[-1], Finished)
    for stop in range(1, len(events) + 1, stride):
        out = tmp_path / f"stopped at event {stop}"
        with pytest.raises(Crash):
            train_here(corpus, out, *options, also=CrashAt(stop))
        train_here(corpus, out, resume=True)
        again = files(out)
        assert again.keys() == whole.keys()
        assert [name for name in whole if whole[name] != again[name]] == []


# --- One process or two


def set_steps(out, steps):
    """Change the length of a run that has stopped."""
    about = json.loads((out / "run.json").read_text())
    about["config"]["train"]["steps"] = steps
    (out / "run.json").write_text(json.dumps(about))


SMOOTH = ["train.epsilon=0.01", "train.best_by=loss", "train.report_every=2", "train.validate_every=6"]
"""Adam with a large epsilon: with the default one, rounding in a gradient near zero decides the sign of its update."""


def same_run(one, other, names, sharded=False):
    """Assert that two runs are equal up to rounding."""
    a, b = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert a.keys() == b.keys()
    assert max(difference(a[name], b[name]) for name in a) <= 1e-6
    (a, about), (b, other_about) = state(one), state(other)
    assert a.keys() == b.keys()
    assert max(difference(a[name], b[name]) for name in a if name != "sums") <= 1e-6
    assert about["place"] == other_about["place"]
    lines, others = metrics(one), metrics(other)
    assert [line["event"] for line in lines] == [line["event"] for line in others]
    for line, other_line in zip(lines, others, strict=True):
        assert other_line.get("samples") == line.get("samples") or sharded
        for name in names.intersection(line):
            assert other_line[name] == pytest.approx(line[name], rel=1e-5), (line, other_line)


NUMBERS = {"step", "epoch", "loss", "perplexity", "learning_rate", "gradient_norm", "tokens"}


def test_two_processes_equal_one_with_accumulation(corpus, tmp_path):
    train_here(corpus, tmp_path / "one", *SMOOTH, "train.accumulate=2")
    done = sightline(tmp_path, *on_pairs(corpus, *SMOOTH), "--out", tmp_path / "two", processes=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'two'}\n"
    assert done.stderr.count("learned from the text") == 1
    same_run(tmp_path / "one", tmp_path / "two", NUMBERS | {"scores", "best"})


def test_two_sharded_processes_equal_one_with_accumulation(corpus, tmp_path):
    train_here(corpus, tmp_path / "one", *SMOOTH, "train.accumulate=2")
    train = on_pairs(corpus, *SMOOTH, "train.shard=true")
    done = sightline(tmp_path, *train, "--out", tmp_path / "two", processes=2)
    assert done.returncode == 0, done.stderr
    same_run(tmp_path / "one", tmp_path / "two", NUMBERS | {"best"}, sharded=True)


def test_sharded_run_with_all_state_is_resumed_exactly(corpus, tmp_path):
    options = ["train.optimizer=muon", "train.weight_decay=0.1", "train.ema=0.9", "train.clip=0.5"]
    out = tmp_path / "two"
    endless = [*options, "train.shard=true", "train.save_every=2", "train.steps=100000"]
    running = start(tmp_path, *on_pairs(corpus, *SMOOTH, *endless), "--out", out, processes=2)
    wait_for(lambda: last_state(out / "checkpoints") is not None, running)
    running.send_signal(signal.SIGTERM)
    _, stderr = running.communicate(timeout=LIMIT)
    assert running.returncode != 0
    assert stderr.count("Stopped by a signal") == 1
    steps = state(out)[1]["step"] + 12  # however many it has done when the signal comes
    set_steps(out, steps)
    train_here(corpus, tmp_path / "one", *SMOOTH, *options, "train.accumulate=2", f"train.steps={steps}")
    done = sightline(tmp_path, "train", "--out", out, "--resume", "--device", "cpu", processes=2)
    assert done.returncode == 0, done.stderr
    assert "resuming after step" in done.stderr
    same_run(tmp_path / "one", out, NUMBERS | {"best"}, sharded=True)
    parts = [path.name for path in last_state(out / "checkpoints").glob("*.safetensors")]
    assert len(parts) == 2  # one for each process


def test_sharded_checkpoint_is_resumed_by_one_process_or_two(corpus, tmp_path):
    options = [*SMOOTH, "train.ema=0.9", "train.save_every=6", "train.accumulate=1"]
    out = tmp_path / "run"
    train = on_pairs(corpus, *options, "train.steps=6", "train.shard=true")
    assert sightline(tmp_path, *train, "--out", out, processes=2).returncode == 0
    set_steps(out, 9)
    for processes in (1, 2):
        again = tmp_path / f"by {processes}"
        shutil.copytree(out, again)
        done = sightline(tmp_path, "train", "--out", again, "--resume", "--device", "cpu", processes=processes)
        assert done.returncode == 0, done.stderr
        assert "resuming after step 6" in done.stderr
        assert state(again)[1]["step"] == 9


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_accumulated_batches_equal_one_batch(optimizer, corpus, tmp_path):
    """Each token has the same weight in the loss, whatever the size of its batch."""
    train_here(corpus, tmp_path / "run", "train.steps=1")
    tokenizer = load_tokenizer(tmp_path / "run")
    store = store_of([Table(corpus / "train.tsv")], tokenizer, corpus / "cache")
    options = TrainConfig(optimizer=optimizer, epsilon=0.01, smoothing=0.1)
    parts = [range(3), range(3, 20), range(20, 21)]
    found = []
    for groups in ([range(21)], parts):
        model = load_model(tmp_path / "run").train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        step = Step(model, options, torch.device("cpu"))
        batches = [(number, collate(store, group)) for number, group in enumerate(groups)]
        tokens = sum(batch.tokens for _, batch in batches)
        for number in (1, 2, 3):
            step(Update(batches, tokens, tokens, Place(), 0.0), number, 0.01)
        names = {parameter: name for name, parameter in model.named_parameters()}
        weights = {name: parameter.detach() for parameter, name in names.items()}
        found.append((weights | optimizer_state(step.optimizers, names), step.take(World("cpu"))))
    (one, sums), (other, other_sums) = found
    assert max(difference(one[name], other[name]) for name in one) <= 1e-6
    assert sums == pytest.approx(other_sums, rel=1e-6)


# --- Stopped from outside


@pytest.mark.parametrize("times", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_run_is_resumed_exactly(times, corpus, tmp_path):
    """Kill it while it starts, learns, validates or writes; the result is that of a run that was not killed."""
    options = ["train.report_every=7", "train.validate_every=25", "train.save_every=10"]
    options += ["train.ema=0.9", "train.average=3"]
    out, killed = tmp_path / "killed", []
    for attempt in range(times):
        resumed = (out / "run.json").exists()
        begun = last_state(out / "checkpoints")
        endless = on_pairs(corpus, *options, "train.steps=100000")
        train = ["train", "--resume", "--device", "cpu"] if resumed else endless
        running = start(tmp_path, *train, "--out", out)
        if attempt % 5:
            wait_for(lambda begun=begun: last_state(out / "checkpoints") != begun, running)
            time.sleep(random.uniform(0, 0.1))
        else:  # at any moment, also before the first step
            time.sleep(random.uniform(0, 3))
        running.kill()
        _, stderr = running.communicate(timeout=LIMIT)
        assert running.returncode == -signal.SIGKILL, stderr
        where = last_state(out / "checkpoints")
        killed.append(where.name if where else None)
    steps = state(out)[1]["step"] + 20
    set_steps(out, steps)
    done = sightline(tmp_path, "train", "--resume", "--device", "cpu", "--out", out)
    assert done.returncode == 0, done.stderr
    train_here(corpus, tmp_path / "whole", *options, f"train.steps={steps}")
    whole, again = files(tmp_path / "whole"), files(out)
    assert again.keys() == whole.keys()
    assert [name for name in whole if name != "run.json" and whole[name] != again[name]] == [], killed


def test_stopped_run_is_resumed_exactly(corpus, tmp_path):
    """A validation that was due when the run stopped takes place when it resumes."""
    options = ["train.steps=6", "train.report_every=1", "train.validate_every=2", "train.save_every=4"]
    train_here(corpus, tmp_path / "whole", *options)
    for stop in range(1, 7):
        out = tmp_path / f"stopped at {stop}"

        def ask(event, stop=stop):
            if isinstance(event, Progress) and event.step == stop:
                os.kill(os.getpid(), signal.SIGTERM)

        run = train_here(corpus, out, *options, also=ask)
        assert (run.step, run.stopped) == (stop, signal.SIGTERM)
        assert state(out)[1]["step"] == stop
        assert train_here(corpus, out, resume=True).stopped == 0
        whole, again = files(tmp_path / "whole"), files(out)
        if stop == 6:  # the final state was saved only once
            del whole["checkpoints/step-00000006/state.json"], again["checkpoints/step-00000006/state.json"]
        assert again == whole


def test_signals_stop_the_command_with_a_hint_to_resume(corpus, tmp_path):
    arguments = on_pairs(corpus, "train.steps=100000", "train.report_every=1", "train.validate_every=50000")
    out = tmp_path / "run"
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        before = state(out)[1]["step"] if out.exists() else 0
        running = start(tmp_path, *arguments, "--out", out)
        wait_for(lambda running=running: running.stderr.readline().startswith("step "), running)
        running.send_signal(number)
        stdout, stderr = running.communicate(timeout=LIMIT)
        assert running.returncode == code, stderr
        assert stdout == ""
        assert "Traceback" not in stderr
        step = state(out)[1]["step"]
        assert step > before
        sentence = f"Stopped by a signal at step {step:,}. Resume with: sightline train --out {out} --resume"
        assert stderr.splitlines()[-1] == sentence
        arguments = ["train", "--resume", "--device", "cpu"]


def test_full_disk_loses_no_checkpoint(corpus, tmp_path):
    options = ["train.save_every=10", "train.validate_every=50000", "train.report_every=50000"]
    out = tmp_path / "run"
    running = start(tmp_path, *on_pairs(corpus, *options, "train.steps=100000"), "--out", out)
    wait_for(lambda: last_state(out / "checkpoints") is not None, running)
    resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (10_000, 10_000))
    _, stderr = running.communicate(timeout=LIMIT)
    assert running.returncode == 2, stderr
    assert stderr.splitlines()[-1].startswith(str(out))
    assert "cannot be written: File too large" in stderr.splitlines()[-1]
    assert "Traceback" not in stderr
    assert [path.name for path in out.rglob("*.partial")] == []
    saved = state(out)[1]["step"]
    assert saved % 10 == 0
    set_steps(out, saved + 20)
    train_here(corpus, tmp_path / "whole", *options, f"train.steps={saved + 20}")
    done = sightline(tmp_path, "train", "--out", out, "--resume", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert files(out).keys() == files(tmp_path / "whole").keys()
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


# --- What is kept


class Watch:
    """Record the weights after each update, and the events."""

    def __init__(self, out):
        self.out, self.weights, self.averages, self.events = out, {}, {}, []

    def __call__(self, event):
        self.events.append(event)
        if isinstance(event, Saved):
            tensors, _ = state(self.out)
            for kind, found in (("weights.", self.weights), ("average.", self.averages)):
                found[event.step] = {n.removeprefix(kind): t for n, t in tensors.items() if n.startswith(kind)}

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


def same_weights(found, expected):
    assert found.keys() == expected.keys()
    return max(difference(found[name], expected[name]) for name in found) <= 1e-6


def mean(states):
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def test_running_average_equals_its_formula_and_is_kept(corpus, tmp_path):
    out = tmp_path / "run"
    watch = Watch(out)
    train_here(corpus, out, "train.save_every=1", "train.validate_every=6", "train.ema=0.6", also=watch)
    average = watch.averages[1]
    for step in range(2, 13):
        forgets = 1 - min(0.6, step / (step + 10))
        average = {n: a + forgets * (watch.weights[step][n] - a) for n, a in average.items()}
        assert same_weights(watch.averages[step], average)
    kept = [event.step for event in watch.of(Validated) if event.best][-1]
    assert same_weights(load_file(out / "model.safetensors"), watch.averages[kept])
    assert not same_weights(load_file(out / "model.safetensors"), watch.weights[kept])


def test_best_state_or_better_mean_of_states_is_kept(corpus, tmp_path):
    for options in ([], ["train.average_of=best"]):
        out = tmp_path / f"run {len(options)}"
        watch = Watch(out)
        given = ["train.save_every=1", "train.validate_every=2", "train.average=3", "train.best_by=loss", *options]
        train_here(corpus, out, *given, also=watch)
        *tests, last = watch.of(Validated)
        assert last.weights == "mean of 3 states"
        ranked = sorted(tests, key=lambda test: -test.loss if options else test.step)[-3:]
        averaged = mean([watch.weights[test.step] for test in ranked])
        model = load_model(out)
        set_weights(model, averaged, "here")
        store = store_of([Table(corpus / "dev.tsv")], load_tokenizer(out), corpus / "cache", PairExamples(4095, 1e9))
        result = Validation(store, load_tokenizer(out), batch_tokens=256)(model, bfloat16=False)
        assert last.loss == pytest.approx(result.loss, rel=1e-6)
        assert last.best == (last.loss < min(test.loss for test in tests))
        best = [test.step for test in tests if test.best][-1]
        expected = averaged if last.best else watch.weights[best]
        assert same_weights(load_file(out / "model.safetensors"), expected)


def test_without_validation_the_last_state_or_mean_is_kept(corpus, tmp_path):
    for average in (0, 3):
        out = tmp_path / f"run {average}"
        watch = Watch(out)
        options = ["train.save_every=1", "train.validate_every=2", f"train.average={average}"]
        train_here(corpus, out, *options, also=watch, validated=False)
        expected = mean([watch.weights[step] for step in (8, 10, 12)]) if average else watch.weights[12]
        assert same_weights(load_file(out / "model.safetensors"), expected)


def test_keep_tested_keeps_every_validated_state(corpus, tmp_path):
    out = tmp_path / "run"
    watch = Watch(out)
    train_here(corpus, out, "train.save_every=1", "train.validate_every=4", "train.keep_tested=true", also=watch)
    assert sorted(path.name for path in (out / "tested").iterdir()) == [f"step-{i:08}" for i in (0, 4, 8, 12)]
    for step in (4, 8, 12):
        folder = out / "tested" / f"step-{step:08}"
        assert same_weights(load_file(folder / "model.safetensors"), watch.weights[step])
        assert load_tokenizer(folder).files == load_tokenizer(out).files
    first = load_file(out / "tested" / "step-00000000" / "model.safetensors")
    assert not same_weights(first, watch.weights[1])


def test_patience_ends_a_run_without_improvement(corpus, tmp_path):
    options = ["train.steps=200", "train.validate_every=3", "train.save_every=3", "train.patience=2"]
    options += ["train.learning_rate=0.3", "train.best_by=loss", "train.average=2"]
    out = tmp_path / "run"
    watch = Watch(out)
    run = train_here(corpus, out, *options, also=watch)
    tests = [test for test in watch.of(Validated) if test.weights == "weights"]
    assert [test.best for test in tests[-3:]] == [True, False, False]
    assert run.step == tests[-1].step < 200
    assert watch.events[-1].reason == "no better result in 2 validations"
    if not watch.of(Validated)[-1].best:
        assert same_weights(load_file(out / "model.safetensors"), watch.weights[tests[-3].step])
    before = files(out)
    train_here(corpus, out, resume=True)  # out of patience: nothing changes
    assert files(out) == before


def test_nan_loss_never_overwrites_a_checkpoint(corpus, tmp_path):
    out = tmp_path / "run"
    options = ["train.save_every=1", "train.report_every=100", "train.learning_rate=1e30", "train.warmup=0"]
    with raises(TrainingError, match="NaN"):
        train_here(corpus, out, *options)
    tensors, _ = state(out)
    assert all(tensor.isfinite().all() for tensor in tensors.values())


def test_run_without_a_checkpoint_restarts_when_resumed(corpus, tmp_path):
    """So does a run that starts from a model."""
    train_here(corpus, tmp_path / "old", "train.steps=2")
    options = ["train.validate_every=2", "train.save_every=12"]
    for count, run in enumerate((train_here, finetune)):
        whole, out = tmp_path / f"whole {count}", tmp_path / f"run {count}"
        run(corpus, whole, *options)
        with pytest.raises(Crash):
            run(corpus, out, *options, also=CrashAt(4))
        assert last_state(out / "checkpoints") is None
        assert (out / "model.safetensors").exists()
        train_here(corpus, out, resume=True)
        assert files(out) == files(whole)


def finetune(folder, out, *options, **more):
    return train_here(folder, out, *options, start=out.parent / "old", **more)
