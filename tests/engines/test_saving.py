"""Stopped at any step and taken up again in fresh models, a training is bit by bit the one that never stopped."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from gossamer import decentralize
from gossamer.engines import Decentralized
from gossamer.optim import AccumAdam
from loops import everything, sgd, take_steps
from problems import network
from ranks import run_ranks
from trajectories import perturbed
from worlds import in_processes

N, STEPS = 4, 8
STOPS = (0, 1, 3, 6, STEPS)
"""Before the first step, after it, in the middle of a cycle, after one, at the end."""

SETTINGS: dict[str, dict[str, Any]] = {
    "overlapped": {"topology": "one-peer-exponential"},
    "overlapped in parts": {"topology": "ring", "bucket_mib": 1e-4},
    "overlapped in bfloat16": {"topology": "ring", "wire_dtype": torch.bfloat16},
    "two steps behind": {"topology": "one-peer-exponential", "algorithm": "d-psgd-overlapped:behind=2"},
    "three steps behind in parts": {
        "topology": "ring",
        "algorithm": "d-psgd-overlapped:behind=3",
        "bucket_mib": 1e-4,
        "wire_dtype": torch.bfloat16,
    },
    "groups": {"topology": "alternating-exponential-ring:local_size=2", "bucket_mib": 1e-4},
    "adapt then combine": {"topology": "base-3", "algorithm": "d-psgd"},
    "combine then adapt": {"topology": "exponential", "algorithm": "d-psgd-cta"},
    "local": {"topology": "one-peer-exponential", "algorithm": "local-sgd:every=3"},
    "all-reduce": {"algorithm": "all-reduce"},
    "gradient tracking": {"topology": "ring", "algorithm": "gradient-tracking", "bucket_mib": 1e-4},
    "quasi-global momentum": {"topology": "ring", "algorithm": "qg-momentum"},
    "D²": {"topology": "ring", "algorithm": "d2"},
    "GUT": {"topology": "ring", "algorithm": "gut"},
    "push-sum": {"topology": "directed-random:degree=2", "algorithm": "push-sum"},
    "compressed": {"topology": "ring", "algorithm": "choco:random_k=0.2"},
    "outer steps": {"algorithm": "diloco:every=3", "bucket_mib": 1e-4},
    "ada": {"topology": "ada", "steps_per_epoch": 2, "epochs": 4},
    "random": {"topology": "random-matching", "seed": 3},
}


def model_of(moved_by: float = 0.0) -> nn.Module:
    """With a parameter that is not trained."""
    model = perturbed(network(), by=moved_by)
    model[3].bias.requires_grad_(False)
    return model


def begin(model: nn.Module, group: ProcessGroup, **settings: Any) -> Decentralized:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return decentralize(model, AccumAdam(trained, lr=0.01, window=3), group=group, timeout_s=30, **settings)


@pytest.mark.parametrize("name", SETTINGS)
def test_stopped_at_any_step(name: str, tmp_path: Path) -> None:
    def begin_anew(group: ProcessGroup, moved_by: float = 0.0) -> Decentralized:
        return begin(model_of(moved_by), group, **SETTINGS[name])

    def rank(group: ProcessGroup) -> None:
        with begin_anew(group) as never_stopped:
            expected = take_steps(never_stopped, range(STEPS))
        with begin_anew(group) as saved_on_the_way:
            done = 0
            for stop in STOPS:
                take_steps(saved_on_the_way, range(done, stop))
                saved_on_the_way.save(tmp_path / str(stop))
                done = stop
        assert torch.equal(everything(saved_on_the_way.model), expected), "saving changes nothing"
        for stop in STOPS:
            with begin_anew(group, moved_by=1.0) as resumed:
                resumed.load(tmp_path / str(stop))
                assert torch.equal(take_steps(resumed, range(stop, STEPS)), expected), f"stopped after step {stop}"
                assert resumed.num_steps == STEPS
                assert resumed.bytes_sent == never_stopped.bytes_sent

    run_ranks(N, rank)


@pytest.mark.parametrize("behind", [1, 2])
def test_back_to_an_earlier_state_in_the_same_training(behind: int, tmp_path: Path) -> None:
    """With exchanges under way when the state is loaded."""

    def rank(group: ProcessGroup) -> tuple[Tensor, Tensor]:
        with begin(model_of(), group, topology="ring", algorithm=f"d-psgd-overlapped:behind={behind}") as training:
            take_steps(training, range(2))
            training.save(tmp_path)
            first = take_steps(training, range(2, 5))
            training.load(tmp_path)
            again = take_steps(training, range(2, 5))
            with training.averaged():
                pass
            take_steps(training, range(5, 7 if group.rank() else 6))  # unequal numbers, counted anew
        return first, again

    for first, again in run_ranks(3, rank):
        assert torch.equal(first, again)


def test_a_training_goes_on_another_number_of_steps_behind(tmp_path: Path) -> None:
    """What was under way is taken in: the mean stays what it would have been, and replicas do not leave it."""

    def rank(group: ProcessGroup, start: int, then: int) -> tuple[Tensor, Tensor, int]:
        def begin_behind(behind: int) -> Decentralized:
            return begin(model_of(), group, topology="ring", algorithm=f"d-psgd-overlapped:behind={behind}")

        folder = tmp_path / f"{start} then {then}"
        with begin_behind(start) as training:
            before = take_steps(training, range(4))
            training.save(folder)
        with begin_behind(then) as training:
            training.load(folder)
            training.optimizer.param_groups[0]["lr"] = 0.0
            after = take_steps(training, range(4, 10))
            return before, after, len(training.replicas[0].pending)

    for start, then in ((1, 2), (2, 1), (3, 2)):
        results = run_ranks(3, partial(rank, start=start, then=then))
        before, after = (torch.stack([result[which] for result in results])[:, :35] for which in range(2))
        torch.testing.assert_close(after.mean(0), before.mean(0), rtol=0, atol=1e-12)
        assert (after - after.mean(0)).norm() < (before - before.mean(0)).norm()
        assert {pending for _, _, pending in results} == {then}


def test_a_file_a_rank(tmp_path: Path) -> None:
    def rank(group: ProcessGroup) -> str:
        with begin(model_of(), group, topology="ring") as training:
            take_steps(training, range(3))
            path = training.save(tmp_path / "made" / "here")
            assert torch.load(path, weights_only=False)["num_steps"] == 3
            return path.name

    names = run_ranks(2, rank)
    assert names == ["rank-0-of-2.pt", "rank-1-of-2.pt"]
    assert sorted(file.name for file in (tmp_path / "made" / "here").iterdir()) == names, "and nothing half written"


def _drops_and_resumes(group: ProcessGroup, folder: Path) -> tuple[list[float], list[float]]:
    """With dropout from torch's own random numbers, and a schedule of the user's own."""

    def begin(seed: int) -> tuple[Decentralized, torch.optim.lr_scheduler.LRScheduler]:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(5, 7), nn.Dropout(0.5), nn.Linear(7, 3)).double()
        optimizer = sgd(model)
        return decentralize(model, optimizer, bucket_mib=1e-4), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)

    def train(training: Decentralized, scheduler: torch.optim.lr_scheduler.LRScheduler, steps: range) -> Tensor:
        for step in steps:
            take_steps(training, range(step, step + 1))
            scheduler.step()
        return everything(training.model)

    training, scheduler = begin(group.rank())
    with training:
        train(training, scheduler, range(3))
        training.save(folder)
        schedule = scheduler.state_dict()
        whole = train(training, scheduler, range(3, 6))
    training, scheduler = begin(100 + group.rank())
    with training:
        training.load(folder)
        scheduler.load_state_dict(schedule)
        return whole.tolist(), train(training, scheduler, range(3, 6)).tolist()


def test_dropout_goes_on_with_the_same_random_numbers(tmp_path: Path) -> None:
    """True processes: ranks that are threads share torch's generator. The group is torch's default one."""
    results = in_processes(2, partial(_drops_and_resumes, folder=tmp_path))
    assert set(results) == {0, 1}
    for whole, resumed in results.values():
        assert whole == resumed
    assert results[0][0] != results[1][0], "different random numbers on the two"


# ---- refusals -----------------------------------------------------------------------------------------------


def test_a_folder_of_another_world_or_model_is_refused(tmp_path: Path) -> None:
    def save(group: ProcessGroup) -> None:
        with begin(model_of(), group, topology="ring") as training:
            take_steps(training, range(2))
            training.save(tmp_path)

    run_ranks(3, save)
    empty = tmp_path / "empty"
    shutil.copy(tmp_path / "rank-0-of-3.pt", tmp_path / "rank-0-of-1.pt")

    def load(group: ProcessGroup) -> None:
        with begin(model_of(), group) as training:
            start = everything(training.model)
            with pytest.raises(
                ValueError, match=r"no rank-\d-of-2.pt in .*, only rank-0-of-1.pt, .*as many workers as then"
            ):
                training.load(tmp_path)
            with pytest.raises(ValueError, match=r"no rank-\d-of-2.pt in .*empty: give the folder"):
                training.load(empty)
            assert torch.equal(everything(training.model), start)

    def load_parts(group: ProcessGroup) -> None:
        told = r"parts of \[70\] parameters and this one of \[35, .*the same optimizer and bucket_mib"
        with begin(model_of(), group, bucket_mib=1e-5) as training, pytest.raises(ValueError, match=told):
            training.load(tmp_path)

    run_ranks(2, load)
    run_ranks(1, load_parts)


def refusals(load: Callable[[Decentralized], None], size: int) -> list[str]:
    """What each rank is told; nothing has changed by then, and the training goes on."""

    def rank(group: ProcessGroup) -> str:
        with begin(model_of(), group, topology="ring") as training:
            start = take_steps(training, range(1))
            with pytest.raises(ValueError) as caught:  # noqa: PT011 - the callers match
                load(training)
            assert torch.equal(everything(training.model), start)
            assert training.num_steps == 1
            take_steps(training, range(1, 3))
            return str(caught.value)

    return run_ranks(size, rank)


def test_files_of_different_steps_are_refused_on_all_ranks(tmp_path: Path) -> None:
    def save(group: ProcessGroup) -> None:
        with begin(model_of(), group, topology="ring") as training:
            for steps in (2, 5):
                take_steps(training, range(training.num_steps, steps))
                training.save(tmp_path / str(steps))

    run_ranks(3, save)
    told = refusals(lambda training: training.load(tmp_path / ("5" if training.rank == 1 else "2")), 3)
    assert set(told) == {
        "the states to load are not of one moment: step 2 on rank 0, 2; step 5 on rank 1: give all ranks what one "
        "save() has written, or what was rescued at the end of one training"
    }


def test_a_file_that_one_rank_lacks_is_missed_on_all(tmp_path: Path) -> None:
    def save(group: ProcessGroup) -> None:
        with begin(model_of(), group, topology="ring") as training:
            training.save(tmp_path)

    run_ranks(3, save)
    (tmp_path / "rank-1-of-3.pt").unlink()
    for told in refusals(lambda training: training.load(tmp_path), 3):
        assert told.startswith(f"there is no rank-1-of-3.pt in {tmp_path}, only rank-0-of-3.pt, rank-2-of-3.pt: ")


def test_files_that_were_rescued_from_two_trainings_are_refused(tmp_path: Path) -> None:
    """A rescued file that another rank's crash has left long ago, beside one of now."""

    def save(group: ProcessGroup, num_steps: int) -> None:
        with begin(model_of(), group, topology="ring") as training:
            take_steps(training, range(num_steps))
            torch.save(training._own_state(), tmp_path / f"{group.rank()}-after-{num_steps}.pt")

    for num_steps in (2, 5):
        run_ranks(2, partial(save, num_steps=num_steps))

    def load(training: Decentralized) -> None:
        path = tmp_path / f"{training.rank}-after-{(2, 5)[training.rank]}.pt"
        training.load_state_dict(torch.load(path, weights_only=False))

    for told in refusals(load, 2):
        assert told.startswith("the states to load are not of one moment: step 2 on rank 0; step 5 on rank 1: ")


def test_inside_the_average_nothing_is_saved_or_loaded(tmp_path: Path) -> None:
    def rank(group: ProcessGroup) -> None:
        with begin(model_of(), group, topology="ring") as training:
            training.save(tmp_path)
            with training.averaged():
                with pytest.raises(ValueError, match=r"save\(\) inside averaged\(\).*model.state_dict\(\)"):
                    training.save(tmp_path)
                with pytest.raises(ValueError, match=r"load\(\) inside averaged\(\)"):
                    training.load(tmp_path)

    run_ranks(2, rank)


def test_the_average_is_saved_as_a_plain_model(tmp_path: Path) -> None:
    def rank(group: ProcessGroup) -> Tensor:
        model = network()
        with decentralize(model, sgd(model), group=group, topology="ring") as training:
            take_steps(training, range(3))
            with training.averaged():
                if group.rank() == 0:
                    torch.save(model.state_dict(), tmp_path / "model.pt")
            return everything(model)

    mean = torch.stack(run_ranks(3, rank)).mean(0)
    plain = network()
    plain.load_state_dict(torch.load(tmp_path / "model.pt"))
    torch.testing.assert_close(everything(plain), mean, rtol=0, atol=1e-12)
