"""Exchanges between processes: with neighbours, over a window of a ring, inside a group."""

from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed import Work

from gossamer.topologies import Mixing, WindowPlan

from .board import Boards, aligned
from .wire import Wire

if TYPE_CHECKING:
    from .transport import Messages, Transport

_BLOCK = 2**16
"""Values that are summed up at a time, by each thread: few enough to stay in its cache."""


class Unmixed:
    """An exchange with nobody."""

    bytes_sent = 0.0

    def __init__(self, values: Tensor) -> None:
        self._values = values

    def wait(self, out: Tensor | None = None) -> Tensor:
        if out is None:
            return self._values.clone()
        return out if out is self._values else out.copy_(self._values)


class ProcessExchange(ABC):
    """Making one settles its place in the order of all exchanges; `begin` sends; `wait` has the result."""

    bytes_sent: float

    def __init__(self, transport: "Transport", values: Tensor) -> None:
        self.transport = transport
        self.values = values
        self.number = transport.num_exchanges

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def finish(self, out: Tensor) -> None:
        """Put the result into `out`, which may be the values themselves."""

    def wait(self, out: Tensor | None = None) -> Tensor:
        out = torch.empty_like(self.values) if out is None else out
        self.finish(out)
        self.transport.under_way.pop(self.number, None)
        return out


class PairwiseExchange(ProcessExchange):
    """Values on their way to the listeners and from the neighbours of a mixing.

    They are sent from where they lie, without a copy, unless the wire has another type.
    """

    def __init__(self, transport: "Transport", mixing: Mixing, values: Tensor) -> None:
        super().__init__(transport, values)
        rank = transport.rank
        self._weights = mixing.row(rank)
        self._neighbors, self._listeners = mixing.neighbors(rank), mixing.listeners(rank)
        self.bytes_sent = float(transport.wire.nbytes_of(values) * len(self._listeners))

    def begin(self) -> None:
        wire = self.transport.wire
        self._sent = wire.pack(self.values)
        self._received = {source: wire.buffer(self.values) for source in self._neighbors}
        listeners = dict.fromkeys(self._listeners, self._sent)
        self._messages = self.transport.swap(self._received, listeners, self.number)

    def finish(self, out: Tensor) -> None:
        self._messages.wait()
        mix(out, self.values, self.transport.rank, self._received, self._weights)
        wire = self.transport.wire
        wire.give_back(*self._received.values())
        if self._sent is not self.values:
            wire.give_back(self._sent)


class NeighborSum(ProcessExchange):
    """Many neighbours, taken in one after the other by the courier: two buffers, however many they are.

    Each worker begins with the neighbour that follows it, so that not all of them turn to the same one at a time.
    """

    def __init__(self, transport: "Transport", mixing: Mixing, values: Tensor) -> None:
        super().__init__(transport, values)
        rank = transport.rank
        self._weights = mixing.row(rank)
        self._neighbors = sorted(mixing.neighbors(rank), key=lambda source: (source - rank) % transport.size)
        self._listeners = mixing.listeners(rank)
        self.bytes_sent = float(transport.wire.nbytes_of(values) * len(self._listeners))

    def begin(self) -> None:
        self._sent = self.transport.wire.pack(self.values)
        self._sending = self.transport.swap({}, dict.fromkeys(self._listeners, self._sent), self.number)
        self._sum: Future[Tensor] = self.transport.courier.send(self._take_in)

    def _take_in(self) -> Tensor:
        transport, wire = self.transport, self.transport.wire
        total = transport.buffers.lend_like(self.values)
        torch.mul(self.values, self._weights.get(transport.rank, 0.0), out=total)
        received = wire.buffer(self.values)
        for source in self._neighbors:
            transport.swap({source: received}, {}, self.number).wait()
            total.add_(received, alpha=self._weights[source])
        wire.give_back(received)
        self._sending.wait()
        return total

    def finish(self, out: Tensor) -> None:
        total = self.transport.wait_until(self._sum)
        out.copy_(total)
        self.transport.buffers.give_back(total)
        if self._sent is not self.values:
            self.transport.wire.give_back(self._sent)


class GroupMean(ProcessExchange):
    """An average over some of the ranks, under way as an all-reduce among them.

    Where the wire rounds, only values of others are rounded, or, for an average that must be the same on all, all are.
    """

    def __init__(
        self,
        transport: "Transport",
        members: tuple[int, ...],
        values: Tensor,
        wire: Wire | None = None,
        *,
        is_same_for_all: bool = False,
    ) -> None:
        super().__init__(transport, values)
        self._members = members
        self._wire = wire or transport.wire
        self._adds_own = not is_same_for_all
        self.bytes_sent = 2 * (len(members) - 1) / len(members) * self._wire.nbytes_of(values)

    def begin(self) -> None:
        self._sum = self._wire.pack(self.values, copy=True)
        self._work: Work = self.transport.all_reduce(self._sum, self._members)

    def finish(self, out: Tensor) -> None:
        self.transport.wait_for(self._work, *self._members, on_gpu=self._sum.is_cuda)
        mean_of(out, self.values, self._sum, len(self._members), adds_own=self._adds_own)
        self._wire.give_back(self._sum)


