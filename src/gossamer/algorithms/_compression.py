"""Compressors: what is sent of a vector, as bytes, and what is made of it again.

All are contractions: ‖v − unpack(pack(v))‖ < ‖v‖ for every v ≠ 0 (random-k on average), so whoever sends what is still
missing of a vector, again and again, sends all of it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ._contract import Algorithm

_BLOCK = 512
"""Values that share a scale: layers differ in size."""
_NOTHING = -128
"""The exponent of a block of zeros."""


class Compressor(ABC):
    """Packs values `[..., P]` into bytes `[..., B]`; B depends on P and the dtype alone, so all replicas send alike."""

    @abstractmethod
    def pack(self, values: Tensor, step: int) -> Tensor: ...

    @abstractmethod
    def unpack(self, payload: Tensor, size: int, dtype: torch.dtype, step: int) -> Tensor: ...

    @property
    @abstractmethod
    def bears(self) -> float:
        """A γ that replicas bear; with much more, what a message leaves out builds up faster than it is sent."""

    def compress(self, values: Tensor, step: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The bytes, and how to read them."""
        read = partial(self.unpack, size=values.shape[-1], dtype=values.dtype, step=step)
        return self.pack(values, step), read


@dataclass(frozen=True)
class TopK(Compressor):
    """The largest values, with their places.

    >>> payload, unpack = TopK(0.5).compress(torch.tensor([1.0, -4.0, 0.5, 2.0]), step=0)
    >>> payload.nbytes, unpack(payload)
    (16, tensor([ 0., -4.,  0.,  2.]))
    """

    share: float

    @property
    def bears(self) -> float:
        return min(0.5, math.sqrt(self.share))

    def pack(self, values: Tensor, step: int) -> Tensor:
        places = values.abs().topk(_count(self.share, values.shape[-1]), dim=-1).indices
        return torch.cat([_bytes(values.gather(-1, places)), _bytes(places.int())], dim=-1)

    def unpack(self, payload: Tensor, size: int, dtype: torch.dtype, step: int) -> Tensor:
        end = _count(self.share, size) * dtype.itemsize
        values, places = _read(payload[..., :end], dtype), _read(payload[..., end:], torch.int32).long()
        return values.new_zeros(*values.shape[:-1], size).scatter_(-1, places, values)


@dataclass(frozen=True)
class RandomK(Compressor):
    """Values at random places, which follow from the number of the step and need not be sent.

    >>> payload, unpack = RandomK(0.5).compress(torch.ones(4), step=0)
    >>> payload.nbytes, int(unpack(payload).sum())
    (8, 2)
    """

    share: float

    @property
    def bears(self) -> float:
        return self.share

    def pack(self, values: Tensor, step: int) -> Tensor:
        return _bytes(values[..., _random_places(self.share, values.shape[-1], step).to(values.device)])

    def unpack(self, payload: Tensor, size: int, dtype: torch.dtype, step: int) -> Tensor:
        values = _read(payload, dtype)
        all_of_them = values.new_zeros(*values.shape[:-1], size)
        all_of_them[..., _random_places(self.share, size, step).to(values.device)] = values
        return all_of_them


