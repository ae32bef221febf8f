"""Exchanges between processes: with neighbours, over a window of a ring, inside a group.

Each has three moments. Making one settles its place in the order of all exchanges and what it will send; `begin` sends;
`wait` has the result.
"""

from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.distributed import Work

from gossamer.topologies import Mixing, WindowPlan

from .wire import Wire

if TYPE_CHECKING:
    from .transport import Messages, Transport


class ProcessExchange(Protocol):
    """What the transport makes."""

    bytes_sent: float

    def begin(self) -> None: ...

    def wait(self, out: Tensor | None = None) -> Tensor: ...


class Unmixed:
    """An exchange with nobody."""

    bytes_sent = 0.0

    def __init__(self, values: Tensor) -> None:
        self._values = values

    def wait(self, out: Tensor | None = None) -> Tensor:
        if out is None:
            return self._values.clone()
        return out if out is self._values else out.copy_(self._values)


class PairwiseExchange:
    """Values on their way to the listeners and from the neighbours of a mixing.

    They are sent from where they lie, without a copy, unless the wire has another type.
    """

    def __init__(self, transport: "Transport", mixing: Mixing, values: Tensor) -> None:
        rank = transport.rank
        self._transport = transport
        self._values = values
        self._tag = transport.tag
        self._weights = mixing.row(rank)
        self._neighbors, self._listeners = mixing.neighbors(rank), mixing.listeners(rank)
        self.bytes_sent = float(transport.wire.nbytes_of(values) * len(self._listeners))

    def begin(self) -> None:
        transport, wire = self._transport, self._transport.wire
        self._sent = wire.pack(self._values)
        self._received = {source: wire.buffer(self._values) for source in self._neighbors}
        self._messages = transport.swap(self._received, dict.fromkeys(self._listeners, self._sent), self._tag)

    def wait(self, out: Tensor | None = None) -> Tensor:
        self._messages.wait()
        values, wire = self._values, self._transport.wire
        out = torch.empty_like(values) if out is None else out
        match [*self._received.items()]:
            case [(source, received)] if received.dtype == out.dtype:  # a pair: weights sum to one
                torch.lerp(values, received, self._weights[source], out=out)
            case neighbors:
                torch.mul(values, self._weights.get(self._transport.rank, 0.0), out=out)
                for source, received in neighbors:
                    out.add_(received, alpha=self._weights[source])
        wire.give_back(*self._received.values())
        if self._sent is not values:
            wire.give_back(self._sent)
        return out


class NeighborSum:
    """Many neighbours, taken in one after the other by the courier: two buffers, however many they are.

    Each worker begins with the neighbour that follows it, so that not all of them turn to the same one at a time.
    """

    def __init__(self, transport: "Transport", mixing: Mixing, values: Tensor) -> None:
        rank, size = transport.rank, transport.size
        self._transport = transport
        self._values = values
        self._tag = transport.tag
        self._weights = mixing.row(rank)
        self._neighbors = sorted(mixing.neighbors(rank), key=lambda source: (source - rank) % size)
        self._listeners = mixing.listeners(rank)
        self.bytes_sent = float(transport.wire.nbytes_of(values) * len(self._listeners))

    def begin(self) -> None:
        self._sent = self._transport.wire.pack(self._values)
        self._sending = self._transport.swap({}, dict.fromkeys(self._listeners, self._sent), self._tag)
        self._sum: Future[Tensor] = self._transport.courier.send(self._take_in)

    def _take_in(self) -> Tensor:
        transport, wire = self._transport, self._transport.wire
        total = transport.buffers.lend(self._values.shape, self._values.dtype, self._values.device)
        torch.mul(self._values, self._weights.get(transport.rank, 0.0), out=total)
        received = wire.buffer(self._values)
        for source in self._neighbors:
            transport.swap({source: received}, {}, self._tag).wait()
            total.add_(received, alpha=self._weights[source])
        wire.give_back(received)
        self._sending.wait()
        return total

    def wait(self, out: Tensor | None = None) -> Tensor:
        total = self._transport.wait_until(self._sum)
        if self._sent is not self._values:
            self._transport.wire.give_back(self._sent)
        if out is None:
            return total
        self._transport.buffers.give_back(total)
        return out.copy_(total)


class GroupMean:
    """An average over some of the ranks, under way as an all-reduce among them."""

    def __init__(
        self, transport: "Transport", members: tuple[int, ...], values: Tensor, wire: Wire | None = None
    ) -> None:
        self._transport = transport
        self._members = members
        self._values = values
        self._wire = wire or transport.wire
        self.bytes_sent = 2 * (len(members) - 1) / len(members) * self._wire.nbytes_of(values)

    def begin(self) -> None:
        self._sum = self._wire.pack(self._values, copy=True)
        self._work: Work = self._transport.all_reduce(self._sum, self._members)

    def wait(self, out: Tensor | None = None) -> Tensor:
        self._transport.wait_all(self._work, self._members)
        size, values, total = len(self._members), self._values, self._sum
        out = torch.empty_like(values) if out is None else out
        if total.dtype == values.dtype:
            torch.div(total, size, out=out)
        else:  # its own values count in full: only those of others were rounded
            out.copy_(values - values.to(total.dtype)).add_(total).div_(size)
        self._wire.give_back(total)
        return out


class WindowMean:
    """The mean over a window of the ring, under way as sums of neighbours in a row (see `topologies.WindowPlan`).

    One round needs the result of the one before it: the courier goes through them.
    """

    def __init__(self, transport: "Transport", plan: WindowPlan, values: Tensor) -> None:
        self._transport = transport
        self._plan = plan
        self._values = values
        self._tag = transport.tag
        self._everybody = GroupMean(transport, tuple(range(plan.n)), values) if plan.is_complement else None
        self.bytes_sent = plan.models_sent * values.nbytes

    def begin(self) -> None:
        if self._everybody is not None:
            self._everybody.begin()
        self._sum: Future[Tensor] = self._transport.courier.send(self._add_up)

    def _add_up(self) -> Tensor:
        buffers, values = self._transport.buffers, self._values

        def lend() -> Tensor:
            return buffers.lend(values.shape, values.dtype, values.device)

        def give_back(buffer: Tensor) -> None:
            if buffer is not values:
                buffers.give_back(buffer)

        row, total, taken = values, lend().zero_(), lend()
        for number, round in enumerate(self._plan.rounds):
            doubled = lend()
            hops = [(round.take_from, taken), (round.double_from, doubled)]
            messages = [
                self._from_ahead(row, into, ahead, self._tag + 2 * number + which)
                for which, (ahead, into) in enumerate(hops)
                if ahead
            ]
            for message in messages:
                message.wait()
            if round.take_from is not None:
                total += taken if round.take_from else row
            if round.double_from:
                row, doubled = doubled.add_(row), row
            give_back(doubled)
        give_back(taken)
        give_back(row)
        return total

    def _from_ahead(self, values: Tensor, into: Tensor, ahead: int, tag: int) -> "Messages":
        """Ask the worker so far ahead for its sum, and give ours to the one as far behind."""
        source, to = ((self._transport.rank + hop) % self._plan.n for hop in (ahead, -ahead))
        return self._transport.swap({source: into}, {to: values}, tag)

    def wait(self, out: Tensor | None = None) -> Tensor:
        total = self._transport.wait_until(self._sum)
        if self._everybody is not None:
            total = self._everybody.wait().mul_(self._plan.n).sub_(total)
        size = 2 * self._plan.half + 1
        if out is None:
            return total.div_(size)
        self._transport.buffers.give_back(total)
        return torch.div(total, size, out=out)
