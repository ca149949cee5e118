"""The training loop: flat, from the first update to the last.

A run is a folder. `model.safetensors`, `config.json` and `tokenizer.model` are the model to use: the best one in
validation so far. `checkpoints/` has the state to resume from, `states/` the validated weights to average.

A run is a function of its configuration and its step: the order of the data, dropout, everything. A run that is killed
at any moment and resumed from its last checkpoint equals an uninterrupted run bit for bit.
"""

import contextlib
import math
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file, save
from torch import Tensor

from sightline.config import Config, TrainConfig
from sightline.data.feed import Feed, Place, Update, ahead
from sightline.data.store import Store
from sightline.errors import CheckpointError, TrainingError
from sightline.files import write_files
from sightline.model.transformer import Model
from sightline.model_folder import count_parameters, save_weights, set_weights
from sightline.text.tokenizer import Tokenizer
from sightline.train.distributed import World, full_tensor, shard_like
from sightline.train.events import Finished, Progress, Saved, Sink, Started, Validated, Warned
from sightline.train.optimizer import load_optimizer_state, optimizer_state
from sightline.train.schedule import learning_rate
from sightline.train.state import last_state, load_state, new_state
from sightline.train.step import Step
from sightline.train.validate import Validation, ValidationResult

SHORT_RUN = 20
"""Steps of a run that only tries whether training works."""


@dataclass
class RunState:
    """Progress of a run: its state outside of weights and optimizer."""

    step: int = 0
    place: Place = field(default_factory=Place)
    epoch: float = 0.0
    tokens: int = 0
    best: float | None = None
    """Best validation result; higher is better."""
    validations_without_gain: int = 0
    """Validations since the best one."""
    averaged: list[tuple[float, int]] = field(default_factory=list)
    """Result and step of each state in `states/`."""
    losses: list[float] = field(default_factory=list)
    """Reported losses, to warn when they do not fall."""
    validation_due: bool = False
    """Whether the run stopped before a validation that was due; resuming starts with it."""
    stopped: int = 0
    """The signal that stopped the run, or 0."""


def train(
    model: Model,
    feed: Feed,
    config: Config,
    *,
    folder: Path,
    sink: Sink,
    tokenizer: Tokenizer,
    trained_source_length: int | None,
    validation: Validation | None,
    world: World,
    resume: bool,
) -> RunState:
    """Train a model on a feed. With `resume`, continue from the last checkpoint in `folder`."""
    options = config.train
    model.to(world.device).train()
    schedule = _schedule(config, feed, world)
    step = _make_step(model, config, feed, world, schedule.steps)
    saver = _Checkpoints(model, step, config, folder, world, tokenizer, trained_source_length)
    run = saver.load() if resume else RunState()
    sink(_started(run, schedule.steps, model, feed, world))
    if run.step == 0:
        for warning in (*_warnings(model, feed, schedule.steps, options.warmup), *_leak_warnings(feed.stores[0])):
            sink(Warned(0, warning))
        saver.keep_validated(run)

    begun, throughput = time.perf_counter(), _Throughput()

    def validate() -> None:
        with throughput.paused():
            _record(_validate(saver, validation), run, saver, sink)
        run.validation_due = False

    if run.validation_due:
        validate()
    reason = _out_of_patience(run, options)
    stream = feed.updates(run.place, options.accumulate, world.rank, world.size)
    pinned = map(Update.pinned, stream) if world.device.type == "cuda" else stream
    with _stop_signals() as stop, contextlib.closing(ahead(lambda: pinned)) as updates:
        while run.step < schedule.steps and not reason:
            update = next(updates)
            run.step += 1
            rate = schedule.rate(run.step)
            step(update, run.step, rate)
            run.place, run.epoch, run.tokens = update.place, update.epoch, run.tokens + update.tokens
            throughput.seen += update.cells

            report = schedule.due(run.step, options.report_every)
            save = schedule.due(run.step, schedule.save_every)
            run.validation_due = schedule.due(run.step, schedule.validate_every)
            if save or run.validation_due or report:
                _check(step, run, folder, world)
            if report:
                sink(progress := _report(step, run, world, rate, throughput.speed()))
                for warning in _loss_warnings(run, progress):
                    sink(Warned(run.step, warning))
            if (report or world.size == 1) and world.any(bool(stop)):  # agreeing synchronises the processes
                reason = "stopped"
            elif run.validation_due:
                validate()
                reason = _out_of_patience(run, options)
            if save or reason:
                sink(Saved(run.step, saver.save(run)))
    if reason == "stopped":
        run.stopped = (stop or [signal.SIGTERM])[0]
    else:
        _finish(saver, validation, run, sink)
    sink(Finished(run.step, reason or "done", time.perf_counter() - begun))
    return run


