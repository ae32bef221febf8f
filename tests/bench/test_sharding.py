"""Who sees which samples, and with which random numbers."""

import hashlib
import time

import numpy as np
import pytest
import torch
from torch import Tensor

from gossamer.bench.sharding import batches, draws

LABELS = torch.arange(50_000) % 10
ALPHAS = [1e-6, 0.1, 1.0, 100.0]


def dealt(alpha: float | None, *, workers: int = 96, seed: int = 0, epoch: int = 0, labels: Tensor = LABELS) -> Tensor:
    """The samples of each worker in one epoch, `[workers, samples]`."""
    size = len(labels) // workers
    made = batches(len(labels), workers=workers, batch_size=size, seed=seed, epoch=epoch, labels=labels, alpha=alpha)
    return made[0]


def shares(shards: Tensor, labels: Tensor = LABELS) -> Tensor:
    """The share of each class in each shard, `[workers, classes]`."""
    return torch.nn.functional.one_hot(labels[shards]).double().mean(1)


def test_equal_shards_are_dealt_as_ever() -> None:
    """Published results rest on this order: a change here would silently make others of the same settings."""
    made = batches(50_000, workers=96, batch_size=32, seed=3, epoch=7)
    assert made.shape == (16, 96, 32)
    assert made.dtype == torch.int64
    assert hashlib.sha256(made.numpy().tobytes()).hexdigest()[:16] == "2b43ab38cb7074e3"


@pytest.mark.parametrize("alpha", [None, *ALPHAS])
@pytest.mark.parametrize("workers", [1, 7, 96, 1008])
def test_no_sample_twice_and_none_invented(alpha: float | None, workers: int) -> None:
    shards = dealt(alpha, workers=workers)
    assert shards.shape == (workers, 50_000 // workers)
    assert len(shards.unique()) == shards.numel()
    assert shards.min() >= 0
    assert shards.max() < 50_000


@pytest.mark.parametrize("alpha", [None, *ALPHAS])
def test_a_function_of_the_seed_and_an_epoch_only_shuffles(alpha: float | None) -> None:
    assert dealt(alpha).equal(dealt(alpha))
    assert not dealt(alpha).equal(dealt(alpha, seed=1))
    later = dealt(alpha, epoch=1)
    assert not dealt(alpha).equal(later)
    assert dealt(alpha).sort(1).values.equal(later.sort(1).values)


def test_a_large_alpha_deals_like_chance() -> None:
    labels = (torch.arange(50_000) % 10).clamp(max=4)  # the last class is six tenths of all
    spread = shares(dealt(1e6, labels=labels), labels).std(0)
    by_chance = shares(dealt(None, labels=labels), labels).std(0)
    assert torch.allclose(spread, by_chance, rtol=0.25)
    assert shares(dealt(1e6, labels=labels), labels).mean(0)[4] == pytest.approx(0.6, abs=0.01)


def test_the_smaller_alpha_the_fewer_classes_a_worker_sees() -> None:
    seen = [(shares(dealt(alpha)) > 0.01).sum(1).double().mean().item() for alpha in ALPHAS]
    assert seen == sorted(seen)
    assert seen[0] < 2
    assert seen[1] < 5
    assert seen[3] == 10


def test_shares_spread_as_those_of_the_dirichlet_distribution() -> None:
    """The variance of a share of K classes is (1/K)(1 − 1/K) / (Kα + 1)."""
    for alpha in (0.01, 0.1, 1.0):
        expected = 0.1 * 0.9 / (10 * alpha + 1)
        seen = np.mean([shares(dealt(alpha, seed=seed)).var().item() for seed in range(10)])
        assert seen == pytest.approx(expected, rel=0.15)


def test_those_who_must_take_what_is_left_are_not_always_the_same() -> None:
    """A ring's last neighbours would otherwise be unlike the first."""
    varied = torch.stack([shares(dealt(0.1, workers=20, seed=seed)).var(1) for seed in range(40)]).mean(0)
    assert varied[-5:].mean() == pytest.approx(varied[:5].mean().item(), rel=0.15)


def test_rare_classes_and_what_is_left_over() -> None:
    labels = torch.cat([torch.zeros(3), torch.ones(995), torch.full((9,), 7)]).long()  # 1007 samples on 10 workers
    shards = dealt(0.01, workers=10, labels=labels)
    assert shards.shape == (10, 100)
    assert len(shards.unique()) == 1000


def test_classes_without_labels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"alpha=0\.5 .* give their labels"):
        batches(10, workers=2, batch_size=1, seed=0, epoch=0, alpha=0.5)


def test_a_thousand_workers_take_no_time() -> None:
    labels = LABELS.clone()  # not yet dealt
    started = time.monotonic()
    for epoch in range(3):
        dealt(0.1, workers=1008, labels=labels, epoch=epoch)
        draws(3, workers=1008, steps=6, batch_size=8, seed=0, epoch=epoch)
    assert time.monotonic() - started < 2


def test_draws_are_uniform_and_of_their_own() -> None:
    made = draws(3, workers=50, steps=10, batch_size=8, seed=0, epoch=0)
    assert made.shape == (10, 50, 8, 3)
    assert made.dtype == torch.float32
    assert made.min() >= 0
    assert made.max() < 1
    assert made.mean() == pytest.approx(0.5, abs=0.01)
    assert made.var() == pytest.approx(1 / 12, rel=0.03)
    assert len(made.unique()) > 0.99 * made.numel(), "no two workers or steps share their numbers"


def test_the_draws_of_a_worker_depend_on_seed_epoch_and_number_alone() -> None:
    def of_worker_2(*, workers: int = 4, seed: int = 0, epoch: int = 0, steps: int = 5) -> Tensor:
        return draws(3, workers=workers, steps=steps, batch_size=8, seed=seed, epoch=epoch)[:5, 2]

    assert of_worker_2().equal(of_worker_2(workers=9, steps=7))
    assert not of_worker_2().equal(of_worker_2(seed=1))
    assert not of_worker_2().equal(of_worker_2(epoch=1))
