"""A profile from figures as people write them."""

from gossamer.clock import Cluster, Computation, Link

from . import _units
from ._profile import Profile
from ._work import Work


def profile_of_figures(
    *,
    workers: int,
    local_size: int = 1,
    params: str,
    compute: str,
    inter: str,
    intra: str | None = None,
    latency: str = "20us",
    jitter: str = "0",
    slow: str = "",
    update: str = "0s",
    param_bytes: int = 4,
    buckets: int | None = None,
    gloo: bool = False,
) -> Profile:
    """What `gossamer plan` is told on its command line.

    >>> made = profile_of_figures(workers=32, local_size=4, params="63M", compute="60ms", inter="25gbit")
    >>> made.work.num_buckets, made.cluster.num_nodes
    (10, 8)
    """
    if workers < 1:
        raise ValueError(f"--workers {workers}: give 2 or more")
    if local_size < 1:
        raise ValueError(f"--local-size {local_size}: a node has 1 worker or more")
    if param_bytes < 1:
        raise ValueError(f"--param-bytes {param_bytes}: give 4 for float32, 2 for bfloat16")
    if buckets is not None and buckets < 1:
        raise ValueError(f"--buckets {buckets}: give 1 or more")
    computation_s = _units.seconds(compute, "--compute")
    if computation_s == 0:
        raise ValueError(f"--compute {compute}: a gradient takes time; give more than 0")
    latency_s = _units.seconds(latency, "--latency")
    between = Link(latency_s=latency_s, bytes_per_s=_units.bytes_per_s(inter, "--inter"))
    inside = None if intra is None else Link(latency_s=latency_s, bytes_per_s=_units.bytes_per_s(intra, "--intra"))
    return Profile(
        work=Work.of_figures(
            computation_s=computation_s,
            model_bytes=param_bytes * _units.count(params, "--params"),
            update_s=_units.seconds(update, "--update"),
            num_buckets=buckets,
        ),
        cluster=Cluster(
            workers=workers,
            local_size=local_size,
            computation=Computation(jitter=_units.jitter(jitter, "--jitter"), slow=slow),
            link=between,
            inside=inside,
            averages_by_node=gloo,
        ),
    )
