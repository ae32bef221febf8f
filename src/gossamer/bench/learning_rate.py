"""The learning rate as a function of the step."""

from math import cos, pi


def learning_rate(step: int, *, peak: float, warmup_steps: float, num_steps: int) -> float:
    """Linear warm-up to the peak, then half a cosine down to zero.

    >>> [round(learning_rate(s, peak=1.0, warmup_steps=2, num_steps=6), 3) for s in range(7)]
    [0.333, 0.667, 1.0, 0.854, 0.5, 0.146, 0.0]
    """
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    progress = (step - warmup_steps) / max(num_steps - warmup_steps, 1)
    return peak * (1 + cos(pi * min(progress, 1.0))) / 2
