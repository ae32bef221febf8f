"""NoLoCo: DiLoCo without an all-reduce; outer steps are shared by pairs."""

from dataclasses import dataclass

import torch

from ._contract import Algorithm, Mix, Replica

_ANCHOR, _MOMENTUM = "anchor", "momentum"


@dataclass(frozen=True, kw_only=True)
class NoLoCo(Algorithm):
    r"""Every H steps a replica makes an outer step with the mean change of few, and is pulled to where these began.

    .. math:: m_i \leftarrow \alpha m_i + \beta \sum_j W_{ij} (x_j - a_j) - \gamma \bigl(a_i - \sum_j W_{ij} a_j\bigr),
              \qquad a_i \leftarrow a_i + m_i, \qquad x_i \leftarrow a_i

    where :math:`a_i` is where replica i began the H steps. Meant for random pairs (`random-matching`), of which nobody
    waits for more than one other. All that is mixed is linear, so one tensor travels,
    :math:`\beta x_j + (\gamma - \beta) a_j`: one model every H steps.

    Reference: Kolehmainen et al., "NoLoCo: no-all-reduce low communication training method for large models",
    arXiv 2506.10911.

    >>> NoLoCo(every=50).usual_graph
    'random-matching'
    """

    every: int = 10
    """H, the number of steps from one outer step to the next."""
    outer_lr: float = 0.7
    """β."""
    momentum: float = 0.5
    """α."""
    pull: float = 0.7
    """γ, how hard replicas are pulled to each other."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"NoLoCo makes an outer step every {self.every} steps: every must be 1 or more")
        if not self.outer_lr > 0:
            raise ValueError(f"outer_lr={self.outer_lr}: must be above 0")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum}: must be from 0 to below 1")
        if not self.pull > 0:
            raise ValueError(f"pull={self.pull}: must be above 0, or nothing holds the replicas together")

    @property
    def mixes_every(self) -> int:
        return self.every

    @property
    def usual_graph(self) -> str:
        return "random-matching"

    def before_step(self, replica: Replica, mix: Mix) -> None:
        if not replica.state:
            replica.state[_ANCHOR] = replica.params.clone()
            replica.state[_MOMENTUM] = torch.zeros_like(replica.params)

    def after_step(self, replica: Replica, mix: Mix) -> None:
        if replica.step % self.every:
            return
        anchor, momentum = replica.state[_ANCHOR], replica.state[_MOMENTUM]
        sent = (self.pull - self.outer_lr) * anchor + self.outer_lr * replica.params
        momentum.mul_(self.momentum).add_(mix(sent)).sub_(anchor, alpha=self.pull)
        anchor.add_(momentum)
        replica.params.copy_(anchor)
