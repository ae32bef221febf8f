"""Convolutions that `conv_tiles.py` measures, and the tiles that it tries for each."""

from itertools import product
from typing import NamedTuple

from gossamer.engines.kernels.conv_tiles import (
    Layer,
    Tile,
    fits_boxes,
    splits_for_weights,
    tile_for_images,
    tile_for_weights,
)
from gossamer.engines.kernels.launch import block


class Shape(NamedTuple):
    """A convolution of 3 x 3 pixels, padded by one."""

    n: int
    batch: int
    c: int
    q: int
    size: int
    stride: int = 1


def _resnet20(n: int, batch: int) -> dict[Shape, int]:
    inner = {Shape(n, batch, c, c, size): num for c, size, num in ((16, 32, 6), (32, 16, 5), (64, 8, 5))}
    return inner | {Shape(n, batch, 16, 32, 32, 2): 1, Shape(n, batch, 32, 64, 16, 2): 1, Shape(n, batch, 3, 16, 32): 1}


SHAPES: dict[str, dict[Shape, int]] = {
    "vgg16": {
        Shape(96, 32, 512, 512, 2): 3,
        Shape(96, 32, 512, 512, 4): 2,
        Shape(96, 32, 256, 256, 8): 2,
        Shape(96, 32, 64, 64, 32): 1,
        Shape(96, 32, 128, 128, 16): 1,
        Shape(96, 32, 256, 512, 4): 1,
        Shape(96, 32, 128, 256, 8): 1,
        Shape(96, 32, 64, 128, 16): 1,
        Shape(96, 32, 3, 64, 32): 1,
    },
    "resnet20-96": _resnet20(96, 32),
    "resnet20-1008": _resnet20(1008, 8),
    "densenet100": {Shape(96, 32, 48, 12, size): 16 for size in (32, 16, 8)},
}
"""Layers of a model, and how many of each it has."""
KINDS = ("weights", "images", "turned")
_BOXES_FOR_64 = [(256, 32, 4, 3), (256, 32, 4, 4), (256, 64, 4, 2), (128, 64, 4, 3), (128, 64, 4, 4), (128, 32, 4, 4),
                 (256, 64, 8, 3), (128, 64, 8, 3)]  # fmt: skip
_BOXES_FOR_128 = [(128, 64, 4, 3), (128, 64, 4, 4), (128, 64, 8, 3), (128, 32, 4, 4), (256, 64, 8, 3), (256, 64, 8, 4),
                  (256, 32, 8, 4), (256, 128, 8, 2), (128, 128, 8, 3)]  # fmt: skip
_BOXES_FOR_256 = [(128, 64, 8, 3), (128, 64, 8, 4), (128, 32, 8, 4), (64, 64, 4, 4)]
"""Pixels, parts, warps, stages."""
_WEIGHTS_FROM_64 = [(64, 64, 4, 3), (128, 64, 4, 3), (64, 192, 4, 2), (64, 192, 4, 3), (32, 192, 4, 4),
                    (128, 192, 4, 2), (64, 192, 8, 3), (64, 576, 8, 2), (32, 576, 8, 3), (64, 128, 4, 3)]  # fmt: skip
_WEIGHTS_FROM_128 = [(64, 128, 4, 2), (64, 128, 4, 3), (32, 128, 4, 4), (128, 128, 4, 2), (64, 128, 8, 2),
                     (64, 128, 8, 3), (128, 128, 8, 2), (64, 256, 8, 3), (64, 256, 8, 4), (128, 256, 8, 2),
                     (64, 384, 8, 3), (32, 384, 8, 4)]  # fmt: skip


def layer_of(kind: str, shape: Shape, copies_boxes: bool) -> Layer:
    """As the kernels' rules see it."""
    n, batch, c, q, size, stride = shape
    out = size // stride
    if kind == "turned":
        return Layer(n, batch, size, size, q, c, 3, stride == 1, True, copies_boxes)
    return Layer(n, batch, out, out, c, q, 3, stride == 1, False, copies_boxes)


