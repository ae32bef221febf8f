"""Convolutions of stacked replicas on a GPU: every replica has weights of its own, so it is N small ones in one call.

Each is a matrix product of patches, which are never written down, with the weights (an implicit GEMM):

    y[p, q] = Σ_k patches[p, k] w[k, q]        p a pixel of the output, k = (row of the kernel, its column, channel)

Channels lie innermost, `[B, H, W, N·C]`: a patch is then a few runs of C numbers, wherever in the image it is. cuDNN
does such a convolution with N groups well for some shapes and a hundred times slower for others. Products of bfloat16
numbers, sums in float32, in an order that depends on the shapes alone: it repeats bit by bit.

These kernels do any convolution; those of `conv_boxes.py` do the usual ones of wide layers faster, on GPUs that can.
"""

import triton
import triton.language as tl
from torch import Tensor

from . import conv_tiles
from .conv_boxes import correlate_boxes, weight_gradient_boxes
from .conv_tiles import Layer, Tile, copies_boxes, replica_and_block
from .launch import add_up, launch, places_for_sums


@triton.jit
def _patches(
    x, n, pixel, start, is_pixel,
    N: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, H_OUT: tl.constexpr, W_OUT: tl.constexpr,
    K: tl.constexpr, STRIDE: tl.constexpr, SPREAD: tl.constexpr, PADDING: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """PARTS numbers from `start` of the patches of output pixels `pixel`; SPREAD - 1 zeros stand between the pixels of
    x, PADDING around them."""
    b = pixel // (H_OUT * W_OUT)
    row = pixel // W_OUT % H_OUT * STRIDE - PADDING
    column = pixel % W_OUT * STRIDE - PADDING
    part = tl.arange(0, PARTS)
    if C % PARTS == 0:  # all of one pixel of x: where that lies is to be found once, not for every number
        row = (row + start // C // K)[:, None]
        column = (column + start // C % K)[:, None]
        channel = tl.multiple_of(start % C, PARTS) + part
        there = is_pixel[:, None]
    else:
        row = row[:, None] + ((start + part) // C // K)[None, :]
        column = column[:, None] + ((start + part) // C % K)[None, :]
        channel = (start + part) % C
        there = is_pixel[:, None] & (start + part < K * K * C)[None, :]
    there = there & (row >= 0) & (row < H * SPREAD) & (column >= 0) & (column < W * SPREAD)
    if SPREAD > 1:
        there = there & (row % SPREAD == 0) & (column % SPREAD == 0)
        row = row // SPREAD
        column = column // SPREAD
    at = ((b * H)[:, None] + row) * W + column
    return tl.load(x + (at * (N * C) + (n * C + channel)[None, :]), mask=there, other=0.0)


@triton.jit(do_not_specialize=["TOGETHER"])
def _correlate(
    x, w, y, NUM_PIXELS: tl.constexpr, N: tl.constexpr, C: tl.constexpr, Q: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, H_OUT: tl.constexpr, W_OUT: tl.constexpr, K: tl.constexpr,
    STRIDE: tl.constexpr, SPREAD: tl.constexpr, PADDING: tl.constexpr, TURNED: tl.constexpr,
    TOGETHER, PIXELS: tl.constexpr, PARTS: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """y [B, H_OUT, W_OUT, N·Q] from x [B, H, W, N·C] and w [N, K, K, C, Q], or if TURNED [N, K, K, Q, C] from its last
    pixel to its first."""
    blocks_q: tl.constexpr = (Q + BLOCK_Q - 1) // BLOCK_Q
    n, block = replica_and_block(N, (NUM_PIXELS + PIXELS - 1) // PIXELS * blocks_q, TOGETHER)
    pixel = block // blocks_q * PIXELS + tl.arange(0, PIXELS)
    q = block % blocks_q * BLOCK_Q + tl.arange(0, BLOCK_Q)
    is_pixel = pixel < NUM_PIXELS
    is_q = (q < Q)[None, :]
    size: tl.constexpr = K * K * C
    total = tl.zeros([PIXELS, BLOCK_Q], tl.float32)
    for start in range(0, size, PARTS):
        values = _patches(x, n, pixel, start, is_pixel, N, C, H, W, H_OUT, W_OUT, K, STRIDE, SPREAD, PADDING, PARTS)
        k = start + tl.arange(0, PARTS)
        if TURNED:
            at = ((K * K - 1 - k // C) * (C * Q) + k % C)[:, None] + q[None, :] * C
        else:
            at = k[:, None] * Q + q[None, :]
        weights = tl.load(w + n * (size * Q) + at, mask=(k < size)[:, None] & is_q, other=0.0)
        total = tl.dot(values, weights, total)
    at = y + pixel[:, None] * (N * Q) + (n * Q + q)[None, :]
    tl.store(at, total.to(y.dtype.element_ty), mask=is_pixel[:, None] & is_q)


@triton.jit(do_not_specialize=["TOGETHER"])
def _weight_gradient(
    x, dy, dw, NUM_PIXELS: tl.constexpr, N: tl.constexpr, C: tl.constexpr, Q: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, H_OUT: tl.constexpr, W_OUT: tl.constexpr,
    K: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, SHARE: tl.constexpr, SPLITS: tl.constexpr,
    ROW: tl.constexpr, TOGETHER, PIXELS: tl.constexpr, PARTS: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """dw [splits, N, K, K, C, Q]: each split sums SHARE of the pixels. ROW numbers from one replica to the next: those
    in between may be other parameters'."""
    size: tl.constexpr = K * K * C
    blocks_q: tl.constexpr = (Q + BLOCK_Q - 1) // BLOCK_Q
    blocks: tl.constexpr = (size + PARTS - 1) // PARTS * blocks_q
    n, block = replica_and_block(N, SPLITS * blocks, TOGETHER)
    split = block // blocks
    first = block % blocks // blocks_q * PARTS
    q = block % blocks_q * BLOCK_Q + tl.arange(0, BLOCK_Q)
    is_q = (q < Q)[None, :]
    total = tl.zeros([PARTS, BLOCK_Q], tl.float32)
    for start in range(0, SHARE, PIXELS):
        pixel = split * SHARE + start + tl.arange(0, PIXELS)
        is_pixel = pixel < NUM_PIXELS
        values = _patches(x, n, pixel, first, is_pixel, N, C, H, W, H_OUT, W_OUT, K, STRIDE, 1, PADDING, PARTS)
        slope = tl.load(dy + pixel[:, None] * (N * Q) + (n * Q + q)[None, :], mask=is_pixel[:, None] & is_q, other=0.0)
        total = tl.dot(tl.trans(values), slope, total)
    k = first + tl.arange(0, PARTS)
    at = dw + (split * N + n).to(tl.int64) * ROW + k[:, None] * Q + q[None, :]
    tl.store(at, total.to(dw.dtype.element_ty), mask=(k < size)[:, None] & is_q)


def correlate(
    x: Tensor,
    w: Tensor,
    stride: int,
    spread: int,
    padding: int,
    height: int,
    width: int,
    turned: bool,
    tile: Tile | None = None,
) -> Tensor:
    """[B, height, width, N·Q] from x [B, H, W, N·C] and w [N, K, K, C, Q], or [N, K, K, Q, C] to be `turned`."""
    n, kernel, _, num_c, num_q = w.shape
    if turned:
        num_c, num_q = num_q, num_c
    y = x.new_empty(len(x), height, width, n * num_q)
    layer = Layer(n, len(x), height, width, num_c, num_q, kernel, stride == spread == 1, turned, copies_boxes(x.device))
    if tile is None:
        tile = conv_tiles.tile_for_images(layer)
    if tile.boxes:
        correlate_boxes(x, w, y, layer, padding, tile)
        return y
    launch(
        _correlate,
        (n * triton.cdiv(layer.num_pixels, tile.pixels) * triton.cdiv(num_q, tile.q),),
        (x, w, y),
        (layer.num_pixels, n, num_c, num_q, x.shape[1], x.shape[2], height, width,
         kernel, stride, spread, padding, int(turned), tile.together or n, *tile[:3]),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )  # fmt: skip
    return y


def weight_gradient(
    x: Tensor,
    dy: Tensor,
    n: int,
    kernel: int,
    stride: int,
    padding: int,
    tile: Tile | None = None,
    into: Tensor | None = None,
) -> Tensor:
    """[N, K, K, C, Q] from x [B, H, W, N·C] and dy [B, H', W', N·Q], both contiguous. Or `into` some columns of a
    buffer, `[N, K·K·C·Q]`, in its dtype: sums are float32, and need not be rounded on the way."""
    num_c, num_q = x.shape[3] // n, dy.shape[3] // n
    images, height, width = dy.shape[:3]
    layer = Layer(n, images, height, width, num_c, num_q, kernel, stride == 1, False, copies_boxes(x.device))
    if tile is None:
        tile = conv_tiles.tile_for_weights(layer)
    blocks = triton.cdiv(kernel**2 * num_c, tile.parts) * triton.cdiv(num_q, tile.q)
    splits = conv_tiles.splits_for_weights(layer, tile)
    share = triton.cdiv(triton.cdiv(layer.num_pixels, tile.pixels), splits) * tile.pixels
    dw, result = places_for_sums(splits, n, kernel**2 * num_c * num_q, x, into)
    if tile.boxes:
        weight_gradient_boxes(x, dy, dw, layer, padding, share, splits, tile)
    else:
        launch(
            _weight_gradient,
            (n * splits * blocks,),
            (x, dy, dw),
            (layer.num_pixels, n, num_c, num_q, x.shape[1], x.shape[2], height, width,
             kernel, stride, padding, share, splits, dw.stride(-2), tile.together or n, *tile[:3]),
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )  # fmt: skip
    if splits > 1:
        add_up(dw, result)
    return result if into is not None else result.view(n, kernel, kernel, num_c, num_q)
