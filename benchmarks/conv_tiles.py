"""Which tile convolves stacked replicas fastest on a GPU: what `kernels/conv.py` is set by.

    python benchmarks/conv_tiles.py
    python benchmarks/conv_tiles.py --models vgg16 --kinds images weights

A line for every tile, the fastest last: pixels by parts of a patch by filters, warps, stages; beside it the share of
the products that the GPU could do at most. The median of the turns. Kernels are compiled in processes beforehand.
"""

import argparse
import os
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from itertools import product
from multiprocessing import get_context

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from gossamer.engines.kernels import launch
from gossamer.engines.kernels.conv import Tile, correlate, tile_for_images, tile_for_weights, weight_gradient
from stacked_speed import say, seconds

Shape = tuple[int, int, int, int, int, int]
"""Replicas, batch, channels, filters, height and width, stride."""
MOST_PRODUCTS_PER_S = 989e12
"""Of bfloat16 numbers on an H200, products and sums counted each."""
SHAPES: dict[str, list[Shape]] = {
    "resnet20": [
        (n, b, c, q, s, stride)
        for n, b in ((96, 32), (1008, 8))
        for c, q, s, stride in ((16, 16, 32, 1), (16, 32, 32, 2), (32, 32, 16, 1), (32, 64, 16, 2), (64, 64, 8, 1))
    ],
    "vgg16": [
        (96, 32, c, q, s, 1)
        for c, q, s in ((64, 64, 32), (64, 128, 16), (128, 128, 16), (128, 256, 8), (256, 256, 8), (256, 512, 4))
    ]
    + [(96, 32, 512, 512, 4, 1), (96, 32, 512, 512, 2, 1)],
    "densenet100": [(96, 32, 48, 12, s, 1) for s in (32, 16, 8)],
}


def tiles_for(kind: str, shape: Shape) -> list[Tile]:
    """The tile that is set, and others."""
    _, b, num_c, num_q, size, stride = shape
    num_pixels = b * (size // stride) ** 2
    if kind == "turned":
        num_c, num_q, num_pixels = num_q, num_c, b * size**2
    q = min(max(1 << (num_q - 1).bit_length(), 16), 128)
    if kind == "weights":
        parts = (64, 128) if num_c <= 64 else (128, 256)
        sides = product((32, 64, 128), parts, (q, 256) if num_q >= 256 else (q,))
        usual = tile_for_weights(num_c, num_q, 3)
    else:
        parts = (16, 32) if num_c % 32 else (32, 64)
        sides = product((128, 256), parts, (q, 256) if num_q >= 256 else (q,))
        usual = tile_for_images(num_pixels, num_c, num_q, 3)
    blocks = product(sides, ((4, 3), (8, 3)) if kind == "weights" else ((4, 3), (8, 3), (4, 4)))
    fitting = [Tile(*side, *block) for side, block in blocks if fits(kind, *side, *block)]
    return list(dict.fromkeys([usual, *fitting]))


def fits(kind: str, pixels: int, parts: int, q: int, num_warps: int, num_stages: int) -> bool:
    """Sums in the registers, and what is copied ahead in the memory of a multiprocessor."""
    rows, depth = (parts, pixels) if kind == "weights" else (pixels, parts)
    return rows * q <= 128 * 32 * num_warps and (rows + q) * depth * 2 * num_stages <= 200_000


def convolution(kind: str, shape: Shape, empty: Callable[..., Tensor]) -> Callable[[Tile], Tensor]:
    n, b, c, q, size, stride = shape
    out = size // stride
    x, w, dy = empty(b, size, size, n * c), empty(n, 3, 3, c, q), empty(b, out, out, n * q)
    if kind == "images":
        return lambda tile: correlate(x, w, stride, 1, 1, out, out, False, tile)
    if kind == "turned":
        return lambda tile: correlate(dy, w, 1, stride, 1, size, size, True, tile)
    return lambda tile: weight_gradient(x, dy, n, 3, stride, 1, tile)


def compile_all(kind: str, shape: Shape) -> None:
    with FakeTensorMode():
        convolve = convolution(kind, shape, lambda *sizes: torch.empty(sizes, dtype=torch.bfloat16, device="cuda"))
        for tile in tiles_for(kind, shape):
            convolve(tile)
    wait(launch._ahead.values())


def sweep(kind: str, shape: Shape, turns: int) -> None:
    convolve = convolution(kind, shape, lambda *sizes: torch.randn(sizes, device="cuda").bfloat16())
    times: dict[Tile, list[float]] = {}
    for tile in tiles_for(kind, shape):
        try:
            convolve(tile)
            times[tile] = []
        except Exception as error:
            say(f"{kind} {shape} {tuple(tile)}: {str(error).splitlines()[0][:90]}")
    for _ in range(turns):
        for tile, of_tile in times.items():
            of_tile.append(seconds(lambda tile=tile: convolve(tile), 3))
    n, b, c, q, size, stride = shape
    products = 2 * n * b * (size // stride) ** 2 * 9 * c * q
    usual = next(iter(times))
    for tile, of_tile in sorted(times.items(), key=lambda item: -statistics.median(item[1])):
        median = statistics.median(of_tile)
        share = products / median / MOST_PRODUCTS_PER_S
        mark = "  (as set)" if tile == usual else ""
        say(f"{kind:<7} {shape!s:<30} {tuple(tile)!s:<24} {1e3 * median:.3f} ms  {share:.3f} of the most{mark}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--kinds", nargs="*", default=["images", "turned", "weights"])
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    wanted = [(kind, shape) for model in given.models for shape in SHAPES[model] for kind in given.kinds]
    say(f"compiling for {len(wanted)} convolutions ...")
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        wait([pool.submit(compile_all, *each) for each in wanted])
    for kind, shape in wanted:
        sweep(kind, shape, given.turns)


if __name__ == "__main__":
    main()
