"""Virtual time: when workers compute, exchange and wait, by how long gradients and messages take.

Numbers only (NumPy): no gradient is computed, nothing imports torch. A training may follow the events; a table of
epoch times needs nothing else.

>>> from gossamer.clock import Cluster, Computation, epoch_s
>>> from gossamer.topologies import build
>>> slow = Cluster(workers=16, computation=Computation(mean_s=0.01, slow="0=100"))
>>> f"{epoch_s('ad-psgd', slow, build('bipartite-exponential', 16), num_gradients=1600, model_bytes=1e6):.2f} s"
'1.07 s'
"""

from ._ad_psgd import ad_psgd
from ._cluster import Cluster, Link
from ._computation import JITTERS, Computation, slow_workers
from ._events import Event, Span
from ._methods import AD_PSGD, ALL_REDUCE, ASYNCHRONOUS, METHODS, PARAMETER_SERVER, asynchronous, epoch_s
from ._neighbourhood import last_of
from ._parameter_server import parameter_server
from ._rounds import Rounds, Traffic
from ._timeline import MOST_LANES, draw_timeline_svg, first_spans, timeline_end_s
from ._wires import Wires

__all__ = [
    "AD_PSGD",
    "ALL_REDUCE",
    "ASYNCHRONOUS",
    "JITTERS",
    "METHODS",
    "MOST_LANES",
    "PARAMETER_SERVER",
    "Cluster",
    "Computation",
    "Event",
    "Link",
    "Rounds",
    "Span",
    "Traffic",
    "Wires",
    "ad_psgd",
    "asynchronous",
    "draw_timeline_svg",
    "epoch_s",
    "first_spans",
    "last_of",
    "parameter_server",
    "slow_workers",
    "timeline_end_s",
]
