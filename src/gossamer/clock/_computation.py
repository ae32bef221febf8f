"""How long a gradient takes: a mean, jitter around it, and workers that are slow on purpose."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log1p, sqrt

import numpy as np
from numpy.typing import NDArray

from gossamer._names import Spec, lookup

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]
"""So many factors by which computation times differ from their mean."""

_COMPUTE = 1
"""Tells this use of the seed from others."""
_AHEAD = 256
"""Times drawn at once for a worker."""
_LEAST = 0.05
"""No gradient takes less than this share of the mean, however far out a normal distribution reaches."""


def constant() -> Draw:
    """Every gradient takes the mean."""
    return lambda generator, size: np.ones(size)


def normal(spread: float = 0.1) -> Draw:
    """Normal; `spread` is the standard deviation over the mean, here and below."""
    spread = _checked(spread)
    return lambda generator, size: np.maximum(1 + spread * generator.standard_normal(size), _LEAST)


def lognormal(spread: float = 0.2) -> Draw:
    """Log-normal: never below zero, now and then far above the mean."""
    variance = log1p(_checked(spread) ** 2)
    return lambda generator, size: generator.lognormal(-variance / 2, sqrt(variance), size)


def gamma(spread: float = 0.2) -> Draw:
    """Gamma: a sum of short waits."""
    shape = 1 / _checked(spread) ** 2
    return lambda generator, size: generator.gamma(shape, 1 / shape, size)


def exponential() -> Draw:
    """Exponential: the standard deviation is the mean; what the theory of queues likes to assume."""
    return lambda generator, size: generator.standard_exponential(size)


def empirical(times: Sequence[float]) -> Draw:
    """One of the given times over their mean, each as likely as the others."""
    factors = np.asarray(times, dtype=np.float64)
    if not (np.isfinite(factors).all() and factors.min() > 0):
        raise ValueError(f"measured times from {factors.min():g} to {factors.max():g}: all must be numbers above 0")
    factors = factors / factors.mean()
    return lambda generator, size: factors[(generator.random(size) * len(factors)).astype(np.int64)]


JITTERS: dict[str, Callable[..., Draw]] = {
    "constant": constant,
    "normal": normal,
    "lognormal": lognormal,
    "gamma": gamma,
    "exponential": exponential,
}
"""Distributions by name; all have the mean 1."""


def _checked(spread: float) -> float:
    if not (spread > 0 and isfinite(spread)):
        raise ValueError(f"spread={spread}: must be a number above 0, or take 'constant'")
    return spread


def slow_workers(text: str, workers: int) -> dict[int, float]:
    """Ranks and by what their computation takes longer, as in `3=10,5=2`.

    >>> slow_workers("3=10, 5=2.5", 16)
    {3: 10.0, 5: 2.5}
    """
    slow: dict[int, float] = {}
    for pair in filter(None, (piece.strip() for piece in text.split(","))):
        rank, equals, factor = pair.partition("=")
        try:
            worker, times = int(rank), float(factor)
        except ValueError:
            equals = ""
        if not equals:
            raise ValueError(f"slow worker {pair!r}: give RANK=FACTOR, such as 3=10")
        if not 0 <= worker < workers:
            raise ValueError(f"slow worker {pair!r}: ranks go from 0 to {workers - 1}")
        if not (times > 0 and isfinite(times)):
            raise ValueError(f"slow worker {pair!r}: the factor must be a number above 0")
        if worker in slow:
            raise ValueError(f"slow worker {pair!r}: rank {worker} is named twice; name it once")
        slow[worker] = times
    return slow


@dataclass(frozen=True, kw_only=True)
class Computation:
    """The distribution of the time that a worker takes for one gradient.

    >>> Computation(mean_s=0.01, slow="1=10").times(3, seed=0).of_all()
    array([0.01, 0.1 , 0.01])
    """

    mean_s: float = 0.01
    jitter: str = "constant"
    """One of `JITTERS`, with parameters as in `lognormal:spread=0.3`."""
    slow: str = ""
    """Workers whose gradients take so many times as long: `RANK=FACTOR`, several with commas."""
    measured: tuple[float, ...] = ()
    """Times that were measured, of which one is drawn at a time, in place of a distribution by name. Only how they
    compare with their mean counts."""

    def __post_init__(self) -> None:
        if not (self.mean_s > 0 and isfinite(self.mean_s)):
            raise ValueError(f"a gradient takes {self.mean_s} s: the time must be a number above 0")
        if self.measured and self.jitter != "constant":
            raise ValueError(f"jitter {self.jitter!r} and measured times: give the one or the other")
        self._draw()

    def _draw(self) -> Draw:
        if self.measured:
            return empirical(self.measured)
        spec = Spec.parse("jitter", self.jitter)
        return spec.call(lookup("jitter", spec.name, JITTERS))

    def times(self, workers: int, seed: int) -> "Times":
        """The times of every worker, one after the other."""
        return Times(self.mean_s, self._draw(), slow_workers(self.slow, workers), workers, seed)


class Times:
    """Draws computation times. Those of a worker follow from the seed and its rank, in whatever order workers ask."""

    def __init__(self, mean_s: float, draw: Draw, slow: Mapping[int, float], workers: int, seed: int) -> None:
        self._draw = draw
        self._means = [mean_s * slow.get(worker, 1.0) for worker in range(workers)]
        self._generators = [np.random.default_rng([seed, _COMPUTE, worker]) for worker in range(workers)]
        self._drawn: list[list[float]] = [[] for _ in range(workers)]

    def next(self, worker: int) -> float:
        """How many seconds the next gradient of this worker takes."""
        drawn = self._drawn[worker]
        if not drawn:
            drawn.extend(self._draw(self._generators[worker], _AHEAD)[::-1].tolist())
        return self._means[worker] * drawn.pop()

    def ahead(self, num_steps: int) -> Floats:
        """The next `num_steps` gradients of every worker, `[T, N]`: what `of_all` would give, in one go."""
        return np.stack([self._take(worker, num_steps) for worker in range(len(self._means))], axis=1)

    def _take(self, worker: int, count: int) -> Floats:
        drawn = self._drawn[worker]
        kept = len(drawn) - min(count, len(drawn))
        left = drawn[kept:][::-1]
        del drawn[kept:]
        return self._means[worker] * np.concatenate([left, self._draw(self._generators[worker], count - len(left))])

    def of_all(self) -> Floats:
        """The next gradient of every worker, `[N]`."""
        return np.array([self.next(worker) for worker in range(len(self._means))])
