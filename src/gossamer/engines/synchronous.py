"""The synchronous engine: one process a replica, over a process group that is handed in."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from gossamer.algorithms import Algorithm, Unpack
from gossamer.topologies import Schedule

from ._engine import Loss
from .around_step import AroundStep
from .exchange import ProcessExchange, Unmixed
from .flat import flatten
from .numbers import check_numbers
from .one_replica import OneReplica
from .transport import Transport
from .wire import Wire


class ProcessMix:
    """`Mix` between processes; counts the bytes that this rank's training sends."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.bytes_sent = np.zeros(1)
        self.bytes_averaged = np.zeros(1)

    def at(self, schedule: Schedule, step: int) -> "BoundProcessMix":
        """The mix of one step."""
        return BoundProcessMix(self, schedule, step)


class BoundProcessMix:
    """What an algorithm may call at one step."""

    def __init__(self, parent: ProcessMix, schedule: Schedule, step: int, *, is_push: bool = False) -> None:
        self._parent, self._schedule, self._step, self._is_push = parent, schedule, step, is_push
        self._mixing = schedule(step).push if is_push else schedule(step)

    def __call__(self, values: Tensor) -> Tensor:
        return self.start(values).wait()

    def start(self, values: Tensor) -> Unmixed | ProcessExchange:
        exchange = self._parent.transport.start(self._mixing, values)
        self._parent.bytes_sent += exchange.bytes_sent
        return exchange

    def mean(self, values: Tensor) -> Tensor:
        exchange = self._parent.transport.start_mean(values)
        self._parent.bytes_sent += exchange.bytes_sent
        self._parent.bytes_averaged += exchange.bytes_sent
        return exchange.wait()

    def packed(self, payload: Tensor, unpack: Unpack) -> Tensor:
        transport, mixing = self._parent.transport, self._mixing
        payloads = {transport.rank: payload, **transport.collect(mixing, payload)}
        self._parent.bytes_sent += payload.nbytes * len(mixing.listeners(transport.rank))
        total = torch.zeros_like(unpack(payload))
        for j, weight in sorted(mixing.row(transport.rank).items()):
            total.add_(unpack(payloads[j]), alpha=weight)
        return total

    @property
    def noise_kept(self) -> float:
        return self._mixing.noise_kept

    @property
    def push(self) -> "BoundProcessMix":
        return BoundProcessMix(self._parent, self._schedule, self._step, is_push=True)

    @property
    def following(self) -> "BoundProcessMix":
        return BoundProcessMix(self._parent, self._schedule, self._step + 1, is_push=self._is_push)


class SynchronousEngine(OneReplica, AroundStep):
    """Decentralizes `optimizer.step()` over a process group.

    All replicas begin equal: parameters and buffers of rank 0 go to everybody. From then on each `optimizer.step()`
    runs the algorithm around it. `step` is the loop that nearly everybody writes; a loop of one's own does as well.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        algorithm: Algorithm,
        schedule: Schedule,
        group: ProcessGroup,
        local_size: int | None = None,
        loss: Loss | None = None,
        timeout_s: float | None = None,
        wire: Wire | None = None,
        bucket_mib: float | None = None,
    ) -> None:
        """`local_size`: workers of every node, ranks in a row, if that is known (`Transport.know_nodes`)."""
        if schedule.n != group.size():
            raise ValueError(
                f"{schedule.name} is for {schedule.n} workers, but the process group has {group.size()}: "
                f"build it for {group.size()}"
            )
        if bucket_mib is not None and not bucket_mib > 0:
            raise ValueError(f"bucket_mib={bucket_mib}: give the size of a part of the model in MiB, more than 0")
        bucket_bytes = bucket_mib * 2**20 if bucket_mib is not None and algorithm.is_elementwise else None
        self.transport = Transport(group, timeout_s=timeout_s, wire=wire)
        self.model = model
        self.loss = loss
        super().__init__(
            optimizer,
            flatten(_trained(model, optimizer), bucket_bytes=bucket_bytes),
            lambda: dict(model.named_buffers()),
            algorithm=algorithm,
            schedule=schedule,
            mixer=ProcessMix(self.transport),
        )
        self.transport.know_nodes(local_size)
        params = (replica.params for replica in self.replicas)
        self.transport.open_boards(params, steps_under_way=algorithm.steps_under_way)
        self._start_equal()

    @torch.no_grad()
    def _start_equal(self) -> None:
        params = (replica.params for replica in self.replicas)
        for tensor in (*params, *self.untrained().values(), *self.model.buffers()):
            self.transport.broadcast(tensor)
        try:
            check_numbers(self.model)  # not before: all ranks come to the same answer
        except ValueError:
            self.detach()
            self.transport.close()
            raise

    @property
    def rank(self) -> int:
        return self.transport.rank

    @property
    def size(self) -> int:
        """The number of workers."""
        return self.transport.size

    def untrained(self) -> dict[str, nn.Parameter]:
        """The model's parameters that the optimizer does not step, by name."""
        trained = {id(parameter) for replica in self.replicas for parameter in replica.parameters.values()}
        return {name: p for name, p in self.model.named_parameters() if id(p) not in trained}

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        loss = self.backward(inputs, targets)
        self.optimizer.step()
        return loss

    def close(self) -> None:
        super().close()
        self.transport.close()


def _trained(model: nn.Module, optimizer: Optimizer) -> dict[str, nn.Parameter]:
    """The parameters that the optimizer steps, by their names in the model where they have one."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    stepped = [p for param_group in optimizer.param_groups for p in param_group["params"]]
    return {names.get(id(p), f"parameter{i}"): p for i, p in enumerate(stepped)}
