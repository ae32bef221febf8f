"""The same trainings as `gossamer.plan` predicts, by events on a heap: no recurrence, no maximum anywhere.

Workers compute, post what they have updated and block on what has not arrived; an exchange begins at the moment at
which the last thing that it needs comes true.
"""

from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np

from gossamer.plan import Work

Place = tuple[int, int]
"""A step and a bucket."""


class _Heap:
    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.now = 0.0

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._due, (self.now + seconds, self._count, do))

    def run(self) -> None:
        while self._due:
            self.now, _, do = heappop(self._due)
            do()


def decentralized(
    work: Work,
    factors: np.ndarray,
    neighbours: Callable[[int, int], set[int]],
    exchange_s: Callable[[int, int, int], float],
    take_s: Callable[[int, int, int], float],
    show_s: Callable[[int, int, int], float],
    *,
    in_backward: bool,
) -> np.ndarray:
    """When each worker ends each step, `[T, N]`. `neighbours(step, i)`; the others are of a step, a bucket and i."""
    steps, n = factors.shape
    heap, ends = _Heap(), np.zeros((steps, n))
    posted: list[set[Place]] = [set() for _ in range(n)]
    arrived: list[set[Place]] = [set() for _ in range(n)]
    blocked: list[Place | None] = [None] * n
    waits: list[set[Place]] = [set() for _ in range(n)]
    buckets = work.num_buckets

    def begin_step(i: int, t: int) -> None:
        if t < steps:
            before = work.forward_s if in_backward else work.forward_s + sum(work.backward_s)
            heap.after(factors[t, i] * before, lambda: go_on(i, t, 0))

    def go_on(i: int, t: int, b: int) -> None:
        if b == buckets:
            ends[t, i] = heap.now
            begin_step(i, t + 1)
        else:
            heap.after(factors[t, i] * work.backward_s[b] if in_backward else 0.0, lambda: has_gradient(i, t, b))

    def has_gradient(i: int, t: int, b: int) -> None:
        if t > 0 and (t - 1, b) not in arrived[i]:
            blocked[i] = (t, b)
        else:
            update(i, t, b)

    def update(i: int, t: int, b: int) -> None:
        takes_in = take_s(t - 1, b, i) if t else 0.0
        heap.after(takes_in + work.update_s[b] + show_s(t, b, i), lambda: has_updated(i, t, b))

    def has_updated(i: int, t: int, b: int) -> None:
        posted[i].add((t, b))
        waits[i].add((t, b))
        look_around(i)
        go_on(i, t, b + 1)

    def is_free_for(j: int, place: Place) -> bool:
        t, b = place
        earlier = (t, b - 1) if b else (t - 1, buckets - 1)
        return place in posted[j] and (earlier == (-1, buckets - 1) or earlier in arrived[j])

    def look_around(changed: int) -> None:
        for i in range(n):
            for place in list(waits[i]):
                needs = neighbours(place[0], i) | {i}
                if changed in needs and all(is_free_for(j, place) for j in needs):
                    waits[i].remove(place)
                    heap.after(exchange_s(*place, i), lambda i=i, place=place: has_arrived(i, place))

    def has_arrived(i: int, place: Place) -> None:
        arrived[i].add(place)
        t, b = place
        look_around(i)
        if blocked[i] == (t + 1, b):
            blocked[i] = None
            update(i, t + 1, b)

    for i in range(n):
        begin_step(i, 0)
    heap.run()
    return ends


def all_reduce(work: Work, factors: np.ndarray, exchange_s: Callable[[int], float]) -> np.ndarray:
    """When everybody ends each step, `[T]`."""
    steps, n = factors.shape
    heap, ends = _Heap(), np.zeros(steps)
    there: dict[Place, int] = {}
    done: set[Place] = set()
    begun: set[Place] = set()

    def begin_step(t: int) -> None:
        for i in range(n):
            heap.after(factors[t, i] * work.forward_s, lambda i=i: go_on(i, t, 0))

    def go_on(i: int, t: int, b: int) -> None:
        if b < work.num_buckets:
            held_up_s = work.held_up_s_per_byte * work.bucket_bytes[b - 1] if b else 0.0
            heap.after(held_up_s + factors[t, i] * work.backward_s[b], lambda: has_gradient(i, t, b))

    def has_gradient(i: int, t: int, b: int) -> None:
        there[t, b] = there.get((t, b), 0) + 1
        look(t, b)
        go_on(i, t, b + 1)

    def look(t: int, b: int) -> None:
        is_free = b == 0 or (t, b - 1) in done
        if there.get((t, b)) == n and is_free and (t, b) not in begun:
            begun.add((t, b))
            heap.after(exchange_s(b), lambda: has_averaged(t, b))

    def has_averaged(t: int, b: int) -> None:
        done.add((t, b))
        if b + 1 < work.num_buckets:
            look(t, b + 1)
        else:
            heap.after(sum(work.update_s), lambda: end(t))

    def end(t: int) -> None:
        ends[t] = heap.now
        if t + 1 < steps:
            begin_step(t + 1)

    begin_step(0)
    heap.run()
    return ends
