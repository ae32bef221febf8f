"""What an exchange takes: the wires that its messages go over, some of which several workers share."""

from dataclasses import dataclass
from itertools import chain
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from gossamer.topologies import Mixing

from ._cluster import Cluster
from ._computation import Floats

Ranks = NDArray[np.int64]


@dataclass(frozen=True)
class Cost:
    """latency + bytes · rate, `[N]` each."""

    latency_s: Floats
    s_per_byte: Floats
    busy_s_per_byte: Floats | None = None
    """Of the busiest wire, where it is not in use all the time."""

    def seconds(self, num_bytes: Floats, in_a_row: int = 1) -> Floats:
        """`[..., N]` for messages of `[...]` bytes; of one of so many in a row, whose phases on other wires overlap."""
        s_per_byte = self.s_per_byte if in_a_row == 1 else self.busy + (self.s_per_byte - self.busy) / in_a_row
        return self.latency_s + num_bytes[..., None] * s_per_byte

    def spread(self, group_of: Ranks) -> "Cost":
        """Of groups, for each worker."""
        return Cost(self.latency_s[group_of], self.s_per_byte[group_of], self.busy[group_of])

    def but(self, of_some: "Ranks | NDArray[np.bool_]", other: "Cost") -> "Cost":
        """Some of another kind."""
        mine, theirs = (self.latency_s, self.s_per_byte, self.busy), (other.latency_s, other.s_per_byte, other.busy)
        return Cost(*(np.where(of_some, new, old) for old, new in zip(mine, theirs, strict=True)))

    @property
    def busy(self) -> Floats:
        return self.s_per_byte if self.busy_s_per_byte is None else self.busy_s_per_byte

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.latency_s + other.latency_s, self.s_per_byte + other.s_per_byte)


_SUMMED_TOGETHER = 3
"""Models that a worker takes in where a group of a node sums up together, however many they are: by measurements with
four and eight workers on two cores."""


