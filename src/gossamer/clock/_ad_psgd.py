"""AD-PSGD in virtual time: who computes, who swaps with whom, when."""

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np

from gossamer.topologies import Mixing, halves

from ._cluster import Cluster
from ._events import Event, OnSpan, Span, ignore

_PARTNERS = 2
"""Tells this use of the seed from others."""
_ARRIVE, _COMPUTED, _INVITED, _BEGIN = range(4)
"""What is due. At one moment what has arrived comes first, so that a worker reads it, and exchanges begin last, so
that all gradients of that moment travel along."""


def ad_psgd(cluster: Cluster, graph: Mixing, model_bytes: float, *, on_span: OnSpan = ignore) -> Iterator[Event]:
    """The events of asynchronous decentralized SGD on a bipartite graph, without end.

    A worker does two things at a time. Its *computing* thread reads the parameters, computes a gradient, applies it to
    what the parameters are by then, and reads again: it never waits. Its *mixing* thread swaps models with one
    neighbour at a time. Only active workers begin a swap; one that begins while the passive worker is busy with another
    waits, first come, first served. Both then exchange for latency + bytes / bandwidth. What was sent is the model as
    the exchange began; at its end each moves by half of the difference of what was sent, so gradients that were applied
    meanwhile survive and the mean of the two is kept.

    Mixing goes on all the time, but one swap for each gradient at most, so that fast links are not flooded. After a
    gradient of its own an active worker picks a passive neighbour at random; a passive one picks an active neighbour
    and invites it (a message without a size), which then swaps with it. So a slow worker, active or not, is swapped
    with half as often as others, though it makes few gradients itself. Where swaps take longer than gradients, several
    that are due become one; one's own come before invitations.
    """
    return _Pairs(cluster, graph, model_bytes, on_span).events()


class _Pairs:
    def __init__(self, cluster: Cluster, graph: Mixing, model_bytes: float, on_span: OnSpan) -> None:
        if graph.n != cluster.workers:
            raise ValueError(f"{graph.name!r} is for {graph.n} workers, but there are {cluster.workers}")
        n, active = cluster.workers, halves(graph)[0]
        self._cluster, self._bytes, self._on_span = cluster, model_bytes, on_span
        self._times = cluster.times()
        self._is_active = [i in active for i in range(n)]
        self._neighbours = [sorted({*graph.neighbors(i), *graph.listeners(i)}) for i in range(n)]
        self._random = [np.random.default_rng([cluster.seed, _PARTNERS, i]) for i in range(n)]
        self._due: list[tuple[float, int, int, int]] = []
        """When, what, whose, and who else it is about."""
        self._mixed = [0] * n
        """Mixings since the worker read its parameters."""
        self._partner: dict[int, int] = {}
        """Whom an active worker waits for or exchanges with; those that are not here are idle."""
        self._since_s = [0.0] * n
        """When it began to wait."""
        self._has_stepped = [False] * n
        """Whether an active worker owes a swap for a gradient of its own."""
        self._invited_by: list[dict[int, None]] = [{} for _ in range(n)]
        """Passive workers that have invited an active one, in that order."""
        self._served: dict[int, int] = {}
        """Whom a passive worker exchanges with, or is about to."""
        self._queue: list[deque[int]] = [deque() for _ in range(n)]
        """Who waits for a passive worker."""

    def events(self) -> Iterator[Event]:
        for worker in range(self._cluster.workers):
            yield self._read(worker, 0.0)
        while True:
            now, what, worker, other = heappop(self._due)
            if what == _COMPUTED:
                yield Event(now, "gradient", worker, staleness=self._mixed[worker])
                yield self._read(worker, now)
                self._after_gradient(worker, now)
            elif what == _INVITED:
                self._invited_by[worker][other] = None
                self._go_on(worker, now)
            elif what == _BEGIN:
                yield from self._begin(worker, now)
            else:
                yield self._arrive(worker, now)

    def _read(self, worker: int, now: float) -> Event:
        done = now + self._times.next(worker)
        self._on_span(Span(worker, "compute", now, done))
        self._mixed[worker] = 0
        heappush(self._due, (done, _COMPUTED, worker, -1))
        return Event(now, "read", worker)

    def _after_gradient(self, worker: int, now: float) -> None:
        if self._is_active[worker]:
            self._has_stepped[worker] = True
            self._go_on(worker, now)
        elif self._neighbours[worker]:
            other = self._pick(worker)
            heappush(self._due, (now + self._cluster.between(worker, other).latency_s, _INVITED, other, worker))

    def _pick(self, worker: int) -> int:
        neighbours = self._neighbours[worker]
        return neighbours[int(self._random[worker].integers(len(neighbours)))]

    def _go_on(self, worker: int, now: float) -> None:
        """The mixing thread of an active worker: the next swap that is due, once the last is over."""
        if worker in self._partner or not self._neighbours[worker]:
            return
        if self._has_stepped[worker]:
            self._has_stepped[worker] = False
            self._partner[worker] = self._pick(worker)
        elif self._invited_by[worker]:
            self._partner[worker] = next(iter(self._invited_by[worker]))
            del self._invited_by[worker][self._partner[worker]]
        else:
            return
        self._since_s[worker] = now
        heappush(self._due, (now, _BEGIN, worker, -1))

    def _begin(self, worker: int, now: float) -> Iterator[Event]:
        other = self._partner[worker]
        if self._served.setdefault(other, worker) != worker:
            self._queue[other].append(worker)
            return
        if now > self._since_s[worker]:
            self._on_span(Span(worker, "wait", self._since_s[worker], now, other))
        done = now + self._cluster.between(worker, other).seconds(self._bytes)
        for one, its_partner in ((worker, other), (other, worker)):
            self._on_span(Span(one, "exchange", now, done, its_partner))
        heappush(self._due, (done, _ARRIVE, worker, -1))
        yield Event(now, "send", worker, other)

    def _arrive(self, worker: int, now: float) -> Event:
        other = self._partner.pop(worker)
        self._mixed[worker] += 1
        self._mixed[other] += 1
        del self._served[other]
        if self._queue[other]:
            self._served[other] = self._queue[other].popleft()
            heappush(self._due, (now, _BEGIN, self._served[other], -1))
        self._go_on(worker, now)
        return Event(now, "average", worker, other)
