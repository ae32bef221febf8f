"""Which tile mixes fastest on a GPU, as bandwidth against a plain copy: what `kernels/mix_tiles.py` is set by.

    python benchmarks/mixing_tiles.py
    python benchmarks/mixing_tiles.py --replicas 1008 --graphs ring torus

A line for every tile, the fastest last: rows of the grid by columns of it, blocks of columns together, columns, warps.
The median of the turns; all tiles of a graph take their turns one after the other. The kernel that a graph without a
tile would get is in the list too.
"""

import argparse
import statistics
from itertools import product

import torch

from gossamer import topologies
from gossamer.engines.kernels.mix import mix_few, mix_lattice
from gossamer.engines.kernels.mix_tiles import MOST_SOURCES, Tile, best_tile, mean_of_places, num_sources
from gossamer.engines.stacked_mix import neighbour_table, places_around
from stacked_speed import say, seconds

PARAMETERS = 269_722  # ResNet20
TOGETHER = (4, 16, 64, 256, 1024)
SHAPES = {1: ((1, 8), (1, 16), (1, 32)), 2: ((2, 4), (4, 4), (4, 8), (1, 16))}
BLOCKS = ((256, 4), (512, 4), (512, 8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="*", default=[96, 1008])
    parser.add_argument("--graphs", nargs="*", default=["ring", "torus", "exponential", "ring-lattice:k=16"])
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    for n, graph in product(given.replicas, given.graphs):
        sweep(n, graph, given.turns)


def sweep(n: int, graph: str, turns: int) -> None:
    mixing = topologies.build(graph, n)(0)
    places = places_around(mixing)
    assert places is not None, f"{graph} is not the same from everywhere"
    shape, offsets = places
    values = torch.randn(n, PARAMETERS, device="cuda")
    target = torch.empty_like(values)
    neighbours, weights = (torch.from_numpy(table).cuda() for table in neighbour_table(mixing))
    weights = weights.float()
    ways = {"neighbour by neighbour": lambda: mix_few(values, neighbours, weights)}
    if mixing.window is not None:
        half = mixing.window.half
        ways["sliding window"] = lambda: mix_lattice(values, half)
    sides = [side for side in SHAPES[1 if shape[0] == 1 else 2] if num_sources(offsets, *side) <= MOST_SOURCES]
    tiles = [Tile(*side, together, *block) for side, together, block in product(sides, TOGETHER, BLOCKS)]
    for tile in tiles:
        ways[str(tuple(tile))] = lambda tile=tile: mean_of_places(values, shape, offsets, tile)
    say(f"{graph} of {n}: compiling {len(ways)} kernels ...")
    for way in ways.values():
        way()
    times: dict[str, list[float]] = {name: [] for name in ("copy", *ways)}
    for _ in range(turns):
        times["copy"].append(seconds(lambda: target.copy_(values), 10))
        for name, way in ways.items():
            times[name].append(seconds(way, 10))
    copy = statistics.median(times.pop("copy"))
    for name, of_name in sorted(times.items(), key=lambda item: -statistics.median(item[1])):
        median = statistics.median(of_name)
        say(f"{graph} of {n}  {name:<28} {1e3 * median:.4f} ms  {copy / median:.3f} of a copy")
    say(f"{graph} of {n}: a copy takes {1e3 * copy:.4f} ms; set is {best_tile(shape, offsets)}")


if __name__ == "__main__":
    main()
