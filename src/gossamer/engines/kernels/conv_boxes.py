"""The usual convolutions (a stride of 1, images of 2^i x 2^j pixels, many channels) by a GPU's copy engine.

The kernels of `conv.py` compute for every number where it lies. Here the copy engine of a Hopper GPU fetches a box of
images x rows x columns x channels into a multiprocessor's memory in one instruction, shifted by a place of the kernel,
and puts zeros where the box hangs over the edge of an image: which is the padding. Tensor cores read the box as it lies
there. Filters come first in the products: the compiler would otherwise have boxes go through registers, and for some
tiles of gradients of weights the sums were then wrong.
"""

from math import gcd

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from .conv_tiles import Layer, Tile, replica_and_block
from .launch import launch

_MOST_CHANNELS = 256
"""The copy engine counts no further along a side of a box."""


@triton.jit(do_not_specialize=["TOGETHER"])
def _correlate_boxes(
    x, w, y, NUM_PIXELS: tl.constexpr, N: tl.constexpr, C: tl.constexpr, Q: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, K: tl.constexpr, PADDING: tl.constexpr, TURNED: tl.constexpr,
    TOGETHER, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """y [B, H, W, N·Q] from boxes of x [B, ?, ?, N·C] and of w [N·K·K·C, Q], or if TURNED [N·K·K·Q, C] from its last
    pixel to its first."""
    blocks_q: tl.constexpr = (Q + BLOCK_Q - 1) // BLOCK_Q
    n, block = replica_and_block(N, (NUM_PIXELS + PIXELS - 1) // PIXELS * blocks_q, TOGETHER)
    first = block // blocks_q * PIXELS
    first_q = block % blocks_q * BLOCK_Q
    image = first // (H * W)
    row = first // W % H - PADDING
    total = tl.zeros([BLOCK_Q, PIXELS], tl.float32)
    for part in range(0, K * K * (C // CHANNELS)):
        place = part // (C // CHANNELS)
        c = part % (C // CHANNELS) * CHANNELS
        values = x.load([image, row + place // K, place % K - PADDING, n * C + c]).reshape(PIXELS, CHANNELS)
        if TURNED:
            weights = w.load([(n * K * K + K * K - 1 - place) * Q + first_q, c])
        else:
            weights = w.load([(n * K * K + place) * C + c, first_q]).T
        total = tl.dot(weights, values.T, total)
    pixel = first + tl.arange(0, PIXELS)
    q = first_q + tl.arange(0, BLOCK_Q)
    at = y + pixel[None, :] * (N * Q) + (n * Q + q)[:, None]
    tl.store(at, total.to(y.dtype.element_ty), mask=(pixel < NUM_PIXELS)[None, :] & (q < Q)[:, None])


@triton.jit(do_not_specialize=["TOGETHER"])
def _weight_gradient_boxes(
    x, dy, dw, N: tl.constexpr, C: tl.constexpr, Q: tl.constexpr, H: tl.constexpr, W: tl.constexpr, K: tl.constexpr,
    PADDING: tl.constexpr, SHARE: tl.constexpr, SPLITS: tl.constexpr, ROW: tl.constexpr, TOGETHER,
    PIXELS: tl.constexpr, PLACES: tl.constexpr, CHANNELS: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """dw [SPLITS, N, K, K, C, Q], ROW numbers from one replica to the next, from boxes of x [B, ?, ?, N·C] and of
    dy [B·H·W, N·Q]: each split sums SHARE of the pixels. Several PLACES of the kernel share a box of dy."""
    blocks_q: tl.constexpr = (Q + BLOCK_Q - 1) // BLOCK_Q
    blocks_c: tl.constexpr = C // CHANNELS
    blocks: tl.constexpr = (K * K + PLACES - 1) // PLACES * blocks_c * blocks_q
    n, block = replica_and_block(N, SPLITS * blocks, TOGETHER)
    split = block // blocks
    first_place = block % blocks // (blocks_q * blocks_c) * PLACES
    c = block // blocks_q % blocks_c * CHANNELS
    first_q = block % blocks_q * BLOCK_Q
    totals = ()
    for _ in tl.static_range(PLACES):
        totals += (tl.zeros([BLOCK_Q, CHANNELS], tl.float32),)
    for start in range(0, SHARE, PIXELS):
        first = split * SHARE + start
        image = first // (H * W)
        row = first // W % H - PADDING
        slopes = dy.load([first, n * Q + first_q])
        more = ()
        for i in tl.static_range(PLACES):
            place = first_place + i
            values = x.load([image, row + place // K, place % K - PADDING, n * C + c]).reshape(PIXELS, CHANNELS)
            more += (tl.dot(slopes.T, values, totals[i]),)
        totals = more
    q = first_q + tl.arange(0, BLOCK_Q)
    for i in tl.static_range(PLACES):
        k = (first_place + i) * C + c + tl.arange(0, CHANNELS)
        total = totals[i].T
        at = dw + (split * N + n).to(tl.int64) * ROW + k[:, None] * Q + q[None, :]
        tl.store(at, total.to(dw.dtype.element_ty), mask=(k < K * K * C)[:, None] & (q < Q)[None, :])


def correlate_boxes(x: Tensor, w: Tensor, y: Tensor, layer: Layer, padding: int, tile: Tile) -> None:
    """As `correlate`, into y."""
    channels = gcd(tile.parts, layer.c)
    launch(
        _correlate_boxes,
        (layer.n * triton.cdiv(layer.num_pixels, tile.pixels) * triton.cdiv(layer.q, tile.q),),
        (
            boxes_of(x, layer, tile.pixels, channels),
            rows_of(w, *((tile.q, channels) if layer.turned else (channels, tile.q))),
            y,
        ),
        (layer.num_pixels, layer.n, layer.c, layer.q, layer.height, layer.width, layer.kernel, padding,
         int(layer.turned), tile.together or layer.n, tile.pixels, channels, tile.q),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )  # fmt: skip


def weight_gradient_boxes(
    x: Tensor, dy: Tensor, dw: Tensor, layer: Layer, padding: int, share: int, splits: int, tile: Tile
) -> None:
    """As `weight_gradient`, into dw."""
    channels = gcd(tile.parts, layer.c, _MOST_CHANNELS)
    places = tile.parts // channels
    blocks = triton.cdiv(layer.kernel**2, places) * (layer.c // channels) * triton.cdiv(layer.q, tile.q)
    launch(
        _weight_gradient_boxes,
        (layer.n * splits * blocks,),
        (boxes_of(x, layer, tile.pixels, channels), rows_of(dy, tile.pixels, tile.q), dw),
        (layer.n, layer.c, layer.q, layer.height, layer.width, layer.kernel, padding,
         share, splits, dw.stride(-2), tile.together or layer.n, tile.pixels, places, channels, tile.q),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )  # fmt: skip


def boxes_of(x: Tensor, layer: Layer, pixels: int, channels: int) -> TensorDescriptor:
    """So many pixels of images: rows of one, or several whole ones."""
    rows = min(pixels // layer.width, layer.height)
    return TensorDescriptor.from_tensor(x, [pixels // (rows * layer.width), rows, layer.width, channels])


def rows_of(table: Tensor, rows: int, columns: int) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(table.view(-1, table.shape[-1]), [rows, columns])
