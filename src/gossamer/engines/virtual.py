"""Asynchronous methods on stacked replicas: real gradients, at the moments that a clock of virtual time says."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.clock import Event

from .stacked import MakeOptimizer, StackedEngine

Ticket = tuple[int, int]
"""Which batch a worker takes: how many were taken before it by all workers, and by itself."""
Batches = Callable[[Sequence[Ticket | None]], tuple[Tensor, Tensor]]
"""Inputs and targets `[N, B, ...]` for a ticket of each worker; anything for None."""


class VirtualEngine(StackedEngine):
    """Follows the events of a clock. A gradient is that of the parameters as its worker has read them.

    Nothing of a gradient depends on what happens between reading and applying, so all that are pending are computed in
    one stacked call when the first of them is due. What a gradient and a mixing do to the models, the method says.

    Which batches, learning rates and probes there are follows the number of gradients: N of them are a step. Bit by bit
    the same for the same events, however often one stops to measure.
    """

    is_asynchronous = True

    def __init__(self, model: nn.Module, optimizer: MakeOptimizer, *, events: Iterator[Event], **settings: Any) -> None:
        """`events` beside what every stacked engine takes."""
        super().__init__(model, optimizer, **settings)
        self.detach()  # no step is common to all replicas, and the events say who mixes
        self._events = events
        self._num_events = 0
        self.num_gradients = 0
        """Applied so far, by all workers together."""
        self.now_s = 0.0
        """When the last of them was applied, in virtual time."""
        self.staleness: Counter[int] = Counter()
        """How many gradients were so stale: mixings of the model between reading its parameters and applying it."""
        self._read = [flat.detach().clone() for flat in self.flats()]
        """The parameters that each worker computes with, `[N, P]` for each dtype."""
        self._pending = [torch.zeros_like(flat) for flat in self._read]
        """The gradients there, of those workers that are in `_computed`."""
        self._losses = torch.zeros(self.num_replicas, device=self._read[0].device)
        self._computed: set[int] = set()
        self._tickets: list[Ticket] = [(0, 0)] * self.num_replicas
        self._num_read = 0
        self._num_read_by = [0] * self.num_replicas
        self._computing = torch.zeros(self.num_replicas, dtype=torch.bool, device=self._read[0].device)
        """Whose gradients the call under way is for; layers write their statistics for these alone."""
        self.optimizer = self._make_optimizer(optimizer)
        self._model_bytes = sum(flat[0].numel() * flat.element_size() for flat in self._read)

    @abstractmethod
    def _make_optimizer(self, make: MakeOptimizer) -> Optimizer: ...

    @abstractmethod
    def _follow(self, event: Event) -> None:
        """Do what an event says; of a gradient all but the counting is done."""

    def _catch_up(self) -> None:
        """Do what was put off, so that all replicas are as they are at this moment."""

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        raise ValueError("workers of an asynchronous method have no step in common: call advance()")

    @torch.no_grad()
    def advance(self, num_gradients: int, batches: Batches, lr: Callable[[int], float]) -> tuple[Tensor, list[int]]:
        """Go on until so many gradients, from the very start, have been applied; a multiple of the workers.

        `lr` is the learning rate of a step. Returns the losses of the gradients that were applied, in their order, and
        whose they were.
        """
        if num_gradients % self.num_replicas:
            raise ValueError(f"{num_gradients} gradients are no whole number of steps of {self.num_replicas} workers")
        losses, workers = [], []
        self.set_lr(lr(self.num_gradients // self.num_replicas))
        while self.num_gradients < num_gradients:
            event = next(self._events)
            self._num_events += 1
            if event.kind == "gradient":
                if event.worker not in self._computed:
                    self._compute_pending(batches)
                losses.append(self._losses[event.worker].clone())
                workers.append(event.worker)
                self.staleness[event.staleness] += 1
                self.num_gradients += 1
                self.now_s = event.time_s
            elif event.kind == "read":
                self._take_ticket(event.worker)
            self._follow(event)
            if event.kind == "gradient" and self.num_gradients % self.num_replicas == 0:
                self._end_step(lr)
        return torch.stack(losses) if losses else self._losses[:0], workers

    def _end_step(self, lr: Callable[[int], float]) -> None:
        self._catch_up()
        self.num_steps += 1
        for replica in self.replicas:
            replica.step = self.num_steps
        for probe in self.probes:
            probe(self.num_steps - 1)
        self.set_lr(lr(self.num_steps))

    def _take_ticket(self, worker: int) -> None:
        self._tickets[worker] = (self._num_read, self._num_read_by[worker])
        self._num_read += 1
        self._num_read_by[worker] += 1
        self._computed.discard(worker)

    def _compute_pending(self, batches: Batches) -> None:
        """The gradients of all workers that have read and not been computed yet, in one call.

        The call is for all replicas, so that its shapes never change; those that are not asked for are thrown away.
        """
        self._catch_up()
        missing = [worker not in self._computed for worker in range(self.num_replicas)]
        self._computing.copy_(torch.tensor(missing))
        wanted = [ticket if needed else None for ticket, needed in zip(self._tickets, missing, strict=True)]
        grads, losses = self._within_memory(*batches(wanted))
        for kept, new in zip(self._pending, grads, strict=True):
            torch.where(self._computing[:, None], new, kept, out=kept)
        self._losses = torch.where(self._computing, losses.to(self._losses), self._losses)
        self._computed.update(range(self.num_replicas))

    def _points(self) -> list[Tensor]:
        return self._read

    @torch.no_grad()
    def _compute(self, inputs: Tensor, targets: Tensor) -> tuple[list[Tensor], Tensor]:
        before = {name: buffer.clone() for name, buffer in self._buffers.items()}
        found = super()._compute(inputs, targets)
        for name, buffer in self._buffers.items():
            asked = self._computing.view(-1, *[1] * (buffer.dim() - 1))
            buffer.copy_(torch.where(asked, buffer, before[name]))
        return found

    def state_dict(self) -> dict[str, Any]:
        self._catch_up()
        return super().state_dict() | {
            "num_events": self._num_events,
            "num_gradients": self.num_gradients,
            "now_s": self.now_s,
            "staleness": dict(self.staleness),
            "read": self._read,
            "pending": self._pending,
            "losses": self._losses,
            "computed": sorted(self._computed),
            "tickets": self._tickets,
            "num_read": self._num_read,
            "num_read_by": self._num_read_by,
        }

    @torch.no_grad()
    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Into an engine that has not begun: its events are followed again, without computing anything."""
        super().load_state_dict(saved)
        for _ in range(saved["num_events"] - self._num_events):
            next(self._events)
        self._num_events, self.num_gradients = saved["num_events"], saved["num_gradients"]
        self.now_s, self.staleness = saved["now_s"], Counter(saved["staleness"])
        for mine, theirs in zip((*self._read, *self._pending), (*saved["read"], *saved["pending"]), strict=True):
            mine.copy_(theirs)
        self._losses = saved["losses"].to(self._losses)
        self._computed = set(saved["computed"])
        self._tickets = [(number, own) for number, own in saved["tickets"]]
        self._num_read, self._num_read_by = saved["num_read"], list(saved["num_read_by"])
