"""Figures as people write them: 60ms, 25gbit, 63M."""

import re
from collections.abc import Mapping
from math import isfinite, sqrt

from gossamer._names import Spec, lookup
from gossamer.clock import Computation

TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0}
RATES = {
    **{f"{prefix}bit": 10.0**power / 8 for prefix, power in (("k", 3), ("m", 6), ("g", 9), ("t", 12))},
    **{f"{prefix}B": 10.0**power for prefix, power in (("k", 3), ("M", 6), ("G", 9), ("T", 12))},
}
"""Of a second: bits small, bytes with a capital B."""
COUNTS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9}
_WIDEST_NORMAL = 1 / 3
"""Three standard deviations to zero: one time in 700 would be negative."""
_FIGURE = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*")


def seconds(text: str, what: str) -> float:
    """A time, 0 or more; `what` it is, for error messages.

    >>> seconds("60ms", "--compute"), seconds("1.5 s", "--update")
    (0.06, 1.5)
    """
    return _figure(text, what, TIMES, "60ms")


def bytes_per_s(text: str, what: str) -> float:
    """A bandwidth above 0.

    >>> bytes_per_s("25gbit", "--inter"), bytes_per_s("300GB/s", "--intra")
    (3125000000.0, 300000000000.0)
    >>> bytes_per_s("25gbitt", "-i")
    Traceback (most recent call last):
        ...
    ValueError: -i 25gbitt: unknown unit 'gbitt', did you mean 'gbit'? Known: kbit, mbit, gbit, tbit, kB, MB, GB, TB
    """
    number, unit = _parts(text, what, "25gbit")
    unit = unit.removesuffix("/s").removesuffix("ps")
    unit = unit.lower() if unit.lower().endswith("bit") else unit
    rate = number * _unit(text, what, unit, RATES, "25gbit")
    if not rate > 0:
        raise ValueError(f"{what} {text}: a bandwidth must be above 0")
    return rate


def count(text: str, what: str) -> int:
    """A whole number of 1 or more.

    >>> count("63M", "--params"), count("1.5k", "--params")
    (63000000, 1500)
    """
    number = _figure(text, what, COUNTS, "63M")
    if number < 1 or number != int(number):
        raise ValueError(f"{what} {text}: give a whole number of 1 or more, such as 63M")
    return int(number)


def jitter(text: str, what: str) -> str:
    """How computation times vary, as `Computation` has it: a name, or the variance of the time over its mean.

    A bare number is taken for a log-normal distribution, in which no time is negative.

    >>> jitter("0.04", "--jitter"), jitter("0", "--jitter"), jitter("gamma:spread=0.3", "--jitter")
    ('lognormal:spread=0.2', 'constant', 'gamma:spread=0.3')
    """
    try:
        variance = float(text)
    except ValueError:
        return _checked_jitter(text, what)
    if not (variance >= 0 and isfinite(variance)):
        raise ValueError(f"{what} {text}: the variance of the computation time over its mean must be 0 or more")
    return f"lognormal:spread={sqrt(variance):.6g}" if variance else "constant"


def _checked_jitter(text: str, what: str) -> str:
    spec = Spec.parse("jitter", text)
    Computation(jitter=text)  # refuses what is no distribution
    spread = float(spec.settings.get("spread", 0.1))
    if spec.name == "normal" and spread > _WIDEST_NORMAL:
        raise ValueError(
            f"{what} {text}: a normal distribution as wide makes computation times negative; "
            f"take a spread of at most {_WIDEST_NORMAL:.2f}, or lognormal or gamma, which have none"
        )
    return text


def _figure(text: str, what: str, units: Mapping[str, float], example: str) -> float:
    number, unit = _parts(text, what, example)
    value = number * _unit(text, what, unit, units, example)
    if value < 0:
        raise ValueError(f"{what} {text}: must not be negative")
    return value


def _parts(text: str, what: str, example: str) -> tuple[float, str]:
    found = _FIGURE.fullmatch(text)
    if found is None or not isfinite(float(found[1])):
        raise ValueError(f"{what} {text}: not a number with a unit; write it like {example}")
    return float(found[1]), found[2]


def _unit(text: str, what: str, unit: str, units: Mapping[str, float], example: str) -> float:
    if not unit and "" not in units:
        raise ValueError(f"{what} {text}: the unit is missing; write it like {example}")
    try:
        return lookup("unit", unit, units)
    except ValueError as error:
        raise ValueError(f"{what} {text}: {error}") from None
