"""Mixing when all replicas lie in one tensor: `mix` is W·X."""

import warnings
from collections.abc import Callable
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossamer.algorithms import Unpack
from gossamer.topologies import Mixing, Schedule, all_reduce_models

from .flat import Arrived

Operator = Callable[[Tensor], Tensor]

_FEW_NEIGHBOURS = 16
"""Up to so many a GPU adds neighbour by neighbour, reading a row from its cache again and again."""
_NARROW_HALF = 2
"""So many neighbours on each side are read row by row and added; in a wider window, what leaves it is taken off."""
_WORTH_A_TILE = 0.75
"""Rows made together share what they read. Every graph has a kernel of its own then, to be compiled: not for less."""
_DENSE_UP_TO = 128
"""So many replicas are always mixed by the dense product on a CPU: it is as fast as the sparse one there."""
_SPARSE_UP_TO = 10
"""The largest degree for the sparse product on a CPU."""


class StackedMix:
    """`Mix` over `[N, ...]` tensors; counts the bytes that each worker would have sent."""

    def __init__(self, num_replicas: int) -> None:
        self.bytes_sent = np.zeros(num_replicas)
        self.bytes_averaged = np.zeros(num_replicas)
        self._operators: WeakKeyDictionary[Mixing, dict[tuple[torch.dtype, torch.device], Operator]]
        self._operators = WeakKeyDictionary()

    def at(self, schedule: Schedule, step: int) -> "BoundStackedMix":
        """The mix of one step."""
        return BoundStackedMix(self, schedule, step)

    def apply(self, mixing: Mixing, values: Tensor) -> Tensor:
        """`W @ values`."""
        by_kind = self._operators.setdefault(mixing, {})
        kind = (values.dtype, values.device)
        if kind not in by_kind:
            by_kind[kind] = _operator(mixing, *kind)
        return by_kind[kind](values.flatten(1)).view(values.shape)


class BoundStackedMix:
    """What an algorithm may call at one step."""

    def __init__(self, parent: StackedMix, schedule: Schedule, step: int, *, is_push: bool = False) -> None:
        self._parent, self._schedule, self._step, self._is_push = parent, schedule, step, is_push
        self._mixing = schedule(step).push if is_push else schedule(step)

    def __call__(self, values: Tensor) -> Tensor:
        self._parent.bytes_sent += self._mixing.models_sent * _bytes_of_one(values)
        return self._parent.apply(self._mixing, values)

    def start(self, values: Tensor) -> Arrived:
        return Arrived(self(values))

    def mean(self, values: Tensor) -> Tensor:
        num_bytes = all_reduce_models(values.shape[0]) * _bytes_of_one(values)
        self._parent.bytes_sent += num_bytes
        self._parent.bytes_averaged += num_bytes
        return values.mean(0, keepdim=True).expand_as(values)

    def packed(self, payload: Tensor, unpack: Unpack) -> Tensor:
        self._parent.bytes_sent += self._mixing.num_listeners * _bytes_of_one(payload)
        return self._parent.apply(self._mixing, unpack(payload))

    @property
    def noise_kept(self) -> float:
        return self._mixing.noise_kept

    @property
    def push(self) -> "BoundStackedMix":
        return BoundStackedMix(self._parent, self._schedule, self._step, is_push=True)

    @property
    def following(self) -> "BoundStackedMix":
        return BoundStackedMix(self._parent, self._schedule, self._step + 1, is_push=self._is_push)


def _bytes_of_one(values: Tensor) -> int:
    return values[0].numel() * values.element_size()


def _operator(mixing: Mixing, dtype: torch.dtype, device: torch.device) -> Operator:
    if mixing.is_complete:
        return lambda x: x.mean(0, keepdim=True).expand_as(x)
    if device.type == "cuda":
        return _gpu_operator(mixing, dtype, device)
    if mixing.n <= _DENSE_UP_TO or mixing.degree > _SPARSE_UP_TO:
        return _dense(mixing, dtype, device)
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


def _dense(mixing: Mixing, dtype: torch.dtype, device: torch.device) -> Operator:
    dense = torch.as_tensor(mixing.matrix()).to(device, dtype)
    return lambda x: dense @ x


def _gpu_operator(mixing: Mixing, dtype: torch.dtype, device: torch.device) -> Operator:
    """Kernels of our own where rows have few or regular neighbours: cuSPARSE is slower and does not repeat its sums."""
    from .kernels.mix import mix_few, mix_lattice
    from .kernels.mix_tiles import best_tile, mean_of_places

    if mixing.window is not None and mixing.window.half > _NARROW_HALF:
        half = mixing.window.half
        return lambda x: mix_lattice(x, half)
    most = int(np.diff(mixing.weights.indptr).max())
    if most > _FEW_NEIGHBOURS + 1:
        return _dense(mixing, dtype, device)
    places = places_around(mixing)
    if places is not None:
        shape, offsets = places
        tile, rows_read = best_tile(shape, offsets)
        if tile is not None and rows_read < _WORTH_A_TILE * len(offsets):
            return lambda x: mean_of_places(x, shape, offsets, tile)
    neighbours, weights = (torch.from_numpy(table).to(device) for table in neighbour_table(mixing))
    weights = weights.to(dtype)
    return lambda x: mix_few(x, neighbours, weights)


def places_around(mixing: Mixing) -> tuple[tuple[int, int], tuple[tuple[int, int], ...]] | None:
    """A grid and the places on it, relative to its own, whose mean every replica takes; None if it is not like that.

    >>> from gossamer.topologies import ring, torus
    >>> places_around(ring(8))
    ((1, 8), ((0, -1), (0, 0), (0, 1)))
    >>> places_around(torus(12))
    ((3, 4), ((-1, 0), (0, -1), (0, 0), (0, 1), (1, 0)))
    """
    weights = mixing.weights.data
    if mixing.shape is None or len(mixing.shape) > 2 or not np.allclose(weights, weights[0], rtol=1e-12, atol=0):
        return None
    lines, size = (1, *mixing.shape)[-2:]
    heard_by_first = mixing.weights.indices[: mixing.weights.indptr[1]].tolist()
    offsets = sorted((_signed(j // size, lines), _signed(j % size, size)) for j in heard_by_first)
    return (lines, size), tuple(offsets)


def _signed(place: int, size: int) -> int:
    """The shorter way around a circle."""
    return place - size if 2 * place > size else place


def neighbour_table(mixing: Mixing) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Of every row, whom it hears and with which weights, `[N, K]`; shorter rows are filled up with weight 0."""
    starts = mixing.weights.indptr
    sizes = np.diff(starts)
    neighbours = np.zeros((mixing.n, sizes.max()), np.int32)
    weights = np.zeros((mixing.n, sizes.max()))
    row = np.repeat(np.arange(mixing.n), sizes)
    place = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)
    neighbours[row, place] = mixing.weights.indices
    weights[row, place] = mixing.weights.data
    return neighbours, weights
