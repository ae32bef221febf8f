"""Trains the small network on either engine and returns what came out."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from gossamer.algorithms import ALGORITHMS, Algorithm
from gossamer.engines import Engine, StackedEngine, SynchronousEngine
from gossamer.topologies import Schedule, build
from problems import OPTIMIZERS, network, network_batch, network_loss
from ranks import run_ranks

TOPOLOGIES = (
    "ring",
    "torus",
    "exponential",
    "one-peer-exponential",
    "alternating-exponential-ring:local_size=2",
    "ada",
    "complete",
)
METHODS = (*ALGORITHMS, "d-psgd-overlapped:behind=2")
"""What the battery runs: all methods with their usual settings, and settings that make another method of one."""
STEPS = 25
"""Two rounds of those that step alone the longest, 12 steps, and one more."""


def schedule(spec: str, num_replicas: int, num_steps: int = STEPS) -> Schedule:
    """A schedule whose epochs are five steps long, so that Ada passes through several graphs."""
    return build(spec, num_replicas, steps_per_epoch=5, epochs=num_steps // 5)


def stacked(
    algorithm: Algorithm,
    topology: Schedule,
    optimizer: str = "sgd",
    *,
    num_steps: int = STEPS,
    attach: Callable[[Engine], None] = lambda engine: None,
) -> Tensor:
    """All replicas after training on the stacked engine, `[N, P]`."""
    engine = StackedEngine(
        network(),
        OPTIMIZERS[optimizer],
        num_replicas=topology.n,
        algorithm=algorithm,
        schedule=topology,
        loss=network_loss,
    )
    attach(engine)
    for step in range(num_steps):
        engine.step(*network_batch(step, topology.n))
    return engine.flats()[0].clone()


def processes(
    algorithm: Algorithm,
    topology: Schedule,
    optimizer: str = "sgd",
    *,
    num_steps: int = STEPS,
    attach: Callable[[Engine], None] = lambda engine: None,
) -> Tensor:
    """The same on the synchronous engine, a rank a replica."""

    def rank(group: ProcessGroup) -> Tensor:
        model = network() if group.rank() == 0 else perturbed(network(), by=group.rank())
        engine = SynchronousEngine(
            model,
            OPTIMIZERS[optimizer](model.parameters()),
            algorithm=algorithm,
            schedule=topology,
            group=group,
            loss=network_loss,
        )
        attach(engine)
        with engine:
            for step in range(num_steps):
                inputs, targets = network_batch(step, topology.n)
                engine.step(inputs[engine.local], targets[engine.local])
            return engine.flats()[0][0].clone()

    return torch.stack(run_ranks(topology.n, rank))


def perturbed(model: torch.nn.Module, by: float) -> torch.nn.Module:
    """A model that starts elsewhere: the engine must make all replicas begin equal."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += by
    return model
