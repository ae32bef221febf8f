"""The steady consensus variance, against the reference (decent-dp.md) and against simulation."""

from __future__ import annotations

import math
from itertools import product
from math import inf

import numpy as np
import pytest
from scipy.sparse import csr_array

from gossamer.topologies import (
    Mixing,
    Schedule,
    ada,
    alternating_exponential_ring,
    alternating_ring,
    base_graph,
    build,
    complete,
    constant,
    cycle,
    exponential,
    from_groups,
    from_matrix,
    names,
    one_peer_exponential,
    ring,
    star,
    steady_consensus_variance,
    torus,
)
from gossamer.topologies._symmetry import Axis, common_axes
from gossamer.topologies._variance import _by_doubling


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


def test_nodes_that_never_meet_do_not_settle() -> None:
    assert steady_consensus_variance(build("nodes:local_size=2", 8)) == inf


@pytest.mark.parametrize("name", [name for name in names() if name != "nodes"])
def test_by_frequencies_and_by_all_ranks_agree(name: str) -> None:
    for n, local_size in product((2, 3, 6, 8, 9, 12, 25, 32, 36, 48, 60, 128), (1, 2, 3, 4)):
        try:
            schedule = build(name, n, local_size=local_size)
        except ValueError:  # not for so many workers
            continue
        stages = [schedule(step) for step in schedule.window]
        by_all_ranks = _by_doubling(stages, ())
        assert _by_doubling(stages, common_axes(stages)) == pytest.approx(by_all_ranks, rel=1e-9)
        assert steady_consensus_variance(schedule) == pytest.approx(by_all_ranks, rel=1e-9)


@pytest.mark.parametrize("move", [0, 1, 5])
def test_a_schedule_that_is_nearly_the_same_everywhere(move: int) -> None:
    """One pair that mixes otherwise, or ranks in another order: no axis may be taken for one."""
    stages = [alternating_ring(12)(step) for step in range(2)]
    weights = stages[0].matrix()
    weights[4:6, 4:6] = [[0.6, 0.4], [0.4, 0.6]]
    order = np.roll(np.arange(12), move)
    changed = Mixing("one pair otherwise", csr_array(weights))
    uneven = [Mixing(stage.name, stage.weights[order][:, order]) for stage in (changed, stages[1])]
    assert common_axes(uneven) == ()
    expected = _by_doubling([changed, stages[1]], ())
    assert steady_consensus_variance(cycle(uneven)) == pytest.approx(expected, rel=1e-9)


def test_axes() -> None:
    def of(schedule: Schedule) -> list[tuple[int, int]]:
        return [(axis.length, axis.stride) for axis in common_axes([schedule(step) for step in schedule.window])]

    assert of(constant(torus(3, 5))) == [(3, 5), (5, 1)]
    assert of(alternating_ring(1000)) == [(500, 2)]
    assert of(one_peer_exponential(16)) == [(2, 8), (2, 4), (2, 2), (2, 1)]
    assert of(alternating_exponential_ring(24, 3)) == [
        (2, 12),
        (3, 1),
    ]  # of the nodes' digits those above the first two
    assert of(base_graph(40, 1)) == [(2, 20), (2, 10), (2, 5)]  # blocks of 5
    assert of(base_graph(7, 1)) == []
    assert of(constant(star(8))) == []
    halves = cycle([from_groups(6, [(0, 1, 2), (3, 4, 5)]), complete(6)])
    assert of(halves) == [(2, 3), (3, 1)]
    assert Axis(length=3, stride=1).turned(6).tolist() == [1, 2, 0, 4, 5, 3]


@pytest.mark.parametrize("n", [4, 10, 1000, 1024])
def test_alternating_ring_in_closed_form(n: int) -> None:
    # Of a step's noise k mixings leave Σ_f cos(2πf/n)^(2k−2), f = 1 … n/2 − 1: cosines of the angles between means of
    # even and means of odd pairs. A sum over k makes them 1/sin².
    left = 1 / np.sin(2 * np.pi * np.arange(1, n // 2) / n) ** 2
    expected = (n - 1 + left.sum()) / n
    assert steady_consensus_variance(alternating_ring(n)) == pytest.approx(expected, rel=1e-9)


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
