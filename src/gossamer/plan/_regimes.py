"""Where decentralizing wins: communication over computation on one axis, jitter on the other."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gossamer.clock import Wires
from gossamer.topologies import Schedule, build

from ._advice import CLOSE_ENOUGH, Plan
from ._recurrences import AllReduce, Decentralized, Floats

RATIOS = tuple(2.0**power for power in np.arange(-4, 2.5, 0.5))
"""An all-reduce over forward, backward and update: from a sixteenth to four times."""
SPREADS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
"""The standard deviation of the computation time over its mean."""
_WARM_UP, _STEPS = 32, 64
_MOST_WORKERS = 64
"""More make the map slower, and it hardly looks different."""


@dataclass(frozen=True, kw_only=True)
class Regimes:
    """How many times as fast as all-reduce the best topology is, for this work on links and jitter of any kind."""

    ratios: tuple[float, ...]
    spreads: tuple[float, ...]
    speedups: Floats
    """`[spreads, ratios]`."""
    graphs: tuple[tuple[str, ...], ...]
    """Which topology that is."""
    here: tuple[float, float]
    """The ratio and the spread of the plan."""
    workers: int


def regimes(plan: Plan) -> Regimes:
    """The map around a plan: its work, its nodes, its topologies that keep replicas close enough."""
    profile = plan.profile
    if profile.cluster.workers > _MOST_WORKERS:
        fitting = _MOST_WORKERS - _MOST_WORKERS % profile.cluster.local_size
        profile = profile.resized(max(fitting, profile.cluster.local_size))
    work, cluster = profile.work, profile.cluster
    graphs = _close_graphs(plan, cluster.workers, cluster.local_size)
    alone_s = work.computation_s + sum(work.update_s)
    exchange_s = float(Wires(cluster).all_reduce_s(np.array(work.bucket_bytes)).sum())
    if exchange_s == 0:
        raise ValueError("exchanges take no time at all: there is nothing to draw a map of")
    ratios, spreads = np.array(RATIOS), np.array(SPREADS)
    slowed = np.tile(ratios * alone_s / exchange_s, len(spreads))[:, None]  # [cells, 1]
    factors = _factors(np.repeat(spreads, len(ratios)), cluster.workers)
    centralized_s = _taken(AllReduce(work, cluster, slowed=slowed), factors)
    times = [_taken(Decentralized(work, cluster, schedule, slowed=slowed), factors) for schedule in graphs.values()]
    shape = (len(spreads), len(ratios))
    names, best = list(graphs), np.argmin(times, axis=0).reshape(shape)
    return Regimes(
        ratios=RATIOS,
        spreads=SPREADS,
        speedups=(centralized_s / np.min(times, axis=0)).reshape(shape),
        graphs=tuple(tuple(names[place] for place in row) for row in best.tolist()),
        here=(_exchange_s(plan) / alone_s, _spread(plan)),
        workers=cluster.workers,
    )


def _close_graphs(plan: Plan, workers: int, local_size: int) -> dict[str, Schedule]:
    """Those that change over a training are left out: there is no one time of theirs."""
    found: dict[str, Schedule] = {}
    for row in plan.rows[1:]:
        if row.consensus_variance <= CLOSE_ENOUGH:
            try:
                schedule = build(row.graph, workers, local_size=local_size)
            except ValueError:  # not for so many workers as the map has
                continue
            if schedule.period is not None:
                found[row.graph] = schedule
    return found or {"complete": build("complete", workers)}


def _exchange_s(plan: Plan) -> float:
    work = plan.profile.work
    return float(Wires(plan.profile.cluster).all_reduce_s(np.array(work.bucket_bytes)).sum())


def _spread(plan: Plan) -> float:
    """Of all computation times of the plan, workers and steps together."""
    cluster = plan.profile.cluster
    times = cluster.times().ahead(_STEPS)
    spread = float(times.std() / times.mean())
    return spread if spread > 1e-9 else 0.0  # of equal times, what rounding leaves


def _factors(spreads: Floats, n: int) -> Floats:
    """Log-normal, `[T, cells, N]`: the same random numbers in all cells, so that neighbours differ by their spread."""
    drawn = np.random.default_rng(0).standard_normal((_WARM_UP + _STEPS, 1, n))
    variance = np.log1p(spreads**2)[:, None]
    return np.asarray(np.exp(np.sqrt(variance) * drawn - variance / 2))


def _taken(timeline: AllReduce | Decentralized, factors: Floats) -> Floats:
    begun = timeline.ready_s
    for step, each in enumerate(factors):
        begun = timeline.ready_s if step == _WARM_UP else begun
        timeline.advance(each)
    return np.asarray((timeline.ready_s - begun).mean(axis=-1) / _STEPS)


def nearest(values: Sequence[float], value: float) -> int:
    """The place of the nearest value, by their logarithms where none is zero.

    >>> nearest((1.0, 2.0, 4.0), 2.9), nearest((0.0, 0.5, 1.0), 0.2)
    (2, 0)
    """
    axis = np.array([*values, value])
    if axis.min() > 0:
        axis = np.log(axis)
    return int(np.abs(axis[:-1] - axis[-1]).argmin())
