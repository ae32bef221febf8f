"""Asynchronous SGD with a parameter server: what decentralized methods are compared with."""

from dataclasses import dataclass

from ._contract import Algorithm, Mix, Replica


@dataclass(frozen=True, kw_only=True)
class ParameterServer(Algorithm):
    r"""One rank holds the parameters; the others send it gradients, each when it has one, and take what is there then.

    .. math:: x \leftarrow \mathrm{step}(x, g_i(\hat x_i)), \qquad \hat x_i \leftarrow x

    Rank 0 serves and computes no gradients. Its optimizer is the only one that steps, with the learning rate of the
    worker whose gradient it is. A gradient is as stale as the number of others that came in between. The graph plays no
    part: all models pass through one worker.

    Reference: Dean et al., "Large scale distributed deep networks", NeurIPS 2012.

    >>> ParameterServer().is_asynchronous, ParameterServer().usual_graph
    (True, 'star')
    """

    @property
    def is_asynchronous(self) -> bool:
        return True

    @property
    def steps_together(self) -> bool:
        return True

    @property
    def usual_graph(self) -> str:
        return "star"

    def after_step(self, replica: Replica, mix: Mix) -> None:
        pass
