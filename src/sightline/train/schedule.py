"""Learning rate schedules: a linear warm-up, then decay. Pure functions of the step, counted from 1."""

import math


def learning_rate(schedule: str, step: int, *, peak: float, warmup: int, total: int, d_model: int = 512) -> float:
    """Return the learning rate of a step. All schedules but noam rise linearly to `peak` at the end of the warm-up.

    noam: the paper's equation 3, peak · d_model^(-1/2) · min(step^(-1/2), step · warmup^(-3/2)), where `peak` is a
    factor (1 in the paper). inverse-sqrt: the same curve given by its maximum, peak · (warmup / step)^(1/2). cosine and
    linear decay to 0 at step `total`. constant does not decay.
    """
    if schedule == "noam":
        return peak * d_model**-0.5 * min(step**-0.5, step * max(warmup, 1) ** -1.5)
    if step < warmup:
        return peak * step / warmup
    left = min(1.0, max(0.0, (total - step) / max(1, total - warmup)))
    decay = {
        "inverse-sqrt": math.sqrt(max(warmup, 1) / step),
        "cosine": (1 - math.cos(math.pi * left)) / 2,
        "linear": left,
        "constant": 1.0,
    }
    return peak * decay[schedule]
