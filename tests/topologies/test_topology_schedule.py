"""Schedules in general: cycles, pieces, rounds, figures, refusals."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest

from gossamer.topologies import (
    Schedule,
    ada,
    alternating_ring,
    base_graph,
    build,
    complete,
    constant,
    cycle,
    from_groups,
    names,
    one_peer_exponential,
    piecewise,
    random_matching,
    ring,
    torus,
)


def test_constant() -> None:
    schedule = constant(torus(12))
    assert schedule(0) is schedule(1000)
    assert schedule.period == 1
    assert schedule.spectral_gap() == torus(12).spectral_gap()
    assert schedule.steps_to_exact() is None
    assert schedule.per_round(7) is schedule
    assert constant(complete(5)).steps_to_exact() == 1
    assert constant(complete(1)).steps_to_exact() == 0


def test_cycle_goes_round() -> None:
    a, b, c = ring(4), complete(4), from_groups(4, [(0, 1)])
    schedule = cycle([a, b, c])
    assert [schedule(step) for step in range(6)] == [a, b, c, a, b, c]
    assert schedule.steps_to_exact() == 2
    assert schedule.bytes_per_step(1.0) == pytest.approx((2 + 1.5 + 1) / 3)
    assert schedule.bytes_per_step(1.0, num_steps=4) == pytest.approx((2 + 1.5 + 1 + 2) / 4)
    assert schedule.stages(5) == [(0, a), (1, b), (2, c), (3, a), (4, b)]


@pytest.mark.parametrize("n", [10, 530])  # dense, and by products with vectors
def test_gap_of_a_cycle_is_per_step(n: int) -> None:
    schedule = alternating_ring(n)
    product = schedule(1).matrix() @ schedule(0).matrix() - 1 / n
    norm = np.linalg.norm(product, 2)
    assert schedule.spectral_gap() == pytest.approx(1 - norm**0.5, rel=1e-6)


def test_gap_of_an_exact_period_is_one() -> None:
    for schedule in (one_peer_exponential(8), base_graph(11, 2), one_peer_exponential(1024)):
        assert schedule.spectral_gap() == 1.0


def test_piecewise_counts_parts_from_their_start() -> None:
    pairs = one_peer_exponential(8)
    schedule = piecewise([(0, complete(8)), (5, pairs), (10, ring(8))])
    assert schedule(4).is_complete
    assert schedule(5) is pairs(0)
    assert schedule(7) is pairs(2)
    assert schedule(10).name == schedule(10_000).name == "ring"
    assert schedule.period is None
    assert schedule.spectral_gap() == ring(8).spectral_gap()  # of what it ends with
    assert schedule.steps_to_exact() == 1
    assert [first for first, _ in schedule.stages(12)] == [0, 5, 6, 7, 8, 9, 10]
    assert piecewise([(0, pairs)]).period == 3


def test_only_the_last_piece_must_connect() -> None:
    apart = from_groups(4, [(0, 1), (2, 3)])
    assert piecewise([(0, apart), (3, ring(4))])(0) is apart
    with pytest.raises(ValueError, match="disconnected"):
        piecewise([(0, ring(4)), (3, apart)])


def test_per_round() -> None:
    pairs = one_peer_exponential(8)
    slow = pairs.per_round(3)
    assert [slow(step) for step in range(12)] == [pairs(step // 3) for step in range(12)]
    assert slow.period == 9
    assert slow.steps_to_exact() == 9
    assert slow.spectral_gap() == 1.0
    assert slow.bytes_per_step(1.0) == 1.0  # a mixing
    assert alternating_ring(8).per_round(4).spectral_gap() == alternating_ring(8).spectral_gap()
    assert pairs.per_round(1) is pairs
    assert slow.per_round(2)(11) is pairs(1)
    random = random_matching(8, seed=2)
    assert random.per_round(5)(14) is random(2)


def test_per_round_leaves_epochs_alone() -> None:
    follows_epochs = ada(8, k0=7, gamma=1, k_min=2, steps_per_epoch=10)
    assert follows_epochs.per_round(4) is follows_epochs
    pairs = one_peer_exponential(8)
    slow = piecewise([(0, complete(8)), (100, pairs)]).per_round(4)
    assert slow(99).is_complete  # the start stays where it is
    assert [slow(step) for step in (100, 103, 104, 108)] == [pairs(0), pairs(0), pairs(1), pairs(2)]


def test_schedules_pickle() -> None:
    for name in names():
        schedule = build(name, 8)
        again = pickle.loads(pickle.dumps(schedule.per_round(2)))
        for step in (0, 5, 17):
            assert (again(step).weights != schedule.per_round(2)(step).weights).nnz == 0
    assert repr(build("base-2", 6)) == "<Schedule 'base-2': 6 replicas, period 4>"
    assert repr(build("random-matching", 6)) == "<Schedule 'random-matching:seed=0': 6 replicas, does not repeat>"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: constant(from_groups(4, [(0, 1), (2, 3)])), r"'groups' leave its 4 workers disconnected"),
        (lambda: cycle([from_groups(4, [(0, 1)]), from_groups(4, [(2, 3)])]), r"disconnected even together"),
        (lambda: cycle([]), r"no mixings"),
        (lambda: cycle([ring(4), ring(5)]), r"different numbers of workers: \[4, 5\]"),
        (lambda: piecewise([]), r"at least one part"),
        (lambda: piecewise([(1, ring(4))]), r"begin with 0 and increase, got \[1\]"),
        (lambda: piecewise([(0, ring(4)), (5, ring(4)), (5, ring(4))]), r"got \[0, 5, 5\]"),
        (lambda: piecewise([(0, ring(4)), (5, ring(6))]), r"different numbers of workers: \[4, 6\]"),
        (lambda: constant(ring(4))(-1), r"steps count from 0, got step=-1"),
        (lambda: constant(ring(4)).per_round(0), r"steps per round .*got 0"),
        (lambda: constant(ring(4)).bytes_per_step(1.0, num_steps=0), r"num_steps=0"),
        (lambda: Schedule("mine", 4, one_peer_exponential(4), period=None), r"figures_over"),
    ],
)
def test_refusals(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
