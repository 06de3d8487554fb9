"""Learning-rate schedules as pure functions of the step."""

import math

from .options import Schedule


def learning_rate_factor(step: int, total: int, warmup: int, schedule: Schedule, final: float) -> float:
    """Factor on the peak learning rate for update `step` (0-based) of `total`.

    Linear warm-up over `warmup` updates, reaching 1 at update `warmup`; then decay along a half cosine (`cosine`) or
    a line (`linear`), or none (`constant`). The decay ends with `final` at the last update, unless the warm-up ends
    there or later.
    """
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if schedule == "constant":
        return 1.0
    progress = (step - warmup) / max(1, total - 1 - warmup)
    fall = 0.5 * (1 + math.cos(math.pi * progress)) if schedule == "cosine" else 1 - progress
    return final + (1 - final) * fall
