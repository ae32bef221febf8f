"""Schedules of pairs and small groups: every worker averages with one peer (or one node) a step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np

from gossamer.topologies._checks import is_power_of_two, num_workers, powers_of_two_around, whole_number
from gossamer.topologies._graphs import complete
from gossamer.topologies._mixing import Mixing
from gossamer.topologies._schedule import Schedule, apart, cycle
from gossamer.topologies._weights import from_groups

DRAWS_FOR_FIGURES = 32
"""Random matchings that stand for all in figures: enough to be typical, few enough to be quick."""


def one_peer_exponential(n: int) -> Schedule:
    """At step k (mod log₂n) the pairs (j, j XOR 2ᵏ) average: the exact mean after log₂n steps, at degree 1.

    n must be a power of two; `base_graph(n, 1)` ("base-2") does the same for any n.
    n = 1 is a replica alone, n = 2 a pair; n = 3 is refused.

    Reference: Ying et al., Exponential graph is provably efficient for decentralized deep training, 2021.

    >>> schedule = one_peer_exponential(16)
    >>> schedule.period, schedule.steps_to_exact(), schedule(2).neighbors(0)
    (4, 4, (4,))
    """
    num_workers(n, "a one-peer exponential schedule")
    if not is_power_of_two(n):
        raise ValueError(
            f"one-peer exponential pairs need a power of two, got n={n}; take base-2, which is exact for "
            f"any n, or {powers_of_two_around(n)} workers"
        )
    distances = [1 << digit for digit in range(n.bit_length() - 1)]
    stages = [from_groups(n, _apart(n, distance), f"pairs {distance} apart") for distance in distances]
    return cycle(stages or [complete(1)], name="one-peer-exponential")


def alternating_ring(n: int) -> Schedule:
    """A ring in two steps: the pairs (0,1)(2,3)… average, then (1,2)(3,4)…(n−1,0). Degree 1, period 2.

    n must be even; n = 1 is a replica alone, n = 2 the one pair at every step; n = 3 is refused.

    >>> schedule = alternating_ring(6)
    >>> schedule(0).groups, schedule(1).groups
    (((0, 1), (2, 3), (4, 5)), ((0, 5), (1, 2), (3, 4)))
    """
    num_workers(n, "an alternating ring")
    if n % 2 and n > 1:
        raise ValueError(
            f"an alternating ring pairs everybody and needs an even number of workers, got n={n}; "
            f"take {n - 1} or {n + 1} workers, or ring or base-2, which take any n"
        )
    if n <= 2:
        return cycle([complete(n)], name="alternating-ring")
    even = from_groups(n, [(rank, rank + 1) for rank in range(0, n, 2)], "even pairs")
    odd = from_groups(n, [(rank, (rank + 1) % n) for rank in range(1, n, 2)], "odd pairs")
    return cycle([even, odd], name="alternating-ring")


def alternating_exponential_ring(n: int, local_size: int = 1) -> Schedule:
    """Nodes of `local_size` workers; pairs of nodes average jointly every other step, alone in between.

    With N = n/local_size = 2ʳ nodes and r distances 2ᵏ there are 2r steps: for each k the node pairs (a, a
    XOR 2ᵏ) are counted through; in one step the odd-counted pairs average jointly (2·local_size workers)
    while the nodes of the others average within, then the roles swap. A node uses the slow link between nodes
    every second step only, and a period gives the exact average. One node (n = local_size) averages within at
    every step: it is complete. At local_size 1: n = 1 is a replica alone, n = 2 a pair that meets every other
    step; n = 3 is refused.

    Reference: Wang et al., From promise to practice: realizing high-performance decentralized training, ICLR
    2025.

    >>> schedule = alternating_exponential_ring(8, local_size=2)
    >>> schedule.period, schedule.steps_to_exact()
    (4, 4)
    >>> schedule(0).groups
    ((0, 1, 2, 3), (4, 5), (6, 7))
    """
    nodes = _nodes(n, local_size, "an alternating exponential ring")
    name = f"alternating-exponential-ring:local_size={local_size}"
    num_nodes = len(nodes)
    if not is_power_of_two(num_nodes):
        around = powers_of_two_around(num_nodes)
        raise ValueError(
            f"the nodes of an alternating exponential ring must be a power of two, got {n}/{local_size} = "
            f"{num_nodes}; take {around} nodes of {local_size}, or alternating-nodes, which takes any number of them"
        )
    if num_nodes == 1:
        return cycle([complete(n)], name=name)
    stages: list[Mixing] = []
    for digit in range(num_nodes.bit_length() - 1):
        stages += _jointly_in_turn(nodes, _apart(num_nodes, 1 << digit), f"nodes {1 << digit} apart")
    return cycle(stages, name=name)


def alternating_nodes(n: int, local_size: int = 1) -> Schedule:
    """Nodes of `local_size` workers; two or a few nodes average jointly every other step, alone in between: any n.

    The alternating exponential ring, for any number of nodes N: with N = p₁·p₂·… (primes, small ones first) nodes have
    mixed-radix digits, and groups of pₖ nodes that differ in the k-th digit only take the place of its pairs. Half of
    them average jointly in one step, the other half in the next; a period gives the exact average. For N = 2ʳ the two
    are the same. A large prime factor is a large group. One node averages within at every step: it is complete.

    Reference: pairs of nodes in turn as in Wang et al., From promise to practice: realizing high-performance
    decentralized training, ICLR 2025; mixed-radix digits as in Takezawa et al., Beyond exponential graph, NeurIPS 2023.

    >>> schedule = alternating_nodes(12, local_size=2)
    >>> schedule.period, schedule.steps_to_exact()
    (4, 4)
    >>> schedule(0).groups, schedule(2).groups
    (((0, 1, 2, 3), (4, 5), (6, 7), (8, 9, 10, 11)), ((0, 1, 4, 5, 8, 9), (2, 3), (6, 7), (10, 11)))
    """
    nodes = _nodes(n, local_size, "alternating nodes")
    name = f"alternating-nodes:local_size={local_size}"
    if len(nodes) == 1:
        return cycle([complete(n)], name=name)
    stages: list[Mixing] = []
    distance = 1
    for size in _prime_factors(len(nodes)):
        apart = np.arange(len(nodes)).reshape(-1, size, distance).swapaxes(1, 2).reshape(-1, size)
        stages += _jointly_in_turn(nodes, apart.tolist(), f"nodes {distance} apart")
        distance *= size
    return cycle(stages, name=name)


def nodes_alone(n: int, local_size: int = 1) -> Schedule:
    """Nodes of `local_size` workers, each of which averages within and never with others: no link between them is used.

    Not a graph to train on by itself: nodes never agree. For methods that average over everybody now and then, in
    between; at local_size 1 every worker is alone.

    >>> schedule = nodes_alone(6, local_size=2)
    >>> schedule(0).groups, schedule.spectral_gap()
    (((0, 1), (2, 3), (4, 5)), 0.0)
    """
    nodes = _nodes(n, local_size, "nodes")
    name = f"nodes:local_size={local_size}"
    return apart(complete(n) if len(nodes) == 1 else from_groups(n, nodes.tolist(), name))


def _nodes(n: int, local_size: int, family: str) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """The ranks of every node, `[nodes, local_size]`."""
    num_workers(n, family)
    local_size = whole_number(local_size, "local_size", 1)
    rest = n % local_size
    if rest:
        raise ValueError(
            f"{n} workers do not fill nodes of local_size={local_size}; "
            f"take a local_size that divides {n}, or {n - rest or local_size} workers"
        )
    return np.arange(n).reshape(-1, local_size)


def _jointly_in_turn(
    nodes: np.ndarray[tuple[int, int], np.dtype[np.int64]], together: Sequence[Sequence[int]], name: str
) -> list[Mixing]:
    """Two steps: in one the even-counted sets of nodes average jointly and the others within, then the roles swap."""
    stages = []
    for phase in (0, 1):
        groups: list[list[int]] = []
        for count, members in enumerate(map(list, together)):
            joint = count % 2 == phase
            groups += [nodes[members].ravel().tolist()] if joint else nodes[members].tolist()
        stages.append(from_groups(nodes.size, groups, f"{name}, phase {phase + 1}"))
    return stages


def _prime_factors(n: int) -> list[int]:
    """In ascending order.

    >>> _prime_factors(252)
    [2, 2, 3, 3, 7]
    """
    factors: list[int] = []
    divisor = 2
    while n > 1:
        while n % divisor == 0:
            factors.append(divisor)
            n //= divisor
        divisor += 1
    return factors


def _apart(n: int, distance: int) -> list[tuple[int, int]]:
    """The pairs (a, a XOR distance) of 0 … n−1, each once."""
    return [(a, a ^ distance) for a in range(n) if not a & distance]


def random_matching(n: int, seed: int = 0) -> Schedule:
    """At every step a fresh random pairing, drawn from (seed, step) alone, so that all ranks draw the same.

    An odd n leaves one worker out a step. n = 1 is a replica alone, n = 2 the one pair always, n = 3 a pair
    and a bystander. It has no period: figures are taken over the first 32 draws.

    Reference: Boyd, Ghosh, Prabhakar, Shah, Randomized gossip algorithms, 2006.

    >>> schedule = random_matching(8, seed=1)
    >>> schedule(5).degree, schedule(5) is schedule(5)
    (1, True)
    """
    num_workers(n, "random matchings")
    seed = whole_number(seed, "the seed of random matchings", 0)
    name = f"random-matching:seed={seed}"
    if n <= 2:
        return cycle([complete(n)], name=name)
    return Schedule(name, n, partial(_matching, n, seed), period=None, figures_over=range(DRAWS_FOR_FIGURES))


@lru_cache(maxsize=256)  # bounded: a long run draws millions; whoever asks twice for a step asks soon
def _matching(n: int, seed: int, step: int) -> Mixing:
    order = np.random.default_rng([seed, step]).permutation(n)
    pairs = order[: n - n % 2].reshape(-1, 2).tolist()
    return from_groups(n, pairs, "random pairs")
