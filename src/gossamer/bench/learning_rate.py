"""The learning rate: how its peak follows the global batch, and how it rises and falls with the step."""

from collections.abc import Callable
from math import cos, pi, sqrt

from gossamer.tasks import Decay, LrRule

LR_RULES: dict[str, Callable[[float], float]] = {
    "linear": lambda ratio: ratio,
    "sqrt": sqrt,
    "none": lambda ratio: 1.0,
}
"""What the rate is multiplied by when the global batch is `ratio` times the one that the rate is for."""

DECAYS: dict[str, Callable[[float], float]] = {
    "cosine": lambda progress: (1 + cos(pi * progress)) / 2,
    "step": lambda progress: 1.0 if progress < 0.5 else 0.1 if progress < 0.75 else 0.01,
}
"""The share of the peak that is left when this share of the steps after the warm-up is done."""


def scaled(lr: float, rule: LrRule, *, ratio: float) -> float:
    """The peak for a global batch `ratio` times as large.

    >>> scaled(0.1, "linear", ratio=4), scaled(0.1, "sqrt", ratio=4), scaled(0.1, "none", ratio=4)
    (0.4, 0.2, 0.1)
    """
    return lr * LR_RULES[rule](ratio)


def learning_rate(step: int, *, peak: float, warmup_steps: float, num_steps: int, decay: Decay = "cosine") -> float:
    """Linear warm-up to the peak, then down to zero along half a cosine, or in steps.

    >>> [round(learning_rate(s, peak=1.0, warmup_steps=2, num_steps=6), 3) for s in range(7)]
    [0.333, 0.667, 1.0, 0.854, 0.5, 0.146, 0.0]
    >>> [learning_rate(s, peak=1.0, warmup_steps=0, num_steps=4, decay="step") for s in range(4)]
    [1.0, 1.0, 0.1, 0.01]
    """
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    progress = (step - warmup_steps) / max(num_steps - warmup_steps, 1)
    return peak * DECAYS[decay](min(progress, 1.0))
