"""A parameter server that workers bring gradients to, each when it has one."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from gossamer import decentralize
from gossamer.algorithms import ParameterServer
from gossamer.clock import Event
from gossamer.engines import NeighborLost, Served, VirtualServer, Wire, join_world
from gossamer.topologies import build
from loops import backward, everything, flat, sgd, take_steps
from problems import OPTIMIZERS, Point, half_square, network
from ranks import run_ranks

SIZE = 4


def begin(model: nn.Module, optimizer: Optimizer, group: ProcessGroup, **settings: Any) -> Served:
    training = decentralize(model, optimizer, group=group, algorithm="parameter-server", timeout_s=60, **settings)
    assert isinstance(training, Served)
    return training


def test_it_trains_and_counts_how_stale_gradients_are() -> None:
    """Workers know a quarter each, and the server nothing; every worker ends with what the server has."""
    optimum = torch.linspace(-1, 1, 6, dtype=torch.float64)

    def rank(group: ProcessGroup) -> tuple[Tensor, dict[str, float], dict[int, int]]:
        model = Point(6)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.6, momentum=0.5)
        mine = slice(2 * group.rank() - 2, 2 * group.rank())
        with begin(model, optimizer, group) as training:
            for _ in training.share(10_000):
                optimizer.zero_grad()
                (model(optimum)[mine].square().sum() / 2).backward()
                optimizer.step()
                if training.num_steps == 200:
                    break
            assert training.consensus_distance() < 1e-20  # all have those of the server
        return model.x.detach(), training.metrics(), training.staleness

    results = run_ranks(SIZE, rank)
    for x, _, _ in results:
        torch.testing.assert_close(x, optimum, rtol=0, atol=1e-3)
        assert torch.equal(x, results[0][0])
    assert [metrics["steps"] for _, metrics, _ in results] == [600, 200, 200, 200]
    histograms = [staleness for _, _, staleness in results]
    for stale in range(max(histograms[0]) + 1):  # what the server has counted is what the workers have, together
        assert histograms[0].get(stale, 0) == sum(histogram.get(stale, 0) for histogram in histograms[1:])
    assert histograms[0].keys() != {0}
    model_bytes = 6 * 8
    assert [metrics["bytes_sent"] for _, metrics, _ in results] == [600 * (model_bytes + 8), *3 * (200 * model_bytes,)]


def test_one_worker_and_its_server_are_the_bare_optimizer() -> None:
    """With the worker's learning rate, which a scheduler changes, and momentum on the server."""

    def train(model: nn.Module, optimizer: Optimizer, rank: int) -> None:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for step in range(10):
            optimizer.zero_grad()
            backward(model, rank, step)
            optimizer.step()
            scheduler.step()

    def rank(group: ProcessGroup) -> Tensor:
        model = network()
        optimizer = sgd(model)
        with begin(model, optimizer, group) as training:
            if group.rank() == 1:
                train(model, optimizer, rank=1)
                assert not optimizer.state_dict()["state"]  # all of it is the server's
                assert all(parameter.grad is not None for parameter in model.parameters())
                assert training.staleness == {0: 10}
        return flat(model)

    model = network()
    train(model, sgd(model), rank=1)
    for trained in run_ranks(2, rank):
        assert torch.equal(trained, flat(model))


@pytest.mark.parametrize("server", [0, 2])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_it_steps_as_in_virtual_time(server: int, optimizer: str) -> None:
    """Three workers bring their gradients in an order that is given: rates, staleness and parameters are the same."""
    order = [0, 1, 1, 2, 1, 0, 1, 1, 2, 2, 0, 1]
    optima = torch.tensor([[-3.0, 1.0], [2.0, 5.0], [7.0, -1.0]], dtype=torch.float64)
    turn, brought = threading.Condition(), []

    def rank(group: ProcessGroup) -> tuple[Tensor, dict[int, int]]:
        model = Point(2)
        stepping = OPTIMIZERS[optimizer](model.parameters())
        training = Served(
            model,
            stepping,
            algorithm=ParameterServer(),
            schedule=build("star", SIZE),
            world=join_world(group),
            wire=Wire(),
            server=server,
        )
        with training:
            worker = group.rank() - (group.rank() > server)
            for _ in range(0 if group.rank() == server else order.count(worker)):
                stepping.zero_grad()
                half_square(model(optima[worker]), optima).backward()
                with turn:
                    turn.wait_for(lambda: order[len(brought)] == worker)
                    stepping.step()
                    brought.append(worker)
                    turn.notify_all()
        return model.x.detach(), training.staleness

    def events() -> Iterator[Event]:
        since = dict.fromkeys(range(3), 0)
        yield from (Event(0.0, "read", worker) for worker in range(3))
        for number, worker in enumerate(order):
            yield Event(0.0, "gradient", worker, staleness=number - since[worker])
            yield Event(0.0, "read", worker)
            since[worker] = number + 1

    trained = run_ranks(SIZE, rank)
    virtual = VirtualServer(
        Point(2),
        OPTIMIZERS[optimizer],
        num_replicas=3,
        algorithm=ParameterServer(),
        events=events(),
        schedule=build("star", 3),
        loss=half_square,
    )
    lr = OPTIMIZERS[optimizer](Point().parameters()).param_groups[0]["lr"]
    virtual.advance(len(order), lambda tickets: (optima[:, None], optima[:, :1]), lambda step: lr)
    for x, _ in trained:
        torch.testing.assert_close(x, virtual._server[0].detach(), rtol=0, atol=1e-14)
    assert trained[server][1] == dict(sorted(virtual.staleness.items()))
    assert max(virtual.staleness) > 1


