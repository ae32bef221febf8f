"""Methods, one a file. Each says what one replica does around its optimizer's step and runs on every engine."""

from gossamer._names import Spec, lookup

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


def build(spec: str) -> Algorithm:
    """The method that `spec` names, with parameters as `:key=value`.

    >>> build("local-sgd:every=8")
    LocalSGD(every=8)
    """
    parsed = Spec.parse("algorithm", spec)
    return parsed.call(lookup("algorithm", parsed.name, ALGORITHMS))


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
    "build",
]
