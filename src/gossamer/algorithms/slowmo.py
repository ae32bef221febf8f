"""SlowMo: D-PSGD, and every few steps an exact average with a slow momentum."""

from dataclasses import dataclass

from ._contract import Algorithm, Mix, Replica
from ._rates import per_rate

_ANCHOR, _SLOW = "anchor", "slow"


@dataclass(frozen=True, kw_only=True)
class SlowMo(Algorithm):
    r"""Replicas mix with their neighbours, and :math:`\tau` steps are taken together as one step of a slow optimizer.

    .. math:: x_i \leftarrow \sum_j W_{ij}\, \mathrm{step}(x_j, g_j); \quad\text{when } \tau \text{ divides } t: \quad
              u \leftarrow \beta u + \frac{a - \bar x}{\gamma}, \quad a \leftarrow a - \alpha \gamma u, \quad
              x_i \leftarrow a

    where :math:`a` is where the slow optimizer was, alike on all, and :math:`\bar x` the mean over all replicas after
    their last local step. With :math:`\beta = 0` and :math:`\alpha = 1` it is D-PSGD with an exact average now and
    then. The optimizer's own moments stay as they are.

    Reference: Wang et al., "SlowMo: improving communication-efficient distributed SGD with slow momentum", ICLR 2020,
    arXiv 1910.00643.

    >>> SlowMo(every=48, momentum=0.7)
    SlowMo(every=48, momentum=0.7, slow_lr=1.0)
    """

    every: int = 12
    """τ, the number of steps from one exact average to the next."""
    momentum: float = 0.5
    """β of the slow optimizer."""
    slow_lr: float = 1.0
    """α, its learning rate."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"SlowMo averages exactly every {self.every} steps: every must be 1 or more")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum}: must be from 0 to below 1")
        if not self.slow_lr > 0:
            raise ValueError(f"slow_lr={self.slow_lr}: must be above 0")

    @property
    def averages_over_all(self) -> bool:
        return True

    def before_step(self, replica: Replica, mix: Mix) -> None:
        if _ANCHOR not in replica.state:
            replica.state[_ANCHOR] = replica.params.clone()

    def after_step(self, replica: Replica, mix: Mix) -> None:
        if replica.step % self.every:
            mix.start(replica.params).wait(replica.params)
            return
        anchor, lr = replica.state[_ANCHOR], replica.lr
        slow = per_rate(anchor - mix.mean(replica.params), lr)
        if _SLOW in replica.state:
            slow.add_(replica.state[_SLOW], alpha=self.momentum)
        replica.state[_SLOW] = slow
        anchor.sub_(self.slow_lr * lr * slow)
        replica.params.copy_(anchor)
