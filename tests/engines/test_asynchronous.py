"""AD-PSGD in a loop of the user's own: nobody waits, nothing is lost, and the end is an average. Ranks are threads."""

import copy
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from gossamer import algorithms, decentralize, topologies
from gossamer.engines import AsynchronousPairs, StackedEngine, SynchronousEngine
from loops import backward, everything, flat, sgd, take_steps
from problems import Point, network, network_loss
from ranks import run_ranks

SIZE = 4


def begin(model: nn.Module, optimizer: Optimizer, group: ProcessGroup, **settings: Any) -> AsynchronousPairs:
    training = decentralize(model, optimizer, group=group, **{"algorithm": "ad-psgd", "timeout_s": 60} | settings)
    assert isinstance(training, AsynchronousPairs)
    return training


def given_gradients(rank: int) -> Iterator[Tensor]:
    """Which do not depend on the parameters: an optimizer then makes of them the same steps wherever it stands."""
    generator = torch.Generator().manual_seed(rank)
    while True:
        yield torch.randn(40, generator=generator, dtype=torch.float64)


def step_with(gradients: Iterator[Tensor], model: Point, optimizer: Optimizer) -> None:
    model.x.grad = next(gradients)
    optimizer.step()


def floats(model: nn.Module) -> Tensor:
    """Parameters and buffers that can be averaged, in a row."""
    return torch.cat([tensor.flatten() for tensor in model.state_dict().values() if tensor.is_floating_point()]).clone()


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
}


