"""Graph families that do not change with time, and graphs of the user's own. Plain functions, size first.

Ring, ring lattice, torus, exponential, hypercube and complete are one construction under six names: every
rank takes from the ranks at a few fixed offsets of a grid (`translations`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np
from scipy.sparse import csr_array, issparse

from gossamer.topologies._checks import is_power_of_two, num_workers, powers_of_two_around, whole_number
from gossamer.topologies._mixing import Mixing
from gossamer.topologies._weights import directed, everybody, translations, undirected

if TYPE_CHECKING:
    import networkx
    from numpy.typing import ArrayLike
    from scipy.sparse import sparray, spmatrix


def ring(n: int) -> Mixing:
    """Every rank averages with the two next to it on a circle: W_ij = 1/3 for j = i−1, i, i+1.

    n = 1 is a replica alone (W = [[1]]), n = 2 a pair (weights 1/2), n = 3 complete.

    >>> ring(5).neighbors(0)
    (1, 4)
    >>> ring(2).matrix()
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    return translations("ring", (num_workers(n, "a ring"),), [(1,), (-1,)])


def ring_lattice(n: int, k: int) -> Mixing:
    """Every rank averages with the k nearest on a circle, k/2 on either side: W_ij = 1/(k+1).

    k counts all neighbours: 2 is the ring, n−1 is complete. Any other odd k rounds down to whole pairs.
    n = 1 takes k = 0 (a replica alone), n = 2 takes k = 1 (a pair), n = 3 takes k = 2 (complete).

    >>> ring_lattice(8, 4).neighbors(0)
    (1, 2, 6, 7)
    >>> ring_lattice(8, 5).degree, ring_lattice(8, 7).is_complete
    (4, True)
    """
    num_workers(n, "a ring lattice")
    k = lattice_degree(n, k)
    if k == n - 1:
        return everybody(f"ring-lattice:k={k}", n)
    reach = k // 2
    return translations(f"ring-lattice:k={k}", (n,), [(hop,) for hop in range(-reach, reach + 1)])


def lattice_degree(n: int, k: int, what: str = "k") -> int:
    """The degree of a ring lattice of n workers when k neighbours are asked for; refuses what cannot be.

    >>> [lattice_degree(8, k) for k in (2, 3, 4, 5, 6, 7)]
    [2, 2, 4, 4, 6, 7]
    """
    k = whole_number(k, what, 0)
    if k >= n:
        raise ValueError(f"{what}={k} neighbours need more than {k} workers, got n={n}; take {what} ≤ {n - 1}")
    if k < min(2, n - 1):
        raise ValueError(f"{what}={k} leaves {n} workers disconnected; take {what} ≥ {min(2, n - 1)}")
    return k if k == n - 1 else k - k % 2


