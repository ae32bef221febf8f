"""NoLoCo: DiLoCo without an all-reduce; outer steps are shared by pairs."""

from dataclasses import dataclass

from torch import Tensor

from ._contract import Mix
from ._outer_steps import OuterSteps


@dataclass(frozen=True, kw_only=True)
class NoLoCo(OuterSteps):
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

    momentum: float = 0.5
    """α; β is `outer_lr`."""
    pull: float = 0.7
    """γ, how hard replicas are pulled to each other."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.pull > 0:
            raise ValueError(f"pull={self.pull}: must be above 0, or nothing holds the replicas together")

    @property
    def usual_graph(self) -> str:
        return "random-matching"

    def _step(self, anchor: Tensor, momentum: Tensor, params: Tensor, mix: Mix) -> None:
        sent = (self.pull - self.outer_lr) * anchor + self.outer_lr * params
        momentum.mul_(self.momentum).add_(mix(sent)).sub_(anchor, alpha=self.pull)
        anchor.add_(momentum)
