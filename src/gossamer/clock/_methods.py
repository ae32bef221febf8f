"""Methods by name, and how long an epoch of each takes: no gradient is computed for it."""

from collections.abc import Iterator

from gossamer._names import lookup
from gossamer.topologies import Schedule

from ._ad_psgd import ad_psgd
from ._cluster import Cluster
from ._events import Event, OnSpan, ignore
from ._parameter_server import parameter_server
from ._rounds import Rounds

ALL_REDUCE, AD_PSGD, PARAMETER_SERVER = "all-reduce", "ad-psgd", "parameter-server"
ASYNCHRONOUS = (AD_PSGD, PARAMETER_SERVER)
"""Methods without rounds: they share the work, and have no step in common."""
METHODS = {
    ALL_REDUCE: "everybody waits for everybody",
    "d-psgd": "everybody waits for its neighbours",
    "d-psgd-overlapped": "the same, and the exchange hides behind the next gradient",
    AD_PSGD: "nobody waits; pairs average while both compute",
    PARAMETER_SERVER: "workers wait for the link of the server",
}
"""What `epoch_s` knows, and who waits for whom."""


def asynchronous(
    algorithm: str, cluster: Cluster, schedule: Schedule, model_bytes: float, *, on_span: OnSpan = ignore
) -> Iterator[Event]:
    """The events of an asynchronous method. The graph must not change with time."""
    if algorithm == PARAMETER_SERVER:
        return parameter_server(cluster, model_bytes, on_span=on_span)
    if schedule.period != 1:
        raise ValueError(
            f"AD-PSGD picks its partners itself, at moments of its own: {schedule.name!r}, which changes from step to "
            "step, means nothing to it; take a graph that stays, such as bipartite-exponential"
        )
    return ad_psgd(cluster, schedule(0), model_bytes, on_span=on_span)


def epoch_s(algorithm: str, cluster: Cluster, schedule: Schedule, *, num_gradients: int, model_bytes: float) -> float:
    """Until the workers together have computed `num_gradients`, the number of batches in the data.

    In rounds every worker does as many, so the last round may do a few too many; without rounds a fast worker does the
    work of a slow one.

    >>> from gossamer.clock import Computation, Link
    >>> from gossamer.topologies import build
    >>> cluster = Cluster(workers=4, computation=Computation(mean_s=1.0, slow="3=100"), link=Link(latency_s=0.0))
    >>> ring = build("ring", 4)
    >>> [epoch_s(name, cluster, ring, num_gradients=12, model_bytes=0) for name in ("all-reduce", "ad-psgd")]
    [300.0, 4.0]
    """
    lookup("method", algorithm, METHODS)
    if num_gradients < 1:
        raise ValueError(f"num_gradients={num_gradients}: must be 1 or more")
    if algorithm in ASYNCHRONOUS:
        applied = (
            event for event in asynchronous(algorithm, cluster, schedule, model_bytes) if event.kind == "gradient"
        )
        return next(event.time_s for number, event in enumerate(applied, 1) if number == num_gradients)
    graph = None if algorithm == ALL_REDUCE else schedule
    clock = Rounds(cluster, graph, model_bytes, steps_under_way=int(algorithm == "d-psgd-overlapped"))
    for _ in range(-(-num_gradients // cluster.workers)):
        clock.advance()
    return clock.now_s
