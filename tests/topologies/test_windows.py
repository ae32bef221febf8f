"""Means over a window of a ring, in few messages."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.topologies import build, ring_lattice
from gossamer.topologies._window import window_plan, window_sum


@given(st.integers(3, 200), st.data())
def test_the_rounds_add_up_to_the_window(n: int, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, n))
    first = data.draw(st.integers(-n + 1, n - 1))
    values = np.random.default_rng(0).integers(0, 1000, n)
    row, total = values, np.zeros(n, np.int64)
    for round in window_sum(first, length):
        if round.take_from is not None:
            total = total + np.roll(row, -round.take_from)
        if round.double_from is not None:
            row = row + np.roll(row, -round.double_from)
    expected = [sum(values[(i + first + j) % n] for j in range(length)) for i in range(n)]
    assert total.tolist() == expected


@given(st.integers(4, 2000), st.data())
def test_never_more_than_directly_and_soon_far_less(n: int, data: st.DataObject) -> None:
    half = data.draw(st.integers(1, (n - 2) // 2))
    sent = window_plan(n, half).models_sent
    assert sent <= 2 * half
    assert sent <= 2 * np.log2(2 * half + 1) + 1
    missing = n - 2 * half - 1
    assert sent <= 2 * (missing.bit_length() + 1), "where few are missing it costs little more than an all-reduce"


@pytest.mark.parametrize("n", [5, 12, 31])
def test_lattices_are_recognised(n: int) -> None:
    for name, half in (("ring", 1), ("ring-lattice:k=4", 2 if n > 5 else None)):
        window = build(name, n)(0).window
        assert (window and window.half) == half
    for name in ("exponential", "star", "complete"):
        assert build(name, n)(0).window is None
    if n % 2 == 0:
        assert build("torus", n)(0).window is None


def test_ada_costs_a_few_all_reduces_not_hundreds() -> None:
    ada = build("ada:gamma=7.444", 1008)  # an epoch a step
    models = [ada(epoch).models_sent.max() for epoch in range(150)]
    assert max(models) <= 18
    assert np.mean(models) < 13 < np.mean([ada(epoch).degree for epoch in range(150)]) / 30
    assert models[0] < 2, "complete: an all-reduce"


def test_the_bytes_of_a_lattice_follow_the_plan() -> None:
    """31 neighbours on each side: rows of 2 to 32 by five doublings; those of 1 to 16 come from others, that of 32 is
    one's own."""
    lattice = ring_lattice(960, k=62)
    assert lattice.window is not None
    assert lattice.bytes_per_step(100.0) == 100 * lattice.window.models_sent == 100 * (5 + 5)
