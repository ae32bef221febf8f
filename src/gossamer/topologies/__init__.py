"""Graphs, mixing weights and schedules: who averages with whom, by how much, at which step.

A `Mixing` is a graph with weights, a `Schedule` a function from the step to a mixing. Both are numbers
(NumPy, SciPy): nothing here imports torch or talks to anybody.

>>> from gossamer.topologies import build, ring
>>> round(ring(96).spectral_gap(), 5)
0.00143
>>> build("base-2", 12).steps_to_exact()
5
"""

from gossamer.topologies._ada import ada, ada_k
from gossamer.topologies._base import base_graph
from gossamer.topologies._bipartite import bipartite_exponential, halves
from gossamer.topologies._directed import directed_exponential, directed_random, directed_ring
from gossamer.topologies._draw import draw_schedule_svg, draw_svg
from gossamer.topologies._facts import facts
from gossamer.topologies._graphs import (
    complete,
    exponential,
    from_matrix,
    from_networkx,
    hypercube,
    ring,
    ring_lattice,
    star,
    torus,
)
from gossamer.topologies._mixing import Mixing, all_reduce_models
from gossamer.topologies._pairs import (
    alternating_exponential_ring,
    alternating_nodes,
    alternating_ring,
    nodes_alone,
    one_peer_exponential,
    random_matching,
)
from gossamer.topologies._random_graphs import erdos_renyi, random_regular
from gossamer.topologies._registry import build, describe, names
from gossamer.topologies._schedule import Schedule, apart, constant, cycle, piecewise
from gossamer.topologies._variance import steady_consensus_variance
from gossamer.topologies._weights import from_groups
from gossamer.topologies._window import WindowPlan

__all__ = [
    "Mixing",
    "Schedule",
    "WindowPlan",
    "ada",
    "ada_k",
    "all_reduce_models",
    "alternating_exponential_ring",
    "alternating_nodes",
    "alternating_ring",
    "apart",
    "base_graph",
    "bipartite_exponential",
    "build",
    "complete",
    "constant",
    "cycle",
    "describe",
    "directed_exponential",
    "directed_random",
    "directed_ring",
    "draw_schedule_svg",
    "draw_svg",
    "erdos_renyi",
    "exponential",
    "facts",
    "from_groups",
    "from_matrix",
    "from_networkx",
    "halves",
    "hypercube",
    "names",
    "nodes_alone",
    "one_peer_exponential",
    "piecewise",
    "random_matching",
    "random_regular",
    "ring",
    "ring_lattice",
    "star",
    "steady_consensus_variance",
    "torus",
]
