"""Laws that every family obeys at every size, tried by hypothesis."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.topologies import Mixing, build, names

STEPS = 12
ONE_WAY = ("exponential", "directed-ring", "directed-exponential", "directed-random")


def buildable(name: str, n: int) -> bool:
    """Whether the mathematics of a family allows n workers."""
    if name in ("hypercube", "one-peer-exponential", "alternating-exponential-ring"):
        return n & (n - 1) == 0
    if name in ("alternating-ring", "bipartite-exponential"):
        return n % 2 == 0 or n == 1
    if name == "torus":
        return n <= 3 or any(n % d == 0 for d in range(2, n))
    return True


graphs = st.tuples(st.sampled_from(names()), st.integers(1, 40)).filter(lambda graph: buildable(*graph))


@given(graphs, st.integers(0, STEPS))
@settings(max_examples=150, deadline=None)
def test_laws(graph: tuple[str, int], step: int) -> None:
    name, n = graph
    mixing = build(name, n, epochs=10, seed=1)(step)
    W = mixing.matrix()
    assert W.shape == (n, n)
    assert (W >= 0).all()
    np.testing.assert_allclose(W.sum(axis=1), 1.0, atol=1e-12)
    keeps_mean = bool(np.allclose(W.sum(axis=0), 1.0, atol=1e-12))
    assert mixing.is_doubly_stochastic == keeps_mean
    assert keeps_mean or name == "directed-random"
    np.testing.assert_allclose(mixing.push.matrix(), W / W.sum(axis=0), atol=1e-12)
    assert mixing.is_symmetric == bool(np.allclose(W, W.T, atol=1e-12))
    if name not in ONE_WAY:
        assert mixing.is_symmetric
    assert 0.0 <= mixing.spectral_gap() <= 1.0
    if mixing.is_connected and n > 1:
        assert mixing.spectral_gap() == pytest.approx(1 - np.sort(np.abs(np.linalg.eigvals(W)))[-2], abs=1e-9)
    values = np.random.default_rng(0).standard_normal(n)
    assert (mixing.push.weights @ values).mean() == pytest.approx(values.mean(), abs=1e-12)
    check_views(mixing, W)


def check_views(mixing: Mixing, W: np.ndarray) -> None:
    """neighbors, listeners, row, degree, edges and groups all tell the same story as the matrix."""
    n = mixing.n
    assert mixing.weights.has_canonical_format
    assert mixing.weights.data.all()
    degree = 0
    for rank in range(n):
        takes = {j for j in range(n) if W[rank, j] > 0}
        gives = {i for i in range(n) if W[i, rank] > 0}
        assert mixing.neighbors(rank) == tuple(sorted(takes - {rank}))
        assert mixing.listeners(rank) == tuple(sorted(gives - {rank}))
        assert mixing.row(rank) == {j: W[rank, j] for j in sorted(takes)}
        degree = max(degree, len(takes - {rank}), len(gives - {rank}))
    assert mixing.degree == degree
    arcs = np.count_nonzero(W - np.diag(np.diag(W)))
    assert mixing.num_edges == (arcs // 2 if ((W > 0) == (W > 0).T).all() else arcs)
    if mixing.groups is not None:
        assert sorted(rank for group in mixing.groups for rank in group) == list(range(n))
        expected = np.zeros((n, n))
        for group in mixing.groups:
            expected[np.ix_(group, group)] = 1 / len(group)
        np.testing.assert_allclose(W, expected, atol=1e-12)
    assert mixing.is_complete == bool(np.allclose(W, 1 / n, atol=1e-12))


@given(graphs, st.integers(0, 100))
@settings(max_examples=80, deadline=None)
def test_schedules_repeat_and_return_the_same_object(graph: tuple[str, int], step: int) -> None:
    name, n = graph
    schedule = build(name, n, seed=1)
    assert schedule.n == n
    assert schedule(step) is schedule(step)
    if schedule.period is not None:
        assert schedule(step) is schedule(step + schedule.period)


@given(graphs, st.integers(1, 5), st.integers(0, 60))
@settings(max_examples=80, deadline=None)
def test_per_round_uses_one_stage_a_round(graph: tuple[str, int], every: int, step: int) -> None:
    name, n = graph
    schedule = build(name, n, seed=1)
    slow = schedule.per_round(every)
    assert slow.n == n
    if name == "ada":
        assert slow is schedule
    else:
        assert slow(step) is schedule(step // every)
    if schedule.period is not None and schedule.period > 1:
        rounds = schedule.steps_to_exact()
        assert slow.steps_to_exact() == (None if rounds is None else rounds * every)


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("n", [1, 2, 3])
def test_every_family_at_one_two_three(name: str, n: int) -> None:
    if not buildable(name, n):
        with pytest.raises(ValueError, match=r"got (n=)?3|= 3"):
            build(name, n)
        return
    schedule = build(name, n)
    mixing = schedule(0)
    assert mixing.n == n
    assert schedule.bytes_per_step(1.0) >= 0.0
    if n == 1:
        assert mixing.matrix().tolist() == [[1.0]]
        assert schedule.steps_to_exact() == 0
        assert schedule.bytes_per_step(1.0) == 0.0
    if name == "nodes" and n > 1:  # of one worker each
        assert schedule.spectral_gap() == 0.0
        assert schedule.steps_to_exact() is None
        return
    assert 0.0 < schedule.spectral_gap() <= 1.0
    if n == 2 and name != "alternating-exponential-ring":
        np.testing.assert_allclose(mixing.matrix(), 0.5)
    if n == 2:
        assert schedule.steps_to_exact() == 1