@dataclass(frozen=True)
class Bits(Compressor):
    """Every value in a few bits: with 1 its sign, times the mean size of its block; with more one of 2ᵇ − 1 even steps
    that reach over its block, zero among them.

    Scales are powers of two, a byte each: the nearest to the mean, the next above the largest (with 2 bits the next
    below it, or hardly any value would reach half a step). Were they the mean and the largest themselves, each message
    would carry their last digits to all values of a block, and differences of rounding would grow from step to step.

    >>> payload, unpack = Bits(1).compress(torch.tensor([1.0, -3.0, 2.0]), step=0)
    >>> payload.nbytes, unpack(payload)
    (2, tensor([ 2., -2.,  2.]))
    >>> payload, unpack = Bits(2).compress(torch.tensor([1.5, -2.0, 0.2]), step=0)
    >>> payload.nbytes, unpack(payload)
    (2, tensor([ 2., -2.,  0.]))
    """

    bits: int

    @property
    def bears(self) -> float:
        return 0.5 if self.bits < 4 else 0.8

    def pack(self, values: Tensor, step: int) -> Tensor:
        size = values.shape[-1]
        blocks = _in_rows(values.abs(), _BLOCK)
        if self.bits == 1:
            in_block = torch.full(blocks.shape[-2:-1], _BLOCK, device=values.device)
            in_block[-1] -= -size % _BLOCK
            exponents, levels = _exponents(blocks.sum(-1) / in_block, least=math.sqrt(0.5)), (values >= 0).byte()
        else:
            exponents = _exponents(blocks.amax(-1), least=1.0 if self.bits == 2 else 0.5)
            unit = _scale(exponents, size, values.dtype) / self._most
            steps = torch.where(unit > 0, values / unit, 0.0).round().clamp(-self._most, self._most)
            levels = (steps + self._most).byte()
        return torch.cat([_bytes(exponents), _pack_bits(levels, self.bits)], dim=-1)

    def unpack(self, payload: Tensor, size: int, dtype: torch.dtype, step: int) -> Tensor:
        end = -(-size // _BLOCK)
        scale = _scale(_read(payload[..., :end], torch.int8), size, dtype)
        levels = _unpack_bits(payload[..., end:], size, self.bits).to(dtype)
        return scale * (2 * levels - 1 if self.bits == 1 else (levels - self._most) / self._most)

    @property
    def _most(self) -> int:
        """Steps on either side of zero."""
        return int(2 ** (self.bits - 1)) - 1


@dataclass(frozen=True, kw_only=True)
class Compressed(Algorithm):
    """A method whose replicas know copies of each other's models, and send what these lack, compressed."""

    top_k: float = 0.0
    """Send this share of the values, the largest."""
    random_k: float = 0.0
    """Send this share of the values, at random."""
    bits: int = 4
    """Where neither is given: send every value in so many bits, 1 to 8; 1 is its sign."""
    gamma: float | None = None
    """γ, how far a replica moves towards its neighbours' copies in a step; the less is sent, the smaller it must be.
    When not given, what the compressor bears."""

    def __post_init__(self) -> None:
        for name in ("top_k", "random_k"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)}: give the share of the values that is sent, up to 1")
        if self.top_k and self.random_k:
            raise ValueError(f"top_k={self.top_k} and random_k={self.random_k}: give one of them")
        if not 1 <= self.bits <= 8:
            raise ValueError(f"bits={self.bits}: a value is sent in 1 to 8 bits")
        if self.gamma is not None and not 0 < self.gamma <= 1:
            raise ValueError(f"gamma={self.gamma}: must be above 0, and 1 at most")

    @property
    def compressor(self) -> Compressor:
        if self.top_k:
            return TopK(self.top_k)
        return RandomK(self.random_k) if self.random_k else Bits(self.bits)

    @property
    def pace(self) -> float:
        """γ as it is used."""
        return self.compressor.bears if self.gamma is None else self.gamma

    @property
    def is_elementwise(self) -> bool:
        return False  # the largest values are those of the whole model

    @property
    def needs_constant_graph(self) -> bool:
        return True

    @property
    def usual_graph(self) -> str:
        return "exponential"


@lru_cache(maxsize=2)  # a worker unpacks what each neighbour has sent
def _random_places(share: float, size: int, step: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(step))[: _count(share, size)]


def _count(share: float, size: int) -> int:
    return max(1, round(share * size))


def _bytes(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.uint8)


def _read(payload: Tensor, dtype: torch.dtype) -> Tensor:
    return payload.clone(memory_format=torch.contiguous_format).view(dtype)


def _exponents(sizes: Tensor, least: float) -> Tensor:
    """e as int8, where a size is m·2ᵉ with m above `least` and at most twice that; the smallest where it is zero."""
    mantissa, exponent = torch.frexp(sizes.double())  # m from 1/2 to below 1
    exponent = torch.where(mantissa <= least, exponent - 1, exponent).clamp(_NOTHING + 1, 127)
    return torch.where(sizes > 0, exponent, _NOTHING).to(torch.int8)


def _scale(exponents: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """2ᵉ for every value of a block."""
    scales = torch.where(exponents > _NOTHING, torch.exp2(exponents.double()), 0.0).to(dtype)
    return scales.repeat_interleave(_BLOCK, dim=-1)[..., :size]


def _pack_bits(levels: Tensor, bits: int) -> Tensor:
    """Levels `[..., P]`, each in so many bits, one after the other: `[..., ⌈P·bits/8⌉]`."""
    single = (levels.unsqueeze(-1) >> _range(bits, levels)) & 1
    return (_in_rows(single.flatten(-2), 8) << _range(8, levels)).sum(-1, dtype=torch.uint8)


def _unpack_bits(payload: Tensor, size: int, bits: int) -> Tensor:
    single = ((payload.unsqueeze(-1) >> _range(8, payload)) & 1).flatten(-2)[..., : size * bits]
    return (_in_rows(single, bits) << _range(bits, payload)).sum(-1, dtype=torch.uint8)


def _in_rows(values: Tensor, width: int) -> Tensor:
    """`[..., P]` as `[..., ⌈P/width⌉, width]`, filled up with zeros."""
    padded = F.pad(values, (0, -values.shape[-1] % width))
    return padded.reshape(*values.shape[:-1], -1, width)


def _range(end: int, like: Tensor) -> Tensor:
    return torch.arange(end, dtype=torch.uint8, device=like.device)
