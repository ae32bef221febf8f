"""Synchronous methods in virtual time: everybody, or every neighbourhood, waits for its slowest."""

from collections import deque
from typing import NamedTuple

import numpy as np

from gossamer.topologies import Mixing, Schedule, all_reduce_models

from ._cluster import Cluster
from ._computation import Floats
from ._events import Doing, OnSpan, Span, ignore
from ._neighbourhood import LastOf, last_of
from ._wires import Wires


class Traffic(NamedTuple):
    """What everybody sends at some moment of a step, as shares of what a whole model would take."""

    mixed: float = 0.0
    """With the neighbours of the graph."""
    averaged: float = 0.0
    """In averages over everybody."""


class Rounds:
    """When each worker may begin its next gradient, step by step.

    With a `schedule`, worker i exchanges with its neighbours j of that step once the last of them is ready:

        begin_i = max over i and its neighbours j of computed_j,   ready_i = begin_i + latency + bytes_i / bandwidth

    where bytes_i is all that it sends (`Mixing.models_sent`), one message after the other over its slowest link, and
    the latencies of all its messages overlap. An average over everybody (no schedule, or a complete graph) is a ring
    all-reduce, 2(n − 1) messages of an n-th of the model in a row, and waits for the slowest of all. Where workers
    share nodes, an exchange takes what `Wires` says.

    `every` so many steps there is a mixing (local SGD). With b `steps_under_way` the exchange that
    begins after one step is needed only after the b-th gradient that follows: ready_i(t) = max(computed_i(t),
    arrived_i(t − b)).
    """

    def __init__(
        self,
        cluster: Cluster,
        schedule: Schedule | None,
        model_bytes: float,
        *,
        every: int = 1,
        steps_under_way: int = 0,
        on_span: OnSpan = ignore,
    ) -> None:
        self._cluster, self._bytes, self._on_span = cluster, model_bytes, on_span
        self._schedule = None if schedule is None else schedule.per_round(every)
        self._every = every
        self._times = cluster.times()
        self._arrived: deque[Floats | float] = deque([0.0] * steps_under_way)
        """When the exchanges under way will be over, where they are awaited in later steps."""
        self._wires = Wires(cluster)
        self._costs: dict[tuple[Mixing | None, float], Floats] = {}
        self._last_of: dict[Mixing | None, LastOf] = {}
        self.ready_s: Floats = np.zeros(cluster.workers)
        """When each worker has done all steps so far."""
        self.num_steps = 0

    @property
    def now_s(self) -> float:
        """When the last worker has done all steps so far."""
        return float(self.ready_s.max())

    def bytes_of(self, step: int) -> float:
        """What all workers together send after a step, if they average their models and nothing else."""
        if (step + 1) % self._every:
            return 0.0
        mixing = None if self._schedule is None else self._schedule(step)
        n = self._cluster.workers
        return self._bytes * (n * all_reduce_models(n) if mixing is None else float(mixing.models_sent.sum()))

    def advance(self, volume: float = 1.0) -> None:
        """One step of everybody; `volume` is what the method sends for each model that plain averaging would send.

        Less takes fewer bytes, and as many messages; more takes as many rounds; where nothing is sent nobody waits.
        """
        start, computed = self.ready_s, self.ready_s + self._times.of_all()
        mixing = None if self._schedule is None else self._schedule(self.num_steps)
        self.num_steps += 1
        self._span("compute", start, computed)
        if self.num_steps % self._every or not volume:
            self.ready_s = computed
        elif self._arrived:
            self.ready_s = np.maximum(computed, self._arrived.popleft())
            self._span("wait", computed, self.ready_s)
            begun = self._last_of_neighbours(mixing, self.ready_s)
            arrived = begun + self._cost(mixing, volume)
            self._arrived.append(arrived)
            self._span("exchange", begun, arrived)
        else:
            begun = self._last_of_neighbours(mixing, computed)
            self.ready_s = begun + self._cost(mixing, volume)
            self._span("wait", computed, begun)
            self._span("exchange", begun, self.ready_s)

    def advance_by(self, before: Traffic, after: Traffic) -> None:
        """One step of everybody, who exchange what they like before and after it: gradients, then models."""
        mixing = None if self._schedule is None else self._schedule(self.num_steps)
        self.num_steps += 1
        self.ready_s = self._exchanged(self._with_gradients(mixing, before), mixing, after)

    def _with_gradients(self, mixing: Mixing | None, traffic: Traffic) -> Floats:
        """When everybody has its gradient, exchanged and all."""
        computed = self.ready_s + self._times.of_all()
        self._span("compute", self.ready_s, computed)
        return self._exchanged(computed, mixing, traffic)

    def _exchanged(self, moments: Floats, mixing: Mixing | None, traffic: Traffic) -> Floats:
        for over, volume in ((mixing, traffic.mixed), (None, traffic.averaged)):
            if volume:
                begun = self._last_of_neighbours(over, moments)
                self._span("wait", moments, begun)
                moments = begun + self._cost(over, volume)
                self._span("exchange", begun, moments)
        return moments

    def _span(self, doing: Doing, start: Floats, end: Floats) -> None:
        if self._on_span is ignore:
            return
        for worker, (a, b) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
            if b > a:
                self._on_span(Span(worker, doing, a, b))

    def _cost(self, mixing: Mixing | None, volume: float) -> Floats:
        """What an exchange takes each worker once it has begun, `[N]`."""
        if (mixing, volume) not in self._costs:
            size, rounds = self._bytes * min(volume, 1.0), max(volume, 1.0)
            one = self._all_reduce(size) if self._is_of_all(mixing) else self._with_neighbours(mixing, size)
            self._costs[mixing, volume] = one * rounds
        return self._costs[mixing, volume]

    def _last_of_neighbours(self, mixing: Mixing | None, moments: Floats) -> Floats:
        if mixing not in self._last_of:
            self._last_of[mixing] = last_of(mixing)
        return self._last_of[mixing](moments)

    def _is_of_all(self, mixing: Mixing | None) -> bool:
        """Whether it is an all-reduce; a complete graph of nodes is what `Wires` says."""
        return mixing is None or (mixing.is_complete and self._cluster.local_size == 1)

    def _all_reduce(self, size: float) -> Floats:
        n, cluster = self._cluster.workers, self._cluster
        if n == 1:
            return np.zeros(1)
        if cluster.local_size > 1:
            return np.full(n, self._wires.all_reduce_s(np.array(size)))
        links = [cluster.between(i, (i + 1) % n) for i in range(n)] if cluster.links else [cluster.link]
        slowest = max(link.latency_s + all_reduce_models(n) * size / (2 * (n - 1)) / link.bytes_per_s for link in links)
        return np.full(n, 2 * (n - 1) * slowest)

    def _with_neighbours(self, mixing: Mixing | None, size: float) -> Floats:
        assert mixing is not None
        if self._cluster.local_size > 1:
            return self._wires.exchange_s(mixing, np.array(size))
        cluster, sent = self._cluster, mixing.models_sent * size
        if not cluster.links:
            return np.where(mixing.models_sent > 0, cluster.link.latency_s + sent / cluster.link.bytes_per_s, 0.0)
        cost = np.zeros(cluster.workers)
        for i in range(cluster.workers):
            links = [cluster.between(i, j) for j in {*mixing.neighbors(i), *mixing.listeners(i)}]
            if links:
                slowest = min(link.bytes_per_s for link in links)
                cost[i] = max(link.latency_s for link in links) + sent[i] / slowest
        return cost
