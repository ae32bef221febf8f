"""Who waits for whom in a mixing: the last of each neighbourhood."""

from collections.abc import Callable

import numpy as np

from gossamer.topologies import Mixing

from ._computation import Floats

LastOf = Callable[[Floats], Floats]
"""Moments of all workers, `[..., N]` → for each, that of the last of it and its neighbours."""


def last_of(mixing: Mixing | None) -> LastOf:
    """For one mixing, in the way that suits it; None is everybody.

    >>> from gossamer.topologies import ring
    >>> last_of(ring(5))(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    array([5., 3., 4., 5., 5.])
    """
    if mixing is None or mixing.is_complete:
        return _of_all
    if mixing.groups is not None:
        return _of_groups(mixing.groups, mixing.n)
    if mixing.window is not None:
        return _of_window(mixing.n, mixing.window.half)
    sources = mixing.weights.indices
    starts = mixing.weights.indptr[:-1].astype(np.int64)  # a row holds its own rank or a neighbour's: none is empty
    return lambda moments: np.maximum(np.maximum.reduceat(moments[..., sources], starts, axis=-1), moments)


def _of_all(moments: Floats) -> Floats:
    return np.broadcast_to(moments.max(axis=-1, keepdims=True), moments.shape)


def _of_groups(groups: tuple[tuple[int, ...], ...], n: int) -> LastOf:
    if max(map(len, groups)) <= 2:
        partner = np.arange(n)
        for group in groups:
            partner[list(group)] = group[::-1]
        return lambda moments: np.maximum(moments, moments[..., partner])
    order = np.concatenate(groups)
    starts = np.cumsum([0, *map(len, groups[:-1])])
    group_of = np.empty(n, dtype=np.int64)
    for number, group in enumerate(groups):
        group_of[list(group)] = number
    return lambda moments: np.maximum.reduceat(moments[..., order], starts, axis=-1)[..., group_of]


def _of_window(n: int, half: int) -> LastOf:
    """By doubling: the last of 2, of 4, of 8 in a row; two of these that overlap make up the window."""
    size = 2 * half + 1
    hops, span = [], 1
    while 2 * span <= size:
        hops.append(span)
        span *= 2
    if span < size:
        hops.append(size - span)

    def last(moments: Floats) -> Floats:
        around = np.concatenate([moments[..., n - half :], moments, moments[..., :half]], axis=-1)
        for hop in hops:  # slices, as it takes far longer to gather
            around = np.maximum(around[..., :-hop], around[..., hop:])
        return around

    return last
