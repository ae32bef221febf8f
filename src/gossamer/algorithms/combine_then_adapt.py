"""D-PSGD, combine then adapt: the step lands on the neighbours' average."""

from dataclasses import dataclass

from ._contract import Algorithm, Mix, Replica


@dataclass(frozen=True, kw_only=True)
class CombineThenAdapt(Algorithm):
    r"""D-PSGD as its paper states it: the gradient is taken before the mixing, the step made after it.

    .. math:: x_i \leftarrow \sum_j W_{ij} x_j - \gamma\, d_i(x_i)

    where :math:`d_i` is the direction of any optimizer. Since the gradient does not wait for the mixing, the two
    can overlap: `OverlappedDPSGD` starts the exchange early; on a graph that does not change it is the same iteration.

    Reference: Lian et al., NeurIPS 2017, arXiv 1705.09056.
    """

    def before_step(self, replica: Replica, mix: Mix) -> None:
        mix.start(replica.params).wait(replica.params)

    def after_step(self, replica: Replica, mix: Mix) -> None:
        pass
