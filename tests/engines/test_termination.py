"""SIGTERM: a rank saves a whole state, whatever it was doing, and then ends as it would have."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from gossamer import decentralize
from gossamer.engines import NeighborLost
from loops import flat, sgd, take_steps
from problems import network
from ranks import run_ranks
from worlds import free_port, in_processes


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def saved_params(folder: Path, rank: int, size: int) -> Tensor:
    """The trained parameters in a file, in the order of the model's."""
    state = torch.load(folder / f"rank-{rank}-of-{size}.pt", weights_only=False)
    return torch.cat([replica["params"].double() for replica in state["replicas"]])


class OfTheUser:
    """A handler that was there before; it looks at what has been saved by the time it is called."""

    def __init__(self, folder: Path, rank: int = 0, size: int = 1) -> None:
        self.saved: list[Tensor] = []
        self._read = partial(saved_params, folder, rank, size)
        signal.signal(signal.SIGTERM, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        assert number == signal.SIGTERM
        self.saved.append(self._read())


@pytest.fixture(autouse=True)
def _handler_of_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


# ---- when it comes ------------------------------------------------------------------------------------------


class Interrupted(torch.optim.SGD):
    """Is sent the signal in the middle of a step, when some of its parameters have changed."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        for number, param in enumerate(params):
            param.sub_(param.grad, alpha=0.1)
            if number == 0:
                terminate()


@pytest.mark.parametrize("bucket_mib", [25.0, 1e-5], ids=["whole", "in-parts"])
def test_in_the_middle_of_a_step_it_waits_for_the_end_of_the_step(bucket_mib: float, tmp_path: Path) -> None:
    user, model = OfTheUser(tmp_path), network()
    optimizer = Interrupted(model.parameters())
    with decentralize(model, optimizer, rescue=tmp_path, bucket_mib=bucket_mib) as training:
        for step in range(2):
            take_steps(training, range(step, step + 1))
            assert torch.equal(user.saved[-1], flat(model)), "all of it, and before the user's own handler was called"
    assert len(user.saved) == 2
    assert signal.getsignal(signal.SIGTERM) is user, "given back"


def test_between_steps_it_saves_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    user, model = OfTheUser(tmp_path), network()
    with decentralize(model, sgd(model), rescue=tmp_path) as training:
        take_steps(training, range(3))
        terminate()
        (saved,) = user.saved
        assert torch.equal(saved, flat(model))
    said = f"SIGTERM: the state of rank 0 after step 3 is in {tmp_path / 'rank-0-of-1.pt'}\n"
    assert said in capfd.readouterr().err


def test_a_step_that_failed_does_not_hold_it_back(tmp_path: Path) -> None:
    class Broken(torch.optim.SGD):
        def step(self, closure: None = None) -> None:
            raise KeyError("no memory")

    user, model = OfTheUser(tmp_path), network()
    with decentralize(model, Broken(model.parameters()), rescue=tmp_path) as training:
        with pytest.raises(KeyError):
            take_steps(training, range(1))
        terminate()
        assert len(user.saved) == 1


def test_while_a_checkpoint_is_written_it_waits_until_that_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into the same file, even."""
    user, model = OfTheUser(tmp_path), network()
    save, calls = torch.save, []

    def interrupted(state: Any, path: Path) -> None:
        calls.append(path)
        save(state, path)
        if len(calls) == 1:
            terminate()
            assert not user.saved

    monkeypatch.setattr(torch, "save", interrupted)
    with decentralize(model, sgd(model), rescue=tmp_path) as training:
        take_steps(training, range(2))
        training.save(tmp_path)
        assert torch.equal(user.saved[0], flat(model))
    assert len(calls) == 2


def _inside_the_average(group: ProcessGroup, folder: Path) -> tuple[bool, bool, bool]:
    user, model = OfTheUser(folder, group.rank(), group.size()), network()
    with decentralize(model, sgd(model), topology="ring", rescue=folder) as training:
        take_steps(training, range(3))
        own = flat(model)
        with training.averaged():
            average = flat(model)
            terminate()
            is_average_still = torch.equal(flat(model), average)
        take_steps(training, range(3, 5))  # nothing was lost by it
    return torch.equal(user.saved[0], own), not torch.equal(own, average), is_average_still


def test_inside_the_average_it_saves_the_ranks_own_parameters(tmp_path: Path) -> None:
    assert in_processes(2, partial(_inside_the_average, folder=tmp_path)) == dict.fromkeys(range(2), (True, True, True))


class Ended(Exception):
    """Raised by a handler."""


def _waits_for_a_neighbour_that_hangs(group: ProcessGroup, folder: Path) -> str:
    def ends(*_: Any) -> None:
        raise Ended

    signal.signal(signal.SIGTERM, ends)
    model, file = network(), folder / "rank-0-of-2.pt"
    try:
        with decentralize(model, sgd(model), topology="ring", timeout_s=90, rescue=folder) as training:
            take_steps(training, range(2))
            if training.rank == 0:
                threading.Timer(0.5, terminate).start()
                take_steps(training, range(2, 9))
            _poll(file.exists)
    except Ended:
        return f"saved: {torch.equal(saved_params(folder, 0, 2), flat(model))}"
    except NeighborLost as lost:
        return str(lost)
    return "nothing happened"


def _poll(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < deadline, "not within a minute"
        time.sleep(0.05)


def test_in_a_step_that_waits_for_a_neighbour_it_does_not_wait_with_it(tmp_path: Path) -> None:
    told = in_processes(2, partial(_waits_for_a_neighbour_that_hangs, folder=tmp_path))
    assert told == {0: "saved: True", 1: "rank 0 has ended with Ended"}


# ---- whom it concerns ---------------------------------------------------------------------------------------


def _waits(there: Connection) -> None:
    there.send("awake")
    time.sleep(60)


def test_a_forked_process_has_nothing_to_save(tmp_path: Path) -> None:
    """As the workers of a DataLoader are, when it ends them."""
    model = network()
    with decentralize(model, sgd(model), rescue=tmp_path):
        here, there = get_context("fork").Pipe()
        child = get_context("fork").Process(target=_waits, args=(there,))
        child.start()
        assert here.recv() == "awake"  # Python forgets signals that come while it forks
        child.terminate()
        child.join()
    assert child.exitcode == -signal.SIGTERM
    assert not list(tmp_path.iterdir())


def test_two_trainings_both_save_and_may_end_in_any_order(tmp_path: Path) -> None:
    user = OfTheUser(tmp_path / "one")
    one, other = network(), network()
    first = decentralize(one, sgd(one), rescue=tmp_path / "one")
    second = decentralize(other, sgd(other), rescue=tmp_path / "other")
    take_steps(first, range(2))
    terminate()
    assert torch.equal(saved_params(tmp_path / "one", 0, 1), flat(one))
    assert torch.equal(saved_params(tmp_path / "other", 0, 1), flat(other))
    first.close()
    shutil.rmtree(tmp_path / "other")
    terminate()
    assert torch.equal(saved_params(tmp_path / "other", 0, 1), flat(other))
    second.close()
    take_steps(first, range(2))
    terminate()
    assert len(user.saved) == 3
    assert not torch.equal(user.saved[-1], flat(one)), "nobody saves after the end"


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL, lambda *_: None])
def test_other_threads_and_trainings_without_a_folder_leave_it_alone(handler: Any, tmp_path: Path) -> None:
    signal.signal(signal.SIGTERM, handler)
    now = []

    def rank(group: ProcessGroup) -> None:
        model = network()
        with decentralize(model, sgd(model), group=group, topology="ring", rescue=tmp_path):
            now.append(signal.getsignal(signal.SIGTERM))

    run_ranks(2, rank)
    model = network()
    with decentralize(model, sgd(model)):
        now.append(signal.getsignal(signal.SIGTERM))
    assert now == [handler] * 3