@overload
def torus(n: int, /) -> Mixing: ...
@overload
def torus(rows: int, cols: int, /) -> Mixing: ...
def torus(size: int, cols: int | None = None, /) -> Mixing:
    """Ranks on a grid that wraps around, each averaging with those above, below, left and right: W_ij = 1/5.

    `torus(n)` takes the most square shape, `torus(rows, cols)` the given one; rank = row·cols + column. On
    two rows up and down are the same rank and count once (weights 1/4, and 1/3 on 2×2); one row is a ring.
    n = 1, 2, 3 are the ring. Larger primes have no grid and are refused.

    >>> torus(12).shape, torus(12).neighbors(0)
    ((3, 4), (1, 3, 4, 8))
    >>> torus(2, 6).degree
    3
    """
    if cols is None:
        n = num_workers(size, "a torus")
        rows = _most_square_rows(n)
        if rows == 1 and n > 3:
            # Next to a prime from 5 on stand two even numbers, and those have two rows at least.
            raise ValueError(f"{n} workers form no torus, as {n} is prime; take {n - 1} or {n + 1} workers, or a ring")
        return _grid("torus", rows, n // rows)
    rows = whole_number(size, "the rows of a torus", 1)
    cols = whole_number(cols, "the columns of a torus", 1)
    most_square = rows == _most_square_rows(rows * cols) and (rows > 1 or cols <= 3)
    return _grid("torus" if most_square else f"torus:rows={rows}:cols={cols}", rows, cols)


def _grid(name: str, rows: int, cols: int) -> Mixing:
    return translations(name, (rows, cols), [(1, 0), (-1, 0), (0, 1), (0, -1)])


def _most_square_rows(n: int) -> int:
    return next(rows for rows in range(int(n**0.5), 0, -1) if n % rows == 0)


def exponential(n: int) -> Mixing:
    """Rank i takes from the ranks 1, 2, 4 … before it on a circle, one way: W_ij = 1/(⌈log₂n⌉+1), j = i − 2ᵏ.

    The gap falls only as 1/log n. n = 1 is a replica alone, n = 2 a pair, n = 3 complete.

    Reference: Ying et al., Exponential graph is provably efficient for decentralized deep training, 2021.

    >>> exponential(12).neighbors(0), exponential(12).listeners(0)
    ((4, 8, 10, 11), (1, 2, 4, 8))
    >>> round(exponential(96).spectral_gap(), 3)
    0.25
    """
    num_workers(n, "an exponential graph")
    return translations("exponential", (n,), [(-(1 << k),) for k in range((n - 1).bit_length())])


def hypercube(n: int) -> Mixing:
    """Ranks average with all ranks that differ in one binary digit: W_ij = 1/(log₂n + 1), j = i XOR 2ᵏ.

    n must be a power of two. n = 1 is a replica alone, n = 2 a pair; n = 3 is no hypercube.

    >>> hypercube(8).neighbors(0)
    (1, 2, 4)
    """
    num_workers(n, "a hypercube")
    if not is_power_of_two(n):
        raise ValueError(
            f"a hypercube needs a power of two, got n={n}; take {powers_of_two_around(n)} workers, "
            "or exponential, which takes any n"
        )
    digits = n.bit_length() - 1
    return translations("hypercube", (2,) * digits or (1,), np.eye(digits, dtype=np.int64).tolist())


def complete(n: int) -> Mixing:
    """Everybody averages with everybody: W_ij = 1/n, exact in one step.

    n = 1 is a replica alone, n = 2 a pair, n = 3 the ring of 3.

    >>> complete(4).spectral_gap(), complete(4).groups
    (1.0, ((0, 1, 2, 3),))
    """
    return everybody("complete", num_workers(n, "a complete graph"))


def star(n: int) -> Mixing:
    """Rank 0 averages with all others, which know only it. Metropolis–Hastings: W_0j = W_j0 = 1/n.

    Doubly stochastic, unlike a server's average, and slow: its gap is 1/n.
    n = 1 is a replica alone, n = 2 a pair, n = 3 a path with rank 0 in the middle.

    >>> star(5).degree, round(star(5).spectral_gap(), 6)
    (4, 0.2)
    """
    num_workers(n, "a star")
    leaves = np.arange(1, n)
    return undirected("star", n, np.stack([np.zeros_like(leaves), leaves], axis=1))


def from_networkx(graph: networkx.Graph[Any], *, name: str | None = None) -> Mixing:
    """The mixing of any networkx graph: Metropolis–Hastings on undirected edges, uniform on directed ones.

    Nodes labelled 0 … n−1 keep their numbers, others are numbered in the order of `graph.nodes`. An arc u → v
    of a directed graph means that v takes the model of u, with weight 1/(indegree+1); if in- and outdegrees
    differ the mean is not kept (`is_doubly_stochastic` is False). Self-loops, parallel edges and edge weights
    are ignored: `from_matrix` takes weights. One node is a replica alone.

    >>> import networkx
    >>> from_networkx(networkx.path_graph(3)).matrix().round(3)
    array([[0.667, 0.333, 0.   ],
           [0.333, 0.333, 0.333],
           [0.   , 0.333, 0.667]])
    """
    n = graph.number_of_nodes()
    name = name or graph.name or "networkx"
    if n < 1:
        raise ValueError(f"the graph {name!r} has no nodes; a mixing needs at least one")
    numbered = set(graph.nodes) == set(range(n))
    rank = {node: node if numbered else position for position, node in enumerate(graph.nodes)}
    pairs = {(rank[u], rank[v]) for u, v in graph.edges() if u != v}
    if graph.is_directed():
        return _connected(directed(name, n, np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)))
    edges = sorted({(min(pair), max(pair)) for pair in pairs})
    return _connected(undirected(name, n, np.array(edges, dtype=np.int64).reshape(-1, 2)))


def from_matrix(W: ArrayLike | sparray | spmatrix, name: str = "matrix", *, allow_disconnected: bool = False) -> Mixing:
    """The mixing with the given weights, dense or sparse: replica i takes Σ_j W_ij x_j. Rows must sum to one.

    A disconnected graph never reaches consensus and is refused, unless `allow_disconnected` says that it is a
    stage of a schedule whose stages together connect everybody.

    >>> from_matrix([[0.75, 0.25], [0.25, 0.75]]).spectral_gap()
    0.5
    """
    weights = csr_array(W if issparse(W) else np.atleast_2d(np.asarray(W, dtype=np.float64)), copy=True)
    mixing = Mixing(name, weights)
    return mixing if allow_disconnected else _connected(mixing)


def _connected(mixing: Mixing) -> Mixing:
    if not mixing.is_connected:
        raise ValueError(
            f"the graph {mixing.name!r} of {mixing.n} workers is disconnected (some never hear of "
            "others, even indirectly), so it cannot reach consensus; add edges"
        )
    return mixing
