"""Convolutions of 1 x 1 pixel for stacked replicas on a GPU: products of matrices, y[p, q] = Σ_c x[p, c] w[c, q].

Channels lie innermost, `[B, H, W, N·C]`, as everywhere here, so nothing is laid out anew around such a product. Sizes
are arguments that the compiler does not see: a model whose layers all differ in width (DenseNet) is served by a few
kernels, which is a matter of minutes. Products of bfloat16 numbers, sums in float32, in an order that depends on the
shapes alone: it repeats bit by bit.
"""

from math import gcd

import triton
import triton.language as tl
from torch import Tensor

from .launch import MANY_PROGRAMS, add_up, block, launch, places_for_sums

_SIZES = ["num_pixels", "units_c", "units_q"]
"""No kernels of their own for sizes that happen to be multiples of 16."""


@triton.jit(do_not_specialize=_SIZES)
def _product(
    x, w, y, num_pixels, N, units_c, units_q, EVEN_C: tl.constexpr, EVEN_Q: tl.constexpr, BY_Q: tl.constexpr,
    PIXELS: tl.constexpr, PARTS: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """y [pixels, N·Q] from x [pixels, N·C] and w [N, Q, C] if BY_Q, else [N, C, Q]. C = units_c · EVEN_C: a power of
    two that the compiler sees, to load so many numbers at once."""
    C = units_c * EVEN_C
    Q = units_q * EVEN_Q
    n = tl.program_id(0)
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    q = tl.program_id(2) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    is_pixel = (pixel < num_pixels)[:, None]
    is_q = (q < Q)[None, :]
    total = tl.zeros([PIXELS, BLOCK_Q], tl.float32)
    for start in range(0, units_c * EVEN_C, PARTS):
        c = start + tl.arange(0, PARTS)
        values = tl.load(
            x + (pixel[:, None] * (N * C) + (n * C + c)[None, :]), mask=is_pixel & (c < C)[None, :], other=0.0
        )
        at = q[None, :] * C + c[:, None] if BY_Q else c[:, None] * Q + q[None, :]
        weights = tl.load(w + (n * (C * Q) + at), mask=(c < C)[:, None] & is_q, other=0.0)
        total = tl.dot(values, weights, total)
    at = pixel[:, None] * (N * Q) + (n * Q + q)[None, :]
    tl.store(y + at, total.to(y.dtype.element_ty), mask=is_pixel & is_q)


@triton.jit(do_not_specialize=[*_SIZES, "share", "units_row"])
def _product_dw(
    x, dy, dw, num_pixels, N, units_c, units_q, share, units_row,
    EVEN_ROW: tl.constexpr, EVEN_C: tl.constexpr, EVEN_Q: tl.constexpr,
    PIXELS: tl.constexpr, PARTS: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """dw [splits, N, Q, C]: each split sums `share` of the pixels; units_row · EVEN_ROW numbers from one replica to the
    next."""
    C = units_c * EVEN_C
    Q = units_q * EVEN_Q
    n = tl.program_id(0)
    split = tl.program_id(1)
    blocks_c = tl.cdiv(C, PARTS)
    c = tl.program_id(2) % blocks_c * PARTS + tl.arange(0, PARTS)
    q = tl.program_id(2) // blocks_c * BLOCK_Q + tl.arange(0, BLOCK_Q)
    is_c = (c < C)[None, :]
    is_q = (q < Q)[None, :]
    total = tl.zeros([BLOCK_Q, PARTS], tl.float32)
    for start in range(0, share, PIXELS):
        pixel = split * share + start + tl.arange(0, PIXELS)
        is_pixel = (pixel < num_pixels)[:, None]
        values = tl.load(x + (pixel[:, None] * (N * C) + (n * C + c)[None, :]), mask=is_pixel & is_c, other=0.0)
        slopes = tl.load(dy + (pixel[:, None] * (N * Q) + (n * Q + q)[None, :]), mask=is_pixel & is_q, other=0.0)
        total = tl.dot(tl.trans(slopes), values, total)
    row = units_row * EVEN_ROW
    at = dw + (split * N + n).to(tl.int64) * row + (q[:, None] * C + c[None, :])
    tl.store(at, total.to(dw.dtype.element_ty), mask=(q < Q)[:, None] & is_c)


def product(x: Tensor, w: Tensor, by_q: bool) -> Tensor:
    """[B, H, W, N·Q] from x [B, H, W, N·C] and w [N, Q, C] if `by_q`, else [N, C, Q]; all contiguous."""
    n, num_c, num_q = (len(w), w.shape[2], w.shape[1]) if by_q else w.shape
    y = x.new_empty(*x.shape[:3], n * num_q)
    block_q = block(num_q, 128)
    pixels = 256 if num_c % 8 == 0 and block_q <= 64 else 128  # as many as fit: measured on an H200
    num_pixels = x.shape[:3].numel()
    even_c, even_q = gcd(num_c, 8), gcd(num_q, 8)
    launch(
        _product,
        (n, triton.cdiv(num_pixels, pixels), triton.cdiv(num_q, block_q)),
        (x, w, y),
        (num_pixels, n, num_c // even_c, num_q // even_q, even_c, even_q, by_q, pixels, block(num_c, 32), block_q),
        num_warps=4 if block_q <= 64 else 8,
        num_stages=3,
    )
    return y


def product_dw(x: Tensor, dy: Tensor, n: int, into: Tensor | None = None) -> Tensor:
    """[N, Q, C] from x [B, H, W, N·C] and dy [B, H, W, N·Q], both contiguous; or `into` some columns of a buffer,
    `[N, Q·C]`, in its dtype."""
    num_c, num_q = x.shape[3] // n, dy.shape[3] // n
    block_q, parts, pixels = block(num_q, 128), block(num_c, 128), 64
    blocks = triton.cdiv(num_c, parts) * triton.cdiv(num_q, block_q)
    num_pixels = x.shape[:3].numel()
    tiles = triton.cdiv(num_pixels, pixels)
    splits = max(min(MANY_PROGRAMS // (blocks * n), tiles // 8), 1)
    share = triton.cdiv(tiles, splits) * pixels
    dw, result = places_for_sums(splits, n, num_c * num_q, x, into)
    row = dw.stride(-2)
    even_row, even_c, even_q = gcd(row, 8), gcd(num_c, 8), gcd(num_q, 8)
    launch(
        _product_dw,
        (n, splits, blocks),
        (x, dy, dw),
        (num_pixels, n, num_c // even_c, num_q // even_q, share, row // even_row,
         even_row, even_c, even_q, pixels, parts, block_q),
        num_warps=4 if block_q <= 64 else 8,
        num_stages=3,
    )  # fmt: skip
    if splits > 1:
        add_up(dw, result)
    return result if into is not None else result.view(n, num_q, num_c)
