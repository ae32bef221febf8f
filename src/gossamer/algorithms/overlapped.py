"""D-PSGD with the exchange hidden behind the next forward and backward pass."""

from dataclasses import dataclass

from ._contract import Algorithm, Mix, Replica

_EXCHANGE = "exchange"


@dataclass(frozen=True, kw_only=True)
class OverlappedDPSGD(Algorithm):
    r"""Combine then adapt, with the exchange started as soon as the parameters stand still.

    .. math:: x_i^{t+1} = \sum_j W_{ij} x_j^t - \gamma\, d_i(x_i^t)

    After step t the parameters set out; the next gradient is computed at the unmixed ones meanwhile; just
    before step t+1 the mixed ones arrive and the optimizer's step lands on them. With Adam this is the
    "decentralized Adam" of the reference: moments stay local, decoupled weight decay acts on the mixed parameters.

    Reference: Wang et al., "From promise to practice: realizing high-performance decentralized training",
    ICLR 2025, arXiv 2410.11998.
    """

    @property
    def overlaps(self) -> bool:
        return True

    def before_step(self, replica: Replica, mix: Mix) -> None:
        exchange = replica.pending.pop(_EXCHANGE, None)
        if exchange is not None:  # None before the first step, where all replicas are equal
            exchange.wait(replica.params)

    def after_step(self, replica: Replica, mix: Mix) -> None:
        replica.pending[_EXCHANGE] = mix.start(replica.params)
