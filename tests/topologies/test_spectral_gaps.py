"""The spectral gaps of the reference tables (shared/reference/ada-dbench.md), to the digits printed there."""

from __future__ import annotations

import math

import networkx
import numpy as np
import pytest
import scipy.sparse.linalg

from gossamer.topologies import (
    Mixing,
    alternating_ring,
    build,
    complete,
    erdos_renyi,
    exponential,
    from_matrix,
    from_networkx,
    hypercube,
    random_regular,
    ring,
    ring_lattice,
    star,
    torus,
)
from gossamer.topologies._spectrum import gap_by_eigenvalues


def printed(value: float, like: str) -> str:
    """`value` with the significant digits of the number `like`."""
    digits = len(like.split("e")[0].replace(".", "").lstrip("0"))
    return f"{float(f'{value:.{digits - 1}e}'):.10g}"


@pytest.mark.parametrize(
    ("n", "ring_gap", "torus_gap", "shape", "exponential_gap", "degree"),
    [
        (12, "0.0893", "0.400", (3, 4), "0.400", 4),
        (24, "0.0227", "0.200", (4, 6), "0.333", 5),
        (48, "0.00570", "0.117", (6, 8), "0.286", 6),
        (96, "0.00143", "0.0536", (8, 12), "0.250", 7),
        (1008, "1.30e-5", "0.00608", (28, 36), "0.182", 10),
    ],
)
def test_table_of_graphs(
    n: int, ring_gap: str, torus_gap: str, shape: tuple[int, int], exponential_gap: str, degree: int
) -> None:
    assert printed(ring(n).spectral_gap(), ring_gap) == f"{float(ring_gap):.10g}"
    assert printed(torus(n).spectral_gap(), torus_gap) == f"{float(torus_gap):.10g}"
    assert torus(n).shape == shape
    assert printed(exponential(n).spectral_gap(), exponential_gap) == f"{float(exponential_gap):.10g}"
    assert exponential(n).degree == degree


@pytest.mark.parametrize(
    ("n", "gaps"),
    [
        (96, {4: ".0043", 8: ".0142", 16: ".0506", 32: ".183", 64: ".601"}),
        (1008, {4: "3.9e-5", 8: "1.3e-4", 16: "4.7e-4", 32: "1.8e-3", 64: "6.8e-3"}),
    ],
)
def test_table_of_ring_lattices(n: int, gaps: dict[int, str]) -> None:
    for k, gap in gaps.items():
        assert printed(ring_lattice(n, k).spectral_gap(), gap) == f"{float(gap):.10g}"


def test_gap_of_the_issue() -> None:
    assert f"{build('ring', 96).spectral_gap():.5f}" == "0.00143"


def dense_gap(mixing: Mixing) -> float:
    return 1.0 - float(np.sort(np.abs(np.linalg.eigvals(mixing.matrix())))[-2])


@pytest.mark.parametrize(
    "mixing",
    [ring(9), ring_lattice(14, 6), torus(2, 5), torus(4, 6), exponential(11), hypercube(16), torus(2, 2)],
    ids=lambda mixing: f"{mixing.name}-{mixing.n}",
)
def test_fourier_agrees_with_dense_eigenvalues(mixing: Mixing) -> None:
    assert mixing.shape is not None
    assert mixing.spectral_gap() == pytest.approx(dense_gap(mixing), abs=1e-12)


@pytest.mark.parametrize("n", [600, 700])
def test_large_graphs_agree_with_known_values(n: int) -> None:
    # Beyond the size for dense eigenvalues; Fourier knows the answer for the ring and the exponential graph.
    assert gap_by_eigenvalues(star(n).weights, symmetric=True) == pytest.approx(1 / n, rel=1e-9)
    lattice, directed = ring_lattice(n, 60), exponential(n)
    assert gap_by_eigenvalues(lattice.weights, symmetric=True) == pytest.approx(lattice.spectral_gap(), rel=1e-6)
    assert gap_by_eigenvalues(directed.weights, symmetric=False) == pytest.approx(directed.spectral_gap(), rel=1e-6)


def path(n: int) -> Mixing:
    return from_networkx(networkx.path_graph(n))


def gap_of_path(n: int) -> float:
    return 2 / 3 * (1 - math.cos(math.pi / n))  # its Laplacian has the eigenvalues 2 − 2cos(πj/n)


def test_a_long_path_whose_eigenvalues_nearly_coincide() -> None:
    assert path(900).spectral_gap() == pytest.approx(gap_of_path(900), rel=1e-6)


def test_dense_eigenvalues_step_in_where_lanczos_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def gives_up(*arguments: object, **options: object) -> None:
        tried.append(arguments)
        raise scipy.sparse.linalg.ArpackNoConvergence("gave up", np.empty(0), np.empty((0, 0)))

    monkeypatch.setattr("scipy.sparse.linalg.eigsh", gives_up)
    assert path(514).spectral_gap() == pytest.approx(gap_of_path(514), rel=1e-6)
    pairs = alternating_ring(514)
    norm = np.linalg.norm(pairs(1).matrix() @ pairs(0).matrix() - 1 / 514, 2)
    assert pairs.spectral_gap() == pytest.approx(1 - norm**0.5, rel=1e-6)
    assert len(tried) == 2


def test_gaps_of_random_graphs() -> None:
    for mixing in (random_regular(40, 3), erdos_renyi(40, 0.2)):
        assert mixing.spectral_gap() == pytest.approx(dense_gap(mixing), abs=1e-12)


def test_alone_and_complete_have_gap_one() -> None:
    assert ring(1).spectral_gap() == 1.0
    assert complete(7).spectral_gap() == 1.0


def test_gap_of_directed_weights_that_do_not_keep_the_mean() -> None:
    mixing = from_matrix([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.2, 0.2, 0.6]])
    assert not mixing.is_doubly_stochastic
    assert mixing.spectral_gap() == pytest.approx(dense_gap(mixing), abs=1e-12)


def test_swapping_for_ever_has_no_gap() -> None:
    assert from_matrix([[0.0, 1.0], [1.0, 0.0]]).spectral_gap() == pytest.approx(0.0, abs=1e-12)
