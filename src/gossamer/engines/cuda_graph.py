"""Launches a step's thousands of kernels at once: a function of tensors, recorded as a CUDA graph and replayed."""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")

_WARM_UP_CALLS = 2
"""Calls that run as they are: they compile, choose and set up what must not happen while recording."""


class Replayed(Generic[Result]):
    """A function of a few tensors, from its third call on as one launch.

    The results are the same tensors every time, overwritten by the next call. Whatever else the function reads or
    writes must stay where it is. Inputs of another shape are recorded anew.
    """

    def __init__(self, function: Callable[..., Result]) -> None:
        self._function = function
        self._calls = 0
        self._kind: tuple[tuple[torch.Size, torch.dtype], ...] = ()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []
        self._result: Result

    def __call__(self, *inputs: Tensor) -> Result:
        kind = tuple((tensor.shape, tensor.dtype) for tensor in inputs)
        if kind != self._kind:
            self._kind, self._calls, self._graph = kind, 0, None
        self._calls += 1
        if self._calls <= _WARM_UP_CALLS:
            return self._function(*inputs)
        if self._graph is None:
            self._record(inputs)
        assert self._graph is not None
        for mine, given in zip(self._inputs, inputs, strict=True):
            mine.copy_(given)
        self._graph.replay()
        return self._result

    def _record(self, inputs: tuple[Tensor, ...]) -> None:
        self._inputs = [tensor.clone() for tensor in inputs]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._result = self._function(*self._inputs)
        self._graph = graph
