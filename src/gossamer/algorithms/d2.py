"""D²: what mixing has changed is taken into the next step, so different data do no harm."""

from dataclasses import dataclass

import torch

from ._contract import Algorithm, Mix, Replica

_CHANGE = "change"


@dataclass(frozen=True, kw_only=True)
class D2(Algorithm):
    r"""Decentralized training over decentralized data.

    .. math:: x^{t+1} = \tilde W \bigl(2x^t - x^{t-1} - \gamma (g^t - g^{t-1})\bigr), \qquad
              \tilde W = \alpha I + (1 - \alpha) W

    With :math:`x^{t+1/2}` for what the optimizer makes of :math:`x^t`, that is
    :math:`x^{t+1} = \tilde W (x^{t+1/2} + x^t - x^{t-1/2})`: the change which the last mixing made is added once more.
    So it is written here, and serves every optimizer. At rest mixing makes up for exactly what a replica's own gradient
    does, and the mean of all steps is zero: with SGD the optimum is exact at a constant rate. One model is sent a step.

    Proved for undirected graphs that stay, where the smallest eigenvalue of :math:`\tilde W` is above -1/3. A share
    :math:`\alpha = 1/2` that a replica keeps of its own makes sure of that ("exact diffusion"); 0 is the original.

    Reference: Tang et al., "D²: decentralized training over decentralized data", ICML 2018, arXiv 1803.07068; Yuan et
    al., "Exact diffusion for distributed optimization and learning", arXiv 1702.05122.

    >>> D2(keep=0.25)
    D2(keep=0.25)
    """

    keep: float = 0.5
    """α, the share that a replica keeps of its own beside what the graph gives it."""

    def __post_init__(self) -> None:
        if not 0 <= self.keep < 1:
            raise ValueError(f"keep={self.keep}: give the share of its own that a replica keeps, from 0 to below 1")

    def after_step(self, replica: Replica, mix: Mix) -> None:
        stepped = replica.params.clone()
        if _CHANGE in replica.state:
            replica.params.add_(replica.state[_CHANGE])
        replica.params.copy_(torch.lerp(mix(replica.params), replica.params, self.keep))
        replica.state[_CHANGE] = replica.params - stepped
