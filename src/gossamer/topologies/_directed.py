"""Graphs whose links go one way: for push-sum, and, where all are listened to alike, for every other method too."""

from __future__ import annotations

import numpy as np

from gossamer.topologies._checks import num_workers, whole_number
from gossamer.topologies._mixing import Mixing
from gossamer.topologies._schedule import Schedule, cycle
from gossamer.topologies._weights import directed, translations


def directed_ring(n: int) -> Mixing:
    """Every rank takes from the one before it on a circle: W_ij = 1/2 for j = i−1, i.

    The cheapest graph there is, one model a step, and doubly stochastic. n = 1 is a replica alone, n = 2 a pair.

    >>> directed_ring(5).neighbors(0), directed_ring(5).listeners(0)
    ((4,), (1,))
    """
    return translations("directed-ring", (num_workers(n, "a directed ring"),), [(-1,)])


def directed_exponential(n: int) -> Schedule:
    """Every rank takes from one other, 1, 2, 4 … before it in turn: W_ij = 1/2 for j = i − 2ᵗ, i.

    One model a step; exact after log₂n steps where n is a power of two, for any n connected. n = 1 is a replica alone,
    n = 2 a pair.

    Reference: Assran et al., Stochastic gradient push for distributed deep learning, ICML 2019 (arXiv 1811.10792).

    >>> schedule = directed_exponential(8)
    >>> [schedule(step).neighbors(0) for step in range(3)], schedule.steps_to_exact()
    ([(7,), (6,), (4,)], 3)
    """
    num_workers(n, "a directed exponential graph")
    name = "directed-exponential"
    hops = [1 << k for k in range((n - 1).bit_length())] or [0]
    return cycle([translations(f"{name}, {hop} before", (n,), [(-hop,)]) for hop in hops], name=name)


def directed_random(n: int, degree: int, seed: int = 0) -> Mixing:
    """Every rank sends to the next on a circle and to degree − 1 others at random, with no link back.

    Some are sent more than others, so rows sum to one and columns do not: averages drift to the models of those who are
    listened to most, which only push-sum makes up for. n = 1 is a replica alone, n = 2 a pair.

    >>> mixing = directed_random(8, 3)
    >>> [len(mixing.listeners(rank)) for rank in range(8)], mixing.is_doubly_stochastic
    ([3, 3, 3, 3, 3, 3, 3, 3], False)
    """
    num_workers(n, "a directed random graph")
    degree = whole_number(degree, "the degree of a directed random graph", min(1, n - 1))
    if degree >= n:
        raise ValueError(f"degree={degree} needs more than {degree} workers, got n={n}; take degree ≤ {n - 1}")
    draw = np.random.default_rng(seed)
    hops = [(1, *(2 + draw.permutation(n - 2)[: degree - 1])) if degree else () for _ in range(n)]
    arcs = [(rank, (rank + int(hop)) % n) for rank in range(n) for hop in hops[rank]]
    name = f"directed-random:degree={degree}:seed={seed}"
    return directed(name, n, np.array(arcs, dtype=np.int64).reshape(-1, 2))
