"""D-PSGD, adapt then combine: a local step, then an average with the neighbours."""

from dataclasses import dataclass

from ._contract import Algorithm, Mix, Replica


@dataclass(frozen=True, kw_only=True)
class DPSGD(Algorithm):
    r"""D-PSGD in the order that most public code uses.

    .. math:: x_i \leftarrow \sum_j W_{ij}\, \mathrm{step}(x_j, g_j)

    Reference: Lian et al., "Can decentralized algorithms outperform centralized algorithms?", NeurIPS 2017,
    arXiv 1705.09056.
    """

    def after_step(self, replica: Replica, mix: Mix) -> None:
        mix.start(replica.params).wait(replica.params)
