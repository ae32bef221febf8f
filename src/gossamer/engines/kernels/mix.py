"""Mixing on a GPU: out[i] = Σ_j W_ij x[j] over rows of `[N, P]`, for graphs with few or regular neighbours.

Programs of the same columns run at about the same time, so a row that several of them read comes from memory once and
from the cache after that. Every sum has one fixed order: a mixing repeats bit by bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS, _COLUMNS = 4, 512
_UNROLLED = 8


@triton.jit
def _few_neighbours(x, out, neighbours, weights, P, N, DEGREE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < N)[:, None] & (column < P)[None, :]
    total = tl.zeros([ROWS, COLUMNS], x.dtype.element_ty)
    for k in tl.static_range(DEGREE):
        j = tl.load(neighbours + row * DEGREE + k, mask=row < N, other=0)
        w = tl.load(weights + row * DEGREE + k, mask=row < N, other=0.0)
        at = x + j.to(tl.int64)[:, None] * P + column[None, :]
        total += w[:, None] * tl.load(at, mask=inside, other=0.0, eviction_policy="evict_last")
    tl.store(out + row.to(tl.int64)[:, None] * P + column[None, :], total, mask=inside, cache_modifier=".cs")


@triton.jit
def _window(
    x, out, sums, P, N, FIRST, LENGTH, SIZE, SIGN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, UNROLLED: tl.constexpr,
):  # fmt: skip
    """out[i] = (sums + SIGN · Σ x[i+FIRST … i+FIRST+LENGTH−1]) / SIZE: the window slides from row to row."""
    first = tl.program_id(0) * ROWS
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < P
    all_rows = tl.zeros([COLUMNS], x.dtype.element_ty)
    if SIGN < 0:
        all_rows = tl.load(sums + column, mask=inside, other=0.0)
    total = tl.zeros([COLUMNS], x.dtype.element_ty)
    for k in range(LENGTH):
        j = (first + FIRST + k) % N
        total += tl.load(x + j.to(tl.int64) * P + column, mask=inside, other=0.0)
    for start in range(0, ROWS, UNROLLED):
        for r in tl.static_range(UNROLLED):
            i = first + start + r
            here = inside & (i < N)
            value = (all_rows + SIGN * total) / SIZE
            tl.store(out + i.to(tl.int64) * P + column, value, mask=here, cache_modifier=".cs")
            comes = (i + FIRST + LENGTH) % N
            goes = (i + FIRST) % N
            total += tl.load(
                x + comes.to(tl.int64) * P + column, mask=here, other=0.0, eviction_policy="evict_last"
            ) - tl.load(x + goes.to(tl.int64) * P + column, mask=here, other=0.0, eviction_policy="evict_last")


def mix_few(x: Tensor, neighbours: Tensor, weights: Tensor) -> Tensor:
    """`neighbours` and `weights` `[N, K]`: of every row, which rows to add with which weight."""
    n, p = x.shape
    out = torch.empty_like(x)
    grid = (triton.cdiv(n, _ROWS), triton.cdiv(p, _COLUMNS))
    _few_neighbours[grid](x, out, neighbours, weights, p, n, neighbours.shape[1], _ROWS, _COLUMNS, num_warps=8)
    return out


def mix_lattice(x: Tensor, half: int) -> Tensor:
    """Every row becomes the mean of itself and `half` rows on each side, around the ring.

    Where the lattice holds more than half of all rows, the few that are missing are taken from the sum of all.
    """
    n, p = x.shape
    size = 2 * half + 1
    out = torch.empty_like(x)
    missing = 2 * size > n
    first, length = (half + 1, n - size) if missing else (n - half, size)
    sums = x.sum(0) if missing else x
    rows = 32 if length <= 128 else 128
    grid = (triton.cdiv(n, rows), triton.cdiv(p, _COLUMNS))
    _window[grid](x, out, sums, p, n, first, length, size, -1 if missing else 1, rows, _COLUMNS, _UNROLLED, num_warps=4)
    return out
