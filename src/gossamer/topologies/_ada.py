"""Ada: a ring lattice that starts dense and thins out over the epochs."""

from __future__ import annotations

import math
from functools import lru_cache, partial

from gossamer.topologies._checks import num_workers, whole_number
from gossamer.topologies._graphs import lattice_degree, ring_lattice
from gossamer.topologies._mixing import Mixing
from gossamer.topologies._schedule import Schedule, keep_time


def ada(n: int, k0: int, gamma: float, k_min: int, steps_per_epoch: int) -> Schedule:
    """The ring lattice of k(e) = max(k0 − ⌊γ·e⌋, k_min) neighbours in epoch e = ⌊step / steps_per_epoch⌋.

    Replicas differ most early in training, so that is when they talk most. k counts all neighbours: k0 = n−1
    starts complete; odd k rounds down to whole pairs. Neighbours follow from the step alone: nothing is
    negotiated.
    n = 1 is a replica alone (k0 = k_min = 0), n = 2 a pair (1 and 1), n = 3 complete (2 and 2).
    It has no period: its gap is that of k_min, where it ends; bytes are averaged down to there.

    Reference: Xie et al., Scaling up data parallelism in decentralized deep learning, 2025 (arXiv
    2509.12213).

    >>> schedule = ada(16, k0=15, gamma=0.5, k_min=2, steps_per_epoch=100)
    >>> [schedule(100 * epoch).degree for epoch in (0, 1, 2, 3, 12, 30)]
    [15, 15, 14, 14, 8, 2]
    """
    num_workers(n, "Ada")
    lattice_degree(n, k0, "k0")
    lattice_degree(n, k_min, "k_min")
    steps_per_epoch = whole_number(steps_per_epoch, "steps_per_epoch", 1)
    if k_min > k0:
        raise ValueError(f"Ada thins the graph out from k0 to k_min, got k0={k0} < k_min={k_min}; take k_min ≤ {k0}")
    if not (gamma >= 0 and math.isfinite(gamma)):
        raise ValueError(f"gamma is how many neighbours Ada drops an epoch and must be 0 or more, got gamma={gamma}")
    settled = _first_epoch_at(k_min, k0, gamma) * steps_per_epoch
    return Schedule(
        name=f"ada:k0={k0}:gamma={gamma:g}:k_min={k_min}",
        n=n,
        stage=partial(_stage, n, k0, gamma, k_min, steps_per_epoch),
        period=None if k0 > k_min and gamma > 0 else 1,
        figures_over=range(settled, settled + steps_per_epoch) if k0 > k_min and gamma > 0 else None,
        in_rounds=keep_time,
    )


def ada_k(epoch: int, k0: int, gamma: float, k_min: int) -> int:
    """k(e) = max(k0 − ⌊γ·e⌋, k_min): Ada's neighbours in an epoch, before odd numbers round to whole pairs.

    >>> [ada_k(epoch, k0=15, gamma=2.5, k_min=2) for epoch in range(7)]
    [15, 13, 10, 8, 5, 3, 2]
    """
    # A little is added before rounding down: 0.29 · 100 is 29, though floating point makes it 28.999…
    return max(k0 - math.floor(gamma * epoch + 1e-9), k_min)


def reaching(k0: int, k_min: int, epochs: int, share: float = 0.75) -> float:
    """The γ at which Ada reaches k_min after `share` of the epochs.

    >>> reaching(k0=15, k_min=3, epochs=16)
    1.0
    """
    return (k0 - k_min) / (share * epochs)


def _first_epoch_at(k_min: int, k0: int, gamma: float) -> int:
    if gamma == 0:
        return 0
    # The division may be off by one either way from what ada_k, the definition, says.
    epoch = max(math.ceil((k0 - k_min) / gamma) - 1, 0)
    while ada_k(epoch, k0, gamma, k_min) > k_min:
        epoch += 1
    return epoch


def _stage(n: int, k0: int, gamma: float, k_min: int, steps_per_epoch: int, step: int) -> Mixing:
    return _lattice(n, lattice_degree(n, ada_k(step // steps_per_epoch, k0, gamma, k_min)))


# Few, as a dense lattice of 1008 takes 12 MB and Ada may pass through hundreds; it never comes back to one.
@lru_cache(maxsize=8)
def _lattice(n: int, degree: int) -> Mixing:
    return ring_lattice(n, degree)
