"""Training curves, from metrics.jsonl."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from sightline.runs import read_metrics


def plot(run: Path, file: Path) -> None:
    """Plot loss, scores, learning rate and speed over the steps of a run, as PNG, SVG or PDF."""
    lines = list(read_metrics(run))
    progress = [line for line in lines if line["event"] == "progress"]
    validations = [line | line["scores"] for line in lines if line["event"] == "validated"]
    scores = sorted({name for line in validations for name in line["scores"]})
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    loss, quality, rate, speed = figure.subplots(2, 2).flat
    _curve(loss, progress, "loss", "training, smoothed")
    _curve(loss, validations, "loss", "validation", marker="o")
    loss.set_title("Loss per token")
    loss.legend(frameon=False)
    for name in scores or ["perplexity"]:
        _curve(quality, validations, name, marker="o")
    quality.set_title("Scores of the validation translations" if scores else "Perplexity")
    if scores:
        quality.legend(frameon=False)
    _curve(rate, progress, "learning_rate")
    rate.set_title("Learning rate")
    _curve(speed, progress, "tokens_per_second")
    speed.set_title("Tokens per second")
    for axes in (loss, quality, rate, speed):
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=120)


def _curve(axes: Any, lines: list[dict[str, Any]], name: str, label: str = "", marker: str = "") -> None:
    points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), label=label or name, marker=marker, markersize=3, linewidth=1.4)
