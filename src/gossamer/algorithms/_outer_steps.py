"""What methods with many steps alone and then an outer step have in common."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ._contract import Algorithm, Mix, Replica

_ANCHOR, _MOMENTUM = "anchor", "momentum"


@dataclass(frozen=True, kw_only=True)
class OuterSteps(Algorithm):
    """H steps of the user's optimizer alone, then a step of an outer one, which all begin the next H steps from."""

    every: int = 10
    """H, the number of steps from one outer step to the next."""
    outer_lr: float = 0.7
    """Of the outer optimizer."""
    momentum: float
    """Of the outer optimizer."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(
                f"{type(self).__name__} makes an outer step every {self.every} steps: every must be 1 or more"
            )
        if not self.outer_lr > 0:
            raise ValueError(f"outer_lr={self.outer_lr}: must be above 0")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum}: must be from 0 to below 1")

    @property
    def mixes_every(self) -> int:
        return self.every

    def before_step(self, replica: Replica, mix: Mix) -> None:
        if not replica.state:
            replica.state[_ANCHOR] = replica.params.clone()
            replica.state[_MOMENTUM] = torch.zeros_like(replica.params)

    def after_step(self, replica: Replica, mix: Mix) -> None:
        if replica.step % self.every == 0:
            anchor = replica.state[_ANCHOR]
            self._step(anchor, replica.state[_MOMENTUM], replica.params, mix)
            replica.params.copy_(anchor)

    @abstractmethod
    def _step(self, anchor: Tensor, momentum: Tensor, params: Tensor, mix: Mix) -> None:
        """Move the anchor, and bring the momentum up to date, both in place."""
