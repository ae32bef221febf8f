"""The optimizers of the tasks. On a GPU their step is one kernel over all tensors."""

from collections.abc import Iterable

from torch import nn
from torch.optim import SGD, AdamW


def sgd(parameters: Iterable[nn.Parameter], lr: float, *, weight_decay: float = 0.0) -> SGD:
    """SGD with momentum 0.9; the weight decay is for every parameter, those of norm layers too."""
    parameters = list(parameters)
    return SGD(parameters, lr=lr, momentum=0.9, weight_decay=weight_decay, fused=_on_gpu(parameters))


def adamw(parameters: Iterable[nn.Parameter], lr: float, *, weight_decay: float = 0.01) -> AdamW:
    """AdamW that forgets squared gradients faster than torch's default: runs here have few steps."""
    parameters = list(parameters)
    return AdamW(parameters, lr=lr, betas=(0.9, 0.98), weight_decay=weight_decay, fused=_on_gpu(parameters))


def _on_gpu(parameters: list[nn.Parameter]) -> bool | None:
    return True if parameters[0].is_cuda else None  # None: as torch sees fit
