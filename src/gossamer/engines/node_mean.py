"""An average over whole nodes: each sums up by itself first, so that a slow link between them carries sums only."""

from abc import abstractmethod
from concurrent.futures import Future
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed import Work

from .board import Boards, aligned
from .exchange import ProcessExchange, add_up, mean_of

if TYPE_CHECKING:
    from .transport import Transport


class NodeMean(ProcessExchange):
    """The mean over M nodes of L workers each, in three phases.

    The values have L parts. Each worker of a node sums up one of them over its node; it and its counterparts, those of
    the other nodes who have the same part, all-reduce these sums; and the workers of the node give each other what they
    have then. A worker sends 2 (ML − 1) / ML models, as around a ring of all, but of these only 2 (M − 1) / M a node
    leave it, one where there are two nodes, and not 2 (ML − 1) / ML.

    Each part is the same on all members to the last bit: one worker a node has summed it up, and an all-reduce gives
    the same to all. Where the wire rounds, a worker's own values count in full in its own result, as in `GroupMean`.

    The courier sums up inside the node and hands over to gloo; a second one waits for the other nodes and hands out
    what came of it. So the next values are summed up while these are between nodes. No errand of the first waits for
    one of the second, and both take exchanges in the order in which all ranks have begun them.
    """

    def __init__(
        self, transport: "Transport", node: tuple[int, ...], counterparts: tuple[int, ...], values: Tensor
    ) -> None:
        super().__init__(transport, values)
        self._node = node
        self._counterparts = counterparts
        first, place = node[0], node.index(transport.rank)
        self._members = tuple(c - place + rank - first for c in counterparts for rank in node)
        self._dtype = transport.wire.dtype_of(values)
        self._length = -(-values.numel() // len(node))
        """Of a part; the last ones may be shorter, or empty."""
        self._parts = {
            rank: slice(min(at * self._length, values.numel()), min((at + 1) * self._length, values.numel()))
            for at, rank in enumerate(node)
        }
        size = len(self._members)
        self.bytes_sent = 2 * (size - 1) / size * transport.wire.nbytes_of(values)

    def begin(self) -> None:
        self._offer()
        is_between: Future[Work | None] = self.transport.courier.send(self._sum_up)
        self._is_handed_out: Future[None] = self.transport.second_courier.send(self._hand_on, is_between)

    def _sum_up(self) -> Work | None:
        """Own part over the node; then it is on its way between the nodes. Empty parts need not travel."""
        total, terms = self._own_part()
        if not total.numel():
            return None
        add_up(total, terms, self.values.dtype)
        return self.transport.all_reduce(total, self._counterparts, is_courier=True)

    def _hand_on(self, is_between: "Future[Work | None]") -> None:
        work = is_between.result()
        if work is not None:  # any of the members may be why a counterpart does not come
            self.transport.wait_for(work, *self._members)
        self._hand_out()

    def finish(self, out: Tensor) -> None:
        self.transport.wait_until(self._is_handed_out)
        totals = self._handed_out()  # all, before any is written: where somebody is lost the values stay what they were
        flat, values = out.view(-1), self.values.reshape(-1)
        for rank, part in self._parts.items():
            mean_of(flat[part], values[part], totals[rank], len(self._members))
        self._let_go()

    @abstractmethod
    def _offer(self) -> None:
        """Let the others of the node have what they sum up."""

    @abstractmethod
    def _own_part(self) -> tuple[Tensor, list[Tensor]]:
        """Where the sum of it goes, and what there is to add up, in the order of the ranks."""

    @abstractmethod
    def _hand_out(self) -> None:
        """Let the others of the node have the sum of all nodes over one's own part."""

    @abstractmethod
    def _handed_out(self) -> dict[int, Tensor]:
        """The sums over all parts, by the rank that has handed them out."""

    @abstractmethod
    def _let_go(self) -> None:
        """All is read."""


class BoardNodeMean(NodeMean):
    """Workers of a node share memory: each reads its part on all boards, and leaves the sum on its own, in its place.

    Nobody else reads that part there before it is the sum.
    """

    def __init__(
        self,
        transport: "Transport",
        boards: Boards,
        node: tuple[int, ...],
        counterparts: tuple[int, ...],
        values: Tensor,
    ) -> None:
        super().__init__(transport, node, counterparts, values)
        self._boards = boards
        self._others = tuple(rank for rank in node if rank != transport.rank)

    def _offer(self) -> None:
        room, timeout_s = aligned(self.transport.wire.nbytes_of(self.values)), self.transport.timeout_s
        start = self.transport.wait_on(lambda: self._boards.make_room(room, timeout_s), *self._others)
        self._boards.show(self.number, self.values, self._dtype, start, self._others)

    def _own_part(self) -> tuple[Tensor, list[Tensor]]:
        rank = self.transport.rank
        shown = {other: self._look(other)[self._parts[rank]] for other in self._node}
        return shown[rank], [*shown.values()]

    def _hand_out(self) -> None:
        self._boards.hand_out(self.number)

    def _handed_out(self) -> dict[int, Tensor]:
        timeout_s = self.transport.timeout_s
        for rank in self._others:
            self.transport.wait_on(lambda: self._boards.wait_for_sum(self.number, rank, timeout_s), rank)  # noqa: B023
        return {rank: self._look(rank)[part] for rank, part in self._parts.items()}

    def _let_go(self) -> None:
        self._boards.done(self.number)

    def _look(self, rank: int) -> Tensor:
        boards, timeout_s = self._boards, self.transport.timeout_s
        return self.transport.wait_on(lambda: boards.look(self.number, rank, self.values, self._dtype, timeout_s), rank)


class MessageNodeMean(NodeMean):
    """Workers of a node send each other the parts. One buffer of a model serves all phases: what others send of one's
    own part arrives where their parts of the result will be."""

    def _offer(self) -> None:
        wire, rank = self.transport.wire, self.transport.rank
        self._sent = wire.pack(self.values)
        self._room = wire.lend(torch.Size([len(self._node) * self._length]), self._dtype, self.values.device)
        mine, others = self._parts[rank], {r: part for r, part in self._parts.items() if r != rank}
        here = self._sent.view(-1)
        incoming = {other: self._slot(other, mine) for other in others}
        outgoing = {other: here[part] for other, part in others.items()}
        self._offered = self.transport.swap(_not_empty(incoming), _not_empty(outgoing), self.number)

    def _own_part(self) -> tuple[Tensor, list[Tensor]]:
        self._offered.wait()
        rank = self.transport.rank
        mine = self._parts[rank]
        own = self._sent.view(-1)[mine]
        return self._slot(rank, mine), [own if other == rank else self._slot(other, mine) for other in self._node]

    def _hand_out(self) -> None:
        rank = self.transport.rank
        others = {other: part for other, part in self._parts.items() if other != rank}
        incoming = {other: self._slot(other, part) for other, part in others.items()}
        outgoing = dict.fromkeys(others, self._slot(rank, self._parts[rank]))
        self.transport.swap(_not_empty(incoming), _not_empty(outgoing), self.number, message=1).wait()

    def _handed_out(self) -> dict[int, Tensor]:
        return {rank: self._slot(rank, part) for rank, part in self._parts.items()}

    def _let_go(self) -> None:
        self.transport.wire.give_back(self._room)
        if self._sent is not self.values:
            self.transport.wire.give_back(self._sent)

    def _slot(self, rank: int, part: slice) -> Tensor:
        """The place of a member in the buffer, as long as a part."""
        start = self._node.index(rank) * self._length
        return self._room[start : start + part.stop - part.start]


def _not_empty(messages: dict[int, Tensor]) -> dict[int, Tensor]:
    return {peer: values for peer, values in messages.items() if values.numel()}
