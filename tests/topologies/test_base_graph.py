"""Base-(k+1) graphs: exact after one period for any n, at no more than k neighbours a step."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.topologies import base_graph


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_exact_for_any_number_of_workers(k: int) -> None:
    for n in range(2, 65):
        schedule = base_graph(n, k)
        assert schedule.period is not None
        product = np.eye(n)
        for step in range(schedule.period):
            mixing = schedule(step)
            assert mixing.degree <= k, (n, step)
            assert mixing.is_doubly_stochastic, (n, step)
            assert mixing.is_symmetric, (n, step)
            product = mixing.matrix() @ product
        np.testing.assert_allclose(product, 1 / n, atol=1e-12, err_msg=f"n={n}")
        assert schedule.steps_to_exact() == schedule.period, n  # and none of the steps is wasted


def test_powers_of_the_base_take_as_few_steps_as_can_be() -> None:
    assert [base_graph(2**r, 1).period for r in range(1, 7)] == [1, 2, 3, 4, 5, 6]
    assert [base_graph(3**r, 2).period for r in range(1, 4)] == [1, 2, 3]
    assert base_graph(24, 3).period == 3
    assert base_graph(6, 5).period == 1
    assert base_graph(5, 9).period == 1


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_a_period_is_logarithmic(k: int) -> None:
    for n in range(2, 200):
        assert base_graph(n, k).period <= 2 * np.log(n) / np.log(k + 1) + 2, n


def test_alone() -> None:
    assert base_graph(1, 3)(0).matrix().tolist() == [[1.0]]
    assert base_graph(1, 3).steps_to_exact() == 0


@pytest.mark.parametrize(("n", "k"), [(0, 1), (4, 0), (4, -1), (4, 1.5)])
def test_refusals(n: int, k: int) -> None:
    with pytest.raises(ValueError, match="whole number, at least 1; got"):
        base_graph(n, k)
