"""Two lines that decentralize anyone's training loop."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gossamer._chosen import chosen_algorithm, chosen_schedule
from gossamer.algorithms import ADPSGD, Algorithm, ParameterServer
from gossamer.engines import (
    AsynchronousPairs,
    Decentralized,
    Served,
    Wire,
    World,
    all_say,
    check_same,
    host,
    join_world,
    outline,
)
from gossamer.topologies import Mixing, Schedule


def decentralize(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    topology: str | Mixing | Schedule | None = None,
    algorithm: str | Algorithm = "d-psgd-overlapped",
    group: ProcessGroup | None = None,
    local_size: int | None = None,
    wire_dtype: torch.dtype | None = None,
    bucket_mib: float | None = None,
    steps_per_epoch: int | None = None,
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
        topology: a graph or schedule by name (`gossamer graphs`), or one that was built. When not given, what suits the
            algorithm: an alternating exponential ring, or for AD-PSGD a bipartite exponential graph.
        steps_per_epoch, epochs: of the training, for schedules that change by the epoch (Ada).
        algorithm: by name, with parameters as in `local-sgd:every=8`, or made. With `ad-psgd` and `parameter-server`
            workers do not wait for each other, and take their batches from `training.share(...)`.
        group: of all workers; when not given, torch's default group, or what the launcher's environment says.
        local_size: workers a node, for topologies that respect it; when not given, the launcher's number.
        wire_dtype: send in this type (`torch.bfloat16`); a worker's own parameters stay as they are.
        bucket_mib: a larger model is stepped and sent in parts of about this size, each on its way while the next is
            stepped; when not given, 4 for a model on the CPUs of several hosts, where steps and messages take long (a
            quarter of the model if that is less, from 0.25 on, where workers meet in pairs), and 25 elsewhere.
        seed: of random graphs and random partners, the same on all ranks.
        timeout_s: give a silent neighbour up after so long; when not given, long after what was ever needed so far.
        rescue: a folder where every rank saves its state when a neighbour is lost, or when SIGTERM ends the process.
    """
    if wire_dtype not in (None, torch.bfloat16, torch.float16, torch.float32, torch.float64):
        raise ValueError(f"wire_dtype={wire_dtype} cannot be sent and averaged: give torch.bfloat16, or nothing")
    if not isinstance(model, nn.Module) or not isinstance(optimizer, Optimizer):
        raise ValueError(
            f"decentralize takes a model and its optimizer, got {type(model).__name__} and {type(optimizer).__name__}"
        )
    _check_model(model)
    _check_optimizer(optimizer, model)
    world = join_world(group, local_size=local_size)
    algorithm = chosen_algorithm(algorithm)
    topology = algorithm.usual_graph if topology is None else topology
    schedule = chosen_schedule(
        topology,
        world.size,
        steps_per_epoch=steps_per_epoch,
        epochs=epochs,
        seed=seed,
        local_size=world.local_size or world.size,
    )
    if isinstance(topology, str):
        _check_nodes(topology, schedule, world)
    check_same(
        world.group,
        {
            "a model of": outline((*model.parameters(), *model.buffers())),
            "an optimizer of": outline(p for param_group in optimizer.param_groups for p in param_group["params"]),
            "the topology": schedule.name,
            "steps_per_epoch": steps_per_epoch if schedule.period is None else None,
            "the algorithm": algorithm,
            "bucket_mib": bucket_mib,
            "wire_dtype": wire_dtype,
        },
    )
    settings: dict[str, Any] = {
        "algorithm": algorithm,
        "schedule": schedule,
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
            parts_mib = _bucket_mib(model, world, schedule) if bucket_mib is None else bucket_mib
            return Decentralized(model, optimizer, bucket_mib=parts_mib, **settings)


def _bucket_mib(model: nn.Module, world: World, schedule: Schedule) -> float:
    """As measured (docs/iteration-time.md): between pairs small models gain by parts, in larger groups they lose; and
    on one host, whose workers read each other's models in its memory, all do. All ranks."""
    is_one_host = len(set(all_say(world.group, host()))) == 1
    is_on_cpu = all(parameter.is_cpu for parameter in model.parameters())
    if not is_on_cpu or is_one_host:
        return 25.0
    if any(schedule(step).degree > 1 for step in schedule.window):
        return 4.0
    return min(max(sum(parameter.nbytes for parameter in model.parameters()) / 2**22, 0.25), 4.0)


def _check_model(model: nn.Module) -> None:
    """Each worker must hold the whole model by itself, and nobody else may average it."""
    for name, module in model.named_modules():
        where = f"the model's {name!r}" if name else "the model"
        if isinstance(module, DistributedDataParallel):
            raise ValueError(
                f"{where} is in DistributedDataParallel, which goes on averaging all gradients: take it off, or hand "
                "over its .module, and call that in the loop too"
            )
        if isinstance(module, _classes("torch.distributed.fsdp", "FullyShardedDataParallel", "FSDPModule")):
            raise ValueError(
                f"{where} is sharded by FSDP, but here each worker holds the whole of it: hand over the model as it "
                "was before FSDP took it apart"
            )
    for name, parameter in model.named_parameters():
        if isinstance(parameter, _classes("torch.distributed.tensor", "DTensor")):
            raise ValueError(
                f"parameter {name!r} is a DTensor, of which each worker holds a part, but here each holds the whole: "
                "hand over a model of plain tensors (full_tensor() gives them)"
            )


def _check_optimizer(optimizer: Optimizer, model: nn.Module) -> None:
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if stepped.isdisjoint(id(p) for p in model.parameters()):
        raise ValueError(
            "the optimizer steps none of the model's parameters: make it for model.parameters(), after the model is on "
            "its device"
        )
    hooked = (getattr(hook, "__self__", None) for hook in optimizer._optimizer_step_pre_hooks.values())
    if any(isinstance(one, Decentralized) for one in hooked):
        raise ValueError("the optimizer is decentralized already: call close() of what the first call has returned")


def _classes(module: str, *names: str) -> tuple[type, ...]:
    """Classes of a part of torch; none where nobody has imported it, since then nothing can be one of them."""
    return tuple(getattr(sys.modules[module], name) for name in names) if module in sys.modules else ()


def _check_nodes(topology: str, schedule: Schedule, world: World) -> None:
    if world.local_size is None and f"local_size={world.size}" in schedule.name and "local_size" not in topology:
        raise ValueError(
            f"{topology} averages within nodes, which must have as many workers each, but these have "
            f"{', '.join(map(str, world.workers_per_node))}: start as many on each (srun --ntasks-per-node), give "
            "local_size=1 to take each worker for a node, or take base-2, which does not mind nodes"
        )
