"""One battery for every algorithm: a new row of `ALGORITHMS` is tested here without a word."""

from collections.abc import Iterable, Sequence

import pytest
import torch

from gossamer import algorithms
from gossamer.engines import StackedEngine
from gossamer.topologies import build
from problems import OPTIMIZERS, Point, half_square, network, network_batch, network_loss
from trajectories import METHODS, TOPOLOGIES, processes, schedule, stacked

ALGORITHM = pytest.mark.parametrize("name", METHODS)
EQUALS_ALL_REDUCE = ("all-reduce", "d-psgd")
"""On the complete graph with SGD: the mean of steps is the step of the mean. (Combine-then-adapt is a step behind: its
replicas differ by the last local step, so its gradients are taken elsewhere.)"""
STEPS_OF_ITS_OWN = ("qg-momentum", "adaptive", "slowmo", "diloco", "noloco")
"""Those that change what the optimizer does, even with one replica: what they do then is tested by itself."""
MOVES_AS_THE_OPTIMIZER = [name for name in METHODS if name not in STEPS_OF_ITS_OWN]
KEEPS_THE_MEAN = [name + ":apart=1e-12" * (name == "listening-ada") for name in MOVES_AS_THE_OPTIMIZER]
"""Where replicas of listening-ada step alone, the momentum that their mean is taken to have is not quite its own."""


PLAIN = ("all-reduce", "d-psgd", "d-psgd-cta", "d-psgd-overlapped", "d-psgd-overlapped:behind=2", "local-sgd")
"""The ways to mix, on every graph. The other methods ask for mixings in one of these ways: a few graphs tell."""
TELLING = ("ring", "one-peer-exponential", "ada", "complete")


def on(
    topologies: Sequence[str], names: Iterable[str] = METHODS, *, others: Sequence[str] | None = None
) -> pytest.MarkDecorator:
    """Every algorithm on every graph that it can run on; of `others`, if given, those that are not `PLAIN`."""
    pairs = [
        (name, topology) for name in names for topology in (topologies if others is None or name in PLAIN else others)
    ]
    changing = {topology for topology in topologies if build(topology, 8).period != 1}
    possible = [pair for pair in pairs if not (algorithms.build(pair[0]).needs_constant_graph and pair[1] in changing)]
    return pytest.mark.parametrize(("name", "topology"), possible)


def engines_agree(name: str, topology: str, optimizer: str) -> None:
    algorithm = algorithms.build(name)
    on_one_device = stacked(algorithm, schedule(topology, 8), optimizer)
    on_processes = processes(algorithm, schedule(topology, 8), optimizer)
    torch.testing.assert_close(on_processes, on_one_device, rtol=0, atol=1e-10)


@on(TOPOLOGIES, others=TELLING)
def test_engines_agree(name: str, topology: str) -> None:
    engines_agree(name, topology, "sgd")


@on(["ring", "ada"])
def test_engines_agree_whatever_the_optimizer_keeps(name: str, topology: str) -> None:
    """Which knows nothing of the graph: one that stays and one that changes tell."""
    engines_agree(name, topology, "adamw")


@pytest.mark.parametrize("name", EQUALS_ALL_REDUCE)
def test_complete_graph_equals_all_reduce(name: str) -> None:
    # momentum is linear in the gradients, so averaging parameters each step averages momenta as well
    complete = schedule("complete", 8)
    centralized = stacked(algorithms.build("all-reduce"), complete, num_steps=20)
    decentralized = stacked(algorithms.build(name), complete, num_steps=20)
    torch.testing.assert_close(decentralized, centralized, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MOVES_AS_THE_OPTIMIZER)
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_one_replica_equals_the_bare_optimizer(name: str, optimizer: str) -> None:
    bare = network()
    bare_optimizer = OPTIMIZERS[optimizer](bare.parameters())
    for step in range(20):
        inputs, targets = network_batch(step, 1)
        bare_optimizer.zero_grad()
        network_loss(bare(inputs[0]), targets[0]).backward()
        bare_optimizer.step()
    alone = stacked(algorithms.build(name), schedule("ring", 1), optimizer, num_steps=20)
    expected = torch.cat([p.detach().flatten() for p in bare.parameters()])
    torch.testing.assert_close(alone[0], expected, rtol=0, atol=1e-12)


@on(["ring", "one-peer-exponential", "exponential", "star"], KEEPS_THE_MEAN)
def test_mixing_keeps_the_mean(name: str, topology: str) -> None:
    """With gradients that do not depend on the replica's place, the mean moves as one bare optimizer does."""
    n, optima = 8, torch.randn(8, 1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    engine = StackedEngine(
        Point(),
        OPTIMIZERS["sgd"],
        num_replicas=n,
        algorithm=algorithms.build(name),
        schedule=build(topology, n),
        loss=half_square,
    )
    bare = Point()
    bare_optimizer = OPTIMIZERS["sgd"](bare.parameters())
    for _ in range(25):
        engine.step(optima, optima)
        bare_optimizer.zero_grad()
        half_square(bare(optima.mean(0)), optima).backward()
        bare_optimizer.step()
        torch.testing.assert_close(engine.flats()[0].mean(0), bare.x.detach(), rtol=0, atol=1e-12)


@ALGORITHM
def test_repeats_bit_by_bit(name: str) -> None:
    first, second = (stacked(algorithms.build(name), schedule("torus", 8), num_steps=20) for _ in range(2))
    assert torch.equal(first, second)


@ALGORITHM
def test_repeats_bit_by_bit_on_processes(name: str) -> None:
    first, second = (processes(algorithms.build(name), schedule("torus", 8), num_steps=20) for _ in range(2))
    assert torch.equal(first, second)


@on(["ring", "one-peer-exponential"])
def test_converges_on_quadratics_with_different_optima(name: str, topology: str) -> None:
    """The mean reaches the common optimum; replicas come as near to it as their step size allows."""
    n, optima = 8, torch.randn(8, 1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    engine = StackedEngine(
        Point(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9 if name == "qg-momentum" else 0.0),
        num_replicas=n,
        algorithm=algorithms.build(name),
        schedule=build(topology, n),
        loss=half_square,
    )
    for step in range(800 if name in STEPS_OF_ITS_OWN else 300):
        engine.set_lr(0.3 / (1 + step / 40))
        engine.step(optima, optima)
    common = optima.mean(0)[0]
    replicas = engine.flats()[0]
    nearness = 1e-2 if name == "adaptive" else 1e-6  # its steps have the size of the rate, however near it is
    torch.testing.assert_close(replicas.mean(0), common, rtol=0, atol=nearness)
    assert (replicas - common).norm(dim=1).max() < 0.35 * (optima[:, 0] - common).norm(dim=1).max()
