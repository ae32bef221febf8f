"""AD-PSGD in virtual time: who computes, who swaps with whom, when."""

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from math import inf

import numpy as np

from gossamer.topologies import Mixing, halves

from ._cluster import Cluster
from ._events import Event, OnSpan, Span, ignore

_PARTNERS = 2
"""Tells this use of the seed from others."""
_ARRIVE, _COMPUTED, _BEGIN, _NUDGE = range(4)
"""What is due. At one moment what has arrived comes first, so that a worker reads it, and exchanges begin last, so
that all gradients of that moment travel along."""
_PATIENCE = 2.0
"""An active worker that has not swapped for so many usual computation times swaps without a new gradient."""


def ad_psgd(
    cluster: Cluster, graph: Mixing, model_bytes: float, *, on_span: OnSpan = ignore, patience: float | None = _PATIENCE
) -> Iterator[Event]:
    """The events of asynchronous decentralized SGD on a bipartite graph, without end.

    A worker does two things at a time. Its *computing* thread reads the parameters, computes a gradient, applies it to
    what the parameters are by then, and reads again: it never waits. Its *mixing* thread swaps models pairwise: an
    active worker picks a passive neighbour at random, waits while that one is busy with another (first come, first
    served), and both exchange for latency + bytes / bandwidth. What was sent is the model as the exchange began; at its
    end each moves by half of the difference of what was sent, so gradients that were applied meanwhile survive and the
    mean of the two is kept.

    An active worker begins at most one swap for each gradient of its own, so that fast links are not flooded: a swap
    that is owed while another is under way follows it at once, and several that are owed are one. A slow worker
    would be left behind by that, so one that has not swapped for `patience` usual computation times swaps anyway.
    """
    return _Pairs(cluster, graph, model_bytes, on_span, patience).events()


class _Pairs:
    def __init__(
        self, cluster: Cluster, graph: Mixing, model_bytes: float, on_span: OnSpan, patience: float | None
    ) -> None:
        active, _ = halves(graph)
        n = cluster.workers
        self._cluster, self._bytes, self._on_span = cluster, model_bytes, on_span
        self._rest_s = inf if patience is None else patience * cluster.computation.mean_s
        self._times = cluster.times()
        self._neighbours: dict[int, Sequence[int]] = {i: graph.neighbors(i) for i in active if graph.neighbors(i)}
        self._random = {i: np.random.default_rng([cluster.seed, _PARTNERS, i]) for i in self._neighbours}
        self._due: list[tuple[float, int, int]] = []
        """When, what, whose."""
        self._read_s = [0.0] * n
        self._mixed = [0] * n
        """Mixings since the worker read its parameters."""
        self._partner: dict[int, int] = {}
        """Whom an active worker waits for or exchanges with; those that are not here are idle."""
        self._since_s = [0.0] * n
        """When it began to wait, or to exchange."""
        self._owes = [False] * n
        self._nudge_s = [self._rest_s] * n
        """When an active worker swaps again, come what may."""
        self._served: dict[int, int] = {}
        """Whom a passive worker exchanges with, or is about to."""
        self._queue: list[deque[int]] = [deque() for _ in range(n)]
        """Who waits for a passive worker."""

    def events(self) -> Iterator[Event]:
        self._due = [(self._times.next(i), _COMPUTED, i) for i in range(self._cluster.workers)]
        self._due += [(self._rest_s, _NUDGE, i) for i in self._neighbours]
        heapify(self._due)
        for worker in range(self._cluster.workers):
            yield Event(0.0, "read", worker)
        while True:
            now, what, worker = heappop(self._due)
            if what == _COMPUTED:
                yield Event(now, "gradient", worker, staleness=self._mixed[worker])
                yield self._read_again(worker, now)
                self._ask(worker, now)
            elif what == _BEGIN:
                yield from self._begin(worker, now)
            elif what == _ARRIVE:
                yield self._arrive(worker, now)
            elif now == self._nudge_s[worker]:  # no swap has begun since that time was set
                self._ask(worker, now)

    def _read_again(self, worker: int, now: float) -> Event:
        self._on_span(Span(worker, "compute", self._read_s[worker], now))
        self._read_s[worker], self._mixed[worker] = now, 0
        heappush(self._due, (now + self._times.next(worker), _COMPUTED, worker))
        return Event(now, "read", worker)

    def _ask(self, worker: int, now: float) -> None:
        """A swap, now or as soon as the one under way is over; passive workers never ask."""
        if worker in self._partner:
            self._owes[worker] = True
        elif neighbours := self._neighbours.get(worker):
            self._partner[worker] = neighbours[int(self._random[worker].integers(len(neighbours)))]
            self._since_s[worker], self._nudge_s[worker] = now, inf
            heappush(self._due, (now, _BEGIN, worker))

    def _begin(self, worker: int, now: float) -> Iterator[Event]:
        other = self._partner[worker]
        if self._served.setdefault(other, worker) != worker:
            self._queue[other].append(worker)
            return
        if now > self._since_s[worker]:
            self._on_span(Span(worker, "wait", self._since_s[worker], now, other))
        self._since_s[worker] = now
        heappush(self._due, (now + self._cluster.between(worker, other).seconds(self._bytes), _ARRIVE, worker))
        yield Event(now, "send", worker, other)

    def _arrive(self, worker: int, now: float) -> Event:
        other = self._partner.pop(worker)
        for one, its_partner in ((worker, other), (other, worker)):
            self._mixed[one] += 1
            self._on_span(Span(one, "exchange", self._since_s[worker], now, its_partner))
        del self._served[other]
        if self._queue[other]:
            self._served[other] = self._queue[other].popleft()
            heappush(self._due, (now, _BEGIN, self._served[other]))
        if self._owes[worker]:
            self._owes[worker] = False
            self._ask(worker, now)
        else:
            self._nudge_s[worker] = now + self._rest_s
            heappush(self._due, (self._nudge_s[worker], _NUDGE, worker))
        return Event(now, "average", worker, other)
