"""Every synchronous method by name, in a loop of the user's own: the same trajectory as stacked on one device."""

import pytest
from torch.distributed import ProcessGroup

from gossamer import decentralize
from gossamer.algorithms import build
from loops import Loop, agree, backward, decentralized, flat
from ranks import run_ranks
from trajectories import METHODS, schedule, stacked

STEPS = 12


@pytest.mark.parametrize("name", METHODS)
def test_a_method_by_name(name: str) -> None:
    """In parts of a hundred bytes, where the method lets its model be taken apart."""
    expected = stacked(build(name), schedule("exponential", 8), num_steps=STEPS)
    agree(decentralized(Loop(), 8, STEPS, algorithm=name, topology="exponential", bucket_mib=1e-4), expected, 1e-10)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_without_a_graph_gets_one_that_suits_it(name: str) -> None:
    (metrics, *_) = decentralized(Loop(), 4, STEPS, lambda training: training.metrics(), algorithm=name)
    assert metrics["steps"] == STEPS
    assert metrics["bytes_sent"] > 0


@pytest.mark.parametrize("name", METHODS)
def test_workers_may_run_out_of_data(name: str) -> None:
    """Whoever has none left takes part in the steps of the others without a gradient; all end with as many steps."""

    def rank(group: ProcessGroup) -> tuple[int, bool]:
        model, optimizer, _ = Loop().begin()
        with decentralize(model, optimizer, algorithm=name, topology="exponential", group=group) as training:
            for step in range(STEPS - 2 * group.rank()):
                optimizer.zero_grad()
                backward(model, group.rank(), step)
                optimizer.step()
        return training.num_steps, bool(flat(model).isfinite().all())

    assert run_ranks(3, rank) == [(STEPS, True)] * 3
