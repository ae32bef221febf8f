"""One slow worker among 16: what it costs under four methods."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gossamer._names import lookup

from ._recipe import given
from ._timetable import Row, Times

if TYPE_CHECKING:
    from gossamer.clock import Cluster

SLOWDOWNS = (1, 2, 10, 100, 1000, 10000)
_DRAWN_AT = 10
"""The slowdown whose first steps are drawn."""
METHODS = {
    "ad-psgd": "bipartite-exponential",
    "all-reduce": "complete",
    "d-psgd": "ring",
    "parameter-server": "complete",
}
"""Each on its graph; D-PSGD on the ring, as it was published."""


@dataclass(frozen=True, kw_only=True)
class _Training:
    """What was published of one learner, from which the clock follows."""

    model_bytes: float
    batch_size: int
    epoch_s: float
    """Of one learner alone."""

    @property
    def num_gradients(self) -> int:
        return -(-_SAMPLES // self.batch_size)


TRAININGS = {
    "resnet20": _Training(model_bytes=1e6, batch_size=32, epoch_s=18.04),
    "vgg16": _Training(model_bytes=60e6, batch_size=128, epoch_s=13.60),
}
_SAMPLES = 50_000
"""Of CIFAR-10."""
_PUBLISHED_S = {
    "ad-psgd": (1.22, 1.28, 1.33, 1.33, 1.33, 1.33),
    "all-reduce": (1.47, 2.6, 11.51, 100.4, None, None),
    "d-psgd": (1.45, 2.36, 11.24, 100.4, None, None),
}
"""Seconds an epoch of ResNet-20 on 16 learners, by slowdown; of the last two it is said only that they are longer than
1000 and 10000."""


def straggler(
    *,
    task: str | None = None,
    workers: int | None = None,
    jitter: str | None = None,
    latency_s: float | None = None,
    gbit_per_s: float | None = None,
    engine: str | None = None,
) -> Times:
    """Time per epoch with one of 16 workers slowed 1 to 10000 times, in virtual time.

    Published, for ResNet-20 on CIFAR-10: with AD-PSGD an epoch takes 1.22 s, and 1.33 s however slow that one worker
    is; with an all-reduce and with D-PSGD 1.47 s and 1.45 s, 11.5 s at 10 times, 100 s at 100 times. The clock has
    the published time of a gradient (an epoch of one learner over its batches) and size of the model; links of 50 µs
    and 10 Gbit/s, not published, are ours. It knows nothing of what threads of one host take from each other, so
    what it says of AD-PSGD is a little faster than what was measured.

    Reference: Lian et al., Asynchronous decentralized parallel stochastic gradient descent, ICML 2018,
    arXiv 1710.06952.
    """
    from gossamer.clock import Cluster, Computation, Link

    if engine not in (None, "virtual"):
        raise ValueError(
            f"the recipe 'straggler' runs in virtual time or on processes, not on {engine!r}: leave --engine out, or "
            "take --engine processes"
        )
    name, n = given(task, "resnet20"), given(workers, 16)
    if not isinstance(n, int) or n < 2:
        raise ValueError(f"workers={n}: the recipe 'straggler' takes one number of workers, 2 or more")
    training = lookup("task for the recipe 'straggler':", name, TRAININGS)
    mean_s, varying = training.epoch_s / training.num_gradients, given(jitter, "constant")
    link = Link(
        latency_s=given(latency_s, Link.latency_s),
        bytes_per_s=Link.bytes_per_s if gbit_per_s is None else gbit_per_s * 1e9 / 8,
    )

    def slowed(slowdown: int) -> "Cluster":
        computation = Computation(mean_s=mean_s, jitter=varying, slow=f"{n - 1}={slowdown}")
        return Cluster(workers=n, computation=computation, link=link)

    clusters = {slowdown: slowed(slowdown) for slowdown in SLOWDOWNS}
    return Times(
        title=f"One of {n} workers slowed: {name}",
        rows=[
            _row(name, training, algorithm, slowdown, cluster)
            for algorithm in METHODS
            for slowdown, cluster in clusters.items()
        ],
        timelines={algorithm: _drawn(training, algorithm, clusters[_DRAWN_AT]) for algorithm in METHODS},
        drawn_at=_DRAWN_AT,
    )


def _row(name: str, training: _Training, algorithm: str, slowdown: int, cluster: "Cluster") -> Row:
    from gossamer.clock import epoch_s
    from gossamer.topologies import build

    graph = METHODS[algorithm]
    taken = epoch_s(
        algorithm,
        cluster,
        build(graph, cluster.workers),
        num_gradients=training.num_gradients,
        model_bytes=training.model_bytes,
    )
    is_known = name == "resnet20" and cluster.workers == 16 and algorithm in _PUBLISHED_S
    return {
        "algorithm": algorithm,
        "slowdown": slowdown,
        "epoch_s": taken,
        "speedup": training.epoch_s / taken,
        "engine": "virtual",
        "task": name,
        "workers": cluster.workers,
        "graph": graph,
        "published_epoch_s": _PUBLISHED_S[algorithm][SLOWDOWNS.index(slowdown)] if is_known else None,
    }


def _drawn(training: _Training, algorithm: str, cluster: "Cluster") -> str:
    from gossamer.clock import draw_timeline_svg, first_spans, timeline_end_s
    from gossamer.topologies import build

    end_s = timeline_end_s(cluster)
    graph = build(METHODS[algorithm], cluster.workers)
    spans = first_spans(algorithm, cluster, graph, training.model_bytes, end_s=end_s)
    return draw_timeline_svg(spans, cluster, end_s=end_s, title=algorithm)
