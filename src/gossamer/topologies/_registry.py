"""Names for graphs: `build("ring-lattice:k=4", 16)`. What command lines, experiments and reports speak.

A family is a function whose first argument is n; its keyword arguments, with their defaults and types, are
the parameters that a spec may set. To add a family, add a function and a line to `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from gossamer._names import Spec, lookup
from gossamer.topologies import _ada, _base, _bipartite, _directed, _graphs, _pairs, _random_graphs
from gossamer.topologies._checks import num_workers, whole_number
from gossamer.topologies._mixing import Mixing
from gossamer.topologies._schedule import Schedule, constant

DEFAULT_EPOCHS = 30
"""The length of training that Ada assumes where nobody says."""


class Family(NamedTuple):
    """How to make a graph of n workers, and what it is in one line."""

    make: Callable[..., Mixing | Schedule]
    summary: str


def _ring_lattice(n: int, *, k: int | None = None) -> Mixing:
    return _graphs.ring_lattice(n, min(4, n - 1) if k is None else k)


def _torus(n: int, *, rows: int | None = None, cols: int | None = None) -> Mixing:
    if rows is None and cols is None:
        return _graphs.torus(n)
    given = " and ".join(f"{what}={value}" for what, value in (("rows", rows), ("cols", cols)) if value is not None)
    rows = rows if rows is not None else n // max(cols or 1, 1)
    cols = cols if cols is not None else n // max(rows, 1)
    if rows * cols != n:
        raise ValueError(f"a torus with {given} does not have n={n} workers; take rows and cols with rows·cols = {n}")
    return _graphs.torus(rows, cols)


def _random_regular(n: int, *, degree: int | None = None, seed: int = 0) -> Mixing:
    return _random_graphs.random_regular(n, min(4, n - 1) if degree is None else degree, seed)


def _erdos_renyi(n: int, *, p: float | None = None, seed: int = 0) -> Mixing:
    return _random_graphs.erdos_renyi(n, _random_graphs.surely_connected_p(n) if p is None else p, seed)


def _directed_random(n: int, *, degree: int | None = None, seed: int = 0) -> Mixing:
    return _directed.directed_random(n, min(3, n - 1) if degree is None else degree, seed)


def _ada_family(
    n: int,
    *,
    k0: int | None = None,
    gamma: float | None = None,
    k_min: int | None = None,
    steps_per_epoch: int = 1,
    epochs: int = DEFAULT_EPOCHS,
) -> Schedule:
    k0 = n - 1 if k0 is None else k0
    k_min = min(2, n - 1) if k_min is None else k_min
    epochs = whole_number(epochs, "the number of epochs", 1)
    if gamma is None:  # k_min < k0 is for ada to refuse, in its own words
        gamma = _ada.reaching(k0, min(k_min, k0), epochs)
    return _ada.ada(n, k0, gamma, k_min, steps_per_epoch)


FAMILIES: dict[str, Family] = {
    "complete": Family(_graphs.complete, "everybody averages with everybody, exact in one step"),
    "exponential": Family(_graphs.exponential, "take from the ranks 1, 2, 4, 8 … before you, one way"),
    "torus": Family(_torus, "a grid that wraps around: above, below, left, right"),
    "ring": Family(_graphs.ring, "a circle: the two next to you"),
    "ring-lattice": Family(_ring_lattice, "a circle: the k nearest"),
    "hypercube": Family(_graphs.hypercube, "all ranks one binary digit away (powers of two)"),
    "bipartite-exponential": Family(
        _bipartite.bipartite_exponential, "the ranks 1, 3, 5, 9, 17 … away, both ways; two halves (even n)"
    ),
    "star": Family(_graphs.star, "a hub, rank 0, that all others talk to"),
    "random-regular": Family(_random_regular, "a random graph, the same degree for all"),
    "erdos-renyi": Family(_erdos_renyi, "a random graph, each link with probability p"),
    "directed-ring": Family(_directed.directed_ring, "a circle, one way: the one before you"),
    "directed-random": Family(
        _directed_random, "a random graph, one way, some listened to more than others: for push-sum"
    ),
    "ada": Family(_ada_family, "a ring lattice, dense at first, thinner from epoch to epoch"),
    "one-peer-exponential": Family(
        _pairs.one_peer_exponential, "pairs 1, 2, 4 … apart in turn, exact after log₂n steps (powers of two)"
    ),
    "base-2": Family(partial(_base.base_graph, k=1), "one neighbour a step, exact after one period, any n"),
    "base-3": Family(partial(_base.base_graph, k=2), "up to two neighbours a step, exact after one period, any n"),
    "base-4": Family(partial(_base.base_graph, k=3), "up to three neighbours a step, exact after one period, any n"),
    "base-5": Family(partial(_base.base_graph, k=4), "up to four neighbours a step, exact after one period, any n"),
    "directed-exponential": Family(
        _directed.directed_exponential, "take from one rank, 1, 2, 4 … before you in turn, one way"
    ),
    "alternating-ring": Family(_pairs.alternating_ring, "a ring as alternating pairs (even n)"),
    "alternating-exponential-ring": Family(
        _pairs.alternating_exponential_ring, "pairs of nodes 1, 2, 4 … apart, jointly and within in turn"
    ),
    "alternating-nodes": Family(
        _pairs.alternating_nodes, "two or a few nodes, jointly and within in turn, exact after one period, any number"
    ),
    "nodes": Family(
        _pairs.nodes_alone, "within nodes only, never between: for methods that average over everybody now and then"
    ),
    "random-matching": Family(_pairs.random_matching, "fresh random pairs at every step"),
}


def names() -> tuple[str, ...]:
    """The names that `build` knows.

    >>> names()[:4]
    ('complete', 'exponential', 'torus', 'ring')
    """
    return tuple(FAMILIES)


def describe(name: str) -> str:
    """What a family is, in a line; a spec with parameters is described by its name.

    >>> describe("ring-lattice:k=4")
    'a circle: the k nearest'
    """
    return lookup("graph", Spec.parse("graph", name).name, FAMILIES).summary


def build(
    spec: str,
    n: int,
    *,
    steps_per_epoch: int = 1,
    epochs: int | None = None,
    local_size: int | None = None,
    seed: int = 0,
) -> Schedule:
    """The schedule that `spec` names, for n workers: a name, then parameters as `:key=value`.

    The keyword arguments are context: each goes to the families that take it (Ada knows epochs, random graphs
    a seed, alternating nodes the workers of one) unless the spec sets it. Ada by default
    falls from complete to 2 neighbours in 75 % of the epochs.

    >>> build("ring", 8).spectral_gap() == build("ring-lattice:k=2", 8).spectral_gap()
    True
    >>> build("ada", 16, steps_per_epoch=100, epochs=40).name
    'ada:k0=15:gamma=0.433333:k_min=2'
    >>> build("rign", 8)
    Traceback (most recent call last):
        ...
    ValueError: unknown graph 'rign', did you mean 'ring'? Known: complete, exponential, torus, ring, ...
    """
    parsed = Spec.parse("graph", spec)
    family = lookup("graph", parsed.name, FAMILIES)
    num_workers(n, f"{parsed.name!r}")
    made = parsed.call(family.make, n, steps_per_epoch=steps_per_epoch, epochs=epochs, local_size=local_size, seed=seed)
    return constant(made) if isinstance(made, Mixing) else made
