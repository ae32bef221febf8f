"""Quasi-global momentum: the optimizer remembers where the model went, not where its own gradients pointed."""

from dataclasses import dataclass

import torch

from ._contract import Algorithm, Mix, Replica
from ._rates import per_rate

_BEFORE = "before"
_TINY = 1e-8


@dataclass(frozen=True, kw_only=True)
class QGMomentum(Algorithm):
    r"""D-PSGD whose momentum is that of the mixed model. Only the parameters travel.

    With SGD, whose step is :math:`m_i = \beta \hat m_i + g_i`, with weight decay, dampening and Nesterov's form as the
    user has set them,

    .. math:: x_i^{t+1} = \sum_j W_{ij} (x_j^t - \gamma m_j), \qquad
              \hat m_i \leftarrow \mu \hat m_i + (1 - \mu) \frac{x_i^t - x_i^{t+1}}{\gamma}

    takes the place of the optimizer's momentum. With Adam both of its moments are of the direction
    :math:`d_i = (x_i^t - x_i^{t+1}) / \lVert x_i^t - x_i^{t+1} \rVert`: :math:`\hat m_i` as before, with Adam's
    :math:`\beta_1` for :math:`\mu`, and :math:`\hat v_i \leftarrow \beta_2 \hat v_i + (1 - \beta_2) d_i^2`. Local
    gradients that differ for good no longer pile up in the momentum: meant for heterogeneous data.

    Reference: Lin et al., "Quasi-global momentum: accelerating decentralized deep learning on heterogeneous data",
    ICML 2021, arXiv 2102.04761.

    >>> QGMomentum(mu=0.95)
    QGMomentum(mu=0.95, beta1=0.9, beta2=0.99)
    """

    mu: float = 0.9
    """μ, the memory of the momentum with SGD."""
    beta1: float = 0.9
    """Of the first moment with Adam."""
    beta2: float = 0.99
    """Of the second."""

    def __post_init__(self) -> None:
        for name in ("mu", "beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: a memory must be from 0 to below 1")

    @property
    def is_elementwise(self) -> bool:
        return False  # the norm is that of the whole model

    def before_step(self, replica: Replica, mix: Mix) -> None:
        replica.state[_BEFORE] = replica.params.clone()

    def after_step(self, replica: Replica, mix: Mix) -> None:
        mix.start(replica.params).wait(replica.params)
        moved = replica.state.pop(_BEFORE).sub_(replica.params)
        moments = replica.moments
        if "momentum_buffer" in moments:
            direction = per_rate(moved, replica.lr)
            self._remember(replica, "momentum_buffer", direction, self.mu)
        elif "exp_avg" in moments and "exp_avg_sq" in moments:
            direction = moved / (moved.norm(dim=-1, keepdim=True) + _TINY)
            self._remember(replica, "exp_avg", direction, self.beta1)
            self._remember(replica, "exp_avg_sq", direction.square(), self.beta2)
        elif replica.step > 1:  # in the first step a worker may have no gradient yet, and answer others only
            raise ValueError(
                "qg-momentum takes the place of the optimizer's momentum, and this one has none: take SGD with "
                f"momentum=0.9, or Adam; it keeps {', '.join(moments) or 'nothing'}"
            )

    def _remember(self, replica: Replica, name: str, values: torch.Tensor, memory: float) -> None:
        before = replica.state.get(name)
        replica.state[name] = (1 - memory) * values if before is None else torch.lerp(values, before, memory)
        replica.moments[name].copy_(replica.state[name])
