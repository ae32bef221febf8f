"""When each worker has done how many iterations: recurrences over buckets and steps, for many workers at once."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from gossamer.clock import Cluster, Traffic, Wires, last_of
from gossamer.topologies import Mixing, Schedule

from ._work import Work

Floats = NDArray[np.float64]
LastOf = Callable[[Floats], Floats]
_NEVER = -np.inf
"""When what nobody waits for has arrived."""


class _Exchange(NamedTuple):
    """What a step asks of a mixing."""

    last: LastOf
    costs_s: list[Floats]
    """By bucket, `[..., N]`."""
    busy_s: Floats
    show_s: list[Floats]
    """Of a worker, to put up each bucket, `[N]`."""
    take_s: list[Floats]
    """To take in what its neighbours have put up, `[N]`."""


class Decentralized:
    """Every worker exchanges its parameters with its neighbours, bucket by bucket, behind the next gradient.

    With F forward, B_b backward, U_b update, C_b an exchange, f_i the factor by which computation varies:

        e[i,0] = s_i + f_i F                                    s_i is where the last iteration ended
        e[i,b] = max(e[i,b−1] + f_i B_b, c'[i,b]) + U_b         c' is what arrived of the last iteration's exchange
        c[i,b] = max over i and its neighbours j of max(e[j,b], c[j,b−1]) + C_b

    U_b is the optimizer's step, with what it takes to take in neighbours' parameters before it (`Wires.taken_in`), and
    to put up one's own after it. A worker's channel carries one bucket after the other; where an exchange has phases on
    different wires, C_b is what one of all buckets in a row takes. So it is where the optimizer steps each bucket
    inside backward. Where it steps after backward, as in a loop of the user's own, all of backward counts as forward.

    Arrays may have leading axes, `[..., N]`, for trainings that differ in their factors or in how slow exchanges are.
    """

    def __init__(
        self,
        work: Work,
        cluster: Cluster,
        schedule: Schedule,
        *,
        in_backward: bool = False,
        slowed: Floats | float = 1.0,
        steps_under_way: int = 1,
    ) -> None:
        """`in_backward`: buckets are stepped inside backward; `slowed`: by what exchanges take longer, `[..., 1]`;
        `steps_under_way`: c' is of the exchange that began so many iterations before."""
        if schedule.n != cluster.workers:
            raise ValueError(f"{schedule.name!r} is for {schedule.n} workers, but there are {cluster.workers}")
        self._forward_s = work.forward_s if in_backward else work.computation_s
        self._backward_s = work.backward_s if in_backward else (0.0,) * work.num_buckets
        self._update_s = work.update_s
        self._bytes = np.array(work.bucket_bytes)
        self._schedule, self._wires, self._slowed = schedule, Wires(cluster), slowed
        self._mix_s_per_byte, self._show_s_per_byte = work.mix_s_per_byte, work.show_s_per_byte
        self._prepared: WeakKeyDictionary[Mixing, _Exchange] = WeakKeyDictionary()
        self._channel: Floats | float = _NEVER
        never: list[Floats | float] = [_NEVER] * work.num_buckets
        nothing: list[Floats | float] = [0.0] * work.num_buckets
        self._under_way = deque([(never, nothing)] * steps_under_way)
        """Of each exchange that is not taken in yet, by bucket: when it arrives, and what it takes to take it in."""
        self.ready_s: Floats = np.zeros(cluster.workers)
        """When each worker has done all iterations so far, `[..., N]`."""
        self.busy_s: Floats = np.zeros(cluster.workers)
        """For how long the busiest wire of each was in use so far, were exchanges not slowed, `[N]`."""
        self.num_steps = 0

    def advance(self, factors: Floats) -> None:
        """One iteration of everybody, with computation times so many times the usual, `[..., N]`."""
        exchange = self._at(self._schedule(self.num_steps))
        ready, channel = self.ready_s + factors * self._forward_s, self._channel
        arrives, take_s = self._under_way.popleft()
        arriving: list[Floats | float] = []
        for b, update_s in enumerate(self._update_s):
            if self._backward_s[b]:
                ready = ready + factors * self._backward_s[b]
            ready = np.maximum(ready, arrives[b]) + (update_s + take_s[b] + exchange.show_s[b])
            channel = exchange.last(np.maximum(ready, channel)) + exchange.costs_s[b]
            arriving.append(channel)
        self._under_way.append((arriving, [*exchange.take_s]))
        self.ready_s, self._channel = ready, channel
        self.busy_s = self.busy_s + exchange.busy_s
        self.num_steps += 1

    def _at(self, mixing: Mixing) -> "_Exchange":
        if mixing not in self._prepared:
            takes_time = self._mix_s_per_byte or self._show_s_per_byte
            taken_in = self._wires.taken_in(mixing) if takes_time else np.zeros(mixing.n)
            self._prepared[mixing] = _Exchange(
                last=last_of(mixing),
                costs_s=[cost * self._slowed for cost in self._wires.exchange_s(mixing, self._bytes, len(self._bytes))],
                busy_s=self._wires.busy_s(mixing, self._bytes.sum()),
                show_s=[self._show_s_per_byte * size * (taken_in > 0) for size in self._bytes],
                take_s=[self._mix_s_per_byte * size * taken_in for size in self._bytes],
            )
        return self._prepared[mixing]


class AllReduce:
    """Gradients are averaged over everybody, bucket by bucket, while backward goes on; then all step.

    g[i,b] = g[i,b−1] + f_i B_b + H_{b−1},   c_b = max(max over i of g[i,b], c_{b−1}) + C_b,   s = c_B + ΣU

    H_b is what the exchange of bucket b takes of the cores that backward needs; 0 where it needs none of them.
    """

    def __init__(self, work: Work, cluster: Cluster, *, how: str = "best", slowed: Floats | float = 1.0) -> None:
        """`how`: ring, tree, or the shorter of both; `slowed` as in `Decentralized`."""
        self._work = work
        wires = Wires(cluster)
        self._exchange_s = [cost * slowed for cost in wires.all_reduce_s(np.array(work.bucket_bytes), how)]
        self._busy_s = wires.busy_s(None, work.model_bytes)
        self.ready_s: Floats = np.zeros(cluster.workers)
        self.busy_s: Floats = np.zeros(cluster.workers)
        self.num_steps = 0

    def advance(self, factors: Floats) -> None:
        """One iteration of everybody."""
        ready: Floats = self.ready_s + factors * self._work.forward_s
        channel: Floats | float = _NEVER
        for b, backward_s in enumerate(self._work.backward_s):
            if b:
                ready = ready + self._work.held_up_s_per_byte * self._work.bucket_bytes[b - 1]
            ready = ready + factors * backward_s
            channel = np.maximum(ready.max(axis=-1, keepdims=True), channel) + self._exchange_s[b]
        self.ready_s = np.broadcast_to(channel + sum(self._work.update_s), ready.shape)
        self.busy_s = self.busy_s + self._busy_s
        self.num_steps += 1


class Gradients:
    """Some of the gradients are averaged over everybody, some with neighbours, bucket by bucket behind backward.

    As `AllReduce`, with a share of every bucket: what a method averages in turn is spread over the model. Both go over
    one channel, those with neighbours first, and wait for these alone.
    """

    def __init__(self, work: Work, cluster: Cluster, *, slowed: float = 1.0) -> None:
        self._work, self._wires, self._slowed = work, Wires(cluster), slowed
        self._bytes = np.array(work.bucket_bytes)
        self._costs: dict[tuple[Mixing | None, float], Floats] = {}

    def done(self, start: Floats, factors: Floats, mixing: Mixing | None, traffic: Traffic) -> Floats:
        """When everybody has taken the step that begins at `start`, `[N]`."""
        ready: Floats = start + factors * self._work.forward_s
        channel: Floats = np.full_like(ready, _NEVER)
        for b, backward_s in enumerate(self._work.backward_s):
            if b:
                ready = ready + traffic.averaged * self._work.held_up_s_per_byte * self._work.bucket_bytes[b - 1]
            ready = ready + factors * backward_s
            for over, share in ((mixing, traffic.mixed), (None, traffic.averaged)):
                if share:
                    channel = last_of(over)(np.maximum(ready, channel)) + self._cost(over, share)[b]
        return np.maximum(ready, channel) + sum(self._work.update_s)

    def _cost(self, over: Mixing | None, share: float) -> Floats:
        """Of each bucket, `[buckets, N]`."""
        if (over, share) not in self._costs:
            size = share * self._bytes
            cost = self._wires.all_reduce_s(size)[:, None] if over is None else self._wires.exchange_s(over, size)
            self._costs[over, share] = self._slowed * cost
        return self._costs[over, share]
