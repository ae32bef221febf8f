"""DiLoCo: many steps alone, then one step of an outer optimizer on an all-reduce."""

from dataclasses import dataclass

from torch import Tensor

from ._contract import Mix
from ._outer_steps import OuterSteps


@dataclass(frozen=True, kw_only=True)
class DiLoCo(OuterSteps):
    r"""Every H steps the mean change of all replicas is a gradient for Nesterov's momentum.

    .. math:: \Delta = a - \tfrac1n \sum_j x_j, \qquad b \leftarrow \mu b + \Delta, \qquad
              a \leftarrow a - \eta (\Delta + \mu b), \qquad x_i \leftarrow a

    where :math:`a` is where all replicas began the H steps. The inner optimizer is the user's (AdamW in the paper); its
    moments stay local. The graph plays no part: an all-reduce of one model every H steps.

    Reference: Douillard et al., "DiLoCo: distributed low-communication training of language models", arXiv 2311.08105.

    >>> DiLoCo(every=100).mixes_every
    100
    """

    momentum: float = 0.9
    """μ; η is `outer_lr`."""

    @property
    def ignores_graph(self) -> bool:
        return True

    def _step(self, anchor: Tensor, momentum: Tensor, params: Tensor, mix: Mix) -> None:
        change = anchor - mix.mean(params)
        momentum.mul_(self.momentum).add_(change)
        anchor.sub_(change.add_(momentum, alpha=self.momentum), alpha=self.outer_lr)
