"""Push-sum: decentralized SGD on graphs whose links go one way."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ._contract import Algorithm, Mix, Replica

_BEFORE, _WEIGHT = "before", "weight"


@dataclass(frozen=True, kw_only=True)
class PushSum(Algorithm):
    r"""Stochastic gradient push. Replicas hand out shares of what they hold; a weight beside it says how much that is.

    .. math:: x_i \leftarrow \sum_j A_{ij} \bigl(x_j + \mathrm{step}(z_j, g_j(z_j)) - z_j\bigr), \qquad
              w_i \leftarrow \sum_j A_{ij} w_j, \qquad z_i = x_i / w_i

    The columns of A sum to one, its rows need not: nobody has to know who listens to others, and all models together
    are kept. The model that is trained and tested is :math:`z_i`; all :math:`z_i` come to the true mean, where plain
    averages would come to that of those who are listened to most. On a doubly stochastic graph every weight stays one,
    and this is D-PSGD. One model and one number are sent a step.

    Reference: Assran et al., "Stochastic gradient push for distributed deep learning", ICML 2019, arXiv 1811.10792.

    >>> PushSum().usual_graph
    'directed-exponential'
    """

    @property
    def needs_doubly_stochastic(self) -> bool:
        return False

    @property
    def usual_graph(self) -> str:
        return "directed-exponential"

    def before_step(self, replica: Replica, mix: Mix) -> None:
        if not replica.state:
            replica.state[_WEIGHT] = one_each(replica.params)
        replica.state[_BEFORE] = replica.params.clone()

    def after_step(self, replica: Replica, mix: Mix) -> None:
        weight = replica.state[_WEIGHT]
        replica.params.add_(replica.state.pop(_BEFORE) * (weight - 1))
        mix.push.start(replica.params).wait(replica.params)
        mix.push.start(weight).wait(weight)
        replica.params.div_(weight)


def one_each(params: Tensor) -> Tensor:
    """The weight that a replica begins with, `[..., 1]`; in single precision at least, since it is worth more than a
    parameter."""
    return torch.ones_like(params[..., :1], dtype=torch.promote_types(params.dtype, torch.float32))
