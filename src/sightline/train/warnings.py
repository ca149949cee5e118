"""Warnings of likely mistakes in the data or the options of a run."""

from collections.abc import Iterator

from sightline.data.feed import Feed
from sightline.data.store import Store
from sightline.model.transformer import Model
from sightline.model_folder import count_parameters
from sightline.runs import Progress
from sightline.train.state import RunState

SHORT_RUN = 20
"""Steps of a run that only tries whether training works."""


def mistakes(model: Model, feed: Feed, steps: int, warmup: int) -> Iterator[str]:
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
    yield from _leaks(feed.stores[0])


def _leaks(store: Store) -> Iterator[str]:
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


def loss_warnings(run: RunState, progress: Progress) -> Iterator[str]:
    """Record a reported loss; yield a warning if the losses do not fall."""
    run.losses = [*run.losses, progress.loss][-60:]
    first, latest = run.losses[:5], run.losses[-5:]
    if len(run.losses) == 20 and sum(latest) > 0.98 * sum(first):
        yield (
            f"the loss has not fallen in {run.step} updates ({first[0]:.2f}, now {latest[-1]:.2f}). The learning rate "
            "may be too high or too low, or sources and targets may not match."
        )
