"""What tensors look like on their way, and the memory they travel in."""

from collections import defaultdict
from contextlib import suppress

import torch
from torch import Tensor

_FEW = 2
"""So few values (the weight of push-sum, a distance) travel as they are: there is nothing to be saved."""


class Buffers:
    """Memory that is lent and given back: if it were fresh in every step, it would have to be mapped in every step."""

    def __init__(self, *, is_pinned: bool = False) -> None:
        self.is_pinned = is_pinned
        self._spare: dict[tuple[int, torch.dtype, torch.device], list[Tensor]] = defaultdict(list)

    def lend(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        with suppress(IndexError):  # asking first would be a race: two threads lend
            return self._spare[shape.numel(), dtype, device].pop().view(shape)
        return torch.empty(shape, dtype=dtype, device=device, pin_memory=self.is_pinned)

    def lend_like(self, values: Tensor) -> Tensor:
        return self.lend(values.shape, values.dtype, values.device)

    def give_back(self, *buffers: Tensor) -> None:
        for buffer in buffers:
            self._spare[buffer.numel(), buffer.dtype, buffer.device].append(buffer)


class Wire(Buffers):
    """Floating-point values travel in a smaller type, if one is given.

    >>> wire = Wire(torch.bfloat16)
    >>> wire.pack(torch.ones(3)).dtype, wire.nbytes_of(torch.ones(3))
    (torch.bfloat16, 6)
    """

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.dtype = dtype

    def dtype_of(self, values: Tensor) -> torch.dtype:
        if self.dtype is None or not values.is_floating_point() or values.numel() <= _FEW:
            return values.dtype
        return self.dtype

    def nbytes_of(self, values: Tensor) -> int:
        """What a message with these values takes."""
        return values.numel() * self.dtype_of(values).itemsize

    def buffer(self, like: Tensor) -> Tensor:
        """Room for what is sent of a tensor like this."""
        return self.lend(like.shape, self.dtype_of(like), like.device)

    def pack(self, values: Tensor, *, copy: bool = False) -> Tensor:
        """The values as they are sent: themselves, where nothing has to change and no `copy` is wanted."""
        if not copy and values.is_contiguous() and self.dtype_of(values) == values.dtype:
            return values
        return self.buffer(values).copy_(values)
