"""Sleeps that workers make in their iterations: drawn once, so that all contenders of a round meet the same."""

import random

SEED = 1
WARM_UP = 6
"""Iterations before those that are timed."""


def jitter_s(mean_ms: float, round: int, rank: int, count: int) -> list[float]:
    """Seconds to sleep in each iteration: exponential, of the worker's own, the same for all contenders of a round."""
    generator = random.Random(f"{SEED}/{round}/{rank}")
    return [generator.expovariate(1e3 / mean_ms) if mean_ms else 0.0 for _ in range(count)]
