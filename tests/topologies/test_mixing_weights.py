"""What a mixing says of itself: kind, groups, bytes, identity."""

from __future__ import annotations

import pickle

import pytest

from gossamer.topologies import Mixing, complete, exponential, from_groups, from_matrix, ring, star, torus
from gossamer.topologies._weights import translations


def test_bytes_of_the_busiest_worker() -> None:
    assert ring(8).bytes_per_step(100) == 200
    assert star(8).bytes_per_step(100) == 700
    assert exponential(16).bytes_per_step(100) == 400
    assert complete(8).bytes_per_step(100) == pytest.approx(2 * 7 / 8 * 100)
    assert from_groups(6, [(0, 1), (2, 3)]).bytes_per_step(100) == 100  # a pair sends one model each
    assert from_groups(6, [(0, 1, 2, 3), (4, 5)]).bytes_per_step(100) == pytest.approx(150)
    assert ring(1).bytes_per_step(100) == 0
    assert ring(2).bytes_per_step(100) == 100


@pytest.mark.parametrize(
    ("mixing", "groups"),
    [
        (ring(1), ((0,),)),
        (ring(2), ((0, 1),)),
        (ring(3), ((0, 1, 2),)),
        (ring(4), None),
        (complete(4), ((0, 1, 2, 3),)),
        (star(3), None),
        (exponential(4), None),
        (torus(2, 2), None),
        (from_groups(5, [(4, 0), (1, 3)]), ((0, 4), (1, 3), (2,))),
        # uniform rows that are no partition: 1 listens to nobody, 0 listens to 1
        (from_matrix([[0.5, 0.5], [0.0, 1.0]], allow_disconnected=True), None),
        # a partition, but not uniform inside
        (from_matrix([[0.6, 0.4], [0.4, 0.6]]), None),
        # everybody takes somebody else's model
        (from_matrix([[0.0, 1.0], [1.0, 0.0]]), None),
        # rows alike without their own rank in them
        (from_matrix([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]], allow_disconnected=True), None),
    ],
)
def test_groups(mixing: Mixing, groups: tuple[tuple[int, ...], ...] | None) -> None:
    assert mixing.groups == groups


def test_equal_weights_are_two_mixings() -> None:
    a, b = ring(5), ring(5)
    assert a != b
    assert len({a, b, a}) == 2
    with pytest.raises(AttributeError):
        a.name = "other"  # type: ignore[misc]


def test_connectedness_follows_arcs() -> None:
    assert ring(7).is_connected
    assert not from_groups(4, [(0, 1), (2, 3)]).is_connected
    assert from_groups(4, [(0, 1), (2, 3)]).spectral_gap() == 0.0
    one_way = from_matrix([[1.0, 0.0], [0.5, 0.5]], allow_disconnected=True)
    assert not one_way.is_connected
    assert not one_way.is_doubly_stochastic


def test_offsets_that_meet_count_once() -> None:
    assert translations("twice", (6,), [(3,), (-3,), (9,)]).degree == 1


def test_repr_and_pickle() -> None:
    mixing = torus(3, 4)
    assert repr(mixing) == "<Mixing 'torus': 12 replicas, degree 4, 24 edges>"
    again = pickle.loads(pickle.dumps(mixing))
    assert (again.weights != mixing.weights).nnz == 0
    assert again.spectral_gap() == mixing.spectral_gap()
