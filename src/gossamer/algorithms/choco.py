"""CHOCO-SGD: neighbours learn of each other by compressed differences, and mix the copies that these add up to."""

from dataclasses import dataclass

from ._compression import Compressed
from ._contract import Mix, Replica

_COPY, _NEIGHBOURS = "copy", "neighbours"


@dataclass(frozen=True, kw_only=True)
class Choco(Compressed):
    r"""Decentralized SGD that sends a few bits of each value, or a few values.

    .. math:: x_i \leftarrow \mathrm{step}(x_i, g_i), \qquad \hat x_i \leftarrow \hat x_i + Q(x_i - \hat x_i), \qquad
              x_i \leftarrow x_i + \gamma \sum_j W_{ij} (\hat x_j - \hat x_i)

    Everybody has the same copy :math:`\hat x_j` of a model; what a message leaves out stays in
    :math:`x_j - \hat x_j` and is sent later. The corrections of all replicas sum to zero: compression never moves their
    mean. A replica keeps two vectors, its own copy and :math:`\sum_j W_{ij} \hat x_j`, for which the graph must stay.

    Reference: Koloskova, Stich and Jaggi, "Decentralized stochastic optimization and gossip algorithms with compressed
    communication", ICML 2019, arXiv 1902.00340; for deep learning arXiv 1907.09356.

    >>> choco = Choco(top_k=0.01)
    >>> choco.compressor, choco.pace
    (TopK(share=0.01), 0.1)
    """

    def before_step(self, replica: Replica, mix: Mix) -> None:
        if not replica.state:  # all replicas begin equal, so all know each other
            replica.state[_COPY], replica.state[_NEIGHBOURS] = replica.params.clone(), replica.params.clone()

    def after_step(self, replica: Replica, mix: Mix) -> None:
        copy, neighbours = replica.state[_COPY], replica.state[_NEIGHBOURS]
        payload, unpack = self.compressor.compress(replica.params - copy, replica.step)
        copy.add_(unpack(payload))
        neighbours.add_(mix.packed(payload, unpack))
        replica.params.add_(neighbours - copy, alpha=self.pace)
