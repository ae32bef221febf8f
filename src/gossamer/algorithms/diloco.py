"""DiLoCo: many steps alone, then one step of an outer optimizer on an all-reduce."""

from dataclasses import dataclass

import torch

from ._contract import Algorithm, Mix, Replica

_ANCHOR, _MOMENTUM = "anchor", "momentum"


@dataclass(frozen=True, kw_only=True)
class DiLoCo(Algorithm):
    r"""Every H steps the mean change of all replicas is a gradient for Nesterov's momentum.

    .. math:: \Delta = a - \tfrac1n \sum_j x_j, \qquad b \leftarrow \mu b + \Delta, \qquad
              a \leftarrow a - \eta (\Delta + \mu b), \qquad x_i \leftarrow a

    where :math:`a` is where all replicas began the H steps. The inner optimizer is the user's (AdamW in the paper); its
    moments stay local. The graph plays no part: an all-reduce of one model every H steps.

    Reference: Douillard et al., "DiLoCo: distributed low-communication training of language models", arXiv 2311.08105.

    >>> DiLoCo(every=100).mixes_every
    100
    """

    every: int = 10
    """H, the number of steps from one outer step to the next."""
    outer_lr: float = 0.7
    """η."""
    momentum: float = 0.9
    """μ."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"DiLoCo makes an outer step every {self.every} steps: every must be 1 or more")
        if not self.outer_lr > 0:
            raise ValueError(f"outer_lr={self.outer_lr}: must be above 0")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum}: must be from 0 to below 1")

    @property
    def mixes_every(self) -> int:
        return self.every

    @property
    def ignores_graph(self) -> bool:
        return True

    def before_step(self, replica: Replica, mix: Mix) -> None:
        if not replica.state:
            replica.state[_ANCHOR] = replica.params.clone()
            replica.state[_MOMENTUM] = torch.zeros_like(replica.params)

    def after_step(self, replica: Replica, mix: Mix) -> None:
        if replica.step % self.every:
            return
        anchor, momentum = replica.state[_ANCHOR], replica.state[_MOMENTUM]
        change = anchor - mix.mean(replica.params)
        momentum.mul_(self.momentum).add_(change)
        anchor.sub_(change.add_(momentum, alpha=self.momentum), alpha=self.outer_lr)
        replica.params.copy_(anchor)
