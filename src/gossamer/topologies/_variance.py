"""How far apart replicas stay in the long run when every step pushes each of them its own way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gossamer.topologies._mixing import Mixing
from gossamer.topologies._schedule import Schedule
from gossamer.topologies._spectrum import mixed, translation_spectrum
from gossamer.topologies._symmetry import Axis, common_axes, in_fourier_space

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Blocks = NDArray[Any]  # real, or complex where a frequency is

DOUBLINGS = 60
"""2⁶⁰ periods: whatever has not settled by then never will."""

SETTLED = 1e-12
"""What is left of a deviation enters its variance by the square."""


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
    if len(set(mixings)) == 1:
        if not mixings[0].is_connected:
            return math.inf
        if mixings[0].is_complete:
            return 1.0 - 1.0 / schedule.n
        spectrum = _normal_spectrum(mixings[0])
        if spectrum is not None:
            # Modes do not interact: each settles at 1/(1 − |λ|²). The first, λ = 1, is the mean itself.
            left = 1.0 - np.abs(spectrum[1:]) ** 2
            return float((1.0 / left).sum()) / schedule.n if left.min() > 1e-14 else math.inf
        mixings = mixings[:1]
    return _by_doubling(mixings, common_axes(mixings))


def _normal_spectrum(mixing: Mixing) -> np.ndarray[tuple[int], np.dtype[np.complex128]] | None:
    """All eigenvalues, that of the mean first, where eigenvectors are orthogonal; else None."""
    if mixing.shape is not None:
        return translation_spectrum(mixing.weights, mixing.shape)
    if mixing.is_symmetric:
        return np.linalg.eigvalsh(mixing.matrix())[::-1].astype(np.complex128)
    return None


def _by_doubling(mixings: list[Mixing], axes: Sequence[Axis]) -> float:
    """Solve Σ = A Σ Aᵀ + Q over one period by doubling the number of periods, then walk once through it.

    In the Fourier space of `axes` Σ is a block for each frequency, [M, R, R] with M·R = n; without axes it is Σ itself.
    """
    n = mixings[0].n
    size = n // prod(axis.length for axis in axes)
    noise = np.tile(np.eye(size), (n // size, 1, 1))  # D: the mean over everybody is in frequency 0
    noise[0] -= 1.0 / size
    once = {mixing: _Stage(mixing, axes) for mixing in mixings}
    stages = [once[mixing] for mixing in mixings]
    transfer: Blocks = noise
    covariance: Blocks = np.zeros_like(noise)
    for stage in stages:
        transfer, covariance = stage.mixed(transfer), stage.mixed_on_both_sides(covariance) + noise
    for _ in range(DOUBLINGS):
        if np.abs(transfer).max() < SETTLED:
            break
        covariance = covariance + transfer @ covariance @ _adjoint(transfer)
        transfer = transfer @ transfer
    else:
        return math.inf
    total = 0.0
    for stage in stages:
        covariance = stage.mixed_on_both_sides(covariance) + noise
        total += float(np.trace(covariance, axis1=1, axis2=2).sum().real) / n
    return total / len(stages)


class _Stage:
    """A mixing of deviations from the mean, block by block."""

    def __init__(self, mixing: Mixing, axes: Sequence[Axis]) -> None:
        self._weights = in_fourier_space(mixing.weights, axes)
        self._keeps_mean = mixing.is_doubly_stochastic

    def mixed(self, blocks: Blocks) -> Blocks:
        after: Blocks = mixed(self._weights, blocks.reshape(-1, blocks.shape[-1])).reshape(blocks.shape)
        if not self._keeps_mean:  # else deviations stay deviations
            after[0] -= after[0].mean(axis=0)
        return after

    def mixed_on_both_sides(self, covariance: Blocks) -> Blocks:
        return self.mixed(_adjoint(self.mixed(covariance)))  # its own adjoint, as any covariance


def _adjoint(blocks: Blocks) -> Blocks:
    return np.ascontiguousarray(blocks.swapaxes(1, 2)).conj()
