"""How fast a mixing, or a cycle of mixings, brings replicas together: spectral gaps and exactness.

Three ways to an eigenvalue, each where it is cheap: Fourier for graphs that look the same from every rank,
dense for small graphs, Lanczos on the sparse weights for large ones. SciPy's solvers are imported where they
are used: they would double the time it takes to import this package.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    Weights: TypeAlias = csr_array[np.float64, tuple[int, int]]
    Floats: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

DENSE_UP_TO = 512
"""Up to this many replicas dense eigenvalues take milliseconds and never fail to converge."""

EXACT = 1e-9
"""A product of mixings this close to 11ᵀ/n in every entry is the exact average."""


def mixed(weights: Weights, values: Floats) -> Floats:
    """W·x, for x of one value or one row of values a replica; dense, which SciPy's types do not say."""
    return np.asarray(weights @ values)


def mixed_by_all(cycle: Sequence[Weights], values: Floats) -> Floats:
    """W_{T−1} ⋯ W_0 · x, without ever forming the product."""
    return reduce(lambda so_far, weights: mixed(weights, so_far), cycle, values)


def gap_by_fourier(weights: Weights, shape: tuple[int, ...]) -> float:
    """1 − |λ₂| of weights that every translation of the grid `shape` leaves alone.

    The characters of the grid are the eigenvectors, so the transform of row 0 lists all eigenvalues:
    λ_f = Σ_d W_{0,d} exp(2πi f·d).

    >>> from gossamer.topologies import torus
    >>> round(gap_by_fourier(torus(3, 4).weights, (3, 4)), 3)
    0.4
    """
    return _one_minus(float(np.sort(np.abs(translation_spectrum(weights, shape)))[-2]))


def translation_spectrum(weights: Weights, shape: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.complex128]]:
    """All eigenvalues of translation-invariant weights; the first one is λ = 1, of the mean."""
    first_row = weights[[0], :].toarray().reshape(shape)
    return np.fft.fftn(first_row).ravel()


def gap_by_eigenvalues(weights: Weights, *, symmetric: bool) -> float:
    """1 − |λ₂| of any row-stochastic weights.

    Works on W − 11ᵀ/n: taking 11ᵀ/n away moves the eigenvalue 1 of the mean to 0 and leaves all others where
    they are, so |λ₂| is simply the largest one left.

    >>> from gossamer.topologies import star
    >>> round(gap_by_eigenvalues(star(10).weights, symmetric=True), 6)
    0.1
    """
    n = weights.shape[0]
    if n > DENSE_UP_TO:
        from scipy.sparse.linalg import ArpackError, LinearOperator, eigs, eigsh

        operator = LinearOperator((n, n), matvec=lambda x: mixed(weights, x) - x.mean(), dtype=np.float64)
        start = np.random.default_rng(0).standard_normal(n)  # fixed, so that the answer is bitwise the same
        solver = eigsh if symmetric else eigs
        try:
            largest = solver(operator, k=1, which="LM", v0=start, ncv=48, maxiter=200, return_eigenvectors=False)
            return _one_minus(float(np.abs(largest).max()))
        except ArpackError:  # no convergence: eigenvalues too close together (a long path)
            pass
    deflated = weights.toarray() - 1.0 / n
    eigenvalues = np.linalg.eigvalsh(deflated) if symmetric else np.linalg.eigvals(deflated)
    return _one_minus(float(np.abs(eigenvalues).max()))


def gap_of_product(cycle: Sequence[Weights]) -> float:
    """1 − ‖W_{T−1} ⋯ W_0 − 11ᵀ/n‖₂^{1/T}: the gap per step of a cycle of T mixings; 1 where it is exact.

    >>> from gossamer.topologies import alternating_ring
    >>> schedule = alternating_ring(6)
    >>> round(gap_of_product([schedule(0).weights, schedule(1).weights]), 4)
    0.2929
    """
    n = cycle[0].shape[0]
    if first_exact(cycle) is not None:
        return 1.0
    if n <= DENSE_UP_TO:
        product = mixed_by_all(cycle, np.eye(n))
        norm = float(np.linalg.norm(product - 1.0 / n, ord=2))
    else:
        norm = _norm_by_lanczos(cycle)
    return _one_minus(norm ** (1.0 / len(cycle)))


def _norm_by_lanczos(cycle: Sequence[Weights]) -> float:
    """‖product − 11ᵀ/n‖₂ as the root of the largest eigenvalue of DᵀD, by products with vectors alone."""
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    n = cycle[0].shape[0]
    transposed = [weights.T.tocsr() for weights in reversed(cycle)]

    def deviation_and_back(x: Floats) -> Floats:
        forth = mixed_by_all(cycle, x) - x.mean()
        return np.asarray(mixed_by_all(transposed, forth) - forth.mean())

    operator = LinearOperator((n, n), matvec=deviation_and_back, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(n)
    try:
        largest = eigsh(operator, k=1, which="LA", v0=start, ncv=48, maxiter=400, return_eigenvectors=False)
    except ArpackNoConvergence:
        product = mixed_by_all(cycle, np.eye(n))
        return float(np.linalg.norm(product - 1.0 / n, ord=2))
    return math.sqrt(max(float(largest[0]), 0.0))


def first_exact(cycle: Sequence[Weights]) -> int | None:
    """How many mixings of `cycle`, from its start, give every replica the exact mean; None if all do not.

    Small graphs are tried on every unit vector. Large ones on sixteen random vectors instead: a product that
    is not the average leaves every one of them constant with probability zero, and no dense matrix is needed.

    >>> from gossamer.topologies import complete, ring
    >>> first_exact([ring(5).weights]), first_exact([ring(5).weights, complete(5).weights])
    (None, 2)
    """
    n = cycle[0].shape[0]
    if n == 1:
        return 0
    values: Floats = np.eye(n) if n <= DENSE_UP_TO else np.random.default_rng(0).standard_normal((n, 16))
    mean = values.mean(axis=0)
    for count, weights in enumerate(cycle, start=1):
        values = mixed(weights, values)
        if np.abs(values - mean).max() <= EXACT:
            return count
    return None


def _one_minus(radius: float) -> float:
    # Rounding may put |λ₂| a hair above one; a gap is never negative.
    return min(max(1.0 - radius, 0.0), 1.0)
