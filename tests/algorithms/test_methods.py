"""What sets each method apart from the others."""

import pytest
import torch

from gossamer.algorithms import DPSGD, AllReduce, CombineThenAdapt, LocalSGD, OverlappedDPSGD
from trajectories import schedule, stacked


def test_all_reduce_keeps_replicas_equal() -> None:
    replicas = stacked(AllReduce(), schedule("ring", 8), num_steps=10)
    assert torch.equal(replicas, replicas[:1].expand_as(replicas))


def test_overlapped_is_combine_then_adapt() -> None:
    """The exchange starts earlier and the iteration stays the same."""
    ring = schedule("ring", 8)
    torch.testing.assert_close(stacked(OverlappedDPSGD(), ring), stacked(CombineThenAdapt(), ring), rtol=0, atol=1e-12)


def test_adapt_then_combine_differs_from_combine_then_adapt() -> None:
    ring = schedule("ring", 8)
    assert (stacked(DPSGD(), ring) - stacked(CombineThenAdapt(), ring)).abs().max() > 1e-4


def test_local_sgd_every_step_is_d_psgd() -> None:
    torus = schedule("torus", 8)
    assert torch.equal(stacked(LocalSGD(every=1), torus), stacked(DPSGD(), torus))


def test_local_sgd_passes_through_every_stage_of_a_cycle() -> None:
    """Mixing every second step over the three stages of one-peer exponential must still average exactly."""
    exact = schedule("one-peer-exponential", 8)
    trained_apart = stacked(LocalSGD(every=2), exact, num_steps=5)
    assert (trained_apart - trained_apart.mean(0)).abs().max() > 1e-4
    still = stacked(LocalSGD(every=2), schedule("complete", 8), num_steps=6)
    assert (still - still.mean(0)).abs().max() < 1e-12


def test_local_sgd_refuses_zero() -> None:
    with pytest.raises(ValueError, match="every 0 steps"):
        LocalSGD(every=0)
