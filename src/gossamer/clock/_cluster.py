"""The machines that a clock is for: how fast they compute, and how fast messages travel between them."""

from dataclasses import dataclass, field
from math import isfinite

from ._computation import Computation, Times, slow_workers


@dataclass(frozen=True, kw_only=True)
class Link:
    """A message of b bytes takes latency + b / bandwidth.

    >>> Link(latency_s=0.001, bytes_per_s=1e9).seconds(5e6)
    0.006
    """

    latency_s: float = 50e-6
    bytes_per_s: float = 1.25e9
    """10 Gbit/s when not given."""
    stream_bytes_per_s: float | None = None
    """The most that one stream of messages gets, where the link carries more: a TCP connection may not fill it."""

    def __post_init__(self) -> None:
        if not (self.latency_s >= 0 and isfinite(self.latency_s)):
            raise ValueError(f"a latency of {self.latency_s} s: must be a number, 0 or more")
        if not self.bytes_per_s > 0:
            raise ValueError(f"a bandwidth of {self.bytes_per_s} bytes/s: must be above 0")
        if self.stream_bytes_per_s is not None and not self.stream_bytes_per_s > 0:
            raise ValueError(f"a stream of {self.stream_bytes_per_s} bytes/s: must be above 0")

    @property
    def of_stream(self) -> float:
        """Bytes a second of a message that has the link to itself."""
        return min(self.bytes_per_s, self.stream_bytes_per_s or self.bytes_per_s)

    def seconds(self, num_bytes: float) -> float:
        return self.latency_s + num_bytes / self.of_stream


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Workers, and links between them; nodes of several workers, where `local_size` says so.

    >>> fast, slow = Link(), Link(bytes_per_s=1e8)
    >>> cluster = Cluster(workers=4, link=fast, links={(0, 1): slow})
    >>> cluster.between(1, 0) is slow, cluster.between(1, 2) is fast
    (True, True)
    >>> nodes = Cluster(workers=8, link=slow, local_size=4, inside=fast)
    >>> nodes.between(0, 3) is fast, nodes.between(3, 4) is slow, nodes.num_nodes
    (True, True, 2)
    """

    workers: int
    computation: Computation = field(default_factory=Computation)
    link: Link = field(default_factory=Link)
    """Between any two workers; between nodes, where there are nodes."""
    links: dict[tuple[int, int], Link] = field(default_factory=dict)
    """Links that differ, by their two ends."""
    server: Link | None = None
    """What a parameter server hangs on; like the others when not given."""
    local_size: int = 1
    """Workers of a node, ranks in a row. What leaves and what enters a node goes over one link that they share."""
    inside: Link | None = None
    """Of each worker to others of its node; like `link` when not given."""
    averages_by_node: bool = False
    """Whether a group of whole nodes averages inside each node first, and only sums go between them, as exchanges over
    gloo do; otherwise around a ring of its members or by a tree, as NCCL does."""
    seed: int = 0
    """Of computation times, and of who picks whom."""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers={self.workers}: must be 1 or more")
        if self.local_size < 1 or self.workers % self.local_size:
            raise ValueError(
                f"{self.workers} workers do not fill nodes of {self.local_size}: "
                "the workers of a node must be a divisor of all"
            )
        if self.links and self.local_size > 1:
            raise ValueError(
                "nodes share their links, and some pairs have their own: give local_size or links, not both"
            )
        slow_workers(self.computation.slow, self.workers)
        for ends in self.links:
            if not all(0 <= end < self.workers for end in ends):
                raise ValueError(f"a link joins workers {ends[0]} and {ends[1]}: ranks go from 0 to {self.workers - 1}")

    def between(self, one: int, other: int) -> Link:
        """The link of two workers."""
        usual = self.within if one // self.local_size == other // self.local_size else self.link
        return self.links.get((one, other)) or self.links.get((other, one)) or usual

    @property
    def within(self) -> Link:
        """The link of two workers of one node."""
        return self.inside or self.link

    @property
    def num_nodes(self) -> int:
        return self.workers // self.local_size

    def times(self) -> Times:
        """Computation times from the start."""
        return self.computation.times(self.workers, self.seed)
