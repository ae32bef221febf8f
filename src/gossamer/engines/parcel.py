"""Values of a whole replica on the host, as they travel."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .wire import Wire


class Parcel:
    """Room for a replica's values, in pinned memory where they come from a GPU, in the type of the wire.

    >>> parcel = Parcel([torch.zeros(3)], Wire(torch.bfloat16))
    >>> parcel.fill([torch.ones(3)])
    >>> parcel.tensors, parcel.nbytes
    ([tensor([1., 1., 1.], dtype=torch.bfloat16)], 6)
    """

    def __init__(self, like: Sequence[Tensor], wire: Wire | None = None) -> None:
        wire = wire or Wire()
        self.tensors = [
            torch.empty(values.shape, dtype=wire.dtype_of(values), pin_memory=not values.is_cpu) for values in like
        ]
        self.nbytes = sum(tensor.nbytes for tensor in self.tensors)

    def fill(self, values: Sequence[Tensor]) -> None:
        """Begin to copy them; from a GPU that takes until its stream is done."""
        for tensor, source in zip(self.tensors, values, strict=True):
            tensor.copy_(source, non_blocking=True)

    def empty_into(self, values: Sequence[Tensor]) -> None:
        for tensor, into in zip(self.tensors, values, strict=True):
            into.copy_(tensor)

    def minus(self, other: "Parcel", like: Sequence[Tensor]) -> list[Tensor]:
        """The difference of two, in the type and place of `like`; this one is spent where nothing else is needed."""
        return [_minus(mine, its, values) for mine, its, values in zip(self.tensors, other.tensors, like, strict=True)]


def _minus(one: Tensor, other: Tensor, like: Tensor) -> Tensor:
    if one.dtype == like.dtype:
        return one.sub_(other).to(like.device, non_blocking=True)
    return (one.to(like.dtype) - other.to(like.dtype)).to(like.device, non_blocking=True)
