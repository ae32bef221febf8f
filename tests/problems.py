"""Small problems in float64, on which engines and algorithms are compared digit by digit."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def _make_network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 7, bias=False), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3)).double()


_NETWORK = _make_network()
"""Made once: ranks are threads here, and torch's seed belongs to all of them together."""


def network() -> nn.Module:
    """A small net with batch norm, so that buffers count too; always the same.

    No bias in front of the norm: its gradient is zero but for rounding, and Adam would make steps out of the rounding.
    """
    return copy.deepcopy(_NETWORK)


def network_batch(step: int, num_replicas: int) -> tuple[Tensor, Tensor]:
    """Inputs `[N, 6, 5]` and targets `[N, 6]`, different for every replica and step."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(num_replicas, 6, 5, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(3, (num_replicas, 6), generator=generator)


network_loss = F.cross_entropy


class Point(nn.Module):
    """A single vector; with `half_square` each replica's loss is a bowl around an optimum of its own."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self, optimum: Tensor) -> Tensor:
        return self.x - optimum


def half_square(difference: Tensor, _: Tensor) -> Tensor:
    """Its gradient is the difference itself."""
    return difference.square().sum() / 2


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}
