"""Base-(k+1) graphs: the exact average of any number of workers in a few steps of at most k neighbours each.

A period is written as a list of steps; a step is a list of edges (a, b, weight), and whoever has no edge
idles.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import combinations, zip_longest

import numpy as np

from gossamer.topologies._checks import num_workers, whole_number
from gossamer.topologies._graphs import complete
from gossamer.topologies._mixing import Mixing
from gossamer.topologies._schedule import Schedule, cycle
from gossamer.topologies._weights import weighted_edges

Edge = tuple[int, int, float]
Step = list[Edge]


def base_graph(n: int, k: int) -> Schedule:
    """The Base-(k+1) graph: at most k neighbours a step, the exact average after one period, for **any** n.

    1. If all prime factors of n are at most k+1, give ranks mixed-radix digits; step l averages all who
       differ only in digit l, as in one-peer exponential.
    2. Else write n in base k+1 and give every digit its own block of workers. Blocks average themselves; then
       each smaller block pulls the larger ones to the global mean through single edges, weighted by their
       sizes; then the larger blocks spread what their members got.
    3. Or split off the part of n that has small prime factors only: blocks run 2, then average across by 1.
    The shorter of 2 and 3 is used. n = 1 is a replica alone, n = 2 a pair; n = 3 takes 3 steps at k = 1,
    else 1.

    Reference: Takezawa et al., Beyond exponential graph: communication-efficient topologies for decentralized
    learning via finite-time convergence, NeurIPS 2023 (arXiv 2305.11420).

    >>> schedule = base_graph(12, 1)
    >>> schedule.steps_to_exact(), max(schedule(step).degree for step in range(schedule.period))
    (5, 1)
    >>> [base_graph(25, k).period for k in (1, 2, 3, 4)]
    [9, 6, 5, 2]
    """
    num_workers(n, "a Base-(k+1) graph")
    k = whole_number(k, "the number of neighbours k of a Base-(k+1) graph", 1)
    name = f"base-{k + 1}"
    if n == 1:
        return cycle([complete(1)], name=name)
    ranks = range(n)
    steps = min(_simple(ranks, k), _blocks_then_across(ranks, k), key=len)
    return cycle([_mixing(n, step, f"{name}, step {at}") for at, step in enumerate(steps)], name=name)


def _mixing(n: int, step: Step, name: str) -> Mixing:
    a, b, weight = (np.array(column) for column in zip(*step, strict=True))
    return weighted_edges(name, n, a, b, weight)


def _hyper_hypercube(nodes: Sequence[int], k: int) -> list[Step]:
    """Average `nodes`, whose number has no prime factor above k+1: digit by digit, in the fewest steps."""
    factors = _fewest_factors(len(nodes), k + 1)
    assert factors is not None, f"{len(nodes)} has a prime factor above {k + 1}"
    digits = np.array(nodes).reshape(factors)
    steps = []
    for axis, size in enumerate(factors):
        groups = np.moveaxis(digits, axis, -1).reshape(-1, size).tolist()
        steps.append([(a, b, 1.0 / size) for group in groups for a, b in combinations(group, 2)])
    return steps


@cache
def _fewest_factors(n: int, largest: int) -> tuple[int, ...] | None:
    """Factors of n, each at most `largest`, as few as can be; None where a prime factor is larger.

    >>> _fewest_factors(24, 5), _fewest_factors(1, 5), _fewest_factors(14, 5)
    ((4, 3, 2), (), None)
    """
    if n == 1:
        return ()
    best: tuple[int, ...] | None = None
    for factor in range(2, min(n, largest) + 1):
        rest = _fewest_factors(n // factor, largest) if n % factor == 0 else None
        if rest is not None and (best is None or len(rest) + 1 <= len(best)):
            best = (factor, *rest)
    return best


def _simple(nodes: Sequence[int], k: int) -> list[Step]:
    """The simple Base-(k+1) graph: n = Σ_l a_l (k+1)^{p_l}, a block V_l of workers for every digit a_l."""
    if _fewest_factors(len(nodes), k + 1) is not None:
        return _hyper_hypercube(nodes, k)
    blocks: list[list[Sequence[int]]] = []  # blocks[l][a]: the a-th part of V_l, (k+1)^{p_l} workers; largest first
    begin = 0
    for power, digit in _digits(len(nodes), k + 1):
        size = (k + 1) ** power
        blocks.append([nodes[begin + part * size : begin + (part + 1) * size] for part in range(digit)])
        begin += digit * size

    # Every block averages itself. The first needs the most steps; others idle when they are done.
    alone = [_hyper_hypercube([node for part in parts for node in part], k) for parts in blocks]
    steps = _in_parallel(alone)

    # Block by block, largest first: the smaller blocks R_j exchange with V_j so that the mean of R_j and of
    # each part of V_j become the global mean. R_j has fewer members than a part has, so nobody in V_j is used
    # twice.
    finish: list[list[Step]] = []
    for stage, parts in enumerate(blocks[:-1]):
        rest = [node for later in blocks[stage + 1 :] for part in later for node in part]
        in_block = sum(len(part) for part in parts)
        weight = in_block / (len(parts) * (in_block + len(rest)))
        meet = [(node, part[place], weight) for place, node in enumerate(rest) for part in parts]
        # From the next step on each part of V_j spreads what it got, beside the later stages.
        spread = _in_parallel([_hyper_hypercube(part, k) for part in parts])
        finish.append([*([[]] * stage), meet, *spread])
    return steps + _in_parallel(finish)


def _digits(n: int, base: int) -> list[tuple[int, int]]:
    """The digits of n that are not zero, as (power, digit), largest power first.

    >>> _digits(11, 3)
    [(2, 1), (0, 2)]
    """
    found = []
    power = 0
    while n:
        n, digit = divmod(n, base)
        if digit:
            found.append((power, digit))
        power += 1
    return found[::-1]


def _blocks_then_across(nodes: Sequence[int], k: int) -> list[Step]:
    """n = p·q, all prime factors of p at most k+1: p blocks of q average themselves, then across blocks."""
    n = len(nodes)
    q = n
    for factor in range(2, k + 2):
        while q % factor == 0:
            q //= factor
    p = n // q
    within = [_simple(nodes[block * q : (block + 1) * q], k) for block in range(p)]
    across = [_hyper_hypercube(nodes[member::q], k) for member in range(q)]
    return _in_parallel(within) + _in_parallel(across)


def _in_parallel(lanes: Sequence[list[Step]]) -> list[Step]:
    """Run several sequences of steps side by side; those that end early idle."""
    return [[edge for step in steps for edge in step] for steps in zip_longest(*lanes, fillvalue=[])]
