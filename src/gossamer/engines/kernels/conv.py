"""Convolutions of stacked replicas on a GPU: every replica has weights of its own, so it is N small ones in one call.

Each is a matrix product of patches, which are never written down, with the weights (an implicit GEMM):

    y[p, q] = Σ_k patches[p, k] w[k, q]        p a pixel of the output, k = (row of the kernel, its column, channel)

Channels lie innermost, `[B, H, W, N·C]`: a patch is then a few runs of C numbers, wherever in the image it is. cuDNN
does such a convolution with N groups well for some shapes and a hundred times slower for others. Products of bfloat16
numbers, sums in float32, in an order that depends on the shapes alone: it repeats bit by bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import MANY_PROGRAMS, block, launch


@triton.jit
def _patches(
    x, n, pixel, k, inside,
    N: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, H_OUT: tl.constexpr, W_OUT: tl.constexpr,
    K: tl.constexpr, STRIDE: tl.constexpr, SPREAD: tl.constexpr, PADDING: tl.constexpr,
):  # fmt: skip
    """Numbers `k` of the patches of output pixels `pixel`, where `inside`; SPREAD - 1 zeros stand between the pixels of
    x, PADDING around them."""
    b = pixel // (H_OUT * W_OUT)
    row = (pixel // W_OUT % H_OUT * STRIDE - PADDING)[:, None] + (k // C // K)[None, :]
    column = (pixel % W_OUT * STRIDE - PADDING)[:, None] + (k // C % K)[None, :]
    there = inside & (row >= 0) & (row < H * SPREAD) & (column >= 0) & (column < W * SPREAD)
    if SPREAD > 1:
        there = there & (row % SPREAD == 0) & (column % SPREAD == 0)
        row = row // SPREAD
        column = column // SPREAD
    at = ((b * H)[:, None] + row) * W + column
    return tl.load(x + (at * (N * C) + (n * C + k % C)[None, :]), mask=there, other=0.0)


@triton.jit
def _correlate(
    x, w, y, NUM_PIXELS: tl.constexpr, N: tl.constexpr, C: tl.constexpr, Q: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, H_OUT: tl.constexpr, W_OUT: tl.constexpr,
    K: tl.constexpr, STRIDE: tl.constexpr, SPREAD: tl.constexpr, PADDING: tl.constexpr,
    PIXELS: tl.constexpr, PARTS: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """y [B, H_OUT, W_OUT, N·Q] from x [B, H, W, N·C] and w [N, K, K, C, Q]."""
    n = tl.program_id(0)
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    q = tl.program_id(2) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    is_pixel = (pixel < NUM_PIXELS)[:, None]
    size: tl.constexpr = K * K * C
    total = tl.zeros([PIXELS, BLOCK_Q], tl.float32)
    for start in range(0, size, PARTS):
        k = start + tl.arange(0, PARTS)
        values = _patches(
            x, n, pixel, k, is_pixel & (k < size)[None, :], N, C, H, W, H_OUT, W_OUT, K, STRIDE, SPREAD, PADDING
        )
        weights = tl.load(
            w + n * (size * Q) + k[:, None] * Q + q[None, :], mask=(k < size)[:, None] & (q < Q)[None, :], other=0.0
        )
        total = tl.dot(values, weights, total)
    at = y + pixel[:, None] * (N * Q) + (n * Q + q)[None, :]
    tl.store(at, total.to(y.dtype.element_ty), mask=is_pixel & (q < Q)[None, :])


@triton.jit
def _weight_gradient(
    x, dy, dw, NUM_PIXELS: tl.constexpr, N: tl.constexpr, C: tl.constexpr, Q: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, H_OUT: tl.constexpr, W_OUT: tl.constexpr,
    K: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, SHARE: tl.constexpr,
    PIXELS: tl.constexpr, PARTS: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """dw [splits, N, K, K, C, Q]: each split sums SHARE of the pixels."""
    n = tl.program_id(0)
    split = tl.program_id(1)
    size: tl.constexpr = K * K * C
    blocks_k: tl.constexpr = (size + PARTS - 1) // PARTS
    k = tl.program_id(2) % blocks_k * PARTS + tl.arange(0, PARTS)
    q = tl.program_id(2) // blocks_k * BLOCK_Q + tl.arange(0, BLOCK_Q)
    is_part = (k < size)[None, :]
    is_q = (q < Q)[None, :]
    total = tl.zeros([PARTS, BLOCK_Q], tl.float32)
    for start in range(0, SHARE, PIXELS):
        pixel = split * SHARE + start + tl.arange(0, PIXELS)
        is_pixel = (pixel < NUM_PIXELS)[:, None]
        values = _patches(x, n, pixel, k, is_pixel & is_part, N, C, H, W, H_OUT, W_OUT, K, STRIDE, 1, PADDING)
        slope = tl.load(dy + pixel[:, None] * (N * Q) + (n * Q + q)[None, :], mask=is_pixel & is_q, other=0.0)
        total = tl.dot(tl.trans(values), slope, total)
    at = dw + (split * N + n) * (size * Q) + k[:, None] * Q + q[None, :]
    tl.store(at, total.to(dw.dtype.element_ty), mask=(k < size)[:, None] & is_q)


def correlate(x: Tensor, w: Tensor, stride: int, spread: int, padding: int, height: int, width: int) -> Tensor:
    """[B, height, width, N·Q] from x [B, H, W, N·C] and w [N, K, K, C, Q], both contiguous."""
    n, kernel, _, num_c, num_q = w.shape
    y = x.new_empty(len(x), height, width, n * num_q)
    block_q = block(num_q, 128)
    pixels = 256 if num_c % 8 == 0 and block_q <= 64 else 128  # as many as fit: measured on an H200
    num_pixels = len(x) * height * width
    launch(
        _correlate,
        (n, triton.cdiv(num_pixels, pixels), triton.cdiv(num_q, block_q)),
        (x, w, y),
        (num_pixels, n, num_c, num_q, x.shape[1], x.shape[2], height, width,
         kernel, stride, spread, padding, pixels, block(kernel**2 * num_c, 32), block_q),
        num_warps=4 if block_q <= 64 else 8,
        num_stages=3,
    )  # fmt: skip
    return y


def weight_gradient(x: Tensor, dy: Tensor, n: int, kernel: int, stride: int, padding: int) -> Tensor:
    """[N, K, K, C, Q] from x [B, H, W, N·C] and dy [B, H', W', N·Q], both contiguous."""
    num_c, num_q = x.shape[3] // n, dy.shape[3] // n
    block_q, parts, pixels = block(num_q, 128), block(kernel**2 * num_c, 128), 64
    blocks = triton.cdiv(kernel**2 * num_c, parts) * triton.cdiv(num_q, block_q)
    num_pixels = len(dy) * dy.shape[1] * dy.shape[2]
    tiles = triton.cdiv(num_pixels, pixels)
    splits = max(min(MANY_PROGRAMS // (blocks * n), tiles // 8), 1)
    share = triton.cdiv(tiles, splits) * pixels
    dtype = x.dtype if splits == 1 else torch.float32
    dw = torch.empty((splits, n, kernel, kernel, num_c, num_q), device=x.device, dtype=dtype)
    launch(
        _weight_gradient,
        (n, splits, blocks),
        (x, dy, dw),
        (num_pixels, n, num_c, num_q, x.shape[1], x.shape[2], dy.shape[1], dy.shape[2],
         kernel, stride, padding, share, pixels, parts, block_q),
        num_warps=4 if block_q <= 64 else 8,
        num_stages=3,
    )  # fmt: skip
    return dw[0] if splits == 1 else dw.sum(0).to(x.dtype)
