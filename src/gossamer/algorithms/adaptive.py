"""Adaptive decentralized training: AMSGrad's step of every replica, with a scale in common, mixing every few steps."""

from dataclasses import dataclass

import torch

from ._contract import Algorithm, Mix, Replica

_FIRST, _SECOND, _LARGEST, _SCALE = "first", "second", "largest", "scale"


@dataclass(frozen=True, kw_only=True)
class Adaptive(Algorithm):
    r"""The optimizer is given AMSGrad's direction for a gradient; every p-th step is followed by a mixing.

    .. math:: m_i &\leftarrow \beta_1 m_i + (1 - \beta_1) g_i, \qquad
              v_i \leftarrow \beta_2 v_i + (1 - \beta_2) g_i^2, \qquad \hat v_i \leftarrow \max(\hat v_i, v_i) \\
              x_i &\leftarrow \mathrm{step}\Bigl(x_i,\;
              \frac{m_i / (1 - \beta_1^t)}{\sqrt{u_i / (1 - \beta_2^t)} + \epsilon}\Bigr), \qquad
              x_i \leftarrow \sum_j W_{ij} x_j, \; u_i \leftarrow \sum_j W_{ij} u_j
              \;\text{ when } p \text{ divides } t

    Here :math:`u_i`, which grows by what :math:`\hat v_i` grows by, tracks the mean of all :math:`\hat v_j`: replicas
    with scales of their own (``shared=0``, where :math:`u_i = \hat v_i`) come to a point that is no optimum where their
    data differ. Two models are sent a mixing, or one with ``shared=0``.

    Meant for plain SGD, with a learning rate as Adam has it (0.001): with one worker the two are then torch's
    `Adam(amsgrad=True)`. For an optimizer with a momentum of its own take ``beta1=0``.

    Reference: Zhang et al., "Adaptive serverless learning", arXiv 2008.10422, for the mixing every p steps; Chen et
    al., "On the convergence of decentralized adaptive gradient methods", arXiv 2109.03194, for the scale in common.

    >>> Adaptive(every=8).mixes_every
    8
    """

    every: int = 4
    """p, the number of steps from one mixing to the next."""
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    shared: int = 1
    """Whether the scale is tracked over all replicas (1) or each has its own (0)."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"adaptive mixes every {self.every} steps: every must be 1 or more")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: a memory must be from 0 to below 1")
        if not self.eps > 0:
            raise ValueError(f"eps={self.eps}: must be above 0")
        if self.shared not in (0, 1):
            raise ValueError(f"shared={self.shared}: 1 for a scale in common, 0 for one of each replica's own")

    @property
    def mixes_every(self) -> int:
        return self.every

    @property
    def takes_gradients(self) -> bool:
        return True

    def before_step(self, replica: Replica, mix: Mix) -> None:
        grads, state, step = replica.grads, replica.state, replica.step + 1
        if not state:
            state.update({name: torch.zeros_like(grads) for name in (_FIRST, _SECOND, _LARGEST, _SCALE)})
        state[_FIRST].lerp_(grads, 1 - self.beta1)
        state[_SECOND].lerp_(grads.square(), 1 - self.beta2)
        largest = torch.maximum(state[_LARGEST], state[_SECOND])
        state[_SCALE].add_(largest - state[_LARGEST])
        state[_LARGEST] = largest
        scale = (state[_SCALE] / (1 - self.beta2**step)).sqrt_().add_(self.eps)
        torch.div(state[_FIRST], scale.mul_(1 - self.beta1**step), out=grads)

    def after_step(self, replica: Replica, mix: Mix) -> None:
        if replica.step % self.every == 0:
            mix.start(replica.params).wait(replica.params)
            if self.shared:
                mix.start(replica.state[_SCALE]).wait(replica.state[_SCALE])
