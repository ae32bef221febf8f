"""Methods, one a file. Each says what one replica does around its optimizer's step and runs on every engine."""

from gossamer._names import Spec, lookup

from ._contract import Algorithm, Exchange, Mix, Replica, SGDRule, Unpack
from .ad_psgd import ADPSGD
from .adaptive import Adaptive
from .all_reduce import AllReduce
from .choco import Choco
from .combine_then_adapt import CombineThenAdapt
from .consensus_control import ConsensusControl
from .d2 import D2
from .d_psgd import DPSGD
from .diloco import DiLoCo
from .gradient_tracking import GradientTracking
from .gut import GUT
from .listening_ada import ListeningAda
from .local_sgd import LocalSGD
from .noloco import NoLoCo
from .overlapped import OverlappedDPSGD
from .parameter_server import ParameterServer
from .push_sum import PushSum
from .qg_momentum import QGMomentum
from .quantized_push_sum import QuantizedPushSum
from .slowmo import SlowMo

ALGORITHMS: dict[str, type[Algorithm]] = {
    "all-reduce": AllReduce,
    "d-psgd": DPSGD,
    "d-psgd-cta": CombineThenAdapt,
    "d-psgd-overlapped": OverlappedDPSGD,
    "local-sgd": LocalSGD,
    "qg-momentum": QGMomentum,
    "gradient-tracking": GradientTracking,
    "d2": D2,
    "gut": GUT,
    "push-sum": PushSum,
    "quantized-push-sum": QuantizedPushSum,
    "choco": Choco,
    "adaptive": Adaptive,
    "consensus-control": ConsensusControl,
    "slowmo": SlowMo,
    "diloco": DiLoCo,
    "noloco": NoLoCo,
    "listening-ada": ListeningAda,
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
    LocalSGD(every=8, follow=0)
    """
    parsed = Spec.parse("algorithm", spec)
    return parsed.call(lookup("algorithm", parsed.name, ALGORITHMS | ASYNCHRONOUS))


__all__ = [
    "ADPSGD",
    "ALGORITHMS",
    "ASYNCHRONOUS",
    "D2",
    "DPSGD",
    "GUT",
    "Adaptive",
    "Algorithm",
    "AllReduce",
    "Choco",
    "CombineThenAdapt",
    "ConsensusControl",
    "DiLoCo",
    "Exchange",
    "GradientTracking",
    "ListeningAda",
    "LocalSGD",
    "Mix",
    "NoLoCo",
    "OverlappedDPSGD",
    "ParameterServer",
    "PushSum",
    "QGMomentum",
    "QuantizedPushSum",
    "Replica",
    "SGDRule",
    "SlowMo",
    "Unpack",
    "build",
]
