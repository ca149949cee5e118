"""The training loop: flat, from the first update to the last.

A run is a function of its configuration and its step: the order of the data, dropout, everything. A run that is killed
at any moment and resumed from its last checkpoint equals an uninterrupted run bit for bit. `sightline.runs` lists the
files of a run.
"""

import contextlib
import math
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from sightline.config import Config, TrainConfig
from sightline.data.feed import Feed, Update, ahead
from sightline.errors import TrainingError
from sightline.model.transformer import Model
from sightline.model_folder import count_parameters, set_weights
from sightline.runs import Finished, Progress, Saved, Sink, Started, Validated, Warned
from sightline.train.distributed import World
from sightline.train.pace import Throughput, make_schedule
from sightline.train.saving import Checkpoints
from sightline.train.state import RunState
from sightline.train.step import Objective, Step
from sightline.train.validate import Validation, ValidationResult
from sightline.train.warnings import loss_warnings, mistakes


def train(
    model: Model,
    feed: Feed,
    config: Config,
    *,
    folder: Path,
    sink: Sink,
    save_model: Callable[[Mapping[str, Tensor], Path], None],
    validation: Validation | None,
    world: World,
    resume: bool,
    objective: Callable[..., nn.Module] = Objective,
) -> RunState:
    """Train a model on a feed. With `resume`, continue from the last checkpoint in `folder`."""
    options = config.train
    model.to(world.device).train()
    schedule = make_schedule(config, feed, world)
    step = _make_step(model, config, feed, world, schedule.steps, objective)
    saver = Checkpoints(model, step, config, folder, world, save_model)
    run = saver.load() if resume else RunState()
    sink(_started(run, schedule.steps, model, feed, world))
    if run.step == 0:
        for warning in mistakes(model, feed, schedule.steps, options.warmup):
            sink(Warned(0, warning))
        saver.keep_validated(run)

    begun, throughput = time.perf_counter(), Throughput()
    stream = feed.updates(run.place, options.accumulate, world.rank, world.size)
    pinned = map(Update.pinned, stream) if world.device.type == "cuda" else stream
    with _stop_signals() as stop, contextlib.closing(ahead(lambda: pinned)) as updates:
        reason = _validate(saver, validation, run, sink) if run.validation_due else _out_of_patience(run, options)
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
                _check_finite(step, run, folder, world)
            if report:
                sink(progress := _report(step, run, world, rate, throughput.speed()))
                for warning in loss_warnings(run, progress):
                    sink(Warned(run.step, warning))
            if (report or world.size == 1) and world.any(bool(stop)):  # agreeing synchronises the processes
                reason = "stopped"
            elif run.validation_due:
                with throughput.paused():
                    reason = _validate(saver, validation, run, sink)
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


def _make_step(
    model: Model, config: Config, feed: Feed, world: World, steps: int, objective: Callable[..., nn.Module]
) -> Step:
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
        objective=objective,
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


def _check_finite(step: Step, run: RunState, folder: Path, world: World) -> None:
    """Raise if loss or gradients are not finite, before they overwrite a checkpoint."""
    if world.any(not step.sums.isfinite().all()):
        raise TrainingError(
            f"Loss or gradient is NaN or infinite at step {run.step}. Lower `train.learning_rate`, raise "
            f"`train.warmup` or set `train.clip`, and start again. The last checkpoint in {folder} is older "
            "than this step.",
            value=run.step,
        )


def _validate(saver: Checkpoints, validation: Validation | None, run: RunState, sink: Sink) -> str:
    """Validate, and keep the weights if they are the best. Return the reason to stop, or an empty string."""
    _record(_result(saver, validation), run, saver, sink)
    run.validation_due = False
    return _out_of_patience(run, saver.config.train)


def _result(saver: Checkpoints, validation: Validation | None) -> ValidationResult | None:
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


def _record(result: ValidationResult | None, run: RunState, saver: Checkpoints, sink: Sink, weights: str = "") -> None:
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


def _finish(saver: Checkpoints, validation: Validation | None, run: RunState, sink: Sink) -> None:
    """Validate the mean of the validated states, which becomes the model if it is better."""
    mean = saver.mean_of_states(run)
    if mean is None or saver.world.sharded:
        return
    current = {name: p.detach().clone() for name, p in saver.model.named_parameters()}
    saver.step.average = []
    set_weights(saver.model, mean, "the mean of the states")
    _record(_result(saver, validation), run, saver, sink, f"mean of {len(run.averaged)} states")
    set_weights(saver.model, current, "the last state")


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