@pytest.mark.parametrize(
    ("optimizer", "size", "topology"),
    [("sgd", 2, "ring"), ("momentum", 4, "bipartite-exponential"), ("adam", 4, "ring"), ("sgd", 5, "star")],
)
def test_hundreds_of_swaps_and_gradients_in_parallel_keep_the_sum(optimizer: str, size: int, topology: str) -> None:
    """The mean of all replicas is that of as many optimizers by themselves, to the last digits; so is their state."""

    def rank(group: ProcessGroup) -> tuple[Tensor, Tensor, Optimizer, int]:
        model, gradients = Point(40), given_gradients(group.rank())
        stepping = OPTIMIZERS[optimizer](model)
        with begin(model, stepping, group, topology=topology, seed=1) as training:
            while training.live.num_mixings < 100 or training.num_steps < 100:
                step_with(gradients, model, stepping)
            with training.averaged() as averaged:
                mean = averaged.x.detach().clone()
        return model.x.detach().clone(), mean, stepping, training.num_steps

    trained = run_ranks(size, rank)
    alone = []
    for each, (*_, num_steps) in enumerate(trained):
        model, gradients = Point(40), given_gradients(each)
        by_itself = OPTIMIZERS[optimizer](model)
        for _ in range(num_steps):
            step_with(gradients, model, by_itself)
        alone.append((model.x.detach(), by_itself))
    expected = torch.stack([x for x, _ in alone]).mean(0)
    for (_, by_itself), (end, mean, stepping, _) in zip(alone, trained, strict=True):
        torch.testing.assert_close(mean, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(end, expected, rtol=0, atol=1e-12)
        state, expected_state = (each.state_dict()["state"].get(0, {}) for each in (stepping, by_itself))
        assert state.keys() == expected_state.keys()
        for name in state:
            assert state[name] is expected_state[name] is None or torch.equal(state[name], expected_state[name]), name


def test_models_that_have_come_together_are_of_one_moment() -> None:
    """Their mean is that of as many optimizers by themselves, whatever is swapped before and after."""

    def rank(group: ProcessGroup) -> list[Tensor]:
        model, gradients, seen = Point(40), given_gradients(group.rank()), []
        stepping = OPTIMIZERS["momentum"](model)
        with begin(model, stepping, group, topology="ring", seed=1) as training:
            for num_steps in (20 + group.rank(), 50):
                while training.num_steps < num_steps:
                    step_with(gradients, model, stepping)
                training.come_together()
                seen.append(model.x.detach().clone())
        return seen

    trained = run_ranks(SIZE, rank)
    for moment, first in enumerate((20, 50)):
        alone = []
        for each in range(SIZE):
            model, gradients = Point(40), given_gradients(each)
            stepping = OPTIMIZERS["momentum"](model)
            for _ in range(first + each * (moment == 0)):
                step_with(gradients, model, stepping)
            alone.append(model.x.detach())
        together = torch.stack([seen[moment] for seen in trained])
        torch.testing.assert_close(together.mean(0), torch.stack(alone).mean(0), rtol=0, atol=1e-12)
        assert together.std(0).max() > 0, "they are no average"


def test_one_worker_alone_is_the_bare_optimizer() -> None:
    def rank(group: ProcessGroup) -> Tensor:
        model = network()
        with begin(model, sgd(model), group) as training:
            return take_steps(training, range(10))

    model = network()
    optimizer = sgd(model)
    for step in range(10):
        optimizer.zero_grad()
        backward(model, 0, step)
        optimizer.step()
    assert torch.equal(run_ranks(1, rank)[0], everything(model))


def test_four_workers_find_what_each_knows_a_quarter_of() -> None:
    """The loss of each is a bowl in a quarter of the coordinates and flat in all others. They go on until all know."""
    optimum = torch.linspace(-1, 1, 8, dtype=torch.float64)
    near = [False] * SIZE

    def rank(group: ProcessGroup) -> tuple[Tensor, float]:
        model = Point(8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        mine = slice(2 * group.rank(), 2 * group.rank() + 2)
        with begin(model, optimizer, group, topology="ring") as training:
            while not all(near):
                optimizer.zero_grad()
                (model(optimum)[mine].square().sum() / 2).backward()
                optimizer.step()
                near[group.rank()] = bool((model.x.detach() - optimum).abs().max() < 1e-4)
            distance = training.consensus_distance()
        return model.x.detach(), distance

    for x, distance in run_ranks(SIZE, rank):
        torch.testing.assert_close(x, optimum, rtol=0, atol=1e-3)
        assert distance < 1e-3


@pytest.mark.parametrize("slow", [0, 1], ids=["active", "passive"])
def test_nobody_waits_for_a_worker_that_is_as_slow_as_can_be(slow: int) -> None:
    """It ends its first gradient when the others have done all the rest, and they have averaged with it meanwhile."""
    num_batches = 120
    all_others_are_done = threading.Barrier(SIZE)

    def rank(group: ProcessGroup) -> tuple[list[int], dict[int, int], Tensor]:
        model = network()
        optimizer = sgd(model)
        done = []
        first = threading.Event()
        with begin(model, optimizer, group, topology="ring") as training:
            if group.rank() != slow:
                while not training._store.check(["slow has begun"]):
                    first.wait(0.01)
            for number in training.share(num_batches):
                if group.rank() == slow:
                    training._store.set("slow has begun", "")
                    all_others_are_done.wait()
                time.sleep(0.002)  # time for swaps
                take_steps(training, range(number, number + 1))
                done.append(number)
            if group.rank() != slow:
                all_others_are_done.wait()
        return done, training.staleness, floats(model)

    results = run_ranks(SIZE, rank)
    assert sorted(number for done, _, _ in results for number in done) == list(range(num_batches))
    done, staleness, _ = results[slow]
    assert len(done) == 1
    (stale,) = staleness
    assert stale > 0
    for _, _, end in results:
        assert torch.equal(end, results[0][2])


def test_workers_may_come_to_the_end_in_any_order_with_any_number_of_steps() -> None:
    """The first has no steps at all and is there at once; each of the others comes later. Twice, on one group."""

    def rank(group: ProcessGroup) -> list[Tensor]:
        ends = []
        for order in (1, -1):
            model = network()
            with begin(model, sgd(model), group) as training:
                place = group.rank() if order == 1 else SIZE - 1 - group.rank()
                time.sleep(0.02 * place)
                take_steps(training, range(5 * place))
            training.close()  # once more does nothing
            ends.append(floats(model))
        return ends

    before = set(threading.enumerate())
    results = run_ranks(SIZE, rank)
    for ends in results:
        for end, expected in zip(ends, results[0], strict=True):
            assert torch.equal(end, expected)
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name.startswith("gossamer-")]


def test_a_worker_that_fails_is_left_behind() -> None:
    """And its partners are told, in their loops."""

    def fail(model: nn.Module, group: ProcessGroup) -> None:
        with begin(model, sgd(model), group, topology="ring") as training:
            take_steps(training, range(3))
            raise KeyError("a batch is broken")

    def rank(group: ProcessGroup) -> tuple[Tensor, dict[int, str], str]:
        model = network()
        if group.rank() == 2:
            with pytest.raises(KeyError, match="a batch is broken"):
                fail(model, group)
            return floats(model), {}, ""
        told = ""
        with begin(model, sgd(model), group, topology="ring") as training:
            while group.rank() != 0 and not told:  # rank 0 is no partner of it
                try:
                    take_steps(training, range(3))
                except RuntimeWarning as warning:  # warnings are errors in these tests
                    told = str(warning)
        return floats(model), training.lost, told

    results = run_ranks(SIZE, rank)
    assert [list(lost) for _, lost, _ in results] == [[], [2], [], [2]]
    for end, _, told in (results[0], results[1], results[3]):
        assert torch.equal(end, results[0][0])
        assert not told or "rank 2 is lost, and training goes on without it: KeyError: 'a batch is broken'" in told


def test_averaged_goes_back_and_training_goes_on(tmp_path: Path) -> None:
    def rank(group: ProcessGroup) -> tuple[Tensor, Tensor]:
        model = network()
        with begin(model, sgd(model), group) as training:
            take_steps(training, range(group.rank() + 3))
            with training.averaged() as averaged:
                mean = floats(averaged)
                with pytest.raises(ValueError, match=r"optimizer\.step\(\) inside averaged"):
                    training.optimizer.step()
            training.gossip.pause()
            own = floats(model)
            assert not torch.equal(own, mean)
            torch.testing.assert_close(training._mean(own.clone()), mean, rtol=0, atol=1e-12)
            training.gossip.resume()
            take_steps(training, range(3))
        return mean, floats(model)

    for mean, end in (results := run_ranks(SIZE, rank)):
        assert torch.equal(mean, results[0][0])
        assert torch.equal(end, results[0][1])


def test_saved_and_loaded(tmp_path: Path) -> None:
    """Into other models on fresh workers: parameters, buffers, momentum and steps are those of the rank that saved."""

    def rank(group: ProcessGroup) -> None:
        model = network()
        with begin(model, sgd(model), group) as training:
            take_steps(training, range(4 + group.rank()))
            training.save(tmp_path)
            saved = copy.deepcopy(torch.load(tmp_path / f"rank-{group.rank()}-of-{SIZE}.pt", weights_only=False))
            take_steps(training, range(3))
        other = network()
        with begin(other, sgd(other), group) as again:
            take_steps(again, range(2))
            again.load(tmp_path)
            assert again.num_steps == 4 + group.rank()
            assert torch.equal(flat(other), saved["replicas"][0]["params"])
            state = again.optimizer.state_dict()["state"]
            for number, expected in saved["optimizer"]["state"].items():
                assert torch.equal(state[number]["momentum_buffer"], expected["momentum_buffer"])
            mean = again._mean(torch.stack([flat(other)]))
            take_steps(again, range(0))
        torch.testing.assert_close(flat(other), mean[0], rtol=0, atol=1e-12)  # nothing of before the loading is left

    run_ranks(SIZE, rank)


def test_figures_and_scalars() -> None:
    class Writer:
        def __init__(self) -> None:
            self.written: list[tuple[str, int]] = []

        def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
            self.written.append((tag, global_step))

    def rank(group: ProcessGroup) -> tuple[dict[str, float], dict[int, int], list[tuple[str, int]]]:
        model, writer = network(), Writer()
        with begin(model, sgd(model), group, topology="ring") as training:
            training.report_to(writer if group.rank() == 0 else None, every=10)
            take_steps(training, range(25))
        with pytest.raises(ValueError, match="every=0"):
            training.report_to(writer, every=0)
        return training.metrics(), training.staleness, writer.written

    results = run_ranks(SIZE, rank)
    model_bytes = 8 * flat(network()).numel()
    for metrics, staleness, written in results:
        assert metrics["steps"] == sum(staleness.values()) == 25
        assert metrics["staleness_max"] == max(staleness)
        assert metrics["bytes_sent"] == model_bytes * metrics["mixings"]
        assert metrics["lost"] == 0
        assert bool(written) == (metrics is results[0][0])
    tags = {tag for tag, _ in results[0][2]}
    assert tags == {f"gossamer/{name}" for name in ("staleness_mean", "staleness_p95", "waited_s", "bytes_sent")}
    assert sum(metrics["mixings"] for metrics, _, _ in results) % 2 == 0  # a swap is of two


def test_several_types_and_a_smaller_one_on_the_wire() -> None:
    def rank(group: ProcessGroup) -> Tensor:
        model = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 2).double()})
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with begin(model, optimizer, group, wire_dtype=torch.bfloat16):
            for _ in range(30):
                for parameter in model.parameters():
                    parameter.grad = torch.full_like(parameter, float(group.rank()))
                optimizer.step()
        return flat(model)

    for end in run_ranks(SIZE, rank):
        torch.testing.assert_close(end, torch.full((16,), 1 - 30 * 0.1 * 1.5, dtype=torch.float64), rtol=0, atol=1e-4)


