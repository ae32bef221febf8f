"""The planner: how long an iteration will take on a cluster, and whether decentralizing pays. Numbers only, no torch.

>>> from gossamer.clock import Cluster, Link
>>> from gossamer.plan import AllReduce, Work
>>> work = Work(forward_s=0.02, backward_s=(0.04,), update_s=(0.0,), bucket_bytes=(252e6,))
>>> training = AllReduce(work, Cluster(workers=4, link=Link(latency_s=0.0, bytes_per_s=3.125e9)))
>>> training.advance(1.0)
>>> training.ready_s.round(3)
array([0.181, 0.181, 0.181, 0.181])
"""

from ._timeline import AllReduce, Decentralized
from ._work import Work

__all__ = ["AllReduce", "Decentralized", "Work"]
