"""How far apart replicas stay in the long run when every step pushes each of them its own way."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gossamer.topologies._mixing import Mixing
from gossamer.topologies._schedule import Schedule
from gossamer.topologies._spectrum import mixed, translation_spectrum

if TYPE_CHECKING:
    from gossamer.topologies._spectrum import Floats

DOUBLINGS = 60
"""2⁶⁰ periods: whatever has not settled by then never will."""


def steady_consensus_variance(schedule: Schedule) -> float:
    """Steady mean square deviation from the mean under x ← W_t x + ξ, ξ of unit variance, after the noise.

    With D = I − 11ᵀ/n the covariance of the deviations obeys Σ_{t+1} = D W_t Σ_t W_tᵀ D + D; returned is
    tr(Σ)/n, averaged over a period. It is a better guide to training than the spectral gap alone: what counts
    is the spread during a step's worth of drift. Complete mixing leaves the noise of one step, (n−1)/n; one
    replica 0; no consensus ∞. A schedule without a period is judged by its `window`, repeated.

    >>> from gossamer.topologies import complete, constant, one_peer_exponential
    >>> steady_consensus_variance(constant(complete(16)))
    0.9375
    >>> round(steady_consensus_variance(one_peer_exponential(16)), 3)
    1.625
    """
    mixings = [schedule(step) for step in schedule.window]
    if schedule.n == 1:
        return 0.0
    if mixings[0].is_complete and len(set(mixings)) == 1:
        return 1.0 - 1.0 / schedule.n
    if len(set(mixings)) == 1:
        spectrum = _normal_spectrum(mixings[0])
        if spectrum is not None:
            # Modes do not interact: each settles at 1/(1 − |λ|²). The first, λ = 1, is the mean itself.
            left = 1.0 - np.abs(spectrum[1:]) ** 2
            return float((1.0 / left).sum()) / schedule.n if left.min() > 1e-14 else math.inf
    return _by_doubling(mixings)


def _normal_spectrum(mixing: Mixing) -> np.ndarray[tuple[int], np.dtype[np.complex128]] | None:
    """All eigenvalues, that of the mean first, where eigenvectors are orthogonal; else None."""
    if mixing.shape is not None:
        return translation_spectrum(mixing.weights, mixing.shape)
    if mixing.is_symmetric:
        return np.linalg.eigvalsh(mixing.matrix())[::-1].astype(np.complex128)
    return None


def _by_doubling(mixings: list[Mixing]) -> float:
    """Solve Σ = A Σ Aᵀ + Q over one period by doubling the number of periods, then walk once through it."""
    n = mixings[0].n
    noise: Floats = np.eye(n) - 1.0 / n
    transfer: Floats = noise
    covariance: Floats = np.zeros((n, n))
    for mixing in mixings:
        transfer, covariance = _deviation(mixed(mixing.weights, transfer)), _next(mixing, covariance, noise)
    for _ in range(DOUBLINGS):
        if np.abs(transfer).max() < 1e-18:
            break
        covariance = covariance + transfer @ covariance @ transfer.T
        transfer = transfer @ transfer
    else:
        return math.inf
    total = 0.0
    for mixing in mixings:
        covariance = _next(mixing, covariance, noise)
        total += float(np.trace(covariance)) / n
    return total / len(mixings)


def _next(mixing: Mixing, covariance: Floats, noise: Floats) -> Floats:
    both_sides = mixed(mixing.weights, mixed(mixing.weights, covariance).T)
    return np.asarray(_deviation(_deviation(both_sides).T) + noise)


def _deviation(values: Floats) -> Floats:
    return np.asarray(values - values.mean(axis=0))
