"""The only file that sends in step: exchanges between the processes of a group that was handed in."""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import (  # type: ignore[attr-defined]
    AllreduceOptions,
    PrefixStore,
    ProcessGroup,
    ProcessGroupGloo,
    Work,
)

from gossamer.topologies import Mixing

from .blame import Blame
from .board import PLACES, Boards, aligned
from .courier import Courier, at_once
from .exchange import BoardExchange, GroupMean, NeighborSum, PairwiseExchange, ProcessExchange, Unmixed, WindowMean
from .node_mean import BoardNodeMean, MessageNodeMean
from .patience import Patience
from .shared_mean import WORTH_SHARING, SharedMean
from .staging import Staged, Streamed
from .wire import Buffers, Wire

T = TypeVar("T")

_TAGS = 64
"""Messages of one exchange from one rank to another, at most."""
_AT_ONCE = 2
"""Neighbours whose models are received at a time, each in a buffer of its own; more are taken in one by one."""
_SMALL = 8 * 2**20
"""Bytes that the board of a worker may take, whatever the size of its model."""
_READ_AT_MOST = 8
"""Neighbours on its host whose models a worker reads one by one; where there are more, sums of some are cheaper."""


@dataclass(frozen=True)
class Messages:
    """On their way to and from some peers."""

    transport: "Transport"
    works: list[tuple[int, Work]]
    on_gpu: bool = False

    def wait(self) -> None:
        for peer, work in self.works:
            self.transport.wait_for(work, peer, on_gpu=self.on_gpu)


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
        self.buffers = Buffers()
        self.host_buffers = Buffers(is_pinned=torch.cuda.is_available())
        self.courier = Courier()
        self.second_courier = Courier()
        """Waits for other nodes, while the first goes on inside of this one."""
        self.waited_s = 0.0
        self.num_exchanges = 0
        self.boards: Boards | None = None
        self.local_size: int | None = None
        """Workers of every node, ranks in a row; None where nobody has said."""
        self.under_way: dict[int, int] = {}
        """Bytes of the exchanges that have begun and are not awaited yet, by their number."""
        self._streams: dict[torch.device, Any] = {}
        self._num_gpus: int | None = None
        self._subgroups: dict[tuple[tuple[int, ...], bool], ProcessGroup | ProcessGroupGloo] = {}
        # Several transports may use one group in turn. Each has keys of its own, and since every rank makes
        # them in the same order, the count of a rank's own transports is the same number on all.
        store = group.get_group_store()
        self.serial = store.add(f"gossamer/transports/{self.rank}", 1)
        self._store = PrefixStore(f"gossamer/transport-{self.serial}", store)
        self.blame = Blame(self._store, self.rank, self.patience)

    # ---- exchanges ----------------------------------------------------------------------------------

    @property
    def timeout_s(self) -> float:
        return self.patience.seconds

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self.timeout_s)

    def start(self, mixing: Mixing, values: Tensor) -> Unmixed | ProcessExchange:
        """Begin `sum_j W_ij values_j` by the cheapest way that the mixing allows."""
        if mixing.n != self.size:
            raise ValueError(f"a mixing of {mixing.n} replicas cannot run on {self.size} processes: give it as many")
        self.num_exchanges += 1
        self.patience.stepped()
        members = self._my_group(mixing)
        if members is not None and len(members) == 1:
            return Unmixed(values)
        return self._begin(values, lambda sent: self._exchange(mixing, members, sent))

    def start_mean(self, values: Tensor, *, exact: bool = False) -> Unmixed | ProcessExchange:
        """Begin the mean over all ranks, the same on all; `exact` in the values' own type, whatever training sends."""
        self.num_exchanges += 1
        if self.size == 1:
            return Unmixed(values)
        wire, everybody = Wire() if exact else self.wire, tuple(range(self.size))
        return self._begin(values, lambda sent: GroupMean(self, everybody, sent, wire, is_same_for_all=True))

    def collect(self, mixing: Mixing, payload: Tensor) -> dict[int, Tensor]:
        """Send bytes as they are to all listeners of a mixing; what each neighbour has sent, as many bytes."""
        self.num_exchanges += 1
        self.patience.stepped()
        neighbors, listeners = mixing.neighbors(self.rank), mixing.listeners(self.rank)
        if not neighbors and not listeners:
            return {}
        sent = self._sendable(payload)
        received = {source: torch.empty_like(sent) for source in neighbors}
        self.swap(received, dict.fromkeys(listeners, sent), self.num_exchanges).wait()
        return {source: theirs.to(payload.device) for source, theirs in received.items()}

    def _begin(self, values: Tensor, exchange: Callable[[Tensor], ProcessExchange]) -> ProcessExchange:
        if values.is_cpu:
            under_way = exchange(values)
        else:
            beside = Streamed if self._has_nccl(values.device) else Staged
            under_way = beside(self, values, exchange, self._stream(values.device))
        self.under_way[self.num_exchanges] = aligned(values.nbytes)
        under_way.begin()
        return under_way

    def _exchange(self, mixing: Mixing, members: tuple[int, ...] | None, values: Tensor) -> ProcessExchange:
        partners = range(self.size) if members is None else members
        if self._is_on_board(partners, mixing.degree if members is None else len(members) - 1, values):
            assert self.boards is not None
            is_shared = (
                members is not None and len(members) >= WORTH_SHARING and self.wire.dtype_of(values) == values.dtype
            )
            kind, sent = SharedMean if is_shared else BoardExchange, float(mixing.models_sent[self.rank])
            return kind(self, self.boards, mixing.row(self.rank), mixing.listeners(self.rank), sent, values)
        if members is not None and len(members) > 2:
            return self._by_node(members, values) or GroupMean(self, members, values)
        if mixing.window is not None and mixing.window.is_by_doubling and self.wire.dtype is None:
            return WindowMean(self, mixing.window, values)
        if len(mixing.neighbors(self.rank)) > _AT_ONCE and values.is_cpu:
            return NeighborSum(self, mixing, values)
        return PairwiseExchange(self, mixing, values)

    def _by_node(self, members: tuple[int, ...], values: Tensor) -> ProcessExchange | None:
        """An average over whole nodes, where these members are such."""
        size = self.local_size
        if size is None or not 1 < size < len(members) or len(members) % size or not values.is_cpu:
            return None
        nodes = [members[start : start + size] for start in range(0, len(members), size)]
        if any(node[0] % size or node[-1] - node[0] != size - 1 for node in nodes):
            return None
        mine = next(node for node in nodes if self.rank in node)
        counterparts = tuple(node[mine.index(self.rank)] for node in nodes)
        if self._is_on_board(mine, 1, values):
            assert self.boards is not None
            return BoardNodeMean(self, self.boards, mine, counterparts, values)
        return MessageNodeMean(self, mine, counterparts, values)

    def _is_on_board(self, partners: Iterable[int], degree: int, values: Tensor) -> bool:
        """Whether all who take part do so in shared memory.

        They must all come to the same answer. And whoever waits for room on its board must wait for exchanges only that
        everybody ends before this one begins: so those under way may take half of it.
        """
        return (
            self.boards is not None
            and values.is_cpu
            and degree <= _READ_AT_MOST
            and self.boards.has(partners)
            and sum(self.under_way.values()) + aligned(values.nbytes) <= self.boards.capacity / 2
        )

    def know_nodes(self, local_size: int | None) -> None:
        """How many workers every node has, ranks in a row, as this rank knows it: it counts if all say so. All ranks.

        Launchers tell a rank of its own node only, and not all nodes need have as many.
        """
        self._store.set(f"local_size/{self.rank}", str(local_size))
        said = set(self._store.multi_get([f"local_size/{rank}" for rank in range(self.size)]))
        self.local_size = local_size if len(said) == 1 else None

    def open_boards(self, values: Iterable[Tensor], *, steps_under_way: int = 1) -> None:
        """Let workers of one host exchange such values through memory that they share. All ranks.

        Values of so many steps may be under way, and as much room again is for what others have still to read: they may
        be that far behind. Small models have more of it, so that who is fast need not wait for a reader who is late.
        """
        sizes = [aligned(tensor.nbytes) for tensor in values]
        models = 2 * max(steps_under_way, 1)
        models = max(models, min(2 * models, _SMALL // sum(sizes), PLACES // len(sizes)))
        if self.size > 1 and len(sizes) * models <= PLACES:
            capacity = sum(sizes) * models
            self.boards = Boards.meet(PrefixStore("boards", self._store), self.rank, self.size, capacity)

    def _stream(self, device: torch.device) -> Any:
        """Where values go down to the host and up again, beside the worker's own computation."""
        if device not in self._streams:
            self._streams[device] = torch.get_device_module(device).Stream(device)
        return self._streams[device]

    def _has_nccl(self, device: torch.device) -> bool:
        """Whether the group sends from GPUs, and each worker has one of its own, as NCCL needs it. All ranks."""
        if device.type != "cuda" or not _is_nccl(self.group):
            return False
        if self._num_gpus is None:
            self._store.set(f"gpu/{self.rank}", str(torch.cuda.get_device_properties(device).uuid))
            self._num_gpus = len(set(self._store.multi_get([f"gpu/{rank}" for rank in range(self.size)])))
        return self._num_gpus == self.size

    def gather(self, values: Tensor) -> Tensor:
        """`values` of every rank, `[size, ...]`, on every rank."""
        self.num_exchanges += 1
        if self.size == 1:
            return values.unsqueeze(0)
        own = self._sendable(values)
        everybody = [torch.empty_like(own) for _ in range(self.size)]
        self.wait_for(self.group.allgather([everybody], [own]), *range(self.size), on_gpu=own.is_cuda)
        return torch.stack(everybody).to(values.device)

    def broadcast(self, values: Tensor, source: int = 0) -> None:
        """Overwrite `values` with those of one rank."""
        self.num_exchanges += 1
        if self.size > 1:
            copy = self._sendable(values)
            self.wait_for(self.group.broadcast(copy, source), *range(self.size), on_gpu=copy.is_cuda)
            values.copy_(copy)

    def _sendable(self, values: Tensor) -> Tensor:
        return values.contiguous() if self._has_nccl(values.device) else values.cpu().contiguous()

    def _my_group(self, mixing: Mixing) -> tuple[int, ...] | None:
        if mixing.groups is None:
            return None
        return next(members for members in mixing.groups if self.rank in members)

    def close(self) -> None:
        """Let go of the subgroups. The group that was handed in stays open."""
        for subgroup in self._subgroups.values():
            subgroup.shutdown()
        self._subgroups.clear()
        self.leave_boards()

    def leave_boards(self) -> None:
        """Whoever still waits for this rank there sees at once that it will not come."""
        if self.boards is not None:
            self.boards.close()
            self.boards = None

    # ---- what exchanges are made of -----------------------------------------------------------------

    def swap(
        self, incoming: Mapping[int, Tensor], outgoing: Mapping[int, Tensor], exchange: int, message: int = 0
    ) -> Messages:
        """Start receiving from some ranks, and sending to some, as part of an exchange that is known by its number."""
        tag = exchange % 2**24 * _TAGS + message
        if any(values.is_cuda for values in (*incoming.values(), *outgoing.values())):
            return self._swap_on_gpu(incoming, outgoing)
        receiving = [
            (source, self._attempt(lambda: self.group.recv([into], source, tag), source))  # noqa: B023
            for source, into in incoming.items()
        ]
        sending = [
            (to, self._attempt(lambda: self.group.send([values], to, tag), to))  # noqa: B023
            for to, values in outgoing.items()
        ]
        return Messages(self, receiving + sending)

    def _swap_on_gpu(self, incoming: Mapping[int, Tensor], outgoing: Mapping[int, Tensor]) -> Messages:
        """In one batch: NCCL takes no notice of tags, and each message by itself would wait for the one before it."""
        batch = [
            dist.P2POp(operation, values, group=self.group, group_peer=peer)
            for operation, messages in ((dist.irecv, incoming), (dist.isend, outgoing))
            for peer, values in messages.items()
        ]
        peers = (*incoming, *outgoing)
        works = self._attempt(lambda: dist.batch_isend_irecv(batch), *peers)
        return Messages(self, [(peers[0], work) for work in works], on_gpu=True)

    def all_reduce(self, values: Tensor, members: tuple[int, ...], *, is_courier: bool = False) -> Work:
        """Start summing up over some ranks, in place.

        Members of a group must start in the same order, so what couriers start has groups of its own.
        """
        options = AllreduceOptions()
        options.timeout = self.timeout  # of the group it would be what was right when the group was made
        group = self.subgroup(members, values.device, is_courier=is_courier)
        work: Work = group.allreduce([values], options)  # type: ignore[union-attr] # not in the stubs of gloo
        return work

    def subgroup(
        self, members: tuple[int, ...], device: torch.device, *, is_courier: bool = False
    ) -> ProcessGroup | ProcessGroupGloo:
        """A process group of some ranks. Only they take part in making it; it is made once."""
        if len(members) == self.size:
            return self.group
        key = members, is_courier
        if key not in self._subgroups:
            make = self._nccl_group if device.type == "cuda" else self._gloo_group
            self._subgroups[key] = self._attempt(lambda: make(*key), *members)
        return self._subgroups[key]

    def _gloo_group(self, members: tuple[int, ...], is_courier: bool) -> ProcessGroupGloo:
        kind = "couriers" if is_courier else "group"
        store = PrefixStore(f"{kind}/{'-'.join(map(str, members))}", self._store)
        return ProcessGroupGloo(store, members.index(self.rank), len(members), self.timeout)

    def _nccl_group(self, members: tuple[int, ...], is_courier: bool) -> ProcessGroup:
        assert not is_courier, "NCCL's exchanges are started by the worker"
        ranks = [dist.get_global_rank(self.group, member) for member in members]
        group: ProcessGroup = dist.new_group(ranks, backend="nccl", use_local_synchronization=True)
        return group

    def carry_on(self, errand: Callable[[], T], values: Tensor) -> "Future[T]":
        """What an exchange of these values still has to do: for the courier; but at once where only a stream waits."""
        return self.courier.send(errand) if values.is_cpu else at_once(errand)

    def wait_for(self, work: Work, *peers: int, on_gpu: bool = False) -> None:
        """Wait for an operation with one peer or several; on a GPU, only its stream does."""
        self.wait_on(work.wait if on_gpu else lambda: work.wait(self.timeout), *peers)

    def wait_on(self, operation: Callable[[], T], *peers: int) -> T:
        """The result of something that waits for peers; if it fails, one of them is to blame."""
        return self._attempt(lambda: self._waiting(operation), *peers)

    def _attempt(self, operation: Callable[[], T], *peers: int) -> T:
        return self.blame.attempt(operation, peers, lambda: f"exchange {self.num_exchanges}")

    def wait_until(self, done: "Future[T]") -> T:
        """Wait for an errand of the courier."""
        return self._waiting(done.result)

    def _waiting(self, wait: Callable[[], T]) -> T:
        started = time.monotonic()
        result = wait()
        waited_s = time.monotonic() - started
        self.patience.waited(waited_s)
        if not (self.courier.is_me or self.second_courier.is_me):  # the worker goes on computing meanwhile
            self.waited_s += waited_s
        return result


def _is_nccl(group: ProcessGroup) -> bool:
    try:
        return group._get_backend(torch.device("cuda")).name() == "nccl"
    except RuntimeError:  # it has none for GPUs
        return False
