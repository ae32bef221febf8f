"""Mixing on a GPU where every row of a grid takes the mean of the same places around it: a ring, a torus, …

    out[a, b] = mean over (da, db) of x[a + da, b + db]        around both ends; a ring is a grid of one line

A program makes a tile of rows. It reads what they need, each row once, before it writes any: so many loads are under
way at a time that memory never waits. Rows that two tiles need come from the cache: tiles of the same columns run at
about the same time. Every sum has one fixed order: a mixing repeats bit by bit.
"""

from math import gcd, prod
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

Offsets = tuple[tuple[int, int], ...]

_AT_ONCE_BYTES = 16
"""The most that a thread loads at once."""
_TILES = ((1, 16), (1, 8), (4, 8), (4, 4))
MOST_SOURCES = 64
"""Rows that a program can hold."""
_NEAR, _FAR = 1024, 4
"""How many blocks of columns to take together. Many: memory is read in long runs; but a row that is needed again a
line of the grid later must still be in the cache by then."""
_WIDE_UP_TO = 56
"""Sources of which the registers of a thread hold four columns each, and not two."""


@triton.constexpr_function
def _sources(offsets, tile_a, tile_b):
    """The places that a tile reads, each once."""
    places = ((a + da, b + db) for a in range(tile_a) for b in range(tile_b) for da, db in offsets)
    return tuple(sorted(set(places)))


@triton.constexpr_function
def _place(sources, a, b, offset):
    """Which of the sources the row `[a, b]` of the tile takes for an offset."""
    return sources.index((a + offset[0], b + offset[1]))


@triton.constexpr_function
def _furthest(offsets, axis):
    return max(offset[axis] for offset in offsets)


@triton.jit
def _around(place, size, FURTHEST: tl.constexpr):
    """A place on a circle; those that no row of the grid needs are one that is there."""
    place = tl.minimum(place, size - 1 + FURTHEST)
    place = tl.where(place < 0, place + size, place)
    return tl.where(place >= size, place - size, place)


@triton.jit(do_not_specialize=["NUM_BLOCKS", "TOGETHER"])
def _mean_of_places(
    x, out, A, B, UNITS, NUM_BLOCKS, TOGETHER, OFFSETS: tl.constexpr,
    TILE_A: tl.constexpr, TILE_B: tl.constexpr, EVEN: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """x and out [A, B, P] with P = UNITS · EVEN: a power of two that the compiler sees, to load so many at once.
    TOGETHER blocks of columns go through all tiles before the next blocks do."""
    tiles_b = tl.cdiv(B, TILE_B)
    num_tiles = tl.cdiv(A, TILE_A) * tiles_b
    program = tl.program_id(0)
    start = program // (num_tiles * TOGETHER) * TOGETHER
    together = tl.minimum(NUM_BLOCKS - start, TOGETHER)
    within = program - start * num_tiles
    tile = within // together
    first_a = tile // tiles_b * TILE_A
    first_b = tile % tiles_b * TILE_B
    P = UNITS * EVEN
    column = (start + within % together) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < P

    SOURCES: tl.constexpr = _sources(OFFSETS, TILE_A, TILE_B)
    rows = ()
    for s in tl.static_range(len(SOURCES)):
        a = _around(first_a + SOURCES[s][0], A, _furthest(OFFSETS, 0))
        b = _around(first_b + SOURCES[s][1], B, _furthest(OFFSETS, 1))
        rows += (tl.load(x + (a * B + b).to(tl.int64) * P + column, mask=inside, other=0.0),)
    for i in tl.static_range(TILE_A):
        for j in tl.static_range(TILE_B):
            total = rows[_place(SOURCES, i, j, OFFSETS[0])]
            for k in tl.static_range(1, len(OFFSETS)):
                total += rows[_place(SOURCES, i, j, OFFSETS[k])]
            here = inside & (first_a + i < A) & (first_b + j < B)
            at = out + ((first_a + i) * B + first_b + j).to(tl.int64) * P + column
            tl.store(at, total / len(OFFSETS), mask=here, cache_modifier=".cs")


class Tile(NamedTuple):
    """How to go through a grid."""

    a: int
    b: int
    together: int
    """Blocks of columns that go through all tiles before the next do."""
    columns: int = 512
    num_warps: int = 4


def num_sources(offsets: Offsets, tile_a: int, tile_b: int) -> int:
    """How many rows a tile reads."""
    return len(_sources(offsets, tile_a, tile_b))


def best_tile(shape: tuple[int, int], offsets: Offsets) -> tuple[Tile | None, float]:
    """The tile that reads the fewest rows, if any is small enough; and how many for every row that is made."""
    furthest = max(abs(da) * shape[1] + abs(db) for da, db in offsets)
    best, fewest = None, float("inf")
    for a, b in _TILES:
        sources = num_sources(offsets, a, b)
        read = sources * -(-shape[0] // a) * -(-shape[1] // b) / prod(shape)
        if sources <= MOST_SOURCES and read < fewest:
            columns = 512 if sources <= _WIDE_UP_TO else 256
            best, fewest = Tile(a, b, _FAR if furthest > 8 else _NEAR, columns), read
    return best, fewest


def mean_of_places(x: Tensor, shape: tuple[int, int], offsets: Offsets, tile: Tile) -> Tensor:
    """`x` `[A·B, P]`, contiguous; `offsets` of at most half the grid, without repetition."""
    (a, b), p = shape, x.shape[1]
    out = torch.empty_like(x)
    even = at_once(x)
    blocks = triton.cdiv(p, tile.columns)
    grid = (triton.cdiv(a, tile.a) * triton.cdiv(b, tile.b) * blocks,)
    _mean_of_places[grid](
        x, out, a, b, p // even, blocks, tile.together, offsets, tile.a, tile.b, even, tile.columns,
        num_warps=tile.num_warps,
    )  # fmt: skip
    return out


def at_once(x: Tensor) -> int:
    """How many columns can be loaded together in all rows: rows begin where that is allowed if P is a multiple."""
    return gcd(x.shape[1], _AT_ONCE_BYTES // x.element_size())
