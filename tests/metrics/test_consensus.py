"""Consensus distance against hand-worked values and its laws."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.metrics import consensus_distance


def test_by_hand() -> None:
    # mean (2, 1); squared distances 1 + 1 on either side; squared norm of the mean 5
    replicas = torch.tensor([[1.0, 0.0], [3.0, 2.0]])
    assert consensus_distance(replicas).item() == pytest.approx(2 / 5)


def test_equal_norms_are_not_equal_parameters() -> None:
    assert consensus_distance(torch.tensor([[3.0, 4.0], [4.0, 3.0]])).item() == pytest.approx(0.5 / 24.5)


def test_agreement_on_zero_is_agreement() -> None:
    assert consensus_distance(torch.zeros(4, 3)).item() == 0


def test_disagreement_about_a_mean_of_zero_is_infinite() -> None:
    assert consensus_distance(torch.tensor([[1.0], [-1.0]])).item() == float("inf")


@given(st.integers(1, 6), st.integers(0, 99), st.floats(0.1, 10))
def test_scale_does_not_matter_and_one_replica_agrees(n: int, seed: int, scale: float) -> None:
    replicas = torch.randn(n, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    distance = consensus_distance(replicas).item()
    assert consensus_distance(scale * replicas).item() == pytest.approx(distance, rel=1e-9, abs=1e-30)
    assert distance >= 0
    if n == 1:
        assert distance == 0
