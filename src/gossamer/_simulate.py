"""Decentralized training of a model of one's own, all replicas on one device."""

from typing import Literal

import torch
from torch import nn

from gossamer._chosen import chosen_algorithm, chosen_schedule
from gossamer.algorithms import Algorithm
from gossamer.engines import Loss, MakeOptimizer, StackedEngine
from gossamer.topologies import Mixing, Schedule


def simulate(
    model: nn.Module,
    *,
    num_replicas: int,
    topology: str | Mixing | Schedule,
    optimizer: MakeOptimizer,
    loss: Loss,
    algorithm: str | Algorithm = "d-psgd",
    steps_per_epoch: int | None = None,
    epochs: int | None = None,
    device: str = "auto",
    precision: Literal["own", "bfloat16"] = "own",
    compiled: bool | None = None,
    one_by_one: bool = False,
    seed: int = 0,
) -> StackedEngine:
    """N replicas of any model, each to be trained on batches of its own, mixing over a graph after every step.

    >>> from torch.nn import functional as F
    >>> engine = simulate(
    ...     nn.Linear(4, 2),
    ...     num_replicas=8,
    ...     topology="ring",
    ...     optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    ...     loss=F.cross_entropy,
    ... )
    >>> losses = engine.step(torch.randn(8, 16, 4), torch.randint(2, (8, 16)))  # a batch of 16 for each of the 8
    >>> losses.shape, engine.parameters["weight"].shape, engine.averaged_outputs(torch.randn(3, 4)).shape
    (torch.Size([8]), torch.Size([8, 2, 4]), torch.Size([3, 2]))

    Args:
        model: the template; every replica starts with its values.
        topology: a graph or schedule by name (`gossamer graphs`), or one that was built. Schedules that change by the
            epoch (Ada) need `steps_per_epoch` and `epochs`.
        optimizer: makes any elementwise optimizer for the parameters it is given, one tensor `[N, P]` for each dtype.
        loss: outputs and targets of one replica's batch to its mean loss.
        algorithm: by name, with parameters as in `local-sgd:every=8`, or made.
        device: `cpu`, `cuda`, or `auto` for the best there is.
        precision: `bfloat16` computes in it, with parameters, optimizer and mixing in their own type.
        compiled: hand the model to `torch.compile`, which takes a minute and pays on a GPU; when not given, on a GPU.
        one_by_one: run the replicas one after the other, for a model with a layer that cannot be stacked.
        seed: of random graphs.
    """
    if num_replicas < 1:
        raise ValueError(f"num_replicas={num_replicas}: must be 1 or more")
    if precision not in ("own", "bfloat16"):
        raise ValueError(f"unknown precision {precision!r}: there are 'own' and 'bfloat16'")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return StackedEngine(
        model,
        optimizer,
        num_replicas=num_replicas,
        algorithm=chosen_algorithm(algorithm),
        schedule=chosen_schedule(topology, num_replicas, steps_per_epoch=steps_per_epoch, epochs=epochs, seed=seed),
        loss=loss,
        device=device,
        compute=torch.bfloat16 if precision == "bfloat16" else None,
        compiled=device.startswith("cuda") if compiled is None else compiled,
        one_by_one=one_by_one,
    )
