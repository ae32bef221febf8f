"""Mixing on a GPU: out[i] = Σ_j W_ij x[j] over rows of `[N, P]`, for graphs with few neighbours and for wide windows.

Programs of the same columns run at about the same time, so a row that several of them read comes from memory once and
from the cache after that. Every sum has one fixed order: a mixing repeats bit by bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .mix_tiles import at_once

_ROWS, _COLUMNS = 4, 512
_WINDOW_COLUMNS, _UNROLLED = 256, 8


@triton.jit
def _few_neighbours(
    x, out, neighbours, weights, UNITS, N,
    DEGREE: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """P = UNITS · EVEN: a power of two that the compiler sees, to load so many at once."""
    P = UNITS * EVEN
    blocks = tl.cdiv(N, ROWS)
    row = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) // blocks * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < N)[:, None] & (column < P)[None, :]
    total = tl.zeros([ROWS, COLUMNS], x.dtype.element_ty)
    for k in tl.static_range(DEGREE):
        j = tl.load(neighbours + row * DEGREE + k, mask=row < N, other=0)
        w = tl.load(weights + row * DEGREE + k, mask=row < N, other=0.0)
        at = x + j.to(tl.int64)[:, None] * P + column[None, :]
        total += w[:, None] * tl.load(at, mask=inside, other=0.0, eviction_policy="evict_last")
    tl.store(out + row.to(tl.int64)[:, None] * P + column[None, :], total, mask=inside, cache_modifier=".cs")


@triton.jit
def _rows_from(x, start, P, column, inside, last, N, COUNT: tl.constexpr):
    """Rows start, start + 1, … around the ring, zero from `last` on; COUNT is at most N."""
    rows = ()
    for r in tl.static_range(COUNT):
        j = tl.where(start + r >= N, start + r - N, start + r)
        there = inside & (r < last)
        rows += (tl.load(x + j.to(tl.int64) * P + column, mask=there, other=0.0, eviction_policy="evict_last"),)
    return rows


@triton.jit
def _window(
    x, out, sums, UNITS, N, FIRST, LENGTH, SIZE, SIGN: tl.constexpr,
    EVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, UNROLLED: tl.constexpr,
):  # fmt: skip
    """out[i] = (sums + SIGN · Σ x[i+FIRST … i+FIRST+LENGTH−1]) / SIZE: the window slides from row to row. UNROLLED rows
    are read before as many are written: a load that stands behind a store waits for it."""
    P = UNITS * EVEN
    blocks = tl.cdiv(N, ROWS)
    first = tl.program_id(0) % blocks * ROWS
    column = tl.program_id(0) // blocks * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < P
    all_rows = tl.zeros([COLUMNS], x.dtype.element_ty)
    if SIGN < 0:
        all_rows = tl.load(sums + column, mask=inside, other=0.0)
    total = tl.zeros([COLUMNS], x.dtype.element_ty)
    for start in range(0, LENGTH, UNROLLED):
        rows = _rows_from(x, (first + FIRST + start) % N, P, column, inside, LENGTH - start, N, UNROLLED)
        for r in tl.static_range(UNROLLED):
            total += rows[r]
    for start in range(0, ROWS, UNROLLED):
        i = first + start
        comes = _rows_from(x, (i + FIRST + LENGTH) % N, P, column, inside, N - i, N, UNROLLED)
        goes = _rows_from(x, (i + FIRST) % N, P, column, inside, N - i, N, UNROLLED)
        for r in tl.static_range(UNROLLED):
            value = (all_rows + SIGN * total) / SIZE
            at = out + (i + r).to(tl.int64) * P + column
            tl.store(at, value, mask=inside & (i + r < N), cache_modifier=".cs")
            total += comes[r] - goes[r]


def mix_few(x: Tensor, neighbours: Tensor, weights: Tensor) -> Tensor:
    """`neighbours` and `weights` `[N, K]`: of every row, which rows to add with which weight."""
    n, p = x.shape
    out = torch.empty_like(x)
    even = at_once(x)
    grid = (triton.cdiv(n, _ROWS) * triton.cdiv(p, _COLUMNS),)
    degree = neighbours.shape[1]
    _few_neighbours[grid](x, out, neighbours, weights, p // even, n, degree, even, _ROWS, _COLUMNS, num_warps=8)
    return out


def mix_lattice(x: Tensor, half: int) -> Tensor:
    """Every row becomes the mean of itself and `half` rows on each side, around a ring of at least eight.

    Where the lattice holds more than half of all rows, the few that are missing are taken from the sum of all.
    """
    n, p = x.shape
    assert n >= _UNROLLED, n
    size = 2 * half + 1
    out = torch.empty_like(x)
    missing = 2 * size > n
    first, length = (half + 1, n - size) if missing else (n - half, size)
    sums = x.sum(0) if missing else x
    rows, even = 64 if length <= 64 else 128, at_once(x)  # a row is read about 2 + length / rows times
    grid = (triton.cdiv(n, rows) * triton.cdiv(p, _WINDOW_COLUMNS),)
    _window[grid](
        x, out, sums, p // even, n, first, length, size, -1 if missing else 1,
        even, rows, _WINDOW_COLUMNS, _UNROLLED, num_warps=4,
    )  # fmt: skip
    return out
