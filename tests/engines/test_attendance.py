"""Ranks with unequal numbers of steps come together; those that end, die or hang are named: nobody waits for ever."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import HashStore, ProcessGroup
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from gossamer import decentralize, topologies
from gossamer.engines import Decentralized, NeighborLost
from gossamer.engines.attendance import Attendance
from loops import Loop, backward, by_hand, everything, flat, sgd, take_steps
from problems import network
from ranks import run_ranks
from worlds import in_processes

BATCHES = (3, 5, 0, 7)
"""Of each of four ranks."""


def only_own(model: nn.Module, rank: int, step: int) -> None:
    """Gradients for as many steps as the rank has batches."""
    if step < BATCHES[rank]:
        backward(model, rank, step)


# ---- unequal numbers of steps -------------------------------------------------------------------------------


@pytest.mark.parametrize("bucket_mib", [25.0, 1e-4], ids=["whole", "in-parts"])
@pytest.mark.parametrize("topology", ["ring", "one-peer-exponential", "alternating-exponential-ring:local_size=2"])
@pytest.mark.parametrize("algorithm", ["d-psgd-overlapped", "d-psgd", "d-psgd-cta", "local-sgd:every=2", "all-reduce"])
def test_ranks_with_unequal_data_end_together(algorithm: str, topology: str, bucket_mib: float) -> None:
    """Whoever has no more batches goes on mixing, as a replica by hand does that has no gradient."""

    def rank(group: ProcessGroup) -> tuple[Tensor, int]:
        model = network()
        settings = {"topology": topology, "algorithm": algorithm, "timeout_s": 30, "bucket_mib": bucket_mib}
        with decentralize(model, sgd(model), group=group, **settings) as training:
            take_steps(training, range(BATCHES[group.rank()]))
        return flat(model), training.num_steps

    results = run_ranks(4, rank)
    assert [num_steps for _, num_steps in results] == [7] * 4
    expected = by_hand(Loop(backward=only_own), topologies.build(topology, 4), 7, algorithm)
    torch.testing.assert_close(torch.stack([trained for trained, _ in results]), expected, rtol=0, atol=1e-12)


def test_replicas_that_average_gradients_stay_equal_though_their_learning_rates_do_not() -> None:
    """A rank without data has no loop any more that would lower its learning rate; it ends with the others' model."""

    def decaying(optimizer: Optimizer) -> LRScheduler:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def rank(group: ProcessGroup) -> Tensor:
        model = network()
        optimizer = sgd(model)
        scheduler = decaying(optimizer)
        with decentralize(model, optimizer, group=group, algorithm="all-reduce", timeout_s=30) as training:
            for step in range(BATCHES[group.rank()]):
                take_steps(training, range(step, step + 1))
                scheduler.step()
        return flat(model)

    loop = Loop(backward=only_own, scheduler=decaying)
    expected = by_hand(loop, topologies.build("complete", 4), 7, "all-reduce")
    torch.testing.assert_close(torch.stack(run_ranks(4, rank)), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("algorithm", ["d-psgd-overlapped", "local-sgd:every=3"])
def test_epochs_of_unequal_length_with_an_evaluation_after_each(algorithm: str, tmp_path: Path) -> None:
    """All that needs all ranks brings them to the same step first."""

    def rank(group: ProcessGroup) -> tuple[list[Tensor], list[float], list[int]]:
        model = network()
        averages, distances, counts = [], [], []
        settings = {"topology": "ring", "algorithm": algorithm, "timeout_s": 30}
        with decentralize(model, sgd(model), group=group, **settings) as training:
            for epoch in range(3):
                take_steps(training, range(BATCHES[(group.rank() + epoch) % 4]))
                with training.averaged():
                    averages.append(flat(model))
                distances.append(training.consensus_distance())
                training.save(tmp_path)
                counts.append(training.num_steps)
        return averages, distances, counts

    averages, distances, counts = zip(*run_ranks(4, rank), strict=True)
    assert set(map(tuple, counts)) == {(7, 14, 21)}
    for of_rank, distance in zip(averages, distances, strict=True):
        assert distance == distances[0]
        for average, expected in zip(of_rank, averages[0], strict=True):
            assert torch.equal(average, expected)


def test_a_refused_step_does_not_count() -> None:
    """Rank 0 has a step refused and gives up its data: rank 1 must not wait for the step that never was."""

    def rank(group: ProcessGroup) -> int:
        model = network()
        with decentralize(model, sgd(model), group=group, topology="ring", timeout_s=30) as training:
            take_steps(training, range(2))
            if group.rank() == 0:
                with pytest.raises(ValueError, match="without a closure"):
                    training.optimizer.step(lambda: 0.0)
        return training.num_steps

    assert run_ranks(2, rank) == [2, 2]


def test_different_calls_on_different_ranks_are_refused_on_all() -> None:
    def rank(group: ProcessGroup) -> str:
        model = network()
        training = decentralize(model, sgd(model), group=group, topology="ring", timeout_s=30)
        with pytest.raises(ValueError, match="on all of them, in the same order") as caught:
            training.close() if group.rank() == 1 else training.consensus_distance()
        return str(caught.value)

    of_0, of_1 = run_ranks(2, rank)
    assert of_0.startswith("rank 0 is at consensus_distance() and rank 1 at close()")
    assert of_1.startswith("rank 1 is at close() and rank 0 at consensus_distance()")


def test_a_slow_rank_that_moves_is_not_given_up() -> None:
    """The first to come has made most steps; the last makes the others slowly, each within the timeout."""
    store = HashStore()

    def worker(rank: int, answered: list[int]) -> None:
        attendance = Attendance(store, rank, 2)
        for step in range(1, 9 if rank == 0 else 6):
            attendance.reach(step)
            if rank == 1:
                time.sleep(0.3)
        attendance.meet("here", lambda: answered.append(1), timeout_s=1.0)
        attendance.close()

    answered: list[list[int]] = [[], []]
    threads = [threading.Thread(target=worker, args=(rank, answered[rank])) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(steps) for steps in answered] == [0, 3]


# ---- a rank is lost -----------------------------------------------------------------------------------------


def lost_of(work: Callable[[Decentralized], Any], group: ProcessGroup, **settings: Any) -> NeighborLost | None:
    """What a rank is told when it has done its work, or could not."""
    model = network()
    try:
        with decentralize(model, sgd(model), group=group, **settings) as training:
            work(training)
    except NeighborLost as error:
        return error
    except KeyError:
        return None
    raise AssertionError("nothing happened")


@pytest.mark.parametrize("topology", ["ring", "one-peer-exponential", "complete"])
@pytest.mark.parametrize("algorithm", ["d-psgd-overlapped", "d-psgd"])
def test_a_rank_that_raises_is_named_and_the_state_of_the_others_rescued(
    algorithm: str, topology: str, tmp_path: Path
) -> None:
    """Also by rank 3, which has no more data and only answers."""
    settings = {"topology": topology, "algorithm": algorithm, "timeout_s": 1.0, "rescue": tmp_path}

    def work(training: Decentralized) -> None:
        for step in range(1 if training.rank == 3 else 9):
            if (training.rank, step) == (2, 4):
                raise KeyError("a batch is broken")
            take_steps(training, range(step, step + 1))

    errors = run_ranks(4, lambda group: lost_of(work, group, **settings))
    assert [error and error.rank for error in errors] == [2, 2, None, 2]
    for rank in (0, 1, 3):
        error = errors[rank]
        assert error is not None
        assert str(error).startswith("rank 2 has ended with KeyError: 'a batch is broken'")
        if rank != 3:
            assert str(error).endswith(f" of rank {rank} cannot complete; look at the log of rank 2")
        assert any(f"rank-{rank}-of-4.pt" in note for note in error.__notes__)

    assert len(list(tmp_path.iterdir())) == 3
    go_on_after_the_loss(tmp_path, lost=2, settings=settings)


def go_on_after_the_loss(folder: Path, lost: int, settings: dict[str, Any]) -> None:
    """Four workers again; the lost one begins as a copy of another. Wherever each was stopped, they find together."""
    shutil.copy(folder / "rank-0-of-4.pt", folder / f"rank-{lost}-of-4.pt")
    settings = settings | {"timeout_s": 20.0}  # nobody is lost here: a busy machine must not look like it

    def rank(group: ProcessGroup) -> tuple[int, int, float]:
        model = network()
        with decentralize(model, sgd(model), group=group, **settings) as training:
            training.load(folder)
            start = training.num_steps
            take_steps(training, range(20))
            return start, training.num_steps, training.consensus_distance()

    results = run_ranks(4, rank)
    assert len(set(results)) == 1
    start, end, distance = results[0]
    assert 4 <= start <= 6
    assert end == start + 20
    assert distance < 0.1


def test_a_rank_that_raises_is_known_at_once_where_others_wait_for_it() -> None:
    """Not by the timeout, but in its own words."""

    def work(training: Decentralized) -> None:
        if training.rank == 1:
            time.sleep(0.2)
            raise KeyError("a batch is broken")

    errors = run_ranks(3, lambda group: lost_of(work, group, topology="ring", timeout_s=60))
    assert [error and error.rank for error in errors] == [1, None, 1]
    assert all("has ended with KeyError: 'a batch is broken'" in str(errors[rank]) for rank in (0, 2))


@pytest.mark.parametrize("others_are", ["training", "done", "averaging"])
def test_a_rank_that_hangs_is_named_after_the_timeout(others_are: str, tmp_path: Path) -> None:
    everybody_knows = threading.Barrier(3)

    def work(training: Decentralized) -> None:
        take_steps(training, range(2))
        if training.rank == 1:
            everybody_knows.wait()
            raise KeyError("awake again")
        try:
            match others_are:
                case "training":
                    take_steps(training, range(2, 9))
                case "done":
                    training.close()
                case "averaging":
                    training.averaged().__enter__()
        finally:
            everybody_knows.wait()

    errors = run_ranks(3, lambda group: lost_of(work, group, topology="ring", timeout_s=1.0, rescue=tmp_path))
    assert [error and error.rank for error in errors] == [1, None, 1]
    for error in errors:
        assert error is None or "timeout of 1 s" in str(error) or "reports that rank 1 is lost" in str(error)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rank-0-of-3.pt", "rank-2-of-3.pt"]


def test_a_model_that_was_being_averaged_when_somebody_was_lost_has_its_own_parameters_back(tmp_path: Path) -> None:
    def rank(group: ProcessGroup) -> None:
        model = network()
        training = decentralize(model, sgd(model), group=group, topology="ring", timeout_s=1.0, rescue=tmp_path)
        own = take_steps(training, range(2))
        if group.rank() == 1:
            training._meet("averaged()")  # it comes, and is gone before the average
            group.abort()
            return
        with pytest.raises(NeighborLost), training.averaged():
            pass
        assert torch.equal(everything(model), own)
        saved = torch.load(tmp_path / f"rank-{group.rank()}-of-3.pt", weights_only=False)
        assert torch.equal(saved["replicas"][0]["params"], flat(model))

    run_ranks(3, rank)


def _killed_in_step_3(group: ProcessGroup, rescue: Path) -> tuple[int, str, list[str]]:
    model = network()
    try:
        with decentralize(model, sgd(model), topology="ring", timeout_s=60, rescue=rescue) as training:
            for step in range(100 if training.rank != 3 else 1):
                if (training.rank, step) == (1, 3):
                    os.kill(os.getpid(), signal.SIGKILL)
                take_steps(training, range(step, step + 1))
    except NeighborLost as lost:
        return lost.rank, str(lost), lost.__notes__
    return -1, "nothing happened", []


def test_a_killed_process_is_named_at_once_and_the_state_of_the_others_rescued(tmp_path: Path) -> None:
    """Rank 3 has no more data and only answers. The group is torch's default one."""
    told = in_processes(4, partial(_killed_in_step_3, rescue=tmp_path))
    assert {rank: culprit for rank, (culprit, _, _) in told.items()} == {0: 1, 2: 1, 3: 1}
    for rank, (_, message, notes) in told.items():
        assert "rank 1" in message
        assert "silent for the timeout" not in message
        path = tmp_path / f"rank-{rank}-of-4.pt"
        assert str(path) in notes[0]
        assert torch.load(path, weights_only=False)["num_steps"] in (3, 4, 5)  # the farther from it, the more


def _alone_with_the_store(group: ProcessGroup) -> tuple[int, str]:
    model = network()
    try:
        with decentralize(model, sgd(model), topology="ring", timeout_s=60) as training:
            take_steps(training, range(2))
    except NeighborLost as lost:
        return lost.rank, str(lost)
    return -1, f"ended after {training.num_steps} steps"


def test_processes_of_the_default_group_end_in_peace() -> None:
    assert in_processes(2, _alone_with_the_store) == dict.fromkeys((0, 1), (-1, "ended after 2 steps"))