def test_one_rank_alone_trains() -> None:
    def rank(group: ProcessGroup) -> Tensor:
        model = network()
        with begin(model, sgd(model), group) as training:
            assert list(training.share(2)) == [0, 1]
            return take_steps(training, range(5))

    model = network()
    optimizer = sgd(model)
    for step in range(5):
        optimizer.zero_grad()
        backward(model, 0, step)
        optimizer.step()
    assert torch.equal(run_ranks(1, rank)[0], everything(model))


def test_the_server_takes_no_steps_of_its_own() -> None:
    def rank(group: ProcessGroup) -> None:
        model = network()
        with begin(model, sgd(model), group) as training:
            if group.rank() == 0:
                with pytest.raises(ValueError, match=r"rank 0 serves .* take the batches from training\.share"):
                    training.optimizer.step()
            else:
                take_steps(training, range(3))

    run_ranks(3, rank)


def test_a_server_that_fails_leaves_nobody_waiting() -> None:
    """Its optimizer breaks down in the third step: it says so itself, and the worker at once whom to look at."""

    class Breaking(torch.optim.SGD):
        num_steps = 0

        def step(self, closure: None = None) -> None:  # type: ignore[override]
            self.num_steps += 1
            if self.num_steps == 3:
                raise KeyError("it breaks down")
            super().step()

    def rank(group: ProcessGroup) -> None:
        model = network()
        if group.rank() == 0:
            with (
                pytest.raises(NeighborLost, match="the server, rank 0, has failed") as failure,
                begin(model, Breaking(model.parameters()), group),
            ):
                pass
            assert isinstance(failure.value.__cause__, KeyError)
        else:
            with (
                pytest.raises(NeighborLost, match="rank 0, which served the parameters, is lost"),
                begin(model, sgd(model), group) as training,
            ):
                take_steps(training, range(5))

    run_ranks(2, rank)


def test_those_who_come_together_have_what_the_server_has() -> None:
    def rank(group: ProcessGroup) -> Tensor:
        model = network()
        with begin(model, sgd(model), group) as training:
            if group.rank():
                take_steps(training, range(group.rank()))
            training.come_together()
            return flat(model)

    first, *others = run_ranks(3, rank)
    assert not torch.equal(first, flat(network()))
    for own in others:
        assert torch.equal(own, first)


def test_averaged_and_saved_and_loaded(tmp_path: Path) -> None:
    """The average has the server's parameters, and the workers' statistics of batch norm: the server has none."""

    def rank(group: ProcessGroup) -> tuple[Tensor, Tensor]:
        model = network()
        with begin(model, sgd(model), group) as training:
            if group.rank():
                take_steps(training, range(4))
            with training.averaged() as averaged:
                mean, statistics = flat(averaged), averaged[1].running_mean.clone()
            own = model[1].running_mean.clone()
            training.save(tmp_path)
            if group.rank():
                take_steps(training, range(3))
        again = network()
        with begin(again, sgd(again), group) as loaded:
            loaded.load(tmp_path)
            if group.rank() == 0:  # by now others may have brought gradients
                assert loaded.optimizer.state_dict()["state"]
            else:
                assert torch.equal(flat(again), mean)
                take_steps(loaded, range(1))
        assert not torch.equal(flat(again), mean)
        return own, statistics

    results = run_ranks(3, rank)
    expected = torch.stack([own for own, _ in results[1:]]).mean(0)
    for _, statistics in results:
        torch.testing.assert_close(statistics, expected, rtol=0, atol=1e-12)
