"""One slow worker among 16: what it costs under four methods."""

from dataclasses import dataclass

from gossamer._names import lookup

from ._recipe import given
from ._timetable import Row

SLOWDOWNS = (1, 2, 10, 100, 1000, 10000)
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
    miniature: bool = False,
) -> list[Row]:
    """Time per epoch with one of 16 workers slowed 1 to 10000 times, in virtual time; `miniature` is the same.

    Published, for ResNet-20 on CIFAR-10: with AD-PSGD an epoch takes 1.22 s, and 1.33 s however slow that one worker
    is; with an all-reduce and with D-PSGD 1.47 s and 1.45 s, 11.5 s at 10 times, 100 s at 100 times. The clock has
    the published time of a gradient (an epoch of one learner over its batches) and size of the model; links of 50 µs
    and 10 Gbit/s, not published, are ours. It knows nothing of what threads of one host take from each other, so
    what it says of AD-PSGD is a little faster than what was measured.

    Reference: Lian et al., Asynchronous decentralized parallel stochastic gradient descent, ICML 2018,
    arXiv 1710.06952.
    """
    from gossamer.clock import Cluster, Computation, Link, epoch_s
    from gossamer.topologies import build

    if engine not in (None, "virtual"):
        raise ValueError(f"the recipe 'straggler' runs in virtual time, not on {engine!r}: leave --engine out")
    name, n = given(task, "resnet20"), given(workers, 16)
    if not isinstance(n, int) or n < 2:
        raise ValueError(f"workers={n}: the recipe 'straggler' takes one number of workers, 2 or more")
    training = lookup("task for the recipe 'straggler':", name, TRAININGS)
    num_gradients = -(-_SAMPLES // training.batch_size)
    link = Link(
        latency_s=given(latency_s, Link.latency_s),
        bytes_per_s=Link.bytes_per_s if gbit_per_s is None else gbit_per_s * 1e9 / 8,
    )
    rows: list[Row] = []
    for algorithm, graph in METHODS.items():
        for place, slowdown in enumerate(SLOWDOWNS):
            cluster = Cluster(
                workers=n,
                computation=Computation(
                    mean_s=training.epoch_s / num_gradients,
                    jitter=given(jitter, "constant"),
                    slow=f"{n - 1}={slowdown}",
                ),
                link=link,
            )
            taken = epoch_s(
                algorithm, cluster, build(graph, n), num_gradients=num_gradients, model_bytes=training.model_bytes
            )
            known = name == "resnet20" and n == 16 and algorithm in _PUBLISHED_S
            rows.append(
                {
                    "algorithm": algorithm,
                    "slowdown": slowdown,
                    "epoch_s": taken,
                    "speedup": training.epoch_s / taken,
                    "engine": "virtual",
                    "task": name,
                    "workers": n,
                    "graph": graph,
                    "published_epoch_s": _PUBLISHED_S[algorithm][place] if known else None,
                }
            )
    return rows
