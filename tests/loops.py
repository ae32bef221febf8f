"""A loop of the user's own, as every one is written, decentralized over ranks, and the same by hand in plain Python."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from math import pi, sin
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from gossamer import decentralize
from gossamer.engines import Decentralized
from gossamer.topologies import Mixing, Schedule
from problems import network, network_batch, network_loss
from ranks import run_ranks

BATCHES = 8
"""Each step has batches for so many ranks at most."""


Backward = Callable[[nn.Module, int, int], None]
"""Makes the gradients of a model, on a rank, in a step."""


def backward(model: nn.Module, rank: int, step: int) -> None:
    """Gradients of one batch, which is this rank's own in this step."""
    inputs, targets = network_batch(step, BATCHES)
    dtype = next(model.parameters()).dtype
    network_loss(model(inputs[rank].to(dtype)), targets[rank]).backward()


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What differs from one user's loop to another's."""

    model: Callable[[], nn.Module] = network
    optimizer: Callable[[nn.Module], Optimizer] = sgd
    backward: Backward = backward
    scheduler: Callable[[Optimizer], LRScheduler] | None = None

    def begin(self) -> tuple[nn.Module, Optimizer, LRScheduler | None]:
        model = self.model()
        optimizer = self.optimizer(model)
        return model, optimizer, self.scheduler(optimizer) if self.scheduler is not None else None


def flat(model: nn.Module) -> Tensor:
    """All parameters in a row, in double."""
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def everything(model: nn.Module) -> Tensor:
    """The same with the buffers."""
    return torch.cat([tensor.detach().double().flatten() for tensor in model.state_dict().values()])


def by_hand(loop: Loop, schedule: Schedule, num_steps: int, algorithm: str = "d-psgd-overlapped") -> Tensor:
    """All replicas after so many steps, `[N, P]`, one after the other in plain Python.

    Overlapped, that is x_i(t+1) = sum_j w_ij x_j(t) - lr d_i(x_i(t)); with b = `behind` above 1, x_i(t+1) =
    x_i(t) + sin(π/(4b-2)) (sum_j w_ij x_j(s) - x_i(s)) - lr d_i(x_i(t)), s = t + 1 - b.
    """
    replicas = [loop.begin() for _ in range(schedule.n)]
    models = [model for model, _, _ in replicas]
    name, _, setting = algorithm.partition(":")
    number = int(setting.partition("=")[2] or 1)
    schedule = schedule.per_round(number if name == "local-sgd" else 1)
    sent: list[list[nn.Module]] = []
    for step in range(num_steps):
        for rank, (model, optimizer, _) in enumerate(replicas):
            optimizer.zero_grad()
            loop.backward(model, rank, step)
        match name:
            case "d-psgd-overlapped" if step >= number:
                pull_by_hand(models, sent[step - number], schedule(step - number), sin(pi / (4 * number - 2)))
            case "d-psgd-cta":
                mix_by_hand(models, schedule(step))
            case "all-reduce":
                average_gradients(models)
        for _, optimizer, scheduler in replicas:
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
        if name == "d-psgd" or (name == "local-sgd" and (step + 1) % number == 0):
            mix_by_hand(models, schedule(step))
        sent.append(copy.deepcopy(models))
    return torch.stack([flat(model) for model in models])


def mix_by_hand(models: list[nn.Module], mixing: Mixing) -> None:
    before = [[p.detach().clone() for p in model.parameters()] for model in models]
    for weights, model in zip(torch.from_numpy(mixing.matrix()), models, strict=True):
        for parameter, *values in zip(model.parameters(), *before, strict=True):
            parameter.data.copy_(sum(weight * value.double() for weight, value in zip(weights, values, strict=True)))


def pull_by_hand(models: list[nn.Module], sent: list[nn.Module], mixing: Mixing, share: float) -> None:
    """By a share of what mixing makes of models that were sent earlier."""
    mixed = copy.deepcopy(sent)
    mix_by_hand(mixed, mixing)
    for model, before, after in zip(models, sent, mixed, strict=True):
        for parameter, x, wx in zip(model.parameters(), before.parameters(), after.parameters(), strict=True):
            parameter.data += share * (wx.data - x.data)


def average_gradients(models: list[nn.Module]) -> None:
    for parameters in zip(*(model.parameters() for model in models), strict=True):
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        for parameter in parameters:
            parameter.grad = torch.stack(gradients).mean(0)


def decentralized(
    loop: Loop,
    size: int,
    num_steps: int,
    look: Callable[[Decentralized], Any] = lambda training: flat(training.model),
    **settings: Any,
) -> list[Any]:
    """The same loop with the two lines around it, a thread a rank; what `look` sees in each when it has ended."""

    def rank(group: ProcessGroup) -> Any:
        model, optimizer, scheduler = loop.begin()
        with decentralize(model, optimizer, group=group, **settings) as training:
            for step in range(num_steps):
                optimizer.zero_grad()
                loop.backward(model, group.rank(), step)
                optimizer.step()
                if scheduler is not None:
                    scheduler.step()
            return look(training)

    return run_ranks(size, rank)


def agree(trained: list[Tensor], expected: Tensor, tolerance: float = 1e-12) -> None:
    """All replicas are what is expected."""
    torch.testing.assert_close(torch.stack(trained), expected, rtol=0, atol=tolerance)


def take_steps(training: Decentralized, steps: range, backward: Backward = backward) -> Tensor:
    """Go on training for some steps; parameters and buffers after them."""
    for step in steps:
        training.optimizer.zero_grad()
        backward(training.model, training.rank, step)
        training.optimizer.step()
    return everything(training.model)


def fixed(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Copies of one model: ranks are threads here, and torch's seed belongs to all of them together."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make()
    return lambda: copy.deepcopy(model)
