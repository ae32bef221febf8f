"""Consensus control: as many rounds of mixing a step as it takes to hold the replicas together."""

from dataclasses import dataclass

import torch

from ._contract import Algorithm, Mix, Replica

_BEFORE, _STRIDE = "before", "stride"
_MEMORY = 0.9
"""Of the size of steps, which is averaged over some of them."""


@dataclass(frozen=True, kw_only=True)
class ConsensusControl(Algorithm):
    r"""D-PSGD that mixes until replicas are no farther apart than a share of what a step moves them.

    .. math:: x_i \leftarrow \sum_j W_{ij} x_j \quad\text{until}\quad
              \tfrac1n \sum_i \bigl\lVert \textstyle\sum_j W_{ij} x_j - x_i \bigr\rVert^2
              \le \rho^2 \, \tfrac1n \sum_i \lVert \mathrm{step}(x_i) - x_i \rVert^2

    below which decentralized training goes as fast as centralized. The right side is averaged over steps. Both sums are
    an all-reduce of one number a round, so all replicas stop at the same round. A round shows how far they were apart
    before it. Rounds of one step go on in the schedule, one graph after the other.

    Reference: Kong et al., "Consensus control for decentralized deep learning", ICML 2021, arXiv 2102.04828.

    >>> ConsensusControl(target=0.25)
    ConsensusControl(target=0.25, max_rounds=10)
    """

    target: float = 0.5
    """ρ, how far apart replicas may be, as a share of the length of a step."""
    max_rounds: int = 10
    """Rounds in one step, at most."""

    def __post_init__(self) -> None:
        if not self.target > 0:
            raise ValueError(f"target={self.target}: the distance between replicas must be allowed something above 0")
        if self.max_rounds < 1:
            raise ValueError(f"max_rounds={self.max_rounds}: must be 1 or more")

    @property
    def is_elementwise(self) -> bool:
        return False  # distances are those of the whole model

    def before_step(self, replica: Replica, mix: Mix) -> None:
        replica.state[_BEFORE] = replica.params.clone()

    def after_step(self, replica: Replica, mix: Mix) -> None:
        params, state = replica.params, replica.state
        stride = mix.mean(_squared(params - state.pop(_BEFORE)))
        state[_STRIDE] = torch.lerp(stride, state[_STRIDE], _MEMORY) if _STRIDE in state else stride.clone()
        allowed = self.target**2 * _number(state[_STRIDE])
        for _ in range(self.max_rounds):
            mixed = mix(params)
            apart = _number(mix.mean(_squared(mixed - params)))
            params.copy_(mixed)
            if apart <= allowed:
                break
            mix = mix.following


def _squared(values: torch.Tensor) -> torch.Tensor:
    return values.square().sum(dim=-1, keepdim=True)


def _number(same_on_all: torch.Tensor) -> float:
    """A decision needs it on the host: this waits for the device."""
    return float(same_on_all.flatten()[0])
