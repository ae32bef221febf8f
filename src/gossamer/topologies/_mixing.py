"""A mixing: a graph with weights, x_i ← Σ_j W_ij x_j. Numbers only; engines decide how to carry it out."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array

from gossamer.topologies import _spectrum
from gossamer.topologies._window import WindowPlan, window_plan

if TYPE_CHECKING:
    from gossamer.topologies._spectrum import Floats, Weights

ROW_SUM_TOLERANCE = 1e-9
"""How far a row may sum from one: far above rounding, far below any slip of a user."""

SAME_WEIGHT = 1e-12
"""Weights closer than this count as equal: 1 − 2/3 and 1/3 are the same weight."""


@dataclass(frozen=True, eq=False)
class Mixing:
    """One averaging step over a graph: replica i takes Σ_j W_ij x_j.

    Compared and hashed by identity, so that an engine can keep what it prepared for a mixing in a dict.

    >>> from gossamer.topologies import ring
    >>> mixing = ring(5)
    >>> mixing.neighbors(0), mixing.degree, mixing.num_edges
    ((1, 4), 2, 5)
    >>> round(mixing.spectral_gap(), 4)
    0.4607
    """

    name: str
    """What the graph is called, in the words of `gossamer.topologies.build`."""

    weights: Weights
    """W, sparse [N, N]: row i is what replica i takes, itself included. Sorted indices, no stored zeros."""

    shape: tuple[int, ...] | None = None
    """Where the graph looks the same from every rank: the grid of ranks whose translations leave it alone (a
    ring of n: (n,), a torus: (rows, cols)). The Fourier transform of one row is then the whole spectrum."""

    is_push: bool = False
    """Whether columns sum to one instead of rows (`push`)."""

    def __post_init__(self) -> None:
        shape = self.weights.shape
        if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1:
            raise ValueError(f"the weights of {self.name!r} must be a square matrix [N, N], got shape {shape}")
        weights: Weights = self.weights.tocsr().astype(np.float64, copy=False)
        weights.sum_duplicates()  # also sorts
        weights.eliminate_zeros()
        # Extremes rather than tests of every weight: no temporary copies, and NaN and infinity show in them.
        least, most = (weights.data.min(), weights.data.max()) if weights.nnz else (0.0, 0.0)
        if not (np.isfinite(least) and np.isfinite(most)):
            raise ValueError(f"the weights of {self.name!r} contain NaN or infinity; every weight must be a number")
        if least < 0:
            at = int(weights.data.argmin())
            row = int(np.searchsorted(weights.indptr, at, side="right")) - 1
            raise ValueError(
                f"weight [{row}, {weights.indices[at]}] of {self.name!r} is {weights.data[at]:.6g}; "
                "mixing weights must not be negative"
            )
        sums = weights.sum(axis=0) if self.is_push else _spectrum.mixed(weights, np.ones(shape[0]))
        worst = int(np.abs(sums - 1.0).argmax())
        if abs(sums[worst] - 1.0) > ROW_SUM_TOLERANCE:
            line = "column" if self.is_push else "row"
            raise ValueError(
                f"{line} {worst} of the weights of {self.name!r} sums to {sums[worst]:.6g} instead of 1; "
                f"divide each {line} by its sum"
            )
        object.__setattr__(self, "weights", weights)

    def __repr__(self) -> str:
        return f"<Mixing {self.name!r}: {self.n} replicas, degree {self.degree}, {self.num_edges} edges>"

    @property
    def n(self) -> int:
        """The number of replicas, N."""
        return int(self.weights.shape[0])

    # Who talks to whom

    def neighbors(self, rank: int) -> tuple[int, ...]:
        """Whose models `rank` takes, ascending, without itself."""
        return _others(self.weights, self._checked(rank))

    def listeners(self, rank: int) -> tuple[int, ...]:
        """Who takes the model of `rank`, ascending, without itself: to whom it sends."""
        return _others(self._transposed, self._checked(rank))

    def row(self, rank: int) -> dict[int, float]:
        """The weights by which `rank` mixes, by source, itself included."""
        start, end = self.weights.indptr[self._checked(rank)], self.weights.indptr[rank + 1]
        sources, values = self.weights.indices[start:end], self.weights.data[start:end]
        return dict(zip(sources.tolist(), values.tolist(), strict=True))

    def matrix(self) -> Floats:
        """W as a dense array [N, N]."""
        return self.weights.toarray()

    @cached_property
    def degree(self) -> int:
        """The largest number of neighbours or listeners of any worker."""
        return max(int(self._num_neighbors.max()), int(self.num_listeners.max()))

    @cached_property
    def num_edges(self) -> int:
        """Edges where every link is used both ways, else arcs. Self-loops do not count."""
        arcs = int(self._num_neighbors.sum())
        return arcs // 2 if self.is_two_way else arcs

    # What kind of mixing it is

    @cached_property
    def is_two_way(self) -> bool:
        """Whether whoever takes a model also gives its own (the weights may differ)."""
        if self.is_complete:
            return True
        mine, transposed = self.weights, self._transposed
        return bool(np.array_equal(mine.indptr, transposed.indptr) and np.array_equal(mine.indices, transposed.indices))

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether W = Wᵀ."""
        if self.is_complete:
            return True
        return self.is_two_way and bool((np.abs(self.weights.data - self._transposed.data) <= SAME_WEIGHT).all())

    @cached_property
    def is_doubly_stochastic(self) -> bool:
        """Whether columns sum to one too: then mixing keeps the mean over the replicas."""
        sums: Floats = self.weights.sum(axis=1 if self.is_push else 0)
        return bool((np.abs(sums - 1.0) <= ROW_SUM_TOLERANCE).all())

    @cached_property
    def noise_kept(self) -> float:
        """The share of their variance about their mean that numbers keep which have nothing to do with each other.

        With Σ_ij W_ij² / N = κ it is (κ − 1/N) / (1 − 1/N), where all are listened to alike.

        >>> from gossamer.topologies import complete, ring
        >>> round(ring(5).noise_kept, 3), round(complete(5).noise_kept, 3)
        (0.167, 0.0)
        """
        if self.n == 1:
            return 0.0
        kept = float(self.weights.data @ self.weights.data) / self.n
        return max(kept - 1 / self.n, 0.0) / (1 - 1 / self.n)

    @cached_property
    def push(self) -> Mixing:
        """The weights of push-sum on the same graph: W_ij / Σ_k W_kj, of which every column sums to one.

        Each replica hands out all that it has, in shares, so the sum over all is kept; what a replica holds then is as
        large as it is listened to, which push-sum makes up for. Where W is doubly stochastic it is W itself.

        >>> import networkx
        >>> from gossamer.topologies import from_networkx, ring
        >>> from_networkx(networkx.DiGraph([(0, 1), (1, 0), (1, 2), (2, 0)])).push.matrix().round(3)
        array([[0.4  , 0.25 , 0.4  ],
               [0.6  , 0.375, 0.   ],
               [0.   , 0.375, 0.6  ]])
        """
        if self.is_doubly_stochastic:
            return self
        sums: Floats = self.weights.sum(axis=0)
        weights = self.weights.copy()
        if (sums == 0).any():
            raise ValueError(
                f"nobody takes the model of rank {int(sums.argmin())} in {self.name!r}, not even itself, so what it "
                "holds would be lost; add a listener or a self-loop"
            )
        weights.data /= sums[weights.indices]
        return Mixing(self.name, weights, is_push=True)

    @cached_property
    def is_connected(self) -> bool:
        """Whether every replica reaches every other along the arcs (strongly connected)."""
        return self.is_complete or _is_connected(self.weights)

    @cached_property
    def is_complete(self) -> bool:
        """Whether every weight is 1/n: the mean over everybody, which an all-reduce computes."""
        if self.weights.nnz != self.n**2:
            return False
        mean, data = 1.0 / self.n, self.weights.data
        return bool(data.max() - mean <= SAME_WEIGHT and mean - data.min() <= SAME_WEIGHT)

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...] | None:
        """The groups, where mixing is the mean inside each group of a partition of the ranks; else None.

        >>> from gossamer.topologies import one_peer_exponential, ring
        >>> one_peer_exponential(4)(1).groups
        ((0, 2), (1, 3))
        >>> ring(4).groups is None
        True
        """
        if self.is_complete:
            return (tuple(range(self.n)),)
        # A rank's candidate group is named after the first rank it takes from. It is a partition when each
        # has as many sources as its group has members, is one of them, and all of them name the same group.
        sizes = np.diff(self.weights.indptr)
        first = self.weights.indices[self.weights.indptr[:-1]]
        members = np.bincount(first, minlength=self.n)
        if (sizes != members[first]).any() or (self.weights.diagonal() == 0).any():
            return None
        if (first[self.weights.indices] != np.repeat(first, sizes)).any():
            return None
        if (np.abs(self.weights.data - np.repeat(1.0 / sizes, sizes)) > SAME_WEIGHT).any():
            return None
        return tuple(
            tuple(self.weights.indices[self.weights.indptr[rank] : self.weights.indptr[rank + 1]].tolist())
            for rank in np.unique(first).tolist()
        )

    @cached_property
    def window(self) -> WindowPlan | None:
        """How to carry it out, where every replica takes the mean of itself and as many neighbours on each side of a
        ring: a ring lattice; else None.

        >>> from gossamer.topologies import ring_lattice, torus
        >>> ring_lattice(12, k=4).window.half, torus(12).window is None
        (2, True)
        """
        size, n = int(self.weights.indptr[1]), self.n
        if size % 2 == 0 or size * n != self.weights.nnz or self.is_complete:
            return None
        looked_at = 1 if self.shape == (n,) else n  # the same from every rank: one stands for all
        if (np.abs(self.weights.data[: looked_at * size] - 1.0 / size) > SAME_WEIGHT).any():
            return None
        half = size // 2
        around = np.sort((np.arange(looked_at)[:, None] + np.arange(-half, half + 1)) % n, axis=1)
        if not np.array_equal(self.weights.indices[: looked_at * size].reshape(looked_at, size), around):
            return None
        return window_plan(n, half)

    # What it does, what it costs

    def spectral_gap(self) -> float:
        """1 − |λ₂|: by how much one mixing shrinks disagreement, at worst. One replica has a gap of 1."""
        return self._spectral_gap

    @cached_property
    def models_sent(self) -> Floats:
        """Models that each worker sends in one mixing, [N].

        A group of g averages by an all-reduce, 2(g−1)/g models (a pair: one model; complete: 2(n−1)/n). A ring
        lattice of many neighbours adds up sums of neighbours in a row. Any other graph sends one model to each
        listener.

        >>> from gossamer.topologies import complete, ring_lattice, star
        >>> complete(4).models_sent.tolist(), star(4).models_sent.tolist()
        ([1.5, 1.5, 1.5, 1.5], [3.0, 1.0, 1.0, 1.0])
        >>> ring_lattice(96, k=32).models_sent.max().item()
        7.0
        """
        if self.window is not None:
            return np.full(self.n, self.window.models_sent, dtype=np.float64)
        if self.groups is None:
            return self.num_listeners.astype(np.float64)
        sent = np.empty(self.n)
        for group in self.groups:
            sent[list(group)] = all_reduce_models(len(group))
        return sent

    def bytes_per_step(self, model_bytes: float) -> float:
        """Bytes that the busiest worker sends in one mixing of a model of `model_bytes`.

        >>> from gossamer.topologies import complete, ring
        >>> ring(8).bytes_per_step(100.0), complete(8).bytes_per_step(100.0)
        (200.0, 175.0)
        """
        return model_bytes * float(self.models_sent.max())

    @cached_property
    def _spectral_gap(self) -> float:
        if self.n == 1 or self.is_complete:
            return 1.0
        if not self.is_connected:
            return 0.0
        if self.shape is not None:
            return _spectrum.gap_by_fourier(self.weights, self.shape)
        return _spectrum.gap_by_eigenvalues(self.weights, symmetric=self.is_symmetric)

    @cached_property
    def _transposed(self) -> Weights:
        transposed: Weights = csr_array(self.weights.T)
        transposed.sort_indices()
        return transposed

    @cached_property
    def _num_neighbors(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.diff(self.weights.indptr).astype(np.int64) - (self.weights.diagonal() > 0)

    @cached_property
    def num_listeners(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """To how many others each worker sends its model, [N]."""
        if self.shape is not None:  # the same from every rank: as many take from a rank as it takes from
            return self._num_neighbors
        taken = np.bincount(self.weights.indices, minlength=self.n).astype(np.int64)
        return taken - (self.weights.diagonal() > 0)

    def _checked(self, rank: int) -> int:
        if not 0 <= rank < self.n:
            raise ValueError(f"{self.name!r} has ranks 0 to {self.n - 1}, got rank {rank}")
        return rank


def all_reduce_models(n: int) -> float:
    """Models that each of n workers sends in the best all-reduce: a reduce-scatter and an all-gather.

    >>> all_reduce_models(4)
    1.5
    """
    return 2 * (n - 1) / n


def union_is_connected(mixings: Iterable[Mixing]) -> bool:
    """Whether the arcs of all the mixings together lead from every replica to every other."""
    distinct = dict.fromkeys(mixings)
    if any(mixing.is_connected for mixing in distinct):
        return True
    return _is_connected(reduce(operator.add, (mixing.weights for mixing in distinct)))


def _is_connected(weights: Weights) -> bool:
    from scipy.sparse.csgraph import connected_components  # here, as it brings SciPy's solvers with it

    num_components, _ = connected_components(weights, directed=True, connection="strong")
    return num_components == 1


def _others(weights: Weights, rank: int) -> tuple[int, ...]:
    sources: list[int] = weights.indices[weights.indptr[rank] : weights.indptr[rank + 1]].tolist()
    return tuple(source for source in sources if source != rank)
