"""The mathematics of accumulated Adam, over lists of tensors: every number is treated alike and by itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

ON_CPU = 2**18
"""Numbers of a tensor that are worked on at once: the twelve passes over them then run in a core's cache."""
ON_ACCELERATOR = 2**25
"""There a piece must keep the whole device busy; it is a limit on the memory for intermediate values only."""


class Tensors(NamedTuple):
    """Parameters of one device and dtype at the same place in their windows, with all that belongs to them."""

    params: tuple[Tensor, ...]
    grads: tuple[Tensor, ...]
    exp_avgs: tuple[Tensor, ...]
    """The committed first moments m."""
    exp_avg_sqs: tuple[Tensor, ...]
    """The committed second moments v."""
    grad_sums: tuple[Tensor, ...]
    """Sums of the gradients of the window so far."""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The scalars of one step."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled: bool
    """Weight decay shrinks the parameters (AdamW); otherwise it is part of the gradient (Adam)."""
    maximize: bool
    num_windows: int
    """k, the number of windows begun, this one included: what the moments' start at zero is corrected with."""
    num_grads: int
    """Gradients of this window, this one included."""
    closes: bool
    """Whether the window ends with this step."""


def step_(tensors: Tensors, numbers: Numbers) -> None:
    """Move the parameters by one step; change moments and sums in place and leave gradients as they are."""
    most = ON_CPU if tensors.params[0].is_cpu else ON_ACCELERATOR
    for piece in pieces(tensors, most):
        _step_piece_(piece, numbers)


def _step_piece_(tensors: Tensors, now: Numbers) -> None:
    params, grads, exp_avgs, exp_avg_sqs, grad_sums = tensors
    if now.maximize:
        grads = torch._foreach_neg(grads)
    if now.weight_decay and now.decoupled:
        torch._foreach_mul_(params, 1 - now.lr * now.weight_decay)
    elif now.weight_decay:
        grads = torch._foreach_add(grads, params, alpha=now.weight_decay)

    # The order of torch's Adam, so that a window of one gives the same digits. To fold the corrections into eps and lr
    # would spare a pass, but float16 would lose the smaller eps and divide by zero.
    numerators = torch._foreach_lerp(exp_avgs, grads, 1 - now.beta1)
    denominators = torch._foreach_mul(exp_avg_sqs, now.beta2)
    torch._foreach_addcmul_(denominators, grads, grads, 1 - now.beta2)
    torch._foreach_sqrt_(denominators)
    torch._foreach_div_(denominators, (1 - now.beta2**now.num_windows) ** 0.5)
    torch._foreach_add_(denominators, now.eps)
    torch._foreach_addcdiv_(params, numerators, denominators, -now.lr / (1 - now.beta1**now.num_windows))

    torch._foreach_add_(grad_sums, grads)
    if now.closes:
        means = grad_sums
        torch._foreach_mul_(means, 1 / now.num_grads)
        torch._foreach_lerp_(exp_avgs, means, 1 - now.beta1)
        torch._foreach_mul_(exp_avg_sqs, now.beta2)
        torch._foreach_addcmul_(exp_avg_sqs, means, means, 1 - now.beta2)
        torch._foreach_zero_(grad_sums)


def pieces(tensors: Tensors, most: int) -> Iterator[Tensors]:
    """The same numbers in pieces of at most `most`, in order: small tensors together, large ones cut.

    A large tensor that is not contiguous stays whole: to cut it evenly would be to copy it.

    >>> large, small = torch.arange(5.0), torch.arange(2.0)
    >>> for piece in pieces(Tensors(*[(large, small, small)] * 5), most=4):
    ...     print([tensor.tolist() for tensor in piece.params])
    [[0.0, 1.0, 2.0, 3.0]]
    [[4.0], [0.0, 1.0]]
    [[0.0, 1.0]]
    """
    gathered: list[tuple[Tensor, ...]] = []
    size = 0
    for row in zip(*tensors, strict=True):
        for part in _cut(row, most):
            if gathered and size + part[0].numel() > most:
                yield Tensors(*zip(*gathered, strict=True))
                gathered, size = [], 0
            gathered.append(part)
            size += part[0].numel()
    if gathered:
        yield Tensors(*zip(*gathered, strict=True))


def _cut(row: tuple[Tensor, ...], most: int) -> Iterator[tuple[Tensor, ...]]:
    """One parameter and what belongs to it, in views of at most `most` numbers."""
    if row[0].numel() <= most or not all(tensor.is_contiguous() for tensor in row):
        yield row
    else:
        yield from zip(*(torch.split(tensor.view(-1), most) for tensor in row), strict=True)
