"""The curves of a training run, from its metrics.jsonl."""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

__all__ = ["plot"]


def plot(metrics: Path, picture: Path) -> None:
    """Loss, scores, learning rate and speed over the steps of a run, as PNG, SVG or PDF."""
    lines = [json.loads(line) for line in metrics.read_text("utf-8").splitlines()]
    progress = [line for line in lines if line["event"] == "progress"]
    tests = [line for line in lines if line["event"] == "validated"]
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    loss, quality, rate, speed = figure.subplots(2, 2).flat
    _curve(loss, progress, "loss", "training, smoothed")
    _curve(loss, tests, "loss", "validation", marker="o")
    loss.set_title("Loss a token")
    loss.legend(frameon=False)
    for name in sorted({name for test in tests for name in test["scores"]}):
        scored = [{"step": test["step"], name: test["scores"][name]} for test in tests if name in test["scores"]]
        _curve(quality, scored, name, name, marker="o")
    if quality.lines:
        quality.set_title("Translations of the validation text")
        quality.legend(frameon=False)
    else:
        _curve(quality, tests, "perplexity", "validation", marker="o")
        quality.set_title("Perplexity")
    _curve(rate, progress, "learning_rate")
    rate.set_title("Learning rate")
    _curve(speed, progress, "tokens_per_second")
    speed.set_title("Tokens a second")
    for axes in (loss, quality, rate, speed):
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=120)


def _curve(axes: Any, lines: list[dict[str, Any]], name: str, label: str = "", marker: str = "") -> None:
    points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), label=label or name, marker=marker, markersize=3, linewidth=1.4)
