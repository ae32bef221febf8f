"""Specs such as `ring-lattice:k=4`: what they build, what context they use, what they refuse."""

from __future__ import annotations

import pytest

from gossamer.topologies import build, describe, names, ring_lattice, torus
from gossamer.topologies._random_graphs import surely_connected_p


@pytest.mark.parametrize("name", names())
def test_every_name_builds_and_is_described(name: str) -> None:
    schedule = build(name, 16)
    assert schedule.n == 16
    assert schedule(0).n == 16
    assert schedule.name.startswith(name)
    assert len(describe(name)) > 10
    assert "\n" not in describe(name)


@pytest.mark.parametrize("name", names())
def test_the_name_of_a_schedule_builds_it_again(name: str) -> None:
    schedule = build(name, 16, seed=2, epochs=26)
    again = build(schedule.name, 16)
    for step in range(5):
        assert (again(step).weights != schedule(step).weights).nnz == 0


def test_parameters() -> None:
    assert build("ring-lattice:k=6", 16)(0).degree == 6
    assert build("ring-lattice", 16)(0).degree == 4
    assert build("random-regular:degree=5", 16)(0).degree == 5
    assert build("torus:rows=2", 16)(0).shape == (2, 8)
    assert build("torus:cols=2", 16)(0).shape == (8, 2)
    assert build("torus:rows=4:cols=4", 16).name == torus(16).name == "torus"
    assert build("base-4", 16)(0).degree == 3
    assert build(" Ring_Lattice : k = 6 ", 16)(0).degree == ring_lattice(16, 6).degree
    assert build("erdos-renyi:p=1", 6)(0).is_complete
    assert build("erdos-renyi", 16)(0).is_connected
    assert surely_connected_p(16) < 0.6


def test_context_goes_to_whom_it_concerns_and_specs_win() -> None:
    assert build("ring", 8, seed=3, epochs=2, steps_per_epoch=9, local_size=4).name == "ring"
    assert build("random-matching", 8, seed=3).name == "random-matching:seed=3"
    assert build("random-matching:seed=5", 8, seed=3).name == "random-matching:seed=5"
    assert build("alternating-exponential-ring", 8).name.endswith("local_size=1")
    assert build("alternating-exponential-ring", 8, local_size=4).name.endswith("local_size=4")
    assert build("alternating-exponential-ring:local_size=2", 8, local_size=4).name.endswith("local_size=2")


def test_ada_defaults_reach_k_min_at_three_quarters() -> None:
    schedule = build("ada", 16, steps_per_epoch=10, epochs=40)
    assert schedule(0).is_complete
    assert schedule(10 * 26).degree == 4
    assert schedule(10 * 30).degree == 2
    assert schedule.window == range(300, 310)
    assert build("ada", 16).window == range(23, 24)  # 30 epochs where nobody says: the first after 22.5
    assert build("ada:k0=8:gamma=0.5:k_min=4", 16).name == "ada:k0=8:gamma=0.5:k_min=4"
    assert build("ada:k0=8:k_min=4", 16, epochs=16).name == "ada:k0=8:gamma=0.333333:k_min=4"


@pytest.mark.parametrize(
    ("spec", "n", "message"),
    [
        ("rign", 8, r"unknown graph 'rign', did you mean 'ring'\? Known: complete, .*random-matching"),
        ("expnential", 8, r"did you mean 'exponential'\?"),
        ("base-9", 8, r"did you mean 'base-"),
        ("zzzzz", 8, r"unknown graph 'zzzzz'; Known: complete, "),
        ("", 8, r"unknown graph ''"),
        ("ring:k=3", 8, r"'ring:k=3' sets 'k', which it does not know; it takes no parameters"),
        ("ring-lattice:q=3", 8, r"sets 'q', .*it takes k \(whole number\)"),
        ("ring-lattice:k=many", 8, r"k=many .*is not a whole number; it takes k"),
        ("ring-lattice:k=2.5", 8, r"k=2\.5 .*is not a whole number"),
        ("erdos-renyi:p=half", 8, r"p=half .*is not a number; it takes p \(number\), seed \(whole number\)"),
        ("ring-lattice:k", 8, r"'k' .*not of the form key=value"),
        ("ring-lattice:k=2:k=4", 8, r"sets 'k' twice"),
        ("base-2:k=3", 8, r"it takes no parameters"),
        ("torus:rows=3", 16, r"rows=3 does not have n=16 workers"),
        ("torus:rows=0", 16, r"rows=0 does not have n=16"),
        ("torus:rows=2:cols=4", 16, r"rows=2 and cols=4 does not have n=16"),
        ("torus", 13, r"prime"),
        ("one-peer-exponential", 12, r"base-2"),
        ("ada:k0=16", 16, r"k0=16"),
        ("ada:gamma=-1", 16, r"gamma=-1"),
        ("ada:k_min=9:k0=4", 16, r"k0=4 < k_min=9"),
        ("ada:epochs=0", 16, r"epochs .*got 0"),
        ("ring", 0, r"number of workers .*got 0"),
    ],
)
def test_refusals(spec: str, n: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(spec, n)


def test_describe_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="did you mean 'torus'"):
        describe("tours")
