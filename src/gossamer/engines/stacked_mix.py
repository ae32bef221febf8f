"""Mixing when all replicas lie in one tensor: `mix` is W·X."""

import warnings
from collections.abc import Callable
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from gossamer.topologies import Mixing, all_reduce_models

from .flat import Arrived

Operator = Callable[[Tensor], Tensor]

_DENSE_UP_TO = 128
"""So many replicas are always mixed by the dense product: on a GPU it is as fast as the sparse one there."""
_SPARSE_UP_TO = 10
"""The largest degree for the sparse product. On an H200 cuSPARSE repeated its sums bit by bit at degrees 2, 4 and 10
and not at 64; between them nobody has looked. Repeating comes first, though at degree 16 the dense product takes
three times as long."""


class StackedMix:
    """`Mix` over `[N, ...]` tensors; counts the bytes that each worker would have sent."""

    def __init__(self, num_replicas: int) -> None:
        self.bytes_sent = np.zeros(num_replicas)
        self._operators: WeakKeyDictionary[Mixing, dict[tuple[torch.dtype, torch.device], Operator]]
        self._operators = WeakKeyDictionary()

    def at(self, mixing: Mixing) -> "BoundStackedMix":
        """The mix of one step."""
        return BoundStackedMix(self, mixing)

    def apply(self, mixing: Mixing, values: Tensor) -> Tensor:
        """`W @ values`."""
        by_kind = self._operators.setdefault(mixing, {})
        kind = (values.dtype, values.device)
        if kind not in by_kind:
            by_kind[kind] = _operator(mixing, *kind)
        return by_kind[kind](values.flatten(1)).view(values.shape)


class BoundStackedMix:
    """What an algorithm may call at one step."""

    def __init__(self, parent: StackedMix, mixing: Mixing) -> None:
        self._parent = parent
        self._mixing = mixing

    def __call__(self, values: Tensor) -> Tensor:
        self._parent.bytes_sent += self._mixing.models_sent * _bytes_of_one(values)
        return self._parent.apply(self._mixing, values)

    def start(self, values: Tensor) -> Arrived:
        return Arrived(self(values))

    def mean(self, values: Tensor) -> Tensor:
        self._parent.bytes_sent += all_reduce_models(values.shape[0]) * _bytes_of_one(values)
        return values.mean(0, keepdim=True).expand_as(values)


def _bytes_of_one(values: Tensor) -> int:
    return values[0].numel() * values.element_size()


def _operator(mixing: Mixing, dtype: torch.dtype, device: torch.device) -> Operator:
    if mixing.is_complete:
        return lambda x: x.mean(0, keepdim=True).expand_as(x)
    if mixing.n <= _DENSE_UP_TO or mixing.degree > _SPARSE_UP_TO:
        dense = torch.as_tensor(mixing.matrix()).to(device, dtype)
        return lambda x: dense @ x
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        weights = mixing.weights
        sparse = torch.sparse_csr_tensor(
            torch.from_numpy(weights.indptr).long(),
            torch.from_numpy(weights.indices).long(),
            torch.from_numpy(weights.data),
            weights.shape,
            check_invariants=False,  # a Mixing has been checked
        ).to(device, dtype)
    return lambda x: sparse @ x
