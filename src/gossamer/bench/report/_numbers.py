"""How numbers are written on the page."""

import math

MISSING = "–"
ROUNDING = 1e-15
"""Dispersion below this is the rounding of a sum over equal replicas: zero."""
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_TIES = "\u00a0"
"""A space at which no line breaks."""
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def finite(value: float | None) -> float | None:
    """A number that JSON knows, to 6 digits; None for what is missing, infinite or not a number.

    >>> [finite(x) for x in (0.1234567, float("inf"), None)]
    [0.123457, None, None]
    """
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def size(value: float | None) -> float | None:
    """A dispersion or a distance, zero where it is only rounding.

    >>> size(8.3e-18), size(0.02)
    (0.0, 0.02)
    """
    known = finite(value)
    return 0.0 if known is not None and known < ROUNDING else known


def percent(value: float | None) -> str:
    """A share as a percentage, without the sign.

    >>> percent(0.98426), percent(None)
    ('98.43', '–')
    """
    return MISSING if value is None else f"{100 * value:.2f}"


def points(share: float) -> str:
    """A difference of shares, in percentage points, without its sign; small ones keep a digit that says something.

    >>> points(-0.0222), points(0.0004), points(0.0)
    ('2.2', '0.04', '0.0')
    """
    value = abs(100 * share)
    return f"{value:.1g}" if 0 < value < 0.095 else f"{value:.1f}"


def scientific(value: float | None) -> str:
    """Two digits and a power of ten; plain where that reads better.

    >>> scientific(0.00342), scientific(0.0), scientific(0.25), scientific(float("inf"))
    ('3.4\\xa0×\\xa010⁻³', '0', '0.25', '–')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0 or 0.1 <= value < 1000:
        return f"{value:.2g}" if value < 10 else f"{value:.0f}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}{_TIES}×{_TIES}10{str(int(exponent)).translate(_SUPERSCRIPT)}"


def byte_unit(largest: float) -> tuple[float, str]:
    """The decimal unit in which numbers up to `largest` bytes read best.

    >>> byte_unit(20_097_000)
    (1000000.0, 'MB')
    """
    power = min(int(math.log10(largest)) // 3, len(_UNITS) - 1) if largest >= 1 else 0
    return 1000.0**power, _UNITS[power]


def num_bytes(value: float | None) -> str:
    """A number of bytes with its unit.

    >>> num_bytes(20_097_000.0), num_bytes(0.0)
    ('20.1 MB', '0 B')
    """
    if value is None:
        return MISSING
    scale, unit = byte_unit(value)
    return f"{value / scale:.3g} {unit}"


def plus_minus(value: str, spread: str | None) -> str:
    """A value with its spread, where there is one.

    >>> plus_minus("2.2", None)
    '2.2'
    """
    return value if spread is None else f"{value}{_TIES}±{_TIES}{spread}"


def counted(number: int, noun: str) -> str:
    """A count with its noun.

    >>> counted(1, "seed"), counted(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: list[str], most: int = 5) -> str:
    """Names as one would say them; beyond `most`, the rest are counted.

    >>> listed(["ring", "torus", "ada"]), listed(["a", "b", "c", "d"], most=2)
    ('ring, torus and ada', 'a, b and 2 others')
    """
    if len(names) > most + 1:
        names = [*names[:most], f"{len(names) - most} others"]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
