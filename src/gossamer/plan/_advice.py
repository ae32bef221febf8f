"""Which topology to take, and why, in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isinf

from gossamer._names import Spec
from gossamer.topologies import Schedule, build, steady_consensus_variance

from ._predict import Prediction, predict
from ._profile import Profile

USUAL = (
    "complete",
    "ring",
    "alternating-ring",
    "one-peer-exponential",
    "base-2",
    "alternating-exponential-ring",
    "alternating-nodes",
    "ada",
)
_SAME = {"base-2": "one-peer-exponential", "alternating-nodes": "alternating-exponential-ring"}
"""What a graph is the same as, where there is the other: that needs a power of two."""
_EPOCH_STEPS = 8
"""Iterations that stand for an epoch of a schedule that changes by the epoch."""
CLOSE_ENOUGH = 2.5
"""The steady consensus variance up to which a graph is recommended: complete has 1, one-peer pairs have below 2."""
_WORTH_IT, _AS_FAST = 1.05, 1.02
"""A speed-up that pays for replicas that differ; and a difference between times that is none."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to train."""

    graph: str
    """As it was named; "all-reduce" for that."""
    prediction: Prediction
    speedup: float
    """Of an iteration, over all-reduce."""
    consensus_variance: float
    """How far apart replicas stay, in the drift of one step; 0 where they are the same."""

    @property
    def is_all_reduce(self) -> bool:
        return self.graph == "all-reduce"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All-reduce first, then topologies, and what to do."""

    profile: Profile
    rows: tuple[Row, ...]

    @property
    def all_reduce(self) -> Row:
        return self.rows[0]

    @cached_property
    def best(self) -> Row:
        """What to take: the fastest of those that keep replicas close enough; the closest of those as fast."""
        close = [row for row in self.rows[1:] if row.consensus_variance <= CLOSE_ENOUGH]
        if not close:
            return self.all_reduce
        fastest_s = min(row.prediction.iteration_s for row in close)
        as_fast = [row for row in close if row.prediction.iteration_s <= _AS_FAST * fastest_s]
        best = min(as_fast, key=lambda row: row.consensus_variance)
        return best if best.speedup >= _WORTH_IT else self.all_reduce

    @property
    def advice(self) -> str:
        """What to take and why, in sentences."""
        return " ".join(_stay(self) if self.best.is_all_reduce else [*_take(self), *_passed_over(self)])


def plan(profile: Profile, graphs: Sequence[str] | None = None, *, epochs: int = 30, in_backward: bool = False) -> Plan:
    """Predictions for all-reduce and for each graph; the usual ones that fit the number of workers when not given.

    Args:
        epochs: the length of a training, for schedules that change over it (Ada): their times are means over all of it.
        in_backward: whether the optimizer steps buckets inside backward (`Decentralized`).

    >>> from gossamer.clock import Cluster, Link
    >>> from gossamer.plan import Work
    >>> slow = Cluster(workers=16, local_size=4, link=Link(bytes_per_s=3.125e9), inside=Link(bytes_per_s=37.5e9))
    >>> work = Work.of_figures(computation_s=0.06, model_bytes=252e6)
    >>> plan(Profile(work=work, cluster=slow)).best.graph
    'alternating-exponential-ring'
    """
    cluster = profile.cluster
    if cluster.workers < 2:
        raise ValueError(f"{cluster.workers} worker has nobody to exchange with: plan for 2 or more")
    if epochs < 1:
        raise ValueError(f"{epochs} epochs: give 1 or more")
    centralized = predict(profile, None)
    rows = [Row(graph="all-reduce", prediction=centralized, speedup=1.0, consensus_variance=0.0)]
    for graph, schedule in _schedules(profile, graphs, epochs).items():
        steps = epochs * _EPOCH_STEPS if schedule.period is None else None
        found = predict(profile, schedule, steps=steps, in_backward=in_backward)
        speedup = centralized.iteration_s / found.iteration_s
        variance = steady_consensus_variance(schedule)
        rows.append(Row(graph=graph, prediction=found, speedup=speedup, consensus_variance=variance))
    return Plan(profile=profile, rows=tuple(rows))


def _schedules(profile: Profile, graphs: Sequence[str] | None, epochs: int) -> dict[str, Schedule]:
    def made(graph: str) -> Schedule:
        context = {"steps_per_epoch": _EPOCH_STEPS, "epochs": epochs, "local_size": profile.cluster.local_size}
        return build(graph, profile.cluster.workers, **context)

    if graphs is not None:
        return {Spec.parse("graph", graph).canonical: made(graph) for graph in graphs}
    found: dict[str, Schedule] = {}
    for graph in USUAL:
        if _SAME.get(graph) in found:
            continue
        try:
            found[graph] = made(graph)
        except ValueError:  # not for this number of workers
            continue
    return found


# ---- words ----------------------------------------------------------------------------------------------------


def _stay(plan: Plan) -> list[str]:
    centralized = plan.all_reduce.prediction
    faster = max(plan.rows[1:], key=lambda row: row.speedup, default=None)
    said = [f"Stay with all-reduce: {_ms(centralized.iteration_s)} an iteration, replicas that are all the same."]
    if faster is None:
        return said
    if faster.speedup < _WORTH_IT:
        gain = f"gains {max(faster.speedup - 1, 0):.0%}" if faster.speedup > 1.005 else "gains nothing"
        return [*said, f"The fastest topology, {faster.graph}, {gain}: {_why_no_gain(plan, faster)}."]
    if isinf(faster.consensus_variance):
        return [*said, f"{faster.graph} is {faster.speedup:.2f} times as fast, but its replicas never come together."]
    return [
        *said,
        f"{faster.graph} is {faster.speedup:.2f} times as fast, but its replicas settle at a variance of "
        f"{faster.consensus_variance:.2g} times that of one step, above the {CLOSE_ENOUGH:g} up to which one is "
        "recommended.",
    ]


def _why_no_gain(plan: Plan, faster: Row) -> str:
    centralized, other = plan.all_reduce.prediction, faster.prediction
    if centralized.bound == "computation":
        return "all-reduce hides behind backward already, and computation bounds both"
    if other.bound == "links":
        return "the links bound both"
    return "workers that compute longer hold up both"


def _take(plan: Plan) -> list[str]:
    best, centralized = plan.best, plan.all_reduce.prediction
    mine = best.prediction
    said = [
        f"Take {best.graph}: {_ms(mine.iteration_s)} an iteration, all-reduce {_ms(centralized.iteration_s)} "
        f"({best.speedup:.2f} times as fast)."
    ]
    if centralized.links_s >= centralized.stragglers_s:
        said.append(
            f"All-reduce leaves {_ms(centralized.links_s)} of exchange that backward does not hide; here what is sent "
            "in one step is needed only in the next."
        )
    else:
        said.append(
            f"All-reduce waits for the slowest of {plan.profile.cluster.workers} in every step, "
            f"{_ms(centralized.stragglers_s)} of it; here a worker waits for its neighbours, and has a step to make up "
            "for a delay."
        )
    left = {
        "computation": "What is left is computation",
        "links": f"What still bounds it are the links, in use for {mine.link_use:.0%} of the time",
        "stragglers": f"What still bounds it are workers that compute longer, {_ms(mine.stragglers_s)} an iteration",
    }[mine.bound]
    said.append(f"{left}. Its replicas settle at a variance of {best.consensus_variance:.2f} times that of one step.")
    return said


def _passed_over(plan: Plan) -> list[str]:
    """What is faster still, and why not to take it."""
    best = plan.best.prediction
    faster = [row for row in plan.rows[1:] if _AS_FAST * row.prediction.iteration_s < best.iteration_s]
    if not faster:
        return []
    most = max(faster, key=lambda row: row.speedup)
    return [
        f"{most.graph} is faster still, {_ms(most.prediction.iteration_s)}, but its replicas settle at "
        f"{most.consensus_variance:.2g}."
    ]


def _ms(value_s: float) -> str:
    """Three digits, in milliseconds or seconds.

    >>> _ms(0.0678), _ms(2.5)
    ('67.8 ms', '2.5 s')
    """
    return f"{1e3 * value_s:.3g} ms" if value_s < 1 else f"{value_s:.3g} s"