class WindowMean(ProcessExchange):
    """The mean over a window of the ring, under way as sums of neighbours in a row (see `topologies.WindowPlan`).

    One round needs the result of the one before it: the courier goes through them.
    """

    def __init__(self, transport: "Transport", plan: WindowPlan, values: Tensor) -> None:
        super().__init__(transport, values)
        self._plan = plan
        self._everybody = GroupMean(transport, tuple(range(plan.n)), values) if plan.is_complement else None
        self.bytes_sent = plan.models_sent * values.nbytes

    def begin(self) -> None:
        if self._everybody is not None:
            self._everybody.begin()
        self._sum: Future[Tensor] = self.transport.carry_on(self._add_up, self.values)

    def _add_up(self) -> Tensor:
        buffers, values = self.transport.buffers, self.values
        row, total, taken = values, buffers.lend_like(values).zero_(), buffers.lend_like(values)
        for number, round in enumerate(self._plan.rounds):
            doubled = buffers.lend_like(values)
            hops = [(round.take_from, taken), (round.double_from, doubled)]
            messages = [
                self._from_ahead(row, into, ahead, 2 * number + which)
                for which, (ahead, into) in enumerate(hops)
                if ahead
            ]
            for message in messages:
                message.wait()
            if round.take_from is not None:
                total += taken if round.take_from else row
            if round.double_from:
                row, doubled = doubled.add_(row), row
            if doubled is not values:
                buffers.give_back(doubled)
        buffers.give_back(taken)
        if row is not values:
            buffers.give_back(row)
        return total

    def _from_ahead(self, values: Tensor, into: Tensor, ahead: int, message: int) -> "Messages":
        """Ask the worker so far ahead for its sum, and give ours to the one as far behind."""
        source, to = ((self.transport.rank + hop) % self._plan.n for hop in (ahead, -ahead))
        return self.transport.swap({source: into}, {to: values}, self.number, message)

    def finish(self, out: Tensor) -> None:
        total = self.transport.wait_until(self._sum)
        size = 2 * self._plan.half + 1
        if self._everybody is None:
            torch.div(total, size, out=out)
        else:
            self._everybody.finish(out)
            out.mul_(self._plan.n).sub_(total).div_(size)
        self.transport.buffers.give_back(total)


class BoardExchange(ProcessExchange):
    """Values shown to the listeners of a mixing and those that its neighbours show, in memory that they share."""

    def __init__(
        self,
        transport: "Transport",
        boards: Boards,
        weights: dict[int, float],
        listeners: tuple[int, ...],
        models_sent: float,
        values: Tensor,
    ) -> None:
        super().__init__(transport, values)
        self._boards = boards
        self._weights = weights
        self._listeners = listeners
        self._dtype = transport.wire.dtype_of(values)
        self.bytes_sent = models_sent * transport.wire.nbytes_of(values)

    def begin(self) -> None:
        room = aligned(self.transport.wire.nbytes_of(self.values))
        start = self.transport.wait_on(lambda: self._boards.make_room(room, self.transport.timeout_s), *self._listeners)
        self._boards.show(self.number, self.values, self._dtype, start, self._listeners)

    def finish(self, out: Tensor) -> None:
        shown = {source: self._look(source) for source in self._weights if source != self.transport.rank}
        mix(out, self.values, self.transport.rank, shown, self._weights)
        self._boards.done(self.number)

    def _look(self, source: int) -> Tensor:
        return self.transport.wait_on(
            lambda: self._boards.look(self.number, source, self.values, self._dtype, self.transport.timeout_s), source
        )


def mix(out: Tensor, own: Tensor, rank: int, others: dict[int, Tensor], weights: dict[int, float]) -> None:
    """`Σ w_j x_j` into `out`, which may be `own`. In the order of the ranks: equal sums are equal to the last bit."""
    is_average = rank in weights and abs(sum(weights.values()) - 1) < 1e-9
    match [*others.items()]:
        case [(source, theirs)] if theirs.dtype == own.dtype and is_average:
            torch.lerp(own, theirs, weights[source], out=out)
            return
    terms = [(weights[j], own if j == rank else others[j]) for j in sorted(weights)]
    block = _BLOCK * torch.get_num_threads()
    total = torch.empty(min(block, own.numel()), dtype=own.dtype, device=own.device)
    flat = out.view(-1)
    for start in range(0, own.numel(), block):
        here = slice(start, start + block)
        part = total[: flat[here].numel()]
        (weight, first), *more = terms
        torch.mul(first.view(-1)[here].to(part.dtype), weight, out=part)
        for weight, theirs in more:
            part.add_(theirs.view(-1)[here], alpha=weight)
        flat[here] = part


def mean_of(out: Tensor, values: Tensor, total: Tensor, size: int, *, adds_own: bool = True) -> None:
    """`total` / `size` into `out`, which may be `values`; what these have lost by rounding is added, if wanted."""
    if adds_own and total.dtype != values.dtype:
        out.copy_(values - values.to(total.dtype)).add_(total).div_(size)
    else:
        torch.div(total.to(out.dtype), size, out=out)


def add_up(total: Tensor, terms: list[Tensor], dtype: torch.dtype) -> None:
    """The sum of flat terms, in this order, into `total`, which may be one of them. Sums are of `dtype` until then."""
    block = _BLOCK * torch.get_num_threads()
    room = torch.empty(min(block, total.numel()), dtype=dtype, device=total.device)
    for start in range(0, total.numel(), block):
        here = slice(start, start + block)
        part = room[: total[here].numel()]
        first, *more = terms
        part.copy_(first[here])
        for term in more:
            part.add_(term[here])
        total[here] = part
