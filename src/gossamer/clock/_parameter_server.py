"""Asynchronous SGD with a parameter server in virtual time: one model, and one link that everybody shares."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from ._cluster import Cluster
from ._events import Event, OnSpan, Span, ignore

_ARRIVE, _LEAVE, _COMPUTED = range(3)
"""What is due; at one moment gradients arrive before parameters leave."""


def parameter_server(cluster: Cluster, model_bytes: float, *, on_span: OnSpan = ignore) -> Iterator[Event]:
    """The events of workers that push gradients to a server and pull parameters from it, without end.

    A gradient is as large as the model. The server's link takes one message at a time in each direction, in the order
    in which they are ready; the server applies a gradient when it has arrived, at once, and sends back the parameters
    as they are when their turn comes. A worker computes on what it has received. The staleness of a gradient is the
    number of gradients of others that were applied since its parameters left.
    """
    return _Server(cluster, model_bytes, on_span).events()


class _Server:
    def __init__(self, cluster: Cluster, model_bytes: float, on_span: OnSpan) -> None:
        link = cluster.server or cluster.link
        self._workers, self._on_span, self._times = cluster.workers, on_span, cluster.times()
        self._latency_s, self._message_s = link.latency_s, model_bytes / link.bytes_per_s
        self._in_free_s = self._out_free_s = 0.0
        """When each direction of the server's link is free."""
        self._num_applied = 0
        self._read_at = [0] * cluster.workers
        """How many gradients the server had applied when the worker's parameters left it."""
        self._due: list[tuple[float, int, int]] = []

    def events(self) -> Iterator[Event]:
        for worker in range(self._workers):  # all have the first parameters already
            self._due.append((self._compute(worker, 0.0), _COMPUTED, worker))
            yield Event(0.0, "read", worker)
        heapify(self._due)
        while True:
            now, what, worker = heappop(self._due)
            if what == _COMPUTED:
                start = max(now, self._in_free_s)
                self._in_free_s = start + self._message_s
                self._hand_over(worker, now, start, _ARRIVE)
            elif what == _ARRIVE:
                yield Event(now, "gradient", worker, staleness=self._num_applied - self._read_at[worker])
                self._num_applied += 1
                start = max(now, self._out_free_s)
                self._out_free_s = start + self._message_s
                if start > now:
                    self._on_span(Span(worker, "wait", now, start))
                heappush(self._due, (start, _LEAVE, worker))
            else:
                self._read_at[worker] = self._num_applied
                yield Event(now, "read", worker)
                there = now + self._latency_s + self._message_s
                self._on_span(Span(worker, "exchange", now, there))
                heappush(self._due, (self._compute(worker, there), _COMPUTED, worker))

    def _compute(self, worker: int, now: float) -> float:
        done = now + self._times.next(worker)
        self._on_span(Span(worker, "compute", now, done))
        return done

    def _hand_over(self, worker: int, now: float, start: float, what: int) -> None:
        if start > now:
            self._on_span(Span(worker, "wait", now, start))
        there = start + self._latency_s + self._message_s
        self._on_span(Span(worker, "exchange", start, there))
        heappush(self._due, (there, what, worker))
