"""Checks of arguments that all families share: the same mistake gets the same sentence everywhere."""

from __future__ import annotations

import operator


def whole_number(value: object, what: str, least: int) -> int:
    """Return `value` as an int of at least `least`, or raise a ValueError that names it as `what`.

    Booleans and floats are refused even where Python would accept them: `ring(16.0)` is a slip to be told
    about.

    >>> whole_number(4, "n", 1)
    4
    >>> whole_number(0, "n", 1)
    Traceback (most recent call last):
        ...
    ValueError: n must be a whole number, at least 1; got 0
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]  # whatever cannot is what we refuse
    except TypeError:
        raise ValueError(f"{what} must be a whole number, at least {least}; got {value!r}") from None
    if number < least:
        raise ValueError(f"{what} must be a whole number, at least {least}; got {number}")
    return number


def num_workers(n: object, family: str) -> int:
    """Check the size of a graph: a whole number of workers, one or more.

    >>> num_workers(1, "a ring")
    1
    """
    return whole_number(n, f"the number of workers of {family}", 1)


def is_power_of_two(n: int) -> bool:
    """Tell whether n is 1, 2, 4, 8 …

    >>> [n for n in range(1, 20) if is_power_of_two(n)]
    [1, 2, 4, 8, 16]
    """
    return n & (n - 1) == 0


def powers_of_two_around(n: int) -> str:
    """Name the powers of two next to n, for the remedy in an error message.

    >>> powers_of_two_around(12)
    '8 or 16'
    """
    above = 1 << n.bit_length()
    return f"{above // 2} or {above}"
