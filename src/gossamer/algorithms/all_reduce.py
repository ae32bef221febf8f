"""Centralized training: every step uses the mean of all gradients."""

from dataclasses import dataclass

from ._contract import Algorithm, Mix, Replica


@dataclass(frozen=True, kw_only=True)
class AllReduce(Algorithm):
    r"""All-reduce SGD, what `DistributedDataParallel` does; the graph plays no part.

    .. math:: x_i \leftarrow \mathrm{step}\bigl(x_i,\; \tfrac1n \sum_j g_j\bigr)

    Replicas that start equal stay equal.
    """

    @property
    def steps_together(self) -> bool:
        return True

    @property
    def ignores_graph(self) -> bool:
        return True

    @property
    def takes_gradients(self) -> bool:
        return True

    def before_step(self, replica: Replica, mix: Mix) -> None:
        replica.grads.copy_(mix.mean(replica.grads))

    def after_step(self, replica: Replica, mix: Mix) -> None:
        pass
