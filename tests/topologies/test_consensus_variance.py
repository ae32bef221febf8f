"""The steady consensus variance, against the reference (decent-dp.md) and against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gossamer.topologies import (
    Mixing,
    ada,
    alternating_exponential_ring,
    alternating_ring,
    base_graph,
    complete,
    constant,
    cycle,
    exponential,
    from_matrix,
    one_peer_exponential,
    ring,
    star,
    steady_consensus_variance,
    torus,
)


@pytest.mark.parametrize(
    ("n", "local_size", "expected"),
    [
        (16, 4, (0.938, 2.250, 1.625, 1.172)),
        (32, 4, (0.969, 3.625, 1.781, 1.341)),
        (64, 8, (0.984, 6.312, 1.875, 1.171)),
    ],
)
def test_reference(n: int, local_size: int, expected: tuple[float, ...]) -> None:
    schedules = (
        constant(complete(n)),
        alternating_ring(n),
        one_peer_exponential(n),
        alternating_exponential_ring(n, local_size),
    )
    for schedule, value in zip(schedules, expected, strict=True):
        assert steady_consensus_variance(schedule) == pytest.approx(value, abs=5.01e-4)


@pytest.mark.parametrize("mixing", [ring(9), torus(12), exponential(12), star(7)], ids=lambda m: m.name)
def test_by_eigenvalues_and_by_doubling_agree(mixing: Mixing) -> None:
    # The same mixing as two different objects is a cycle, which takes the general way.
    twice = cycle([mixing, from_matrix(mixing.weights)])
    assert steady_consensus_variance(constant(mixing)) == pytest.approx(steady_consensus_variance(twice), rel=1e-9)


def test_simulation() -> None:
    schedule = base_graph(6, 1)
    rng = np.random.default_rng(0)
    x, seen = np.zeros((6, 4000)), []
    assert schedule.period is not None
    for step in range(8 * schedule.period):
        x = schedule(step).weights @ x + rng.standard_normal(x.shape)
        if step >= 4 * schedule.period:
            seen.append(x.var(axis=0).mean())
    assert steady_consensus_variance(schedule) == pytest.approx(np.mean(seen), rel=0.02)


def test_weights_that_do_not_keep_the_mean() -> None:
    schedule = constant(from_matrix([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.2, 0.2, 0.6]]))
    rng = np.random.default_rng(0)
    x, seen = np.zeros((3, 20000)), []
    for step in range(60):
        x = schedule(step).weights @ x + rng.standard_normal(x.shape)
        if step >= 30:
            seen.append(x.var(axis=0).mean())
    assert steady_consensus_variance(schedule) == pytest.approx(np.mean(seen), rel=0.02)


def test_limits() -> None:
    assert steady_consensus_variance(constant(ring(1))) == 0.0
    assert steady_consensus_variance(constant(ring(2))) == 0.5
    swap = from_matrix([[0.0, 1.0], [1.0, 0.0]])
    assert steady_consensus_variance(constant(swap)) == math.inf
    assert steady_consensus_variance(cycle([swap, from_matrix(swap.weights)])) == math.inf
    # Ada is judged by where it ends.
    ends_as_ring = ada(8, 7, 5, 2, steps_per_epoch=3)
    assert steady_consensus_variance(ends_as_ring) == pytest.approx(steady_consensus_variance(constant(ring(8))))
