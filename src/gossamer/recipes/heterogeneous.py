"""The methods of the field side by side, where every worker sees other classes."""

from typing import TYPE_CHECKING

from .methods import chosen, league

if TYPE_CHECKING:
    from gossamer.bench import Experiment

_ALPHA = 0.1
_SHARES = (1.0, 0.3, 0.1)
"""Of a method's learning rate where data is alike: methods differ in how large a step they bear where it is not."""


def heterogeneous(
    *,
    task: str | None = None,
    data: str | None = None,
    seeds: int | None = None,
    epochs: int | None = None,
    device: str = "auto",
    miniature: bool = False,
) -> "tuple[Experiment, ...]":
    """ResNet20 with group norm on CIFAR-10, or the digits; classes of 16 workers follow Dirichlet(0.1): every method.

    The setting that gradient tracking, D², quasi-global momentum and global update tracking were made for. Without
    statistics of batches, which would differ from worker to worker as much as their data. Each at three learning rates:
    at one for all, the order would be that of how large a step a method bears.
    """
    return league(
        chosen("heterogeneous", task, "resnet20-gn"),
        shares=_SHARES,
        data=data,
        seeds=seeds,
        epochs=epochs,
        device=device,
        miniature=miniature,
        alpha=_ALPHA,
    )
