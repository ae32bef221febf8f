"""Quadratics with a different optimum for every replica: the data could not be more heterogeneous."""

import torch
from torch import Tensor

from gossamer.algorithms import Algorithm
from gossamer.engines import StackedEngine
from gossamer.topologies import Mixing, Schedule, build, constant
from problems import Point, half_square

REPLICAS = 8


def optima(size: int = 4) -> Tensor:
    """Where each replica's loss is least, `[N, 1, size]`."""
    return torch.randn(REPLICAS, 1, size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def bowls(
    algorithm: Algorithm, graph: str | Mixing | Schedule = "ring", *, size: int = 4, momentum: float = 0.0
) -> StackedEngine:
    """All replicas at zero, to be stepped by SGD."""
    schedule = build(graph, REPLICAS) if isinstance(graph, str) else graph
    return StackedEngine(
        Point(size),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=momentum),
        num_replicas=REPLICAS,
        algorithm=algorithm,
        schedule=constant(schedule) if isinstance(schedule, Mixing) else schedule,
        loss=half_square,
    )


def roll(engine: StackedEngine, num_steps: int, lr: float = 0.1) -> Tensor:
    """So many steps with a constant rate; the replicas `[N, size]`."""
    places = optima(engine.flats()[0].shape[1])
    engine.set_lr(lr)
    for _ in range(num_steps):
        engine.step(places, places)
    return engine.flats()[0]


def distance(replicas: Tensor) -> float:
    """The farthest replica from the common optimum, as a share of the farthest optimum from it."""
    places = optima(replicas.shape[1])[:, 0]
    common = places.mean(0)
    return float((replicas - common).norm(dim=1).max() / (places - common).norm(dim=1).max())
