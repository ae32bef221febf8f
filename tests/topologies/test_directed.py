"""Graphs whose links go one way, and the weights of push-sum on them."""

import numpy as np
import pytest

from gossamer.topologies import build, directed_random, directed_ring, from_matrix


@pytest.mark.parametrize("n", [2, 4, 16, 64])
def test_directed_exponential_is_exact_after_a_period_at_powers_of_two(n: int) -> None:
    schedule = build("directed-exponential", n)
    assert schedule.steps_to_exact() == schedule.period == n.bit_length() - 1
    assert all(schedule(step).degree == 1 for step in range(schedule.period))


def test_directed_exponential_takes_any_n() -> None:
    schedule = build("directed-exponential", 12)
    assert schedule.steps_to_exact() is None
    assert schedule.spectral_gap() > build("directed-ring", 12).spectral_gap()


def test_a_directed_ring_goes_one_way() -> None:
    ring = directed_ring(6)
    assert not ring.is_two_way
    assert ring.is_doubly_stochastic
    assert ring.models_sent.tolist() == [1.0] * 6
    assert abs(ring.spectral_gap() - (1 - np.cos(np.pi / 6))) < 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_some_are_listened_to_more_than_others(seed: int) -> None:
    mixing = directed_random(12, 3, seed)
    assert mixing.is_connected
    assert {len(mixing.listeners(rank)) for rank in range(12)} == {3}
    assert len({len(mixing.neighbors(rank)) for rank in range(12)}) > 1
    np.testing.assert_allclose(mixing.push.weights.sum(axis=0), 1.0)
    assert mixing.push.neighbors(3) == mixing.neighbors(3)
    assert not mixing.push.is_doubly_stochastic


def test_push_weights_reach_the_true_mean() -> None:
    """x/w after many rounds, whatever the values."""
    push, values = directed_random(9, 2).push.matrix(), np.random.default_rng(0).standard_normal(9)
    many = np.linalg.matrix_power(push, 300)
    np.testing.assert_allclose(many @ values / (many @ np.ones(9)), values.mean(), atol=1e-12)


def test_weights_that_keep_the_mean_are_their_own() -> None:
    ring = directed_ring(5)
    assert ring.push is ring


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="take degree ≤ 3"):
        directed_random(4, 4)
    with pytest.raises(ValueError, match="at least 1; got 0"):
        directed_random(4, 0)
    nobody_listens = from_matrix([[0.0, 1.0], [0.0, 1.0]], "deaf", allow_disconnected=True)
    with pytest.raises(ValueError, match="nobody takes the model of rank 0 in 'deaf', not even itself"):
        _ = nobody_listens.push
