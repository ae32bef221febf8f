"""Changes of a model in units of the learning rate, which is what gradients are measured in."""

import torch
from torch import Tensor


def per_rate(change: Tensor, lr: float | Tensor) -> Tensor:
    """`change / lr`; zero where the rate is zero, since no step was made there.

    >>> per_rate(torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.0]))
    tensor([2., 0.])
    """
    if isinstance(lr, Tensor):
        return torch.where(lr > 0, change / lr, 0.0)
    return change / lr if lr > 0 else torch.zeros_like(change)
