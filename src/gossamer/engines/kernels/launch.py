"""Launches kernels, and compiles beforehand those that a compiler's graph will launch: side by side, in threads.

A kernel takes a second or less to compile, but at its first launch the program waits for it, for one after the other.
"""

import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from triton.runtime.jit import MockTensor
from triton.tools.tensor_descriptor import TensorDescriptor

MANY_PROGRAMS = 2048
"""Enough to fill a large GPU: a sum over pixels that gives it fewer is split."""

_ahead: dict[tuple[Any, ...], Future[None]] = {}


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    tensors: tuple[Tensor | TensorDescriptor, ...],
    numbers: tuple[int, ...],
    **options: int,
) -> None:
    """Run a kernel. With tensors that are but shapes, compile it, in a thread: what goes wrong there goes wrong again,
    and is reported, when the kernel is launched."""
    first = _memory(tensors[0])
    key = (kernel, tuple(map(_kind, tensors)), numbers, tuple(options.items()), first.device.index)
    if isinstance(first, FakeTensor):
        if key not in _ahead:
            _ahead[key] = _compilers().submit(_compile, *key)
        return
    if key in _ahead:
        wait([_ahead[key]])
    kernel[grid](*tensors, *numbers, **options)


def _memory(argument: Tensor | TensorDescriptor) -> Tensor:
    memory: Tensor = argument.base if isinstance(argument, TensorDescriptor) else argument
    return memory


def _kind(argument: Tensor | TensorDescriptor) -> tuple[torch.dtype, tuple[int, ...]]:
    """All that a compiler wants to know: the dtype, and the box of numbers that is copied at a time, if one is."""
    box = tuple(argument.block_shape) if isinstance(argument, TensorDescriptor) else ()
    return _memory(argument).dtype, box


def _compile(
    kernel: Any,
    kinds: tuple[tuple[torch.dtype, tuple[int, ...]], ...],
    numbers: tuple[int, ...],
    options: tuple[tuple[str, int], ...],
    device: int | None,
) -> None:
    arguments = [_of_kind(*kind) for kind in kinds]
    with torch.cuda.device(device):
        kernel.warmup(*arguments, *numbers, grid=(1,), **dict(options))


def _of_kind(dtype: torch.dtype, box: tuple[int, ...]) -> Any:
    memory = MockTensor(dtype)
    return TensorDescriptor(memory, [*box], [16] * (len(box) - 1) + [1], [*box]) if box else memory


@cache
def _compilers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1), "gossamer-compiler")


def block(size: int, most: int) -> int:
    """The power of two that holds so many, from the 16 that a product needs up to `most`."""
    return min(max(1 << (size - 1).bit_length(), 16), most)


def places_for_sums(splits: int, n: int, size: int, like: Tensor, into: Tensor | None) -> tuple[Tensor, Tensor]:
    """Where a kernel writes the sums of its splits, and the result `[N, size]`: the same place when there is one."""
    result = like.new_empty(n, size) if into is None else into
    if splits == 1:
        return result, result
    return torch.empty((splits, n, size), device=like.device, dtype=torch.float32), result


def add_up(parts: Tensor, result: Tensor) -> None:
    """The sums of all splits, in their order."""
    if result.dtype == parts.dtype:
        torch.sum(parts, 0, out=result)
    else:
        result.copy_(parts.sum(0))
