"""Random graphs that stay the same for a whole run, repeatable from their seed."""

from __future__ import annotations

import math

import numpy as np

from gossamer.topologies._checks import num_workers, whole_number
from gossamer.topologies._mixing import Mixing
from gossamer.topologies._weights import everybody, undirected

ATTEMPTS = 100
"""Draws of a random regular graph before giving up. From degree 3 on nearly every draw is connected."""


def random_regular(n: int, degree: int, seed: int = 0) -> Mixing:
    """A connected random graph in which everybody has `degree` neighbours: W_ij = 1/(degree+1).

    Mixes far better than a ring lattice of the same degree: long links matter. n·degree must be even.
    n = 1 takes degree 0 (a replica alone), n = 2 takes 1 (a pair), n = 3 takes 2; degree n−1 is complete.

    >>> random_regular(16, 4, seed=1).degree
    4
    >>> random_regular(16, 4, seed=1).spectral_gap() > 2 * 0.0884  # the ring lattice of 16 with k = 4
    True
    """
    num_workers(n, "a random regular graph")
    degree = whole_number(degree, "the degree of a random regular graph", 0)
    seed = whole_number(seed, "the seed of a random regular graph", 0)
    name = f"random-regular:degree={degree}:seed={seed}"
    if degree >= n:
        raise ValueError(f"degree={degree} needs more than {degree} workers, got n={n}; take degree ≤ {n - 1}")
    if degree == n - 1:
        return everybody(name, n)
    if degree < 2:
        raise ValueError(f"{n} workers of degree={degree} cannot be connected; take degree ≥ 2, or random-matching")
    if n * degree % 2:
        raise ValueError(
            f"n·degree must be even, as every edge has two ends, got n={n}, degree={degree}; "
            f"take degree={degree - 1} or {degree + 1}, or an even n"
        )
    for attempt in range(ATTEMPTS):
        mixing = undirected(name, n, _regular_edges(n, degree, np.random.default_rng([seed, attempt])))
        if mixing.is_connected:
            return mixing
    raise ValueError(f"no connected graph of n={n}, degree={degree} in {ATTEMPTS} draws from seed={seed}; try another")


def _regular_edges(n: int, degree: int, rng: np.random.Generator) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    if degree == 2:  # a connected graph of degree 2 is one cycle: draw its order rather than hope for it
        order = rng.permutation(n)
        return np.stack([order, np.roll(order, 1)], axis=1)
    if degree > (n - 1) // 2:  # dense graphs are hard to draw; those who are *not* neighbours are easy
        linked = np.ones((n, n), dtype=bool)
        i, j = _sparse_regular_edges(n, n - 1 - degree, rng).T
        linked[i, j] = linked[j, i] = False
        return np.argwhere(np.triu(linked, k=1))
    return _sparse_regular_edges(n, degree, rng)


def _sparse_regular_edges(
    n: int, degree: int, rng: np.random.Generator
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    import networkx  # here, as it takes longer to import than everything else in this package

    graph = networkx.random_regular_graph(degree, n, seed=int(rng.integers(1 << 31)))
    return np.array(sorted(tuple(sorted(edge)) for edge in graph.edges), dtype=np.int64).reshape(-1, 2)


def erdos_renyi(n: int, p: float, seed: int = 0) -> Mixing:
    """A random graph in which each pair of workers is linked with probability p, Metropolis–Hastings weights.

    A draw that is not connected is refused rather than repaired: above p = ln(n)/n nearly all are connected.
    n = 1 is a replica alone for every p, n = 2 a pair if its link is drawn, n = 3 a path or complete.

    >>> graph = erdos_renyi(16, 0.4, seed=3)
    >>> graph.is_symmetric, graph.is_connected
    (True, True)
    """
    num_workers(n, "an Erdős–Rényi graph")
    seed = whole_number(seed, "the seed of an Erdős–Rényi graph", 0)
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p is the probability of an edge, between 0 and 1; got p={p}")
    # Pairs are numbered row by row through the upper triangle; row i begins at `begins[i]`.
    chosen = np.flatnonzero(np.random.default_rng(seed).random(n * (n - 1) // 2) < p)
    begins = np.concatenate([[0], np.cumsum(np.arange(n - 1, 0, -1))])
    i = np.searchsorted(begins, chosen, side="right") - 1
    j = chosen - begins[i] + i + 1
    mixing = undirected(f"erdos-renyi:p={p:g}:seed={seed}", n, np.stack([i, j], axis=1))
    if not mixing.is_connected:
        raise ValueError(
            f"the Erdős–Rényi graph of n={n}, p={p:g}, seed={seed} is disconnected; "
            f"take p ≥ {surely_connected_p(n):.2g}, or another seed"
        )
    return mixing


def surely_connected_p(n: int) -> float:
    """An edge probability at which an Erdős–Rényi graph is connected almost surely: 3·ln(n)/n, at most 1.

    >>> surely_connected_p(2), round(surely_connected_p(100), 3)
    (1.0, 0.138)
    """
    return min(1.0, 3.0 * math.log(n) / n) if n > 1 else 1.0
