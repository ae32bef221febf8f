"""Methods, one a file. Each says what one replica does around its optimizer's step and runs on every engine."""

from ._contract import Algorithm, Exchange, Mix, Replica
from .all_reduce import AllReduce
from .combine_then_adapt import CombineThenAdapt
from .d_psgd import DPSGD
from .local_sgd import LocalSGD
from .overlapped import OverlappedDPSGD

ALGORITHMS: dict[str, type[Algorithm]] = {
    "all-reduce": AllReduce,
    "d-psgd": DPSGD,
    "d-psgd-cta": CombineThenAdapt,
    "d-psgd-overlapped": OverlappedDPSGD,
    "local-sgd": LocalSGD,
}
"""Names on the command line. A new method is one file and one row here; the battery of tests picks it up."""

__all__ = [
    "ALGORITHMS",
    "DPSGD",
    "Algorithm",
    "AllReduce",
    "CombineThenAdapt",
    "Exchange",
    "LocalSGD",
    "Mix",
    "OverlappedDPSGD",
    "Replica",
]