def test_what_cannot_work_is_refused() -> None:
    def rank(group: ProcessGroup) -> None:
        model = network()
        for topology, says in (("ring", r"take an even number of workers \(2 or 4\)"), (None, "got n=3; take 2 or 4")):
            with pytest.raises(ValueError, match=says):
                decentralize(model, sgd(model), group=group, algorithm="ad-psgd", topology=topology)

    run_ranks(3, rank)
    ring = topologies.build("ring", 2)
    for algorithm in (build() for build in algorithms.ASYNCHRONOUS.values()):
        with pytest.raises(ValueError, match="run it by gossamer"):
            StackedEngine(
                network(),
                lambda p: torch.optim.SGD(p),
                num_replicas=2,
                algorithm=algorithm,
                schedule=ring,
                loss=network_loss,
            )

        def in_step(group: ProcessGroup, algorithm: algorithms.Algorithm = algorithm) -> None:
            model = network()
            with pytest.raises(ValueError, match="run it by gossamer"):
                SynchronousEngine(model, sgd(model), algorithm=algorithm, schedule=ring, group=group)

        run_ranks(2, in_step)


def test_ranks_at_different_places_are_told() -> None:
    def rank(group: ProcessGroup) -> None:
        model = network()
        training = begin(model, sgd(model), group)
        with pytest.raises(ValueError, match=r"rank \d is at (save|consensus_distance)\(\) and rank \d at"):
            training.consensus_distance() if group.rank() else training.state_dict()

    run_ranks(2, rank)


