"""Spearman's and Kendall's rank correlation of a handful of things, with p-values that hold for so few."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

import numpy as np
from scipy.stats import kendalltau, rankdata, spearmanr

FEWEST_FOR_P = 4
"""With fewer things no order is unlikely enough to say anything: of three, every sixth is the one hoped for."""
_MOST_PERMUTED = 8
"""Up to here all orders are tried (40,320 of eight); beyond, the textbook approximations are good."""
_SAME = 1e-9

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Two rankings of the same `n` things, compared. What cannot be said is None, and `reason` says why."""

    n: int
    spearman: float | None = None
    spearman_p: float | None = None
    """Two-sided: how often a random order would agree, or disagree, at least as much."""
    kendall: float | None = None
    kendall_p: float | None = None
    reason: str = ""


def correlate(one: Floats, other: Floats) -> Correlation:
    """Rank correlations of two measurements of the same things; ties share their mean rank.

    >>> correlate(np.array([1.0, 2.0, 3.0, 4.0]), np.array([10.0, 20.0, 40.0, 30.0]))  # doctest: +ELLIPSIS
    Correlation(n=4, spearman=0.8, spearman_p=0.333..., kendall=0.666..., kendall_p=0.333..., reason='')
    """
    n = len(one)
    one, other = _ranked(one), _ranked(other)
    if n < 2:
        return Correlation(n=n, reason=f"a correlation needs at least 2 graphs, not {n}")
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return Correlation(n=n, reason="all graphs are equal in one of the two")
    rho, tau = spearmanr(one.tolist(), other.tolist()), kendalltau(one, other)
    said = Correlation(n=n, spearman=round(float(rho.statistic), 12), kendall=round(float(tau.statistic), 12))
    if n < FEWEST_FOR_P:
        return Correlation(**vars(said) | {"reason": f"{n} graphs are too few for a p-value"})
    by_orders = _by_orders(one, other) if n <= _MOST_PERMUTED else (float(rho.pvalue), float(tau.pvalue))
    return Correlation(**vars(said) | {"spearman_p": by_orders[0], "kendall_p": by_orders[1]})


def _ranked(values: Floats) -> Floats:
    """Ranks in which what differs by rounding alone is equal."""
    spread = float(np.ptp(values)) if len(values) else 0.0
    return rankdata(np.round(values / spread, 9) if spread > 0 else values)


def _by_orders(one: Floats, other: Floats) -> tuple[float, float]:
    """The share of all orders of one ranking that agree with the other as much, by Spearman and by Kendall."""
    orders = other[_orders(len(other))]  # [n!, n]
    first, second = np.triu_indices(len(one), 1)
    products = orders @ (one - one.mean())  # the rest of ρ does not depend on the order
    signs = np.sign(orders[:, first] - orders[:, second]) @ np.sign(one[first] - one[second])  # nor does that of τ
    return _share(products), _share(signs)


def _share(values: Floats) -> float:
    """How often a value is as far from zero as the first, which is the order seen."""
    return float(np.mean(np.abs(values) >= np.abs(values[0]) - _SAME))


@lru_cache(maxsize=1)
def _orders(n: int) -> np.ndarray[tuple[int, int], np.dtype[np.intp]]:
    return np.array(list(permutations(range(n))))