class Wires:
    """How long exchanges take on a cluster, once everybody who is needed is there.

    A worker has a wire to others of its node, a node one to other nodes; both carry their rate each way at a time. All
    messages of one mixing share the wires that they go over: an exchange takes as long as the busiest of its wires.

    A pair swaps models. A larger group makes an all-reduce, by the shorter of two ways: around a *ring*, 2(g − 1)
    messages of a g-th of the model in a row, or up and down a *tree*, 2⌈log₂g⌉ latencies and the whole model twice. A
    group of M whole nodes of L workers averages *by node*, where the cluster does so: everybody sends each other of its
    node an L-th of the model, twice; and in between the counterparts of all nodes all-reduce that L-th, around a ring,
    2(M − 1) messages of an LM-th in a row, or by a tree. All of them share the wire of their node, which carries
    2(M − 1)/M models. These phases follow one another, and of several exchanges in a row one is inside the nodes while
    another is between them. An average over everybody that is no graph's (all-reduce) goes by ring or tree. A ring
    lattice of many neighbours adds up sums of neighbours in a row. In any other graph a worker sends its model to each
    listener.
    """

    def __init__(self, cluster: Cluster) -> None:
        """Links of single pairs (`Cluster.links`) are not looked at."""
        self._cluster = cluster
        self._node = np.arange(cluster.workers) // cluster.local_size
        self._ways: WeakKeyDictionary[Mixing, tuple[Cost, ...]] = WeakKeyDictionary()

    def exchange_s(self, mixing: Mixing, num_bytes: Floats, in_a_row: int = 1) -> Floats:
        """Seconds that a mixing of models of `[...]` bytes takes each worker, `[..., N]`.

        `in_a_row`: of so many exchanges that follow each other, on average; phases of some overlap those of others.
        """
        first, *others = [way.seconds(num_bytes, in_a_row) for way in self.ways(mixing)]
        for other in others:
            first = np.minimum(first, other)
        return first

    def all_reduce_s(self, num_bytes: Floats, how: str = "best") -> Floats:
        """Seconds of an average over everybody, `[...]`; `how` is ring, tree or the shorter of both."""
        ring, tree = self._groups((tuple(range(self._cluster.workers)),))
        ways = {"ring": [ring], "tree": [tree], "best": [ring, tree]}[how]
        return np.asarray(np.min([way.seconds(num_bytes)[..., 0] for way in ways], axis=0))

    def busy_s(self, mixing: Mixing | None, num_bytes: float) -> Floats:
        """Seconds for which the busiest wire of each worker is in use, `[N]`; None is an average over everybody."""
        everybody = (tuple(range(self._cluster.workers)),)
        ways = self._groups(everybody) if mixing is None else self.ways(mixing)
        return np.asarray(np.min([way.busy for way in ways], axis=0)) * num_bytes

    def taken_in(self, mixing: Mixing) -> Floats:
        """How many models each worker takes in, `[N]`: one of each neighbour of its node, whose models it reads; one of
        all on other nodes, from where sums arrive. A group whose members sum up for each other costs as much as three.
        """
        arcs = mixing.weights.tocoo()
        receivers, senders = arcs.row[arcs.row != arcs.col], arcs.col[arcs.row != arcs.col]
        is_near = self._node[receivers] == self._node[senders]
        near = np.bincount(receivers[is_near], minlength=mixing.n)
        if mixing.groups is not None:
            near = np.minimum(near, _SUMMED_TOGETHER)
        far = np.bincount(receivers[~is_near], minlength=mixing.n) > 0
        return np.asarray(near + far, dtype=np.float64)

    def ways(self, mixing: Mixing) -> tuple[Cost, ...]:
        """The costs of the ways there are to carry it out."""
        if mixing.n != self._cluster.workers:
            raise ValueError(f"{mixing.name!r} is for {mixing.n} workers, but there are {self._cluster.workers}")
        if mixing not in self._ways:
            self._ways[mixing] = self._new_ways(mixing)
        return self._ways[mixing]

    def _new_ways(self, mixing: Mixing) -> tuple[Cost, ...]:
        if mixing.groups is not None:
            return self._groups(mixing.groups, by_node=self._cluster.averages_by_node)
        if mixing.window is not None and mixing.window.is_by_doubling:
            return (self._window(mixing),)
        arcs = mixing.weights.tocoo()
        senders, receivers = arcs.col.astype(np.int64), arcs.row.astype(np.int64)
        others = senders != receivers
        return (self._messages(senders[others], receivers[others], 1.0),)

    def _groups(self, groups: tuple[tuple[int, ...], ...], *, by_node: bool = False) -> tuple[Cost, Cost]:
        """Around a ring of the members in the order of their ranks; and by a tree, over the same wires.

        Groups of whole nodes go by node, if wanted, and between the nodes in these two ways.
        """
        sizes = np.array([len(group) for group in groups])
        members = np.fromiter(chain.from_iterable(groups), dtype=np.int64, count=int(sizes.sum()))
        starts = np.cumsum(sizes) - sizes
        following = np.roll(members, -1)
        following[starts + sizes - 1] = members[starts]
        number = np.repeat(np.arange(len(groups)), sizes)
        each = self._messages(members, following, 2 * (1 - 1 / sizes[number]))
        latency_s, s_per_byte = (np.maximum.reduceat(c[members], starts) for c in (each.latency_s, each.s_per_byte))
        is_pair = sizes <= 2
        group_of = np.empty(len(members), dtype=np.int64)
        group_of[members] = number
        ring = Cost(np.where(is_pair, 1, 2 * (sizes - 1)) * latency_s, s_per_byte)
        tree = Cost(
            self._tree_latency_s(sizes, number, members),
            np.where(is_pair, 1, sizes / np.maximum(sizes - 1, 1)) * s_per_byte,
        )
        if by_node and (whole := self._are_of_nodes(sizes, number, members)).any():
            num_nodes = sizes / self._cluster.local_size
            steps, models = 2 * (num_nodes - 1), 2 * (1 - 1 / num_nodes)
            ring = ring.but(whole, self._by_node(steps, models))
            tree = tree.but(whole, self._by_node(2 * np.ceil(np.log2(num_nodes)), np.full(len(sizes), 2.0)))
        return ring.spread(group_of), tree.spread(group_of)

    def _are_of_nodes(self, sizes: Ranks, number: Ranks, members: Ranks) -> NDArray[np.bool_]:
        """Which groups are several whole nodes of several workers. `number`: the group of each member."""
        local_size, num_nodes = self._cluster.local_size, self._cluster.num_nodes
        parts, in_part = np.unique(number * num_nodes + self._node[members], return_counts=True)
        least = np.full(len(sizes), local_size)
        np.minimum.at(least, parts // num_nodes, in_part)
        return np.asarray((least == local_size) & (sizes > local_size) & (local_size > 1))

    def _by_node(self, messages: Floats, models: Floats) -> Cost:
        """Of groups whose nodes send each other so many messages in a row, and so many models in all."""
        size, link, within = self._cluster.local_size, self._cluster.link, self._cluster.within
        inside = 2 / size * max((size - 1) / within.bytes_per_s, 1 / within.of_stream)
        between = models * max(1 / link.bytes_per_s, 1 / size / link.of_stream)
        latency_s = 2 * within.latency_s + messages * link.latency_s
        return Cost(latency_s, inside + between, np.maximum(inside, between))

    def _tree_latency_s(self, sizes: Ranks, number: Ranks, members: Ranks) -> Floats:
        """Of each group, up and down: a tree of the nodes, and one inside each. `number`: the group of each member."""
        num_nodes = self._cluster.num_nodes
        parts, in_part = np.unique(number * num_nodes + self._node[members], return_counts=True)
        group = parts // num_nodes  # of those of its members who share a node
        most = np.zeros(len(sizes), dtype=np.int64)
        np.maximum.at(most, group, in_part)
        across, inside = np.ceil(np.log2([np.bincount(group), most]))
        once = across * self._cluster.link.latency_s + inside * self._cluster.within.latency_s
        return np.asarray(np.where(sizes <= 2, once, 2 * once))

    def _window(self, mixing: Mixing) -> Cost:
        plan, n, here = mixing.window, mixing.n, np.arange(mixing.n)
        assert plan is not None
        total = Cost(np.zeros(n), np.zeros(n))
        for step in plan.rounds:
            ahead = [hop for hop in (step.take_from, step.double_from) if hop]
            if ahead:
                senders = np.concatenate([(here + hop) % n for hop in ahead])
                each = self._messages(senders, np.tile(here, len(ahead)), 1.0)
                total += Cost(np.full(n, each.latency_s.max()), np.full(n, each.s_per_byte.max()))
        return total + self._groups((tuple(range(n)),))[0] if plan.is_complement else total

    def _messages(self, senders: Ranks, receivers: Ranks, models: Floats | float) -> Cost:
        """Of messages that are all sent at a time; `models` is how much of a model each has."""
        cluster, n = self._cluster, self._cluster.workers
        models = np.broadcast_to(np.asarray(models, dtype=np.float64), senders.shape)
        crosses = self._node[senders] != self._node[receivers]
        moves = senders != receivers
        busy = np.zeros(len(senders))
        for link, on, ends in (
            (cluster.link, crosses, self._node),
            (cluster.within, ~crosses & moves, np.arange(n)),
        ):
            busy[on] = models[on] / link.of_stream
            for side in (senders, receivers):
                load = np.bincount(ends[side[on]], weights=models[on], minlength=n) / link.bytes_per_s
                busy[on] = np.maximum(busy[on], load[ends[side[on]]])
        delay = np.where(crosses, cluster.link.latency_s, np.where(moves, cluster.within.latency_s, 0.0))
        latency_s, s_per_byte = np.zeros(n), np.zeros(n)
        for side in (senders, receivers):
            np.maximum.at(latency_s, side, delay)
            np.maximum.at(s_per_byte, side, busy)
        return Cost(latency_s, s_per_byte)
