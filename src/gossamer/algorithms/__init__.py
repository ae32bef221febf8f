"""Methods, one a file. Each says what one replica does around its optimizer's step and runs on every engine."""

from gossamer._names import Spec, lookup

from ._contract import Algorithm, Exchange, Mix, Replica
from .ad_psgd import ADPSGD
from .all_reduce import AllReduce
from .combine_then_adapt import CombineThenAdapt
from .d_psgd import DPSGD
from .local_sgd import LocalSGD
from .overlapped import OverlappedDPSGD
from .parameter_server import ParameterServer

ALGORITHMS: dict[str, type[Algorithm]] = {
    "all-reduce": AllReduce,
    "d-psgd": DPSGD,
    "d-psgd-cta": CombineThenAdapt,
    "d-psgd-overlapped": OverlappedDPSGD,
    "local-sgd": LocalSGD,
}
"""Names on the command line. A new method is one file and one row here; the battery of tests picks it up."""

ASYNCHRONOUS: dict[str, type[Algorithm]] = {
    "ad-psgd": ADPSGD,
    "parameter-server": ParameterServer,
}
"""Those that no engine runs step by step: they have no trajectory that could be compared."""


def build(spec: str) -> Algorithm:
    """The method that `spec` names, with parameters as `:key=value`.

    >>> build("local-sgd:every=8")
    LocalSGD(every=8)
    """
    parsed = Spec.parse("algorithm", spec)
    return parsed.call(lookup("algorithm", parsed.name, ALGORITHMS | ASYNCHRONOUS))


__all__ = [
    "ADPSGD",
    "ALGORITHMS",
    "ASYNCHRONOUS",
    "DPSGD",
    "Algorithm",
    "AllReduce",
    "CombineThenAdapt",
    "Exchange",
    "LocalSGD",
    "Mix",
    "OverlappedDPSGD",
    "ParameterServer",
    "Replica",
    "build",
]
