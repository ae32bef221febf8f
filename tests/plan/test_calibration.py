"""Profiles measured here: what was slow shows, nothing of the user's changes, all ranks get the same."""

import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from gossamer.clock import Link, slow_workers
from gossamer.plan import Profile, calibrate, plan
from gossamer.plan._calibrate import _evenly, _typical
from gossamer.plan._measure_all_reduce import AllReduceTimes, measure_all_reduce
from ranks import run_ranks

BATCH = torch.ones(4, 16)


class Lazy(torch.autograd.Function):
    """Sleeps in backward."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        time.sleep(0.03)
        return grad


class Two(nn.Module):
    """Backward sleeps between the gradients of its last layer and those of its first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32, bias=False), nn.Linear(32, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.02)
        return self.last(Lazy.apply(self.first(x)))


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def test_what_sleeps_shows_where_it_sleeps() -> None:
    model = Two()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = calibrate(model, loss, BATCH, link=Link(), steps=4, bucket_bytes=1)
    assert found.work.bucket_bytes == (4.0 * 32 * 8, 4.0 * 32 * 16)  # the last layer is ready first
    assert found.work.forward_s >= 0.02
    assert found.work.backward_s[1] >= 0.03
    assert sum(found.work.update_s) > 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert len(found.cluster.computation.measured) == 100


def test_parameters_without_a_gradient_are_ready_in_the_end() -> None:
    model = Two()
    model.unused = nn.Linear(3, 3)
    found = calibrate(model, loss, BATCH, link=Link(), steps=2, bucket_bytes=1)
    assert found.work.model_bytes == 4 * (32 * 8 + 32 * 16 + 12)
    assert found.work.computation_s >= 0.05


def in_nodes_of_two(group: ProcessGroup) -> Profile:
    torch.manual_seed(0)

    def slow_on_rank_3(model: nn.Module, batch: Tensor) -> Tensor:
        time.sleep(0.3 if group.rank() == 3 else 0.01)
        return loss(model, batch)

    return calibrate(nn.Linear(16, 4), slow_on_rank_3, BATCH, group=group, local_size=2, steps=2)


def test_every_pair_is_measured_and_all_ranks_agree(tmp_path: Path) -> None:
    found = run_ranks(4, in_nodes_of_two)
    first = found[0]
    assert all(replace(each, made=first.made) == first for each in found[1:])
    assert [pair.ends for pair in first.pairs] == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert all(pair.latency_s > 0 and pair.bytes_per_s > 0 for pair in first.pairs)
    assert first.cluster.inside is not None
    assert slow_workers(first.cluster.computation.slow, 4)[3] > 2
    assert first.collective > 0
    assert 0 <= first.work.held_up_s_per_byte < math.inf
    assert first.work.forward_s < 0.3  # that of a usual worker
    first.save(tmp_path / "cluster.json")
    again = Profile.load(tmp_path / "cluster.json")
    assert again == first
    assert plan(again.resized(8)).rows[0].prediction.iteration_s > 0.01


def beside_backward(group: ProcessGroup) -> AllReduceTimes:
    torch.manual_seed(0)
    model, before = Two(), Two()
    before.load_state_dict(model.state_dict())
    found = measure_all_reduce(group, model, loss, BATCH, [4 * 32 * 8, 4 * 32 * 16])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    return found


def test_an_all_reduce_beside_backward_holds_it_up_by_no_more_than_it_takes() -> None:
    one, other = run_ranks(2, beside_backward)
    assert one == other
    assert 0 <= one.held_up_s <= one.alone_s


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "one worker has no links to measure"),
        ({"link": Link(), "steps": 0}, "steps=0"),
        ({"link": Link(), "local_size": 2}, "1 workers do not fill nodes of 2"),
    ],
)
def test_what_cannot_be_measured_is_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        calibrate(nn.Linear(16, 4), loss, BATCH, **given)


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="no parameters to train"):
        calibrate(nn.ReLU(), loss, BATCH, link=Link())


def steps_of(waits: np.ndarray, *, seen: bool) -> np.ndarray:
    """Moments of steps with a second of work in two halves, and so much queueing between them, noticed or not."""
    wall = np.stack([0 * waits, 0.25 + waits, 0.75 + waits, 1 + waits, 2 + waits], axis=-1)
    on_core = wall - np.stack([0 * waits, *[waits] * 3, 1 + waits], axis=-1)  # at last it waits for a neighbour
    queued = seen * np.stack([0 * waits, *[waits] * 4], axis=-1)
    return np.stack([wall, on_core, queued], axis=-1)


def test_who_queues_for_a_core_is_slower_but_not_late() -> None:
    """Two workers take a core in turn: one second of work, and in every other step one more of waiting."""
    waits = np.array([[0.0, 1.0] * 10, [1.0, 0.0] * 10])
    worked_s = np.broadcast_to([0.1, 0.2, 0.3], (2, 20, 3))
    work, computation = _typical(*_evenly(steps_of(waits, seen=True), worked_s, local_size=2), (8,))
    assert work.computation_s == pytest.approx(1.5)
    assert work.forward_s == pytest.approx(0.25 * 1.5)
    assert (*work.update_s, 8 * work.mix_s_per_byte, 8 * work.show_s_per_byte) == pytest.approx((0.15, 0.3, 0.45))
    assert computation.measured == (1.0,) * 100
    late, its_computation = _typical(*_evenly(steps_of(waits, seen=False), worked_s, local_size=2), (8,))
    assert late.computation_s == pytest.approx(1.5)
    assert late.update_s == pytest.approx((0.1,))
    assert (min(its_computation.measured), max(its_computation.measured)) == pytest.approx((2 / 3, 4 / 3), abs=1e-4)


def test_workers_queue_for_the_cores_of_their_own_node() -> None:
    waits = np.array([[0.0, 2.0], [2.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    moments, worked_s = _evenly(steps_of(waits, seen=True), np.ones((4, 2, 3)), local_size=2)
    np.testing.assert_allclose(moments[..., -2], [[2, 2], [2, 2], [1, 1], [1, 1]])
    np.testing.assert_allclose(worked_s[..., 0], [[2, 2], [2, 2], [1, 1], [1, 1]])


class Busy(torch.optim.SGD):
    """Its step takes 10 ms of a core."""

    def step(self, closure: None = None) -> None:
        super().step(closure)
        until = time.thread_time() + 0.01
        while time.thread_time() < until:
            pass


def three_in_pairs(group: ProcessGroup) -> tuple[Profile, bool]:
    torch.manual_seed(group.rank())
    model = Two()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = calibrate(
        model,
        loss,
        BATCH,
        optimizer=lambda parameters: Busy(parameters, lr=0.1),
        group=group,
        local_size=3,
        steps=3,
        bucket_bytes=1,
    )
    return found, all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_exchange_is_told_from_the_update_that_it_is_around() -> None:
    """Of three workers the last has nobody; the model goes in two parts, each with a step of its own."""
    (found, is_untouched), *others = run_ranks(3, three_in_pairs)
    assert is_untouched
    assert all(is_theirs for _, is_theirs in others)
    assert sum(found.work.update_s) >= 0.02
    assert found.work.mix_s_per_byte > 0
    assert found.work.show_s_per_byte > 0


def test_a_worker_alone_averages_with_a_copy() -> None:
    found = calibrate(Two(), loss, BATCH, link=Link(), steps=2)
    assert found.work.show_s_per_byte == found.work.mix_s_per_byte > 0
