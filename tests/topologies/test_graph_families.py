"""What each graph family is, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkx
import numpy as np
import pytest

from gossamer.topologies import (
    complete,
    erdos_renyi,
    exponential,
    from_groups,
    from_matrix,
    from_networkx,
    hypercube,
    random_regular,
    ring,
    ring_lattice,
    star,
    torus,
)


def test_ring() -> None:
    assert ring(6).row(0) == {0: 1 / 3, 1: 1 / 3, 5: 1 / 3}
    assert ring(6).num_edges == 6
    assert ring(3).is_complete


@pytest.mark.parametrize(("k", "degree"), [(2, 2), (3, 2), (4, 4), (5, 4), (8, 8), (9, 9)])
def test_ring_lattice_counts_all_neighbours_and_rounds_odd_k_down(k: int, degree: int) -> None:
    mixing = ring_lattice(10, k)
    assert mixing.degree == degree
    assert mixing.is_complete == (k == 9)


def test_torus_takes_the_most_square_shape() -> None:
    assert torus(36).shape == (6, 6)
    assert torus(3, 4).neighbors(5) == (1, 4, 6, 9)
    np.testing.assert_array_equal(torus(12).matrix(), torus(3, 4).matrix())


def test_small_tori() -> None:
    for n in (1, 2, 3):
        np.testing.assert_array_equal(torus(n).matrix(), ring(n).matrix())
    np.testing.assert_array_equal(torus(1, 7).matrix(), ring(7).matrix())
    assert torus(2, 5).neighbors(0) == (1, 4, 5)  # up and down are the same rank, counted once
    assert torus(2, 5).row(0)[5] == 0.25
    assert torus(2, 2).degree == 2


def test_exponential_is_directed() -> None:
    mixing = exponential(16)
    assert mixing.neighbors(0) == (8, 12, 14, 15)
    assert mixing.listeners(0) == (1, 2, 4, 8)
    assert not mixing.is_symmetric
    assert mixing.is_doubly_stochastic
    assert mixing.num_edges == 16 * 4


def test_hypercube_and_complete_and_star() -> None:
    assert hypercube(16).neighbors(5) == (1, 4, 7, 13)
    assert complete(5).num_edges == 10
    hub = star(5)
    assert hub.degree == 4
    assert hub.num_edges == 4
    assert hub.neighbors(3) == (0,)
    assert hub.row(3) == pytest.approx({0: 0.2, 3: 0.8})


def test_random_regular_is_regular_connected_and_repeatable() -> None:
    for degree in (2, 3, 5, 10, 17, 18, 19):
        mixing = random_regular(20, degree, seed=3)
        assert mixing.is_connected
        assert {len(mixing.neighbors(rank)) for rank in range(20)} == {degree}
        assert (mixing.matrix() == random_regular(20, degree, seed=3).matrix()).all()
    assert (random_regular(20, 4, 0).matrix() != random_regular(20, 4, 1).matrix()).any()


def test_erdos_renyi_draws_every_pair_with_probability_p() -> None:
    mixing = erdos_renyi(200, 0.3, seed=0)
    assert mixing.num_edges == pytest.approx(0.3 * 199 * 100, rel=0.03)
    assert (mixing.matrix() == erdos_renyi(200, 0.3, seed=0).matrix()).all()
    assert erdos_renyi(6, 1.0).is_complete


def test_networkx_graphs() -> None:
    petersen = from_networkx(networkx.petersen_graph())
    assert petersen.degree == 3
    assert petersen.row(0) == pytest.approx(dict.fromkeys((0, *petersen.neighbors(0)), 0.25))
    path = from_networkx(networkx.path_graph(4), name="path")
    assert path.name == "path"
    assert path.is_symmetric
    lettered = networkx.Graph([("b", "a"), ("b", "c"), ("c", "c")])
    assert from_networkx(lettered).neighbors(0) == (
        1,
        2,
    )  # in the order of the nodes; the self-loop does not count
    numbered = networkx.Graph([(2, 0), (0, 1)])
    assert from_networkx(numbered).neighbors(0) == (1, 2)  # labels 0 … n−1 are ranks
    doubled = networkx.MultiGraph([(0, 1), (0, 1), (1, 2)])
    assert from_networkx(doubled).num_edges == 2
    assert from_networkx(networkx.empty_graph(1)).matrix().tolist() == [[1.0]]


def test_directed_networkx_graphs() -> None:
    circle = from_networkx(networkx.DiGraph([(0, 1), (1, 2), (2, 0)]))
    assert circle.neighbors(1) == (0,)  # 0 → 1: rank 1 takes what rank 0 sends
    assert circle.listeners(0) == (1,)
    assert circle.is_doubly_stochastic
    uneven = from_networkx(networkx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)]))
    assert uneven.row(2) == pytest.approx({0: 1 / 3, 1: 1 / 3, 2: 1 / 3})
    assert not uneven.is_doubly_stochastic


def test_from_matrix_takes_dense_and_sparse_and_copies() -> None:
    W = np.array([[0.5, 0.5], [0.5, 0.5]])
    mixing = from_matrix(W, name="mine")
    W[0, 0] = 7
    assert mixing.matrix()[0, 0] == 0.5
    assert mixing.is_complete
    sparse = ring(5).weights
    assert (from_matrix(sparse).weights != sparse).nnz == 0
    assert from_matrix([[1.0, 0.0], [0.0, 1.0]], allow_disconnected=True).groups == ((0,), (1,))


@pytest.mark.parametrize("make", [ring, torus, exponential, hypercube, complete, star], ids=lambda make: make.__name__)
@pytest.mark.parametrize("n", [0, -3, 2.0, "4", True, None])
def test_sizes_that_are_no_sizes(make: Callable[[Any], object], n: object) -> None:
    with pytest.raises(ValueError, match="whole number, at least 1; got"):
        make(n)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ring_lattice(8, 8), r"k=8 .*n=8; take k ≤ 7"),
        (lambda: ring_lattice(8, 1), r"k=1 leaves 8 workers disconnected; take k ≥ 2"),
        (lambda: ring_lattice(1, 1), r"k=1 .*n=1; take k ≤ 0"),
        (lambda: ring_lattice(8, 2.5), r"k must be a whole number.*2\.5"),  # type: ignore[arg-type]
        (lambda: torus(13), r"13 .*prime; take 12 or 14 workers, or a ring"),
        (lambda: torus(5), r"take 4 or 6 workers"),
        (lambda: torus(0, 4), r"rows of a torus.*got 0"),
        (lambda: torus(4, 0), r"columns of a torus.*got 0"),
        (lambda: hypercube(12), r"power of two, got n=12; take 8 or 16"),
        (lambda: random_regular(5, 3), r"n=5, degree=3; take degree=2 or 4, or an even n"),
        (lambda: random_regular(6, 6), r"degree=6 .*n=6; take degree ≤ 5"),
        (lambda: random_regular(6, 1), r"degree=1 cannot be connected; take degree ≥ 2"),
        (lambda: random_regular(6, 3, seed=-1), r"seed .*got -1"),
        (lambda: erdos_renyi(6, 1.5), r"between 0 and 1; got p=1\.5"),
        (lambda: erdos_renyi(6, float("nan")), r"between 0 and 1; got p=nan"),
        (lambda: erdos_renyi(20, 0.01), r"n=20, p=0\.01, seed=0 is disconnected; take p ≥ 0\.45"),
        (lambda: from_networkx(networkx.empty_graph(0)), r"no nodes"),
        (lambda: from_networkx(networkx.Graph([(0, 1), (2, 3)])), r"4 workers is disconnected.*add edges"),
        (lambda: from_networkx(networkx.DiGraph([(0, 1), (1, 2)])), r"disconnected"),
        (lambda: from_matrix(np.eye(3)), r"disconnected"),
        (lambda: from_matrix([[0.5, 0.4], [0.5, 0.5]]), r"row 0 .*sums to 0\.9 instead of 1; divide"),
        (lambda: from_matrix([[1.5, -0.5], [0.5, 0.5]]), r"weight \[0, 1\] .*is -0\.5; .*not be negative"),
        (lambda: from_matrix([[np.nan, 1.0], [0.5, 0.5]]), r"NaN or infinity"),
        (lambda: from_matrix([[np.inf, 1.0], [0.5, 0.5]]), r"NaN or infinity"),
        (lambda: from_matrix(np.ones((2, 3)) / 3), r"square matrix.*\(2, 3\)"),
        (lambda: from_matrix(np.zeros((0, 0))), r"square matrix"),
        (lambda: from_matrix(np.zeros((2, 2))), r"sums to 0 instead of 1"),
        (lambda: from_groups(4, [(0, 4)]), r"rank 4 .*ranks 0 to 3"),
        (lambda: from_groups(4, [(0, 1), (1, 2)]), r"rank 1 is in 2 groups"),
        (lambda: ring(4).neighbors(4), r"ranks 0 to 3, got rank 4"),
        (lambda: ring(4).row(-1), r"ranks 0 to 3, got rank -1"),
    ],
)
def test_refusals_name_the_numbers_and_the_remedy(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
