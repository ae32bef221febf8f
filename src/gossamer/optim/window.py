"""How many gradients an accumulated optimizer should average, by the number of workers, and betas that go with it."""

import operator

_LONGEST = 8
"""The longest window that was ever published; moments of longer ones are older than anybody has tried."""


def window_for(num_workers: int) -> int:
    """The window of `AccumAdam` and `AccumAdamW` for a number of workers that share one global batch.

    More workers mean smaller and noisier local batches, and a longer window averages the noise away. Published are 4
    for 8 workers and 8 for 16 and for 32 (Wang et al., arXiv 2410.11998). The rule through these points is ours: half
    the number of workers, from 1 (plain Adam) to 8.

    >>> [window_for(num_workers) for num_workers in (1, 2, 4, 8, 12, 16, 32, 1008)]
    [1, 1, 2, 4, 6, 8, 8, 8]

    An optimizer is made before `gossamer.decentralize`; `join_world` has the number by then:

    >>> import gossamer
    >>> window_for(gossamer.join_world().size)
    1
    """
    return min(max(count(num_workers, "num_workers") // 2, 1), _LONGEST)


def betas_for(window: int, betas: tuple[float, float] = (0.9, 0.999)) -> tuple[float, float]:
    """Betas 1 − s(1 − β) for a window of s, with which moments look as far back as those of Adam with `betas`.

    Betas act once a window: with Adam's own, moments average over s times as many steps. What that does to short
    trainings was measured: see `AccumAdam`. Not published; ours.

    >>> first, second = betas_for(4)
    >>> f"{first:.3f} {second:.3f}"
    '0.600 0.996'
    """
    longest = int(1 / (1 - min(betas)) + 1e-9)  # 20 for 0.95, whatever is lost by rounding
    if count(window, "window") > longest:
        raise ValueError(
            f"a window of {window} looks back further than betas {betas!r}: take one of at most {longest}, or larger "
            "betas"
        )
    first, second = (max(1 - window * (1 - beta), 0.0) for beta in betas)
    return first, second


def count(value: object, name: str) -> int:
    """Return `value` as an int of at least 1, or raise a ValueError that names it.

    >>> count(2.0, "window")
    Traceback (most recent call last):
        ...
    ValueError: window is 2.0: it must be a whole number, at least 1
    """
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]  # what cannot raises
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"{name} is {value!r}: it must be a whole number, at least 1")
    return number
