"""AD-PSGD: nobody waits for anybody. Gradients in one thread, averages of two replicas in another."""

from dataclasses import dataclass

from ._contract import Algorithm, Mix, Replica


@dataclass(frozen=True, kw_only=True)
class ADPSGD(Algorithm):
    r"""Asynchronous decentralized SGD: every gradient is followed by the average of two neighbours, some time.

    .. math:: x_i \leftarrow x_i + \mathrm{step}(\hat x_i, g_i(\hat x_i)) - \hat x_i, \qquad
              x_i, x_j \leftarrow x_i + \tfrac12 (s_j - s_i),\; x_j + \tfrac12 (s_i - s_j)

    Here :math:`\hat x_i` is what worker i has read before its forward pass, and :math:`s_i, s_j` are what the two of a
    swap have sent each other: what happened to either replica meanwhile survives, and the mean over all is kept. The
    graph must be bipartite, so that one half asks and the other answers. All that is for the asynchronous engine to do,
    beside the steps; around the step of its optimizer a worker does nothing. Optimizer state stays local.

    Reference: Lian et al., "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018,
    arXiv 1710.06952.

    >>> ADPSGD().is_asynchronous, ADPSGD().usual_graph
    (True, 'bipartite-exponential')
    """

    @property
    def is_asynchronous(self) -> bool:
        return True

    @property
    def usual_graph(self) -> str:
        return "bipartite-exponential"

    def after_step(self, replica: Replica, mix: Mix) -> None:
        pass
