"""Translations of the ranks that leave every mixing of a schedule alone, and mixings seen in their Fourier space.

Pairs one apart look the same two ranks further on, pairs 2ᵏ apart the same where a binary digit is turned over, the
blocks of a base graph the same in every block. Such a schedule is many small ones, one for each frequency.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.sparse import coo_array

from gossamer.topologies._mixing import SAME_WEIGHT, Mixing
from gossamer.topologies._spectrum import mixed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gossamer.topologies._spectrum import Weights

    Ranks = NDArray[np.int64]


class Axis(NamedTuple):
    """A digit of the ranks, rank // stride % length, that may be turned on without a change."""

    length: int
    stride: int

    def digit(self, ranks: Ranks) -> Ranks:
        return ranks // self.stride % self.length

    def turned(self, n: int) -> Ranks:
        """Where each rank goes when its digit is turned on by one.

        >>> Axis(length=3, stride=2).turned(6)
        array([2, 3, 4, 5, 0, 1])
        """
        ranks = np.arange(n)
        return ranks + ((self.digit(ranks) + 1) % self.length - self.digit(ranks)) * self.stride


def common_axes(mixings: Sequence[Mixing]) -> tuple[Axis, ...]:
    """The axes along which all mixings may be turned: of those that can be had together, the ones with the most ranks.

    >>> from gossamer.topologies import alternating_ring, one_peer_exponential, ring
    >>> common_axes([ring(6)])
    (Axis(length=6, stride=1),)
    >>> common_axes([alternating_ring(6)(step) for step in range(2)])
    (Axis(length=3, stride=2),)
    >>> common_axes([one_peer_exponential(4)(step) for step in range(2)])
    (Axis(length=2, stride=2), Axis(length=2, stride=1))
    """
    n = mixings[0].n
    # W commutes with a permutation where it does so on a random vector: else with probability zero.
    values = np.random.default_rng(0).standard_normal(n)
    tried = [(mixing.weights, mixed(mixing.weights, values)) for mixing in dict.fromkeys(mixings)]

    def is_common(axis: Axis) -> bool:
        turned = axis.turned(n)
        return all(np.abs(mixed(w, values[turned]) - after[turned]).max() <= SAME_WEIGHT for w, after in tried)

    @cache
    def best(block: int) -> tuple[Axis, ...]:
        """Of the digits that tell the ranks of a block apart."""
        found: tuple[Axis, ...] = ()
        for stride in (divisor for divisor in range(1, block) if block % divisor == 0):
            axis, inside = Axis(block // stride, stride), best(stride)
            most = axis.length * _size(inside) > _size(found)  # only then is it worth a look
            if most and is_common(axis):
                found = (axis, *inside)
            elif _size(inside) > _size(found):
                found = inside
        return found

    return best(n)


def in_fourier_space(weights: Weights, axes: Sequence[Axis]) -> Weights:
    """F W F⁻¹ for the Fourier transform F along `axes`: a block on the diagonal for each frequency.

    Ranks that a translation carries into each other stand for one; block f has Σ_d W_{a,b+d} exp(−2πi f·d) for the
    ranks a, b whose digits are 0. Without axes it is W itself.

    >>> from gossamer.topologies import alternating_ring
    >>> in_fourier_space(alternating_ring(4)(1).weights, [Axis(length=2, stride=2)]).toarray()
    array([[ 0.5,  0.5,  0. ,  0. ],
           [ 0.5,  0.5,  0. ,  0. ],
           [ 0. ,  0. ,  0.5, -0.5],
           [ 0. ,  0. , -0.5,  0.5]])
    """
    if not axes:
        return weights
    n = weights.shape[0]
    ranks = np.arange(n)
    zeroed = ranks - sum(axis.digit(ranks) * axis.stride for axis in axes)
    firsts, place = np.unique(zeroed, return_inverse=True)
    arcs = weights[firsts, :].tocoo()
    shape = tuple(axis.length for axis in axes)
    turns = np.zeros((prod(shape), arcs.nnz))
    for axis, frequencies in zip(axes, np.indices(shape).reshape(len(shape), -1), strict=True):
        turns += np.outer(frequencies, axis.digit(arcs.col.astype(np.int64))) % axis.length / axis.length
    # Frequencies of two are real, and real numbers take half the time.
    phases = np.cos(2 * np.pi * turns) if max(shape) == 2 else np.exp(-2j * np.pi * turns)
    begins = np.arange(len(turns))[:, None] * len(firsts)
    rows, columns = (begins + arcs.row).ravel(), (begins + place[arcs.col]).ravel()
    blocks: Weights = coo_array(((arcs.data * phases).ravel(), (rows, columns)), shape=(n, n)).tocsr()
    return blocks


def _size(axes: Sequence[Axis]) -> int:
    return prod(axis.length for axis in axes)
