"""Schedules of pairs and groups: who meets whom, and when the average is exact."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
import pytest

from gossamer.topologies import (
    Schedule,
    alternating_exponential_ring,
    alternating_nodes,
    alternating_ring,
    one_peer_exponential,
    random_matching,
)


def product(schedule: Schedule) -> np.ndarray:
    assert schedule.period is not None
    return reduce(lambda so_far, step: schedule(step).matrix() @ so_far, range(schedule.period), np.eye(schedule.n))


@pytest.mark.parametrize("n", [2, 4, 8, 32])
def test_one_peer_exponential_is_exact_after_log_n(n: int) -> None:
    schedule = one_peer_exponential(n)
    assert schedule.period == schedule.steps_to_exact() == n.bit_length() - 1
    np.testing.assert_allclose(product(schedule), 1 / n, atol=1e-15)
    for step in range(schedule.period):
        groups = schedule(step).groups
        assert groups is not None
        assert all(b == a ^ (1 << step) for a, b in groups)
    assert schedule.bytes_per_step(8.0) == 8.0


def test_alternating_ring() -> None:
    schedule = alternating_ring(8)
    assert schedule.period == 2
    assert schedule(0).groups == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert schedule(1).groups == ((0, 7), (1, 2), (3, 4), (5, 6))
    assert schedule.steps_to_exact() is None
    assert alternating_ring(2).steps_to_exact() == 1
    assert alternating_ring(4).steps_to_exact() == 2


@pytest.mark.parametrize(("n", "local_size"), [(2, 1), (8, 1), (16, 4), (12, 3), (64, 8), (10, 5)])
def test_alternating_exponential_ring_is_exact_after_a_period(n: int, local_size: int) -> None:
    schedule = alternating_exponential_ring(n, local_size)
    num_nodes = n // local_size
    assert schedule.period == 2 * (num_nodes.bit_length() - 1)
    np.testing.assert_allclose(product(schedule), 1 / n, atol=1e-15)
    crossings = np.zeros(num_nodes)
    for step in range(schedule.period):
        groups = schedule(step).groups
        assert groups is not None
        for group in groups:
            nodes = {rank // local_size for rank in group}
            assert len(group) == local_size * len(nodes)  # whole nodes only
            assert len(nodes) <= 2
            if len(nodes) == 2:
                crossings[list(nodes)] += 1
    assert (crossings == schedule.period / 2).all()  # the slow link every second step


def test_alternating_exponential_ring_of_four_nodes() -> None:
    schedule = alternating_exponential_ring(8, 2)
    assert [schedule(step).groups for step in range(4)] == [
        ((0, 1, 2, 3), (4, 5), (6, 7)),
        ((0, 1), (2, 3), (4, 5, 6, 7)),
        ((0, 1, 4, 5), (2, 3), (6, 7)),
        ((0, 1), (2, 3, 6, 7), (4, 5)),
    ]


@pytest.mark.parametrize(("n", "local_size"), [(3, 1), (9, 3), (12, 2), (96, 4), (90, 3), (35, 1)])
def test_alternating_nodes_are_exact_after_a_period_for_any_number_of_nodes(n: int, local_size: int) -> None:
    schedule = alternating_nodes(n, local_size)
    np.testing.assert_allclose(product(schedule), 1 / n, atol=1e-14)
    crossings = np.zeros(n // local_size)
    for step in range(schedule.period or 0):
        groups = schedule(step).groups
        assert groups is not None
        for group in groups:
            nodes = {rank // local_size for rank in group}
            assert len(group) == local_size * len(nodes)  # whole nodes only
            if len(nodes) > 1:
                crossings[list(nodes)] += 1
    assert (crossings == schedule.period / 2).all()  # the slow link every second step


@pytest.mark.parametrize(("n", "local_size"), [(2, 1), (8, 2), (64, 8)])
def test_alternating_nodes_of_a_power_of_two_are_the_exponential_ring(n: int, local_size: int) -> None:
    ours, published = alternating_nodes(n, local_size), alternating_exponential_ring(n, local_size)
    assert ours.period == published.period
    for step in range(ours.period or 0):
        np.testing.assert_array_equal(ours(step).matrix(), published(step).matrix())


@pytest.mark.parametrize("make", [alternating_exponential_ring, alternating_nodes])
@pytest.mark.parametrize("n", [1, 4, 6])
def test_one_node_is_complete(make: Callable[[int, int], Schedule], n: int) -> None:
    schedule = make(n, n)
    assert schedule.period == 1
    assert schedule(3).is_complete


def test_random_matching_is_drawn_from_seed_and_step() -> None:
    a, b = random_matching(9, seed=4), random_matching(9, seed=4)
    seen = set()
    for step in (0, 1, 2, 1000):
        groups = a(step).groups
        assert groups == b(step).groups
        assert groups is not None
        assert sorted(map(len, groups)) == [1, 2, 2, 2, 2]  # odd: one is left out
        seen.add(groups)
    assert len(seen) == 4
    assert a(0).groups != random_matching(9, seed=5)(0).groups
    assert a.period is None
    assert 0.0 < a.spectral_gap() < 1.0
    assert a.steps_to_exact() is None
    for step in range(2000):  # the cache is bounded: a long run stays small
        a(step)
    from gossamer.topologies._pairs import _matching

    assert _matching.cache_info().currsize <= 256


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: one_peer_exponential(12),
            r"power of two, got n=12; take base-2, .*any n, or 8 or 16 workers",
        ),
        (lambda: one_peer_exponential(0), r"at least 1; got 0"),
        (
            lambda: alternating_ring(7),
            r"even number of workers, got n=7; take 6 or 8 workers, or ring or base-2",
        ),
        (lambda: alternating_exponential_ring(10, 4), r"10 workers do not fill nodes of local_size=4"),
        (lambda: alternating_exponential_ring(12, 4), r"12/4 = 3; take 2 or 4 nodes of 4, or alternating-nodes"),
        (lambda: alternating_exponential_ring(12, 0), r"local_size .*at least 1; got 0"),
        (lambda: random_matching(4, seed=-1), r"seed .*got -1"),
        (lambda: random_matching(0), r"at least 1; got 0"),
    ],
)
def test_refusals(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
