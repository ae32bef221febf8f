"""Every synchronous method by name, in a loop of the user's own: the same trajectory as stacked on one device."""

import pytest

from gossamer.algorithms import ALGORITHMS, build
from loops import Loop, agree, decentralized
from trajectories import schedule, stacked

STEPS = 12


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_a_method_by_name(name: str) -> None:
    """In parts of a hundred bytes, where the method lets its model be taken apart."""
    expected = stacked(build(name), schedule("exponential", 8), num_steps=STEPS)
    agree(decentralized(Loop(), 8, STEPS, algorithm=name, topology="exponential", bucket_mib=1e-4), expected, 1e-10)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_a_method_without_a_graph_gets_one_that_suits_it(name: str) -> None:
    (metrics, *_) = decentralized(Loop(), 4, STEPS, lambda training: training.metrics(), algorithm=name)
    assert metrics["steps"] == STEPS
    assert metrics["bytes_sent"] > 0
