"""The only file that sends: exchanges between the processes of a group that was handed in."""

import json
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NoReturn, TypeVar

import torch
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroup, ProcessGroupGloo, Work  # type: ignore[attr-defined]

from gossamer.topologies import Mixing, WindowPlan

from .flat import Arrived

T = TypeVar("T")

_LOST = re.compile("timed out|timeout|connection|closed|peer|broken pipe|reset", re.IGNORECASE)
"""What gloo says when it cannot reach somebody."""
_TAGS = 64
"""Messages of one exchange from one rank to another, at most."""
_GRACE_S = 2.0
"""How long a failing rank listens for word from the others before it blames one of them."""


class NeighborLost(RuntimeError):
    """A worker died or fell silent; `rank` is the one to look at."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class Transport:
    """Point-to-point exchanges, group and global averages over one `ProcessGroup`.

    All ranks must call it in the same order: the n-th exchange of one rank meets the n-th of another.
    Every wait ends within `timeout_s`; what fails raises `NeighborLost`, which names the rank at fault, after a grace
    time in which ranks tell each other whom they blame (at most another `timeout_s`, or 4 s if that is longer).
    Gloo closes all connections of a group once a wait on it has timed out, so after that error the group is spent.
    """

    def __init__(self, group: ProcessGroup, *, timeout_s: float = 60.0) -> None:
        if not timeout_s > 0:
            raise ValueError(f"timeout_s={timeout_s}: give the seconds to wait for a neighbour, more than 0")
        self.group = group
        self.rank = group.rank()
        self.size = group.size()
        self.timeout_s = timeout_s
        self._timeout = timedelta(seconds=timeout_s)
        self._num_exchanges = 0
        self._subgroups: dict[tuple[int, ...], ProcessGroupGloo] = {}
        # Several transports may use one group in turn. Each has keys of its own, and since every rank makes
        # them in the same order, the count of a rank's own transports is the same number on all.
        store = group.get_group_store()
        serial = store.add(f"gossamer/transports/{self.rank}", 1)
        self._store = PrefixStore(f"gossamer/transport-{serial}", store)

    # ---- exchanges ----------------------------------------------------------------------------------

    def start(self, mixing: Mixing, values: Tensor) -> "Arrived | PairwiseExchange | WindowMean | GroupMean":
        """Begin `sum_j W_ij values_j` by the cheapest way that the mixing allows."""
        if mixing.n != self.size:
            raise ValueError(f"a mixing of {mixing.n} replicas cannot run on {self.size} processes: give it as many")
        self._num_exchanges += 1
        members = self._my_group(mixing)
        if members is not None and len(members) == 1:
            return Arrived(values.clone())
        if members is not None and len(members) > 2:
            return GroupMean(self, members, values)
        if mixing.window is not None and mixing.window.is_by_doubling:
            return WindowMean(self, mixing.window, values)
        return PairwiseExchange(self, mixing, values)

    def start_mean(self, values: Tensor) -> "Arrived | GroupMean":
        """Begin the mean over all ranks."""
        self._num_exchanges += 1
        return Arrived(values.clone()) if self.size == 1 else GroupMean(self, tuple(range(self.size)), values)

    def gather(self, values: Tensor) -> Tensor:
        """`values` of every rank, `[size, ...]`, on every rank."""
        self._num_exchanges += 1
        everybody = [torch.empty_like(values) for _ in range(self.size)]
        if self.size == 1:
            everybody = [values]
        else:
            self.wait_all(self.group.allgather([everybody], [values.contiguous()]))
        return torch.stack(everybody)

    def broadcast(self, values: Tensor) -> None:
        """Overwrite `values` with those of rank 0."""
        self._num_exchanges += 1
        if self.size > 1:
            copy = values.contiguous()
            self.wait_all(self.group.broadcast(copy, 0))
            values.copy_(copy)

    def _my_group(self, mixing: Mixing) -> tuple[int, ...] | None:
        if mixing.groups is None:
            return None
        return next(members for members in mixing.groups if self.rank in members)

    def close(self) -> None:
        """Let go of the subgroups. The group that was handed in stays open."""
        for subgroup in self._subgroups.values():
            subgroup.shutdown()
        self._subgroups.clear()

    # ---- what exchanges are made of -----------------------------------------------------------------

    @property
    def tag(self) -> int:
        """The first of the numbers that tell messages of the current exchange from those of others under way."""
        return self._num_exchanges % 2**24 * _TAGS

    def send(self, values: Tensor, to: int, tag: int) -> Work:
        """Start sending to a rank."""
        return self._attempt(lambda: self.group.send([values], to, tag), to)

    def receive(self, values: Tensor, source: int, tag: int) -> Work:
        """Start receiving from a rank."""
        return self._attempt(lambda: self.group.recv([values], source, tag), source)

    def subgroup(self, members: tuple[int, ...]) -> ProcessGroup | ProcessGroupGloo:
        """A process group of some ranks. Only they take part in making it; it is made once."""
        if len(members) == self.size:
            return self.group
        if members not in self._subgroups:
            store = PrefixStore(f"group/{'-'.join(map(str, members))}", self._store)
            self._subgroups[members] = self._attempt(
                lambda: ProcessGroupGloo(store, members.index(self.rank), len(members), self._timeout),
                *members,
            )
        return self._subgroups[members]

    def wait_for(self, work: Work, peer: int) -> None:
        """Wait for an operation with one peer."""
        self._attempt(lambda: work.wait(self._timeout), peer)

    def wait_all(self, work: Work, members: Iterable[int] | None = None) -> None:
        """Wait for a collective of some ranks, or of all."""
        self._attempt(lambda: work.wait(self._timeout), *(range(self.size) if members is None else members))

    # ---- when it fails ------------------------------------------------------------------------------

    def _attempt(self, operation: Callable[[], T], *peers: int) -> T:
        started = time.monotonic()
        try:
            return operation()
        except RuntimeError as error:
            if not _LOST.search(str(error)):  # a mistake of ours (a dtype, a device), not a lost neighbour
                raise
            self._give_up(peers, time.monotonic() - started, error)

    def _give_up(self, peers: tuple[int, ...], waited_s: float, error: Exception) -> NoReturn:
        """Find out who is at fault, leave word of it for the others, and raise.

        A rank that gives up closes its connections, which its neighbours then see break. They must not blame
        it: so whoever fails leaves a note that names the culprit, and looks for notes of its peers first.
        """
        others = [peer for peer in peers if peer != self.rank]
        self._leave_note("present", self.rank)
        culprit, told_by = self._find_culprit(others)
        self._leave_note("culprit", culprit)
        if culprit == self.rank:
            raise NeighborLost(
                told_by, f"rank {told_by} gave this rank, {self.rank}, up: it had not heard from it in time"
            ) from error
        how = (
            f"rank {told_by} reports that rank {culprit} is lost"
            if told_by != self.rank
            else f"rank {culprit} has been silent for the timeout of {self.timeout_s:g} s"
            if waited_s >= 0.9 * self.timeout_s
            else f"rank {culprit} closed its connection {waited_s:.1f} s into the wait (timeout {self.timeout_s:g} s)"
        )
        raise NeighborLost(
            culprit,
            f"{how}: exchange {self._num_exchanges} of rank {self.rank} cannot complete; look at the log of rank "
            f"{culprit}, or give a longer timeout if it is only slow",
        ) from error

    def _find_culprit(self, others: list[int]) -> tuple[int, int]:
        """(the rank at fault, who says so).

        Whoever has given up too leaves a note, so the one at fault is among those that leave none. A single one
        of them is named after the grace time; as long as there are several, some may only be late to the exchange and
        will yet fail and leave their note. Those who left a note are asked whom they blame.
        """
        started = time.monotonic()
        while True:
            waited_s = time.monotonic() - started
            for peer in others:
                culprit = self._read_note("culprit", peer)
                if culprit is not None:
                    return culprit, peer
            silent = [peer for peer in others if self._read_note("present", peer) is None]
            if len(silent) == 1 and waited_s > _GRACE_S:
                return silent[0], self.rank
            if waited_s > max(self.timeout_s, 2 * _GRACE_S):
                return (silent or others)[0], self.rank
            time.sleep(0.02)

    def _leave_note(self, kind: str, value: int) -> None:
        with suppress(RuntimeError):  # the store went down with the rank that hosts it: nobody can read the note
            self._store.set(f"{kind}/{self.rank}", json.dumps(value))

    def _read_note(self, kind: str, rank: int) -> int | None:
        key = f"{kind}/{rank}"
        try:
            return int(json.loads(self._store.get(key))) if self._store.check([key]) else None
        except RuntimeError:
            return None


class PairwiseExchange:
    """Values on their way to the listeners and from the neighbours of a mixing.

    `values` is sent from where it lies, without a copy: it may change only after `wait`.
    """

    def __init__(self, transport: Transport, mixing: Mixing, values: Tensor) -> None:
        rank = transport.rank
        self.bytes_sent = float(values.nbytes * len(mixing.listeners(rank)))
        self._transport = transport
        self._values = values.contiguous()
        self._weights = mixing.row(rank)
        self._received = {source: torch.empty_like(self._values) for source in mixing.neighbors(rank)}
        tag = transport.tag
        self._receiving = {s: transport.receive(into, s, tag) for s, into in self._received.items()}
        self._sending = {to: transport.send(self._values, to, tag) for to in mixing.listeners(rank)}

    def wait(self) -> Tensor:
        for source, work in self._receiving.items():
            self._transport.wait_for(work, source)
        for to, work in self._sending.items():
            self._transport.wait_for(work, to)
        mixed = self._values * self._weights.get(self._transport.rank, 0.0)
        for source, received in self._received.items():
            mixed.add_(received, alpha=self._weights[source])
        return mixed


class WindowMean:
    """The mean over a window of the ring, under way as sums of neighbours in a row (see `topologies.WindowPlan`).

    One round needs the result of the one before it: `start` begins the first, `wait` goes through the others.
    """

    def __init__(self, transport: Transport, plan: WindowPlan, values: Tensor) -> None:
        self.bytes_sent = plan.models_sent * values.nbytes
        self._transport = transport
        self._plan = plan
        self._everybody = GroupMean(transport, tuple(range(plan.n)), values) if plan.is_complement else None
        self._tag = transport.tag
        self._first = self._begin(0, values.contiguous())

    def wait(self) -> Tensor:
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
        if self._everybody is None:
            return total.div_(size)
        return self._everybody.wait().mul_(self._plan.n).sub_(total).div_(size)

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


class GroupMean:
    """An average over some of the ranks, under way as an all-reduce among them."""

    def __init__(self, transport: Transport, members: tuple[int, ...], values: Tensor) -> None:
        self._transport = transport
        self._members = members
        self._sum = values.clone(memory_format=torch.contiguous_format)
        self.bytes_sent = 2 * (len(members) - 1) / len(members) * values.nbytes
        self._work: Work = transport.subgroup(members).allreduce([self._sum])  # type: ignore[union-attr]

    def wait(self) -> Tensor:
        self._transport.wait_all(self._work, self._members)
        return self._sum.div_(len(self._members))
