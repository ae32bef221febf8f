"""What a program of a convolution does at a time, and in which order programs take the replicas.

A replica's programs read the same images and weights. If they run at about the same time, memory is read once and the
second-level cache often; if every replica has its first block done before any has its second, the images of all of them
are read anew for each block: for the gradients of VGG's deep filters that is four times what is written. But where a
replica has few channels, what lies together in memory is short unless its neighbours are read at the same time.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .launch import MANY_PROGRAMS, block

_AT_A_TIME = 264
"""Programs that a large GPU runs at a time: two on each of 132 multiprocessors."""


class Layer(NamedTuple):
    """A convolution, as a kernel sees it: one that computes gradients of images has as many channels as there are
    filters, and turned filters."""

    n: int
    images: int
    """Of a replica."""
    height: int
    """In pixels: of what is summed for an image, or over for weights."""
    width: int
    c: int
    q: int
    kernel: int
    even: bool
    """No stride, and no zeros between pixels."""
    turned: bool = False
    copies_boxes: bool = False
    """The GPU can."""

    @property
    def num_pixels(self) -> int:
        return self.images * self.height * self.width


class Tile(NamedTuple):
    """What a program of a kernel does at a time."""

    pixels: int
    parts: int
    """Numbers of a patch."""
    q: int
    num_warps: int
    num_stages: int = 3
    together: int = 0
    """Replicas that go through all blocks before the next ones do; 0: all."""
    boxes: bool = False
    """Pixels are copied by the GPU's copy engine, in boxes: see `conv_boxes.py`."""
    programs: int = MANY_PROGRAMS
    """Sums over many pixels are split until there are about as many."""


@triton.jit
def replica_and_block(N: tl.constexpr, BLOCKS: tl.constexpr, TOGETHER):
    """What this program does: TOGETHER replicas go through all blocks, block by block, before the next ones do."""
    first = tl.program_id(0) // (BLOCKS * TOGETHER) * TOGETHER
    together = tl.minimum(N - first, TOGETHER)
    within = tl.program_id(0) - first * BLOCKS
    return first + within % together, within // together


def copies_boxes(device: torch.device) -> bool:
    """Hopper, and what came after."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def fits_boxes(layer: Layer) -> bool:
    """Whether a tile of pixels is whole rows of an image, or whole images, whichever tile it is; and whether channels
    come in the widths that the copy engine likes best."""
    sides = (layer.height, layer.width)
    return (
        layer.even
        and layer.copies_boxes
        and all(side & (side - 1) == 0 for side in sides)
        and layer.width <= 64
        and layer.c % 64 == 0
        and layer.q % 64 == 0
    )


def tile_for_images(layer: Layer) -> Tile:
    """Wide ones, as memory of a multiprocessor allows: what tiles read from the second-level cache is what most layers
    wait for."""
    if fits_boxes(layer):
        pixels = 256 if layer.num_pixels >= 256 else 128
        if layer.q % 128:
            tile = Tile(pixels, 32, 64, num_warps=4, boxes=True)  # three of them fit on a multiprocessor
        else:
            tile = Tile(pixels, 64, 128, num_warps=pixels // 32, num_stages=4, boxes=True)
    else:
        q = block(layer.q, 128)
        parts = layer.kernel**2 * layer.c
        if q < 128:
            return Tile(256 if layer.c % 8 == 0 else 128, block(parts, 32), q, num_warps=4)
        pixels = 256 if layer.c >= 256 and layer.num_pixels >= 256 else 128
        tile = Tile(pixels, block(parts, 64), q, num_warps=8 if pixels == 256 else 4)
    blocks = triton.cdiv(layer.num_pixels, tile.pixels) * triton.cdiv(layer.q, tile.q)
    return tile._replace(together=_enough(layer.n, blocks))


def tile_for_weights(layer: Layer) -> Tile:
    """Of many pixels wide ones, too; of few, several on a multiprocessor: one writes while another multiplies. As
    measured on an H200: `benchmarks/conv_tiles.py`."""
    if fits_boxes(layer):
        q = 128 if layer.q % 128 == 0 else 64
        if layer.c % 128:
            tile = Tile(64, 64 * (3 if layer.kernel == 3 else 1), q, num_warps=q // 16, boxes=True)
        elif layer.num_pixels <= 512:
            tile = Tile(32, 128, q, num_warps=4, num_stages=4, boxes=True)
        else:
            tile = Tile(64, 384 if layer.kernel == 3 else 128, q, num_warps=8, boxes=True)
    else:
        q = block(layer.q, 128)
        tile = Tile(32 if 64 <= layer.c < 512 else 64, block(layer.kernel**2 * layer.c, 128), q, num_warps=4)
        if layer.c < 64:
            return tile
    blocks = triton.cdiv(layer.kernel**2 * layer.c, tile.parts) * triton.cdiv(layer.q, tile.q)
    return tile._replace(together=_enough(layer.n, blocks))


def splits_for_weights(layer: Layer, tile: Tile) -> int:
    """In how many parts the pixels are summed: what that writes and reads once more is little only if each is long."""
    blocks = triton.cdiv(layer.kernel**2 * layer.c, tile.parts) * triton.cdiv(layer.q, tile.q)
    tiles = triton.cdiv(layer.num_pixels, tile.pixels)
    return max(min(tile.programs // (blocks * layer.n), tiles // 8), 1)


def _enough(n: int, blocks: int) -> int:
    """Replicas whose blocks fill a GPU."""
    return min(triton.cdiv(_AT_A_TIME, blocks), n)