def test_where_it_is_ignored_it_stays_ignored(tmp_path: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    model = network()
    with decentralize(model, sgd(model), rescue=tmp_path):
        terminate()
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_saved_ends_all_the_same(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    called = []
    signal.signal(signal.SIGTERM, lambda *_: called.append(1))
    (tmp_path / "file").touch()
    model = network()
    with decentralize(model, sgd(model), rescue=tmp_path / "file"):
        terminate()
    assert called == [1]
    assert "the state of rank 0 could not be saved: " in capfd.readouterr().err


# ---- torchrun -----------------------------------------------------------------------------------------------

SCRIPT = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import torch
from gossamer import decentralize
from gossamer.engines import NeighborLost
from loops import sgd, take_steps
from problems import network

torch.set_num_threads(1)
model = network()
with decentralize(model, sgd(model), topology="ring", rescue=sys.argv[2]) as training:
    for step in range(100_000):
        if (training.rank, step) == (2, 5):
            os.kill(os.getpid(), signal.SIGKILL)
        take_steps(training, range(step, step + 1))
"""


def test_torchrun_ends_all_when_one_is_killed_and_all_others_have_saved(tmp_path: Path) -> None:
    """And three workers go on from there."""
    (tmp_path / "script.py").write_text(SCRIPT)
    rescue = tmp_path / "rescue"
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--master-port", str(free_port())]
    done = subprocess.run(
        [*launch, str(tmp_path / "script.py"), str(Path(__file__).parents[1]), str(rescue)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode != 0
    assert sorted(file.name for file in rescue.iterdir()) == ["rank-0-of-3.pt", "rank-1-of-3.pt"]
    for rank in (0, 1):
        assert f"the state of rank {rank} after step" in done.stderr
        assert torch.load(rescue / f"rank-{rank}-of-3.pt", weights_only=False)["num_steps"] in (5, 6)
        assert saved_params(rescue, rank, 3).isfinite().all()

    shutil.copy(rescue / "rank-0-of-3.pt", rescue / "rank-2-of-3.pt")

    def go_on(group: ProcessGroup) -> tuple[int, float]:
        model = network()
        with decentralize(model, sgd(model), group=group, topology="ring") as training:
            training.load(rescue)
            take_steps(training, range(6, 20))
            return training.num_steps, training.consensus_distance()

    (num_steps, distance), *others = run_ranks(3, go_on)
    assert others == [(num_steps, distance)] * 2
    assert num_steps in (19, 20)
    assert 0 < distance < 0.1
