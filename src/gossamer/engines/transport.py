"""The only file that sends: exchanges between the processes of a group that was handed in."""

import json
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import NoReturn, TypeVar

import torch
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroup, ProcessGroupGloo, Work  # type: ignore[attr-defined]

from gossamer.topologies import Mixing

from .exchange import GroupMean, PairwiseExchange, WindowMean, Wire
from .flat import Arrived
from .patience import Patience

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
    Every wait ends within `timeout_s` (when not given: see `Patience`); what fails raises `NeighborLost`, which names
    the rank at fault, after a grace time in which ranks tell each other whom they blame (at most another `timeout_s`,
    or 4 s if that is longer). Gloo closes all connections of a group once a wait on it has timed out, so after that
    error the group is spent.
    """

    def __init__(self, group: ProcessGroup, *, timeout_s: float | None = None, wire: Wire | None = None) -> None:
        self.patience = Patience(timeout_s)
        self.group = group
        self.rank = group.rank()
        self.size = group.size()
        self.wire = wire or Wire()
        self._exact_wire = Wire(device=self.wire.device)
        self.waited_s = 0.0
        self._num_exchanges = 0
        self._subgroups: dict[tuple[int, ...], ProcessGroupGloo] = {}
        # Several transports may use one group in turn. Each has keys of its own, and since every rank makes
        # them in the same order, the count of a rank's own transports is the same number on all.
        store = group.get_group_store()
        self.serial = store.add(f"gossamer/transports/{self.rank}", 1)
        self._store = PrefixStore(f"gossamer/transport-{self.serial}", store)

    # ---- exchanges ----------------------------------------------------------------------------------

    @property
    def timeout_s(self) -> float:
        return self.patience.seconds

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self.timeout_s)

    def start(self, mixing: Mixing, values: Tensor) -> Arrived | PairwiseExchange | WindowMean | GroupMean:
        """Begin `sum_j W_ij values_j` by the cheapest way that the mixing allows."""
        if mixing.n != self.size:
            raise ValueError(f"a mixing of {mixing.n} replicas cannot run on {self.size} processes: give it as many")
        self._num_exchanges += 1
        self.patience.stepped()
        members = self._my_group(mixing)
        if members is not None and len(members) == 1:
            return Arrived(values.clone())
        if members is not None and len(members) > 2:
            return GroupMean(self, members, values)
        if mixing.window is not None and mixing.window.is_by_doubling and self.wire.dtype is None:
            return WindowMean(self, mixing.window, values)
        return PairwiseExchange(self, mixing, values)

    def start_mean(self, values: Tensor, *, exact: bool = False) -> Arrived | GroupMean:
        """Begin the mean over all ranks, the same on all; `exact` in the values' own type, whatever training sends."""
        self._num_exchanges += 1
        if self.size == 1:
            return Arrived(values.clone())
        wire = self._exact_wire if exact else self.wire
        return GroupMean(self, tuple(range(self.size)), values, wire, is_same_for_all=True)

    def gather(self, values: Tensor) -> Tensor:
        """`values` of every rank, `[size, ...]`, on every rank."""
        self._num_exchanges += 1
        everybody = [torch.empty_like(values) for _ in range(self.size)]
        if self.size == 1:
            everybody = [values]
        else:
            self.wait_all(self.group.allgather([everybody], [values.contiguous()]))
        return torch.stack(everybody)

    def broadcast(self, values: Tensor, source: int = 0) -> None:
        """Overwrite `values` with those of one rank."""
        self._num_exchanges += 1
        if self.size > 1:
            copy = values.contiguous()
            self.wait_all(self.group.broadcast(copy, source))
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
                lambda: ProcessGroupGloo(store, members.index(self.rank), len(members), self.timeout),
                *members,
            )
        return self._subgroups[members]

    def wait_for(self, work: Work, peer: int) -> None:
        """Wait for an operation with one peer."""
        self._attempt(lambda: self._timed(work), peer)

    def wait_all(self, work: Work, members: Iterable[int] | None = None) -> None:
        """Wait for a collective of some ranks, or of all."""
        self._attempt(lambda: self._timed(work), *(range(self.size) if members is None else members))

    def _timed(self, work: Work) -> None:
        started = time.monotonic()
        work.wait(self.timeout)
        waited_s = time.monotonic() - started
        self.patience.waited(waited_s)
        self.waited_s += waited_s

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

    def blame(self, culprit: int) -> None:
        """This rank has ended because of `culprit`: leave word of it for those who wait for this one."""
        if self._read_note("culprit", self.rank) is None:
            self._leave_note("present", self.rank)
            self._leave_note("culprit", culprit)

    def _leave_note(self, kind: str, value: int) -> None:
        with suppress(RuntimeError):  # the store went down with the rank that hosts it: nobody can read the note
            self._store.set(f"{kind}/{self.rank}", json.dumps(value))

    def _read_note(self, kind: str, rank: int) -> int | None:
        key = f"{kind}/{rank}"
        try:
            return int(json.loads(self._store.get(key))) if self._store.check([key]) else None
        except RuntimeError:
            return None