def _out_of_patience(run: RunState, options: TrainConfig) -> str:
    exhausted = options.patience and run.validations_without_gain >= options.patience
    return f"no better result in {options.patience} validations" if exhausted else ""


class _Schedule(NamedTuple):
    """The number of updates, and the intervals between validations and checkpoints."""

    options: TrainConfig
    d_model: int
    steps: int
    validate_every: int
    save_every: int

    def due(self, step: int, every: int) -> bool:
        """Return whether an action is due: at every interval, and at the end."""
        return step % every == 0 or step == self.steps

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        o = self.options
        return learning_rate(
            o.schedule, step, peak=o.learning_rate, warmup=o.warmup, total=self.steps, d_model=self.d_model
        )


def _schedule(config: Config, feed: Feed, world: World) -> _Schedule:
    options = config.train
    epoch = len(feed.plan(0)) / (options.accumulate * world.size)
    steps = options.steps or max(1, math.ceil(options.epochs * epoch))
    validate_every = options.validate_every or max(math.ceil(epoch), steps // 10, 1)
    return _Schedule(options, config.model.d_model, steps, validate_every, options.save_every or validate_every)


class _Throughput:
    """Tokens per second since the last report, without the time of validations."""

    def __init__(self) -> None:
        self.seen, self.since = 0, time.perf_counter()

    def speed(self) -> float:
        now = time.perf_counter()
        speed = self.seen / max(now - self.since, 1e-9)
        self.seen, self.since = 0, now
        return speed

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time of the block."""
        started = time.perf_counter()
        yield
        self.since += time.perf_counter() - started


def _make_step(model: Model, config: Config, feed: Feed, world: World, steps: int) -> Step:
    """Return the update for the device and the length of the run."""
    options, cuda = config.train, world.device.type == "cuda"
    automatic = cuda and torch.cuda.is_bf16_supported()
    bfloat16 = options.precision == "bfloat16" or (options.precision == "auto" and automatic)
    passes = options.accumulate * (2 if options.r_drop else 1)
    work = 6.0 * count_parameters(model) * feed.batch_tokens * passes * steps
    # Compilation takes about 15 s and makes a step up to twice as fast.
    compiled = cuda and work > 1e16 if options.compile == "auto" else options.compile
    graphs = cuda and world.size == 1 and feed.rows == "shared" if options.graphs == "auto" else options.graphs
    if graphs and not cuda:
        problem = f"needs a GPU, and the device is {world.device}. Set it to auto."
        raise TrainingError.of("train.graphs", graphs, problem)
    return Step(
        model,
        options,
        world.device,
        wrap=world.wrap,
        processes=world.size,
        bfloat16=bfloat16,
        compiled=bool(compiled),
        graphs=bool(graphs),
    )


def _started(run: RunState, steps: int, model: Model, feed: Feed, world: World) -> Started:
    device = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else str(world.device)
    parameters = count_parameters(model)
    return Started(
        run.step, steps, parameters, device, len(feed.stores[0]), feed.batch_tokens, feed.filled(), world.size
    )


def _report(step: Step, run: RunState, world: World, rate: float, speed: float) -> Progress:
    sums = step.take(world)
    tokens = max(sums.tokens, 1.0)
    return Progress(
        step=run.step,
        epoch=run.epoch,
        loss=sums.smoothed / tokens,
        perplexity=math.exp(min(sums.nll / tokens, 700.0)),
        learning_rate=rate,
        gradient_norm=sums.gradient_norm / sums.updates,
        tokens=run.tokens,
        tokens_per_second=speed,
        memory=_memory(world.device),
    )


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _warnings(model: Model, feed: Feed, steps: int, warmup: int) -> Iterator[str]:
    """Yield warnings of likely mistakes in a new run."""
    parameters, tokens = count_parameters(model), int(feed.stores[0].target.starts[-1])
    if parameters > 25 * tokens:
        yield (
            f"the model has {parameters:,} parameters and the corpus only {tokens:,} target tokens, so it will "
            "overfit. Use a smaller model or more text."
        )
    if SHORT_RUN < steps < 2 * warmup:
        yield (
            f"the learning rate rises during the first {warmup:,} of {steps:,} steps (`train.warmup`). Train for more "
            f"epochs, or set `train.warmup` to {steps // 10}."
        )


def _leak_warnings(store: Store) -> Iterator[str]:
    """Yield a warning if sources contain their targets: the model would only learn to copy."""
    if store.source is None:
        return
    leaks = checked = 0
    for i in range(0, len(store), max(1, len(store) // 1000)):
        source, target = store.source[i].astype("<u4").tobytes(), store.target[i].astype("<u4").tobytes()
        if len(target) >= 5 * 4:
            checked += 1
            leaks += target in source
    if checked >= 20 and leaks > 0.2 * checked:
        yield (
            f"in {leaks} of {checked} pairs the source contains the target, so the model will learn to copy. Check the "
            "columns of the file."
        )


def _check(step: Step, run: RunState, folder: Path, world: World) -> None:
    """Raise if loss or gradients are not finite, before they overwrite a checkpoint."""
    if world.any(not step.sums.isfinite().all()):
        raise TrainingError(
            f"Loss or gradient is NaN or infinite at step {run.step}. Lower `train.learning_rate`, raise "
            f"`train.warmup` or set `train.clip`, and start again. The last checkpoint in {folder} is older "
            "than this step.",
            value=run.step,
        )


def _loss_warnings(run: RunState, progress: Progress) -> Iterator[str]:
    """Record a reported loss; yield a warning if the losses do not fall."""
    run.losses = [*run.losses, progress.loss][-60:]
    first, latest = run.losses[:5], run.losses[-5:]
    if len(run.losses) == 20 and sum(latest) > 0.98 * sum(first):
        yield (
            f"the loss has not fallen in {run.step} updates ({first[0]:.2f}, now {latest[-1]:.2f}). The learning rate "
            "may be too high or too low, or sources and targets may not match."
        )


def _validate(saver: "_Checkpoints", validation: Validation | None) -> ValidationResult | None:
    """Validate the weights to keep: their running average, if there is one."""
    if validation is None:
        return None
    step, world = saver.step, saver.world
    with step.averaged():
        if world.sharded:  # every process has a part of the model, so all compute the loss
            loss = validation.loss(step.objective.eval(), world.device)
            step.objective.train()
            world.reshard(step.objective)
            return ValidationResult(loss, {}, [])
        result = validation(saver.model, bfloat16=step.bfloat16) if world.main else None
        return world.broadcast(result)


def _record(
    result: ValidationResult | None, run: RunState, saver: "_Checkpoints", sink: Sink, weights: str = ""
) -> None:
    """Keep the weights if their validation is the best so far, or without validation."""
    value = float(run.step) if result is None else result.scores.get(saver.config.train.best_by, -result.loss)
    best = result is None or run.best is None or value > run.best
    if best:
        saver.write_model(saver.folder)
    if not weights:
        saver.keep_validated(run)
        saver.keep_for_average(run, value)
    if result is None:
        return
    run.best, run.validations_without_gain = (value, 0) if best else (run.best, run.validations_without_gain + 1)
    weights = weights or ("running average" if saver.step.average else "weights")
    sink(Validated(run.step, run.epoch, result.loss, result.perplexity, result.scores, best, result.samples, weights))


def _finish(saver: "_Checkpoints", validation: Validation | None, run: RunState, sink: Sink) -> None:
    """Validate the mean of the validated states, which becomes the model if it is better."""
    mean = saver.mean_of_states(run)
    if mean is None or saver.world.sharded:
        return
    current = {name: p.detach().clone() for name, p in saver.model.named_parameters()}
    saver.step.average = []
    set_weights(saver.model, mean, "the mean of the states")
    _record(_validate(saver, validation), run, saver, sink, f"mean of {len(run.averaged)} states")
    set_weights(saver.model, current, "the last state")


@dataclass
class _Checkpoints:
    """Saves and loads a run. Only the main process writes."""

    model: Model
    step: Step
    config: Config
    folder: Path
    world: World
    tokenizer: Tokenizer
    trained_source_length: int | None

    def __post_init__(self) -> None:
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in self.model.named_parameters()}

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of the weights to keep: their running average, if there is one."""
        with self.step.averaged():
            return {name: full_tensor(p.detach()).to("cpu", copy=True) for p, name in self.names.items()}

    def write_model(self, folder: Path) -> None:
        """Write the weights as a model; that of the run is in its own folder."""
        weights, length = self.weights(), self.trained_source_length
        if self.world.main:
            save_weights(weights, self.model.config, folder, self.tokenizer, trained_source_length=length)

    def keep_validated(self, run: RunState) -> None:
        """Write the weights as a separate model, with `train.keep_tested`."""
        if self.config.train.keep_tested:
            self.write_model(self.folder / "tested" / f"step-{run.step:08}")

    def keep_for_average(self, run: RunState, value: float) -> None:
        """Keep the validated state if it belongs to those to average, and delete the state it replaces."""
        count, of = self.config.train.average, self.config.train.average_of
        if not count:
            return
        run.averaged.append((value, run.step))
        ranked = sorted(run.averaged, key=lambda state: state if of == "best" else state[1], reverse=True)
        run.averaged = sorted(ranked[:count], key=lambda state: state[1])
        weights = self.weights()
        if not self.world.main:
            return
        names = {f"step-{step:08}.safetensors" for _, step in run.averaged}
        own = f"step-{run.step:08}.safetensors"
        if own in names:
            write_files(self.folder / "states", {own: save(weights)})
        for path in (self.folder / "states").glob("*.safetensors"):
            if path.name not in names and path.name <= own:
                path.unlink(missing_ok=True)

    def mean_of_states(self, run: RunState) -> dict[str, Tensor] | None:
        """Return the mean of the kept states, computed in double precision."""
        if len(run.averaged) < 2:
            return None
        total: dict[str, Tensor] = {}
        for _, step in run.averaged:
            for name, weight in load_file(self.folder / "states" / f"step-{step:08}.safetensors").items():
                total[name] = total.get(name, 0) + weight.double()
        return {name: (weight / len(run.averaged)).float() for name, weight in total.items()}

    def save(self, run: RunState) -> Path:
        """Write a checkpoint."""
        state = {f"weights.{name}": p.detach() for p, name in self.names.items()}
        state |= {f"optimizer.{name}": v for name, v in optimizer_state(self.step.optimizers, self.names).items()}
        state |= {f"average.{name}": v for name, v in zip(self.names.values(), self.step.average, strict=False)}
        state["sums"] = self.world.sum(self.step.sums.clone())
        folder = self.folder / "checkpoints" / f"step-{run.step:08}"
        with new_state(folder, asdict(run)) if self.world.main else contextlib.nullcontext() as draft:
            if self.world.sharded:
                self.world.save_parts(state, self.world.broadcast(draft))
            elif draft:
                tensors = {name: value.contiguous().cpu() for name, value in state.items()}
                write_files(draft, {"state.safetensors": save(tensors)})
        self.world.barrier()
        return folder

    def load(self) -> RunState:
        """Load the last checkpoint."""
        path = last_state(self.folder / "checkpoints")
        if path is None:  # the run was killed before its first checkpoint
            return RunState()
        parameters = {name: parameter for parameter, name in self.names.items()}

        def like(name: str) -> Tensor | None:
            kind, _, rest = name.partition(".")
            return parameters.get(rest.rpartition(".")[0] if kind == "optimizer" else rest)

        state, about = load_state(path, like)
        missing = {f"weights.{name}" for name in parameters} ^ {name for name in state if name.startswith("weights.")}
        if missing:
            raise CheckpointError(f"{path}: {min(missing)!r} does not match the model of the run.", value=path)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(shard_like(state[f"weights.{name}"], parameter))
            for name, mean in zip(parameters, self.step.average, strict=False):
                mean.copy_(shard_like(state[f"average.{name}"], mean))
            if self.world.main:  # the sum over all processes, counted once
                self.step.sums.copy_(state["sums"])
        moments = {name.removeprefix("optimizer."): v for name, v in state.items() if name.startswith("optimizer.")}
        load_optimizer_state(self.step.optimizers, self.names, moments)
        return TypeAdapter(RunState).validate_python(about)


@contextlib.contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Yield a list that collects signals: the first SIGTERM or Ctrl-C lets the run stop after its update; the second
    one acts as usual."""
    received: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, before[number])

    before: dict[int, Any] = {}
    with contextlib.suppress(ValueError):  # only the main thread can handle signals
        for stop in (signal.SIGTERM, signal.SIGINT):
            before[stop] = signal.signal(stop, handle)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def remove_run(folder: Path) -> None:
    """Delete the files of an earlier run from a folder."""
    for name in ("checkpoints", "states", "tested"):
        shutil.rmtree(folder / name, ignore_errors=True)