def as_set(kind: str, layer: Layer) -> Tile:
    return tile_for_weights(layer) if kind == "weights" else tile_for_images(layer)


def before(kind: str, layer: Layer) -> Tile:
    """What was set until tiles could choose an order, or boxes: all replicas together."""
    q, parts = block(layer.q, 128), layer.kernel**2 * layer.c
    if kind == "weights":
        return Tile(32 if 64 <= layer.c < 512 else 64, block(parts, 128), q, num_warps=4)
    if q < 128:
        return Tile(256 if layer.c % 8 == 0 else 128, block(parts, 32), q, num_warps=4)
    pixels = 256 if layer.c >= 256 and layer.num_pixels >= 256 else 128
    return Tile(pixels, block(parts, 64), q, num_warps=8 if pixels == 256 else 4)


def candidates(kind: str, layer: Layer) -> list[Tile]:
    """The tile of before, the one that is set, and others."""
    usual = as_set(kind, layer)
    old = before(kind, layer)
    found = [old, usual, old._replace(together=8)]
    if fits_boxes(layer):
        found += [tile._replace(together=usual.together) for tile in _in_boxes(kind, layer)]
    else:
        found += [tile for tile in _plain(kind, layer, old) if _fits(kind, tile)]
    return list(dict.fromkeys(found))


def variants(kind: str, layer: Layer, tile: Tile) -> list[Tile]:
    """The same in other orders; and, where it makes a difference, with sums in fewer or more parts."""
    found = [tile._replace(together=number) for number in (1, 2, 4, 8, 16, 32, layer.n) if number <= layer.n]
    splits = {splits_for_weights(layer, tile)}
    for programs in (256, 512, 1024, 2048, 4096) if kind == "weights" else ():
        other = tile._replace(programs=programs)
        if splits_for_weights(layer, other) not in splits:
            splits.add(splits_for_weights(layer, other))
            found.append(other)
    return found


def _in_boxes(kind: str, layer: Layer) -> list[Tile]:
    widths = [q for q in (64, 128, 256) if layer.q % q == 0]
    if kind != "weights":
        of_q = {64: _BOXES_FOR_64 if widths == [64] else [(128, 64, 4, 4)], 128: _BOXES_FOR_128, 256: _BOXES_FOR_256}
        tiles = [Tile(side[0], side[1], q, *side[2:], boxes=True) for q in widths for side in of_q[q]]
        return [tile for tile in tiles if tile.pixels <= max(layer.num_pixels, 128)]
    sides = _WEIGHTS_FROM_64 if layer.c % 128 else _WEIGHTS_FROM_128
    q = 128 if 128 in widths else 64
    tiles = [Tile(pixels, parts, q, *rest, boxes=True) for pixels, parts, *rest in sides]
    if 256 in widths:
        tiles += [Tile(64, 128, 256, 8, stages, boxes=True) for stages in (3, 4)]
    return [tile for tile in tiles if tile.parts <= 384 or q == 64]


def _plain(kind: str, layer: Layer, old: Tile) -> list[Tile]:
    if kind == "weights":
        sides = product((32, 64, 128, 256), (old.parts,), (old.q,), (4, 8))
    else:
        sides = product((64, 128, 256), (16, 32) if layer.c % 32 else (32, 64), (old.q,), (4, 8))
    return [Tile(*side) for side in sides]


def _fits(kind: str, tile: Tile) -> bool:
    """Sums in the registers, and what is copied ahead in the memory of a multiprocessor."""
    rows, depth = (tile.parts, tile.pixels) if kind == "weights" else (tile.pixels, tile.parts)
    return rows * tile.q <= 128 * 32 * tile.num_warps and (rows + tile.q) * depth * 2 * tile.num_stages <= 200_000
