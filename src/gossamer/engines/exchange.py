"""Exchanges under way between processes: point to point, over a window of a ring, inside a group."""

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed import AllreduceOptions, Work

from gossamer.topologies import Mixing, WindowPlan

if TYPE_CHECKING:
    from .transport import Transport


class Wire:
    """What tensors look like on their way: on the CPU where the process group needs that, in a smaller type if wanted.

    Buffers are lent and given back: memory that is fresh in every step would have to be mapped in every step.
    """

    def __init__(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> None:
        self.dtype = dtype
        self.device = device
        self._spare: dict[tuple[int, torch.dtype, torch.device], list[Tensor]] = defaultdict(list)

    def buffer(self, like: Tensor) -> Tensor:
        """Room for what is sent of a tensor like this."""
        dtype = like.dtype if self.dtype is None or not like.is_floating_point() else self.dtype
        device = like.device if self.device is None else self.device
        spare = self._spare[like.numel(), dtype, device]
        if spare:
            return spare.pop().view(like.shape)
        return torch.empty(like.shape, dtype=dtype, device=device)

    def pack(self, values: Tensor, *, copy: bool = False) -> Tensor:
        """The values as they are sent: themselves, where nothing has to change and no `copy` is wanted."""
        packed = self.buffer(values)
        if not copy and values.is_contiguous() and packed.dtype == values.dtype and packed.device == values.device:
            self.give_back(packed)
            return values
        return packed.copy_(values)

    def give_back(self, *buffers: Tensor) -> None:
        for buffer in buffers:
            self._spare[buffer.numel(), buffer.dtype, buffer.device].append(buffer)


class PairwiseExchange:
    """Values on their way to the listeners and from the neighbours of a mixing.

    They are sent from where they lie, without a copy, unless the wire has another type or device.
    """

    def __init__(self, transport: "Transport", mixing: Mixing, values: Tensor) -> None:
        rank, tag, wire = transport.rank, transport.tag, transport.wire
        self._transport = transport
        self._values = values
        self._weights = mixing.row(rank)
        self._sent = wire.pack(values)
        self.bytes_sent = float(self._sent.nbytes * len(mixing.listeners(rank)))
        self._received = {source: wire.buffer(values) for source in mixing.neighbors(rank)}
        self._receiving = {s: transport.receive(into, s, tag) for s, into in self._received.items()}
        self._sending = {to: transport.send(self._sent, to, tag) for to in mixing.listeners(rank)}

    def wait(self, out: Tensor | None = None) -> Tensor:
        for source, work in self._receiving.items():
            self._transport.wait_for(work, source)
        for to, work in self._sending.items():
            self._transport.wait_for(work, to)
        out = torch.empty_like(self._values) if out is None else out
        own = self._weights.get(self._transport.rank, 0.0)
        arrived = {source: received.to(out.device) for source, received in self._received.items()}
        match [*arrived.items()]:
            case [(source, received)] if received.dtype == out.dtype:  # a pair: weights sum to one
                torch.lerp(self._values, received, self._weights[source], out=out)
            case _:
                torch.mul(self._values, own, out=out)
                for source, received in arrived.items():
                    out.add_(received, alpha=self._weights[source])
        self._transport.wire.give_back(*self._received.values())
        if self._sent is not self._values:
            self._transport.wire.give_back(self._sent)
        return out


class GroupMean:
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
        self._transport = transport
        self._members = members
        self._values = values
        self._wire = wire or transport.wire
        self._sum = self._wire.pack(values, copy=True)
        self.bytes_sent = 2 * (len(members) - 1) / len(members) * self._sum.nbytes
        self._adds_own = self._sum.dtype != values.dtype and not is_same_for_all
        options = AllreduceOptions()
        options.timeout = transport.timeout  # of the group it would be what was right when the group was made
        self._work: Work = transport.subgroup(members).allreduce([self._sum], options)  # type: ignore[union-attr] # not in the stubs of gloo

    def wait(self, out: Tensor | None = None) -> Tensor:
        self._transport.wait_all(self._work, self._members)
        size, values = len(self._members), self._values
        out = torch.empty_like(values) if out is None else out
        if self._adds_own:  # what its own values have lost by rounding
            out.copy_(values - values.to(self._sum.dtype)).add_(self._sum.to(out.device)).div_(size)
        else:
            torch.div(self._sum.to(out.device, out.dtype), size, out=out)
        self._wire.give_back(self._sum)
        return out


class WindowMean:
    """The mean over a window of the ring, under way as sums of neighbours in a row (see `topologies.WindowPlan`).

    One round needs the result of the one before it: `start` begins the first, `wait` goes through the others.
    """

    def __init__(self, transport: "Transport", plan: WindowPlan, values: Tensor) -> None:
        self._transport = transport
        self._plan = plan
        self._values = values
        self._tag = transport.tag
        self._everybody = GroupMean(transport, tuple(range(plan.n)), values) if plan.is_complement else None
        self._first = self._begin(0, transport.wire.pack(values))
        self.bytes_sent = plan.models_sent * self._first.values.nbytes

    def wait(self, out: Tensor | None = None) -> Tensor:
        row = self._first
        total = torch.zeros_like(row.values)
        for number, round in enumerate(self._plan.rounds):
            row = row if number == 0 else self._begin(number, row.values)
            taken, doubled = (self._arrived(message) for message in (row.taken, row.doubled))
            if round.take_from is not None:
                total += row.values if taken is None else taken
            if doubled is not None:
                row = replace(row, values=doubled.add_(row.values))
        size = 2 * self._plan.half + 1
        total = total.to(self._values.device, self._values.dtype)
        if self._everybody is not None:
            total = self._everybody.wait().mul_(self._plan.n).sub_(total)
        return total.div_(size) if out is None else torch.div(total, size, out=out)

    def _begin(self, number: int, values: Tensor) -> "_RowSum":
        round, tag = self._plan.rounds[number], self._tag + 2 * number
        return _RowSum(
            values=values,
            taken=self._swap(values, round.take_from, tag),
            doubled=self._swap(values, round.double_from, tag + 1),
        )

    def _swap(self, values: Tensor, ahead: int | None, tag: int) -> "_Message | None":
        """Ask the worker so far ahead for its sum, and give ours to the one as far behind."""
        if not ahead:
            return None
        source, to = ((self._transport.rank + hop) % self._plan.n for hop in (ahead, -ahead))
        into = torch.empty_like(values)
        receiving = self._transport.receive(into, source, tag)
        return _Message(into=into, source=source, to=to, works=(receiving, self._transport.send(values, to, tag)))

    def _arrived(self, message: "_Message | None") -> Tensor | None:
        if message is None:
            return None
        for work, peer in zip(message.works, (message.source, message.to), strict=True):
            self._transport.wait_for(work, peer)
        return message.into


@dataclass(frozen=True, kw_only=True)
class _Message:
    into: Tensor
    source: int
    to: int
    works: tuple[Work, Work]


@dataclass(frozen=True, kw_only=True)
class _RowSum:
    """A sum of neighbours in a row, and the messages of the round that uses it."""

    values: Tensor
    taken: _Message | None
    doubled: _Message | None
