"""Ada: the lattice of every epoch, and its figures."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gossamer.topologies import ada, ada_k, ring


def test_k_falls_linearly_down_to_k_min() -> None:
    assert [ada_k(epoch, 15, 0.5, 2) for epoch in (0, 1, 2, 3, 26, 27, 1000)] == [15, 15, 14, 14, 2, 2, 2]
    assert ada_k(100, 95, 0.29, 2) == 66  # 0.29 · 100 is 29, though not in floating point
    assert ada_k(10, 15, 0.0, 2) == 15


def test_the_graph_follows_the_epoch() -> None:
    schedule = ada(16, k0=15, gamma=1.0, k_min=4, steps_per_epoch=5)
    assert [schedule(5 * epoch).degree for epoch in range(14)] == [
        15,
        14,
        12,
        12,
        10,
        10,
        8,
        8,
        6,
        6,
        4,
        4,
        4,
        4,
    ]
    assert schedule(4) is schedule(0)
    assert schedule(0).is_complete
    assert schedule(10**6).degree == 4
    assert [first for first, _ in schedule.stages(200)] == [0, 5, 10, 20, 30, 40, 50]


def test_figures() -> None:
    schedule = ada(16, k0=15, gamma=13, k_min=2, steps_per_epoch=10)
    assert schedule.period is None
    assert schedule.spectral_gap() == pytest.approx(ring(16).spectral_gap())
    assert schedule.steps_to_exact() == 1  # starts complete
    assert schedule.bytes_per_step(1.0) == pytest.approx((2 * 15 / 16 + 2) / 2)  # one epoch each
    assert schedule.bytes_per_step(1.0, num_steps=40) == pytest.approx((2 * 15 / 16 + 3 * 2) / 4)
    assert ada(16, 6, 1, 2, 10).steps_to_exact() is None
    assert schedule.name == "ada:k0=15:gamma=13:k_min=2"


def test_ada_that_never_falls_is_constant() -> None:
    for schedule in (ada(8, 4, 0.0, 2, 10), ada(8, 4, 1.0, 4, 10)):
        assert schedule.period == 1
        assert schedule(0) is schedule(1000)
        assert schedule(0).degree == 4


@pytest.mark.parametrize(("n", "k"), [(1, 0), (2, 1), (3, 2)])
def test_small(n: int, k: int) -> None:
    assert ada(n, k, 0.5, k, 1)(7).degree == k
    assert ada(n, k, 0.5, k, 1)(7).is_complete


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ada(8, 8, 1, 2, 10), r"k0=8 .*n=8; take k0 ≤ 7"),
        (lambda: ada(8, 7, -0.5, 2, 10), r"0 or more, got gamma=-0\.5"),
        (lambda: ada(8, 7, float("nan"), 2, 10), r"got gamma=nan"),
        (lambda: ada(8, 7, float("inf"), 2, 10), r"got gamma=inf"),
        (lambda: ada(8, 7, 1, 1, 10), r"k_min=1 leaves 8 workers disconnected; take k_min ≥ 2"),
        (lambda: ada(8, 7, 1, 9, 10), r"k_min=9"),
        (lambda: ada(8, 4, 1, 6, 10), r"k0=4 < k_min=6; take k_min ≤ 4"),
        (lambda: ada(8, 7, 1, 2, 0), r"steps_per_epoch .*got 0"),
        (lambda: ada(0, 0, 1, 0, 1), r"at least 1; got 0"),
    ],
)
def test_refusals(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
