"""Two halves of a graph, where everybody talks only to the other half: who asks and who answers, without deadlock."""

from __future__ import annotations

import operator
from functools import reduce

from scipy.sparse import csr_array

from gossamer.topologies._checks import num_workers
from gossamer.topologies._mixing import Mixing
from gossamer.topologies._schedule import Schedule
from gossamer.topologies._weights import translations

Halves = tuple[tuple[int, ...], tuple[int, ...]]


def halves(graph: Mixing | Schedule) -> Halves:
    """The (active, passive) ranks of a bipartite graph, ascending: every link joins one of each. Rank 0 is active.

    Workers that exchange in pairs, each when it likes, cannot wait for each other in a circle if one half only
    asks and the other only answers. A schedule counts as all of its links together; the direction of a link does
    not matter. A graph with a cycle of odd length has no such halves and is refused. n = 1 is one active rank
    without anybody to ask, n = 2 one of each.

    >>> from gossamer.topologies import ring
    >>> halves(ring(6))
    ((0, 2, 4), (1, 3, 5))
    >>> halves(ring(5))
    Traceback (most recent call last):
        ...
    ValueError: 'ring' of 5 workers is not bipartite: ranks 2 and 3 are linked, and both 2 links away from ...
    """
    links = _links(graph)
    distance: dict[int, int] = {}
    for start in range(graph.n):  # a graph in several pieces has a first rank in each
        if start in distance:
            continue
        distance[start] = 0
        reached = [start]
        for rank in reached:  # it grows while it is read: breadth first
            for other in links.indices[links.indptr[rank] : links.indptr[rank + 1]].tolist():
                if other not in distance:
                    distance[other] = distance[rank] + 1
                    reached.append(other)
                elif distance[other] == distance[rank] and other != rank:
                    raise ValueError(_refusal(graph, rank, other, f"{distance[rank]} links away from rank {start}"))
    active, passive = (tuple(rank for rank in range(graph.n) if distance[rank] % 2 == side) for side in (0, 1))
    return active, passive


def bipartite_exponential(n: int) -> Mixing:
    """A ring of even size with links to the ranks 1, 3, 5, 9, 17 … away, both ways: W_ij = 1/(d+1).

    All hops (1 and 2ⁱ+1) are odd, so even ranks have only odd neighbours: the graph of asynchronous pairwise
    averaging. n must be even; n = 1 is a replica alone, n = 2 a pair, n = 4 the ring; n = 3 is refused.

    Reference: Lian et al., Asynchronous decentralized parallel stochastic gradient descent, 2018.

    >>> bipartite_exponential(16).neighbors(0)
    (1, 3, 5, 11, 13, 15)
    >>> halves(bipartite_exponential(6))
    ((0, 2, 4), (1, 3, 5))
    """
    num_workers(n, "a bipartite exponential graph")
    if n % 2 and n > 1:
        raise ValueError(
            f"a bipartite exponential graph needs an even number of workers, got n={n}; take {n - 1} or {n + 1} "
            "workers, or a star, which is bipartite for any number"
        )
    hops = [1, *((1 << i) + 1 for i in range(1, n.bit_length()) if (1 << i) + 1 <= n // 2)]
    return translations("bipartite-exponential", (n,), [(hop,) for hop in (*hops, *(-hop for hop in hops))])


def _links(graph: Mixing | Schedule) -> csr_array:
    """Every link of the graph, in both directions."""
    stages = [graph] if isinstance(graph, Mixing) else [stage for _, stage in graph.stages(graph.window.stop)]
    together = reduce(operator.add, (stage.weights for stage in dict.fromkeys(stages)))
    return csr_array(together + together.T)


def _refusal(graph: Mixing | Schedule, one: int, other: int, where: str) -> str:
    even = f"an even number of workers ({graph.n - 1} or {graph.n + 1})" if graph.n % 2 else ""
    named = "" if graph.name == "ring" else "a ring, a bipartite-exponential graph or a hypercube"
    return (
        f"{graph.name!r} of {graph.n} workers is not bipartite: ranks {min(one, other)} and {max(one, other)} are "
        f"linked, and both {where}; take {' and '.join(filter(None, (even, named)))}, or a star, which is bipartite "
        "for any number"
    )
