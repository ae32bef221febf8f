"""Mixing when all replicas lie in one tensor: `mix` is W·X."""

from collections.abc import Callable
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from gossamer.topologies import Mixing, all_reduce_models

from .flat import Arrived

Operator = Callable[[Tensor], Tensor]

_GATHER_AT_MOST = 8
"""Largest degree that is mixed neighbour by neighbour; beyond it the dense product reads memory less often."""
_DENSE_BELOW = 32
"""Fewer replicas than this are always mixed by the dense product: W fits in cache and one call does all."""


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
    if mixing.degree > _GATHER_AT_MOST or mixing.n < _DENSE_BELOW:
        dense = torch.as_tensor(mixing.matrix()).to(device, dtype)
        return lambda x: dense @ x
    sources, weights = _table(mixing)
    sources = sources.to(device)
    weights = weights.to(device, dtype)

    def gather(x: Tensor) -> Tensor:
        mixed = x.index_select(0, sources[0]) * weights[0]
        for index, weight in zip(sources[1:], weights[1:], strict=True):
            mixed.addcmul_(x.index_select(0, index), weight)
        return mixed

    return gather


def _table(mixing: Mixing) -> tuple[Tensor, Tensor]:
    """Sources `[K+1, N]` and weights `[K+1, N, 1]`, replicas with fewer neighbours padded by weight zero."""
    rows = [sorted(mixing.row(rank).items()) for rank in range(mixing.n)]
    width = max(len(row) for row in rows)
    sources = torch.tensor([[j for j, _ in row] + [0] * (width - len(row)) for row in rows])
    weights = torch.tensor([[w for _, w in row] + [0.0] * (width - len(row)) for row in rows], dtype=torch.float64)
    return sources.T.contiguous(), weights.T.contiguous().unsqueeze(-1)
