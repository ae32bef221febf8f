"""What an iteration will take, and why."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from gossamer.clock import Computation
from gossamer.topologies import Schedule

from ._profile import Profile
from ._recurrences import AllReduce, Decentralized, Floats

Bound = Literal["computation", "links", "stragglers"]
_WARM_UP, _STEPS = 64, 128
"""Iterations before those that count, until delays have come around, and those, at least."""
_DRAWS = 2**19
"""Computation times that are drawn for a prediction: trials are as many as that allows."""
_MOST_TRIALS = 16
_DRAWN = 256
"""Steps for which times are drawn at once: topologies of all periods share them."""
_HARDLY = 0.05
"""A share of the iteration that is not worth a word."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Of one way to train; times are means over workers and iterations."""

    name: str
    iteration_s: float
    computation_s: float
    """Forward, backward and update of a worker: what it would take alone."""
    links_s: float
    """By what exchanges lengthen an iteration where all computation times are the same."""
    stragglers_s: float
    """By what unequal computation times lengthen it further."""
    link_use: float
    """The share of the time for which the busiest wire is in use."""

    @property
    def waiting_s(self) -> float:
        """What a worker does not compute."""
        return max(self.iteration_s - self.computation_s, 0.0)

    @property
    def bound(self) -> Bound:
        """What an iteration would be shorter without."""
        if max(self.links_s, self.stragglers_s) <= _HARDLY * self.iteration_s:
            return "computation"
        return "links" if self.links_s >= self.stragglers_s else "stragglers"


def predict(
    profile: Profile,
    schedule: Schedule | None,
    *,
    steps: int | None = None,
    in_backward: bool = False,
    how: str = "best",
) -> Prediction:
    """An iteration of overlapped D-PSGD on a schedule, or of all-reduce (None).

    Args:
        steps: iterations from the start, for a schedule that changes over a training (Ada). By default those of many
            periods, after a warm-up.
        in_backward: whether the optimizer steps buckets inside backward (`Decentralized`).
        how: an all-reduce by ring, by tree, or by the shorter of both.

    >>> from gossamer.clock import Cluster, Link
    >>> from gossamer.plan import Work
    >>> from gossamer.topologies import build
    >>> work = Work.of_figures(computation_s=0.06, model_bytes=250e6)
    >>> pair = Profile(work=work, cluster=Cluster(workers=2, link=Link(latency_s=0.0, bytes_per_s=2.5e9)))
    >>> found = predict(pair, build("complete", 2))
    >>> round(found.iteration_s, 6), found.bound, round(found.waiting_s, 6), round(found.link_use, 6)
    (0.1, 'links', 0.04, 1.0)
    """
    cluster, work = profile.cluster, profile.work
    period = 1 if schedule is None else schedule.period
    if schedule is not None and period is None and steps is None:
        steps = schedule.window.stop
    warm_up, count = (_WARM_UP, -(-_STEPS // (period or 1)) * (period or 1)) if steps is None else (0, steps)
    factors = _factors(profile, warm_up + count)
    timeline = (
        AllReduce(work, cluster, how=how, slowed=profile.collective)
        if schedule is None
        else Decentralized(work, cluster, schedule, in_backward=in_backward)
    )
    begun, busy_s = timeline.ready_s, timeline.busy_s
    for step, each in enumerate(factors):
        if step == warm_up:
            begun, busy_s = timeline.ready_s, timeline.busy_s
        timeline.advance(each)
    taken = (timeline.ready_s - begun).mean(axis=-1) / count
    busy_s = (timeline.busy_s - busy_s) / count
    even_s, iteration_s = float(taken[0]), float(taken[1:].mean())
    update_s = sum(work.update_s)
    return Prediction(
        name="all-reduce" if schedule is None else schedule.name,
        iteration_s=iteration_s,
        computation_s=work.computation_s * float(factors[warm_up:, 1:].mean()) + update_s,
        links_s=max(even_s - work.computation_s - update_s, 0.0),
        stragglers_s=max(iteration_s - even_s, 0.0),
        link_use=min(float(busy_s.max()) / iteration_s, 1.0),
    )


def _factors(profile: Profile, steps: int) -> Floats:
    """By what computation differs from its mean, `[T, 1 + trials, N]`; in the first training it does not."""
    cluster = profile.cluster
    computation, n = cluster.computation, cluster.workers
    trials = min(max(_DRAWS // (steps * n), 1), _MOST_TRIALS)
    if computation.jitter == "constant" and not computation.measured:
        trials = 1
    longest = -(-steps // _DRAWN) * _DRAWN
    drawn = [_drawn(computation, n, cluster.seed + trial, longest)[:steps] for trial in range(trials)]
    return np.stack([np.ones((steps, n)), *drawn], axis=1)


@lru_cache(maxsize=_MOST_TRIALS)  # every topology of a plan is given the same
def _drawn(computation: Computation, n: int, seed: int, steps: int) -> Floats:
    """`[T, N]`; the first of more steps are those of fewer."""
    return computation.times(n, seed).ahead(steps) / computation.mean_s
