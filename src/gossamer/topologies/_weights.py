"""Four ways to make mixing weights: translations of a grid, edges, directed arcs, groups of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array, csr_array

from gossamer.topologies._checks import num_workers
from gossamer.topologies._mixing import Mixing

if TYPE_CHECKING:
    from gossamer.topologies._spectrum import Weights

    Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def translations(name: str, shape: tuple[int, ...], offsets: Iterable[Sequence[int]]) -> Mixing:
    """The graph in which every rank of a grid takes equally from itself and the ranks at `offsets`.

    W_ij = 1/(d+1) for j = i and j = i + offset, coordinates counted around the grid. Offsets that meet on a
    small grid (up and down on two rows) count once; that is what makes every family right at n = 1, 2 and 3.

    >>> translations("ring", (4,), [(1,), (-1,)]).row(0)
    {0: 0.3333333333333333, 1: 0.3333333333333333, 3: 0.3333333333333333}
    >>> translations("ring", (2,), [(1,), (-1,)]).row(0)
    {0: 0.5, 1: 0.5}
    """
    grid = np.array(shape, dtype=np.int64)
    n = int(grid.prod())
    zero = (0,) * len(shape)
    distinct = np.unique(np.array([zero, *offsets], dtype=np.int64).reshape(-1, len(shape)) % grid, axis=0)
    sources = np.zeros((n, len(distinct)), dtype=np.int32)
    for axis, length in enumerate(shape):
        here = (np.arange(n) // int(grid[axis + 1 :].prod()) % length).astype(np.int32)
        there = (here[:, None] + distinct[:, axis].astype(np.int32)) % np.int32(length)
        sources = sources * np.int32(length) + there
    sources.sort(axis=1)
    return Mixing(name, _uniform_rows(sources), shape)


def everybody(name: str, n: int) -> Mixing:
    """The mean over everybody: W_ij = 1/n.

    >>> everybody("complete", 2).matrix()
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    return Mixing(name, _uniform_rows(np.tile(np.arange(n, dtype=np.int32), (n, 1))), (n,))


def undirected(name: str, n: int, ends: Ints) -> Mixing:
    """Metropolis–Hastings weights on the edges `ends` [E, 2], each named once: symmetric for any degrees.

    W_ij = 1 / (1 + max(d_i, d_j)) on edges, and each replica keeps the rest: 1/(d+1) where all degrees are d.

    >>> undirected("path", 3, np.array([[0, 1], [1, 2]])).matrix().round(3)
    array([[0.667, 0.333, 0.   ],
           [0.333, 0.333, 0.333],
           [0.   , 0.333, 0.667]])
    """
    a, b = ends[:, 0], ends[:, 1]
    degrees = np.bincount(ends.ravel(), minlength=n)
    return weighted_edges(name, n, a, b, 1.0 / (1.0 + np.maximum(degrees[a], degrees[b])))


def weighted_edges(name: str, n: int, a: Ints, b: Ints, weight: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Mixing:
    """Symmetric weights on the edges (a, b), each named once; every replica keeps what its edges leave.

    >>> weighted_edges("pair", 2, np.array([0]), np.array([1]), np.array([0.25])).matrix()
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """
    everyone = np.arange(n)
    kept = 1.0 - np.bincount(a, weight, minlength=n) - np.bincount(b, weight, minlength=n)
    rows, columns = np.concatenate([a, b, everyone]), np.concatenate([b, a, everyone])
    return Mixing(name, _from_triples(n, rows, columns, np.concatenate([weight, weight, kept])))


def directed(name: str, n: int, arcs: Ints) -> Mixing:
    """Uniform weights over oneself and one's sources, for arcs [A, 2] of (source, taker), each named once.

    W_ij = 1/(indegree_i + 1). Rows sum to one; columns do so where every rank has as many takers as sources.

    >>> directed("one way", 2, np.array([[0, 1]])).matrix()
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    everyone = np.arange(n)
    rows, columns = np.concatenate([arcs[:, 1], everyone]), np.concatenate([arcs[:, 0], everyone])
    sizes = np.bincount(rows, minlength=n)
    return Mixing(name, _from_triples(n, rows, columns, 1.0 / sizes[rows]))


def from_groups(n: int, groups: Iterable[Sequence[int]], name: str = "groups") -> Mixing:
    """The mixing in which every group of ranks takes its own mean; ranks in no group stay as they are.

    W_ij = 1/g for i and j in the same group of g. On its own it is disconnected: it is a stage of a schedule.

    >>> from_groups(5, [(0, 3), (1, 2)]).groups
    ((0, 3), (1, 2), (4,))
    """
    num_workers(n, "groups")
    listed = [set(group) for group in groups if len(group)]
    flat = np.fromiter(chain.from_iterable(listed), dtype=np.int64)
    if flat.size and (flat.min() < 0 or flat.max() >= n):
        outside = int(flat[(flat < 0) | (flat >= n)][0])
        raise ValueError(f"rank {outside} is in a group, but {n} workers have ranks 0 to {n - 1}")
    times = np.bincount(flat, minlength=n)
    if (times > 1).any():
        twice = int(times.argmax())
        raise ValueError(f"rank {twice} is in {times[twice]} groups; every rank may be in one group only")
    alone = np.flatnonzero(times == 0)
    sizes = np.array([*map(len, listed), *[1] * len(alone)])
    members, group = np.concatenate([flat, alone]), np.repeat(np.arange(len(sizes)), sizes)
    shares, gives = (
        coo_array((value, (members.astype(np.int32), group.astype(np.int32))), shape=(n, len(sizes))).tocsr()
        for value in (1.0 / sizes[group], np.ones(n))
    )
    return Mixing(name, shares @ gives.T)  # who is in a group takes a share of what its members give


def _uniform_rows(sources: np.ndarray[tuple[int, int], np.dtype[np.int32]]) -> Weights:
    n, width = sources.shape
    ends = np.arange(0, n * width + 1, width, dtype=np.int32)
    return csr_array((np.full(n * width, 1.0 / width), sources.ravel(), ends), shape=(n, n))


def _from_triples(n: int, rows: Ints, columns: Ints, values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Weights:
    places = (rows.astype(np.int32), columns.astype(np.int32))
    return coo_array((values, places), shape=(n, n)).tocsr()