@pytest.mark.parametrize("algorithm", ["ad-psgd", "d-psgd", "all-reduce", "parameter-server"])
def test_every_batch_of_an_epoch_is_shared_out_once(algorithm: str) -> None:
    rows = torch.arange(22).split(4)

    def rank(group: ProcessGroup) -> list[list[int]]:
        model = network()
        with decentralize(
            model, sgd(model), group=group, algorithm=algorithm, topology="ring", timeout_s=60
        ) as training:
            epochs = [list(training.share(10)), [row for batch in training.share(rows) for row in batch.tolist()]]
            loader = DataLoader(range(100), batch_sampler=training.share(rows))  # type: ignore[arg-type, var-annotated]
            epochs.append([row for batch in loader for row in batch.tolist()])
            with pytest.raises(ValueError, match=r"a DataLoader makes its 22 batches .* batch_sampler=training\.share"):
                training.share(DataLoader(range(22)))  # type: ignore[call-overload]
            with pytest.raises(ValueError, match=r"share\(-1\)"):
                training.share(-1)
            return epochs

    by_rank = run_ranks(2, rank)
    for epoch, expected in enumerate((10, 22, 22)):
        assert sorted(number for epochs in by_rank for number in epochs[epoch]) == list(range(expected))
    if algorithm == "parameter-server":
        assert by_rank[0] == [[], [], []]


def test_a_script_may_end_without_closing() -> None:
    """Its threads are not torn out of gloo, which would abort the process."""
    script = """
import sys
from problems import network
from loops import sgd, take_steps
from ranks import run_ranks
from gossamer import decentralize

trainings = []

def rank(group):
    model = network()
    training = decentralize(model, sgd(model), group=group, algorithm=algorithm)
    if group.rank() or algorithm == "ad-psgd":
        take_steps(training, range(3))
    trainings.append(training)

for algorithm in sys.argv[1:]:
    run_ranks(2, rank)
print("ended")
"""
    done = subprocess.run(
        [sys.executable, "-c", script, *algorithms.ASYNCHRONOUS],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
