"""Two lines that decentralize anyone's training loop."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from gossamer import algorithms, topologies
from gossamer.algorithms import ADPSGD, Algorithm, ParameterServer
from gossamer.engines import AsynchronousPairs, Decentralized, Served, Wire, join_world
from gossamer.topologies import Schedule


def decentralize(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    topology: str | Schedule | None = None,
    algorithm: str | Algorithm = "d-psgd-overlapped",
    group: ProcessGroup | None = None,
    local_size: int | None = None,
    wire_dtype: torch.dtype | None = None,
    bucket_mib: float = 25.0,
    steps_per_epoch: int = 1,
    epochs: int | None = None,
    seed: int = 0,
    timeout_s: float | None = None,
    rescue: str | Path | None = None,
) -> Decentralized:
    """From here on each `optimizer.step()` also averages the model with those of neighbours. The loop stays as it is.

    Runs under torchrun, Slurm's srun, in a process group that is there, or in one process alone:

    >>> model = nn.Linear(4, 2)
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    >>> with decentralize(model, optimizer) as training:
    ...     for _ in range(3):
    ...         loss = model(torch.randn(8, 4)).square().mean()
    ...         optimizer.zero_grad(); loss.backward(); optimizer.step()
    >>> training.metrics()["steps"], training.consensus_distance()
    (3, 0.0)

    All replicas begin with the parameters and buffers of rank 0. By default the exchange is hidden behind the next
    forward and backward pass: it starts after a step and is awaited just before the next one.

    Args:
        model: the user's own, on its device; its `state_dict` keys stay as they are.
        optimizer: any of torch, or one like it, made for the model's parameters before.
        topology: a graph or schedule by name (`gossamer graphs`), or one that was built. Schedules that change by the
            epoch (Ada) need `steps_per_epoch` and `epochs`. When not given, what suits the algorithm: an alternating
            exponential ring, or for AD-PSGD a bipartite exponential graph.
        algorithm: by name, with parameters as in `local-sgd:every=8`, or made. With `ad-psgd` and `parameter-server`
            workers do not wait for each other, and take their batches from `training.share(...)`.
        group: of all workers; when not given, torch's default group, or what the launcher's environment says.
        local_size: workers a node, for topologies that respect it; when not given, the launcher's number.
        wire_dtype: send in this type (`torch.bfloat16`); a worker's own parameters stay as they are.
        bucket_mib: a larger model is stepped and sent in parts of about this size, each on its way while the next is
            stepped.
        seed: of random graphs and random partners, the same on all ranks.
        timeout_s: give a silent neighbour up after so long; when not given, long after what was ever needed so far.
        rescue: a folder where every rank saves its state when a neighbour is lost.
    """
    if wire_dtype not in (None, torch.bfloat16, torch.float16, torch.float32, torch.float64):
        raise ValueError(f"wire_dtype={wire_dtype} cannot be sent and averaged: give torch.bfloat16, or nothing")
    world = join_world(group, local_size=local_size)
    size = world.group.size()
    if isinstance(algorithm, str):
        algorithm = algorithms.build(algorithm)
    if topology is None:
        topology = algorithm.usual_graph
    if isinstance(topology, str):
        topology = topologies.build(
            topology, size, steps_per_epoch=steps_per_epoch, epochs=epochs, local_size=world.local_size, seed=seed
        )
    settings: dict[str, Any] = {
        "algorithm": algorithm,
        "schedule": topology,
        "world": world,
        "wire": Wire(wire_dtype),
        "timeout_s": timeout_s,
        "rescue": None if rescue is None else Path(rescue),
    }
    match algorithm:
        case ADPSGD():
            return AsynchronousPairs(model, optimizer, seed=seed, **settings)
        case ParameterServer():
            return Served(model, optimizer, **settings)
        case _:
            return Decentralized(model, optimizer, bucket_mib=bucket_mib, **settings)
