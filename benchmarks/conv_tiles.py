"""Which tile convolves stacked replicas fastest on a GPU: what `kernels/conv_tiles.py` is set by.

    python benchmarks/conv_tiles.py --out tiles.json
    python benchmarks/conv_tiles.py --models resnet20-96 resnet20-1008 --kinds images weights

A line for every convolution: milliseconds with the tile of before, with the one that is set, and with the fastest, and
which that is: boxes or plain, pixels x parts of a patch x filters, warps, stages, replicas together (0: all), and for
how many programs sums are split. Gradients of weights go into a flat buffer of float32, as in training. Every
candidate's result is held against that of before. At the end the sums over a model's layers; and for VGG-16 the time of
a gradient of 96 replicas beside one model's, with the tiles of before, the fastest found, and those that are set.

Kernels are compiled in processes beforehand. The sweep runs in one of its own: a candidate that hangs or breaks the
GPU's context costs its convolution, and after two of them no more boxes are tried. `--limit-s` is for all of it.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from conv_candidates import KINDS, SHAPES, Shape, as_set, before, candidates, layer_of, variants
from gossamer._files import write_text
from gossamer.engines.kernels import launch
from gossamer.engines.kernels.conv import correlate, weight_gradient
from gossamer.engines.kernels.conv_tiles import Layer, Tile
from stacked_speed import say, seconds

MOST_PRODUCTS_PER_S = 790e12
"""Of bfloat16 numbers on an H200, products and sums counted each: measured."""
PARAMETERS = {"vgg16": 14_728_266, "resnet20-96": 269_722, "resnet20-1008": 269_722, "densenet100": 769_162}
CALLS = 5
"""In a CUDA graph: the time of launching them from Python does not count."""
TASK_LIMIT_S = 40
"""For all candidates of a convolution."""
FOR_RATIOS_S = 50
"""What the sweep leaves of the limit."""
NOW = Path(tempfile.gettempdir()) / "conv_tiles_now"
"""Says which tile was tried last."""
Job = tuple[str, str, Shape]
"""Model, kind, shape."""
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=["vgg16"], choices=list(SHAPES))
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--limit-s", type=int, default=240)
    parser.add_argument("--out", type=Path, help="write all rows into this JSON file")
    given = parser.parse_args()
    until = time.monotonic() + given.limit_s
    wanted = [
        (model, kind, shape)
        for model in given.models
        for shape in SHAPES[model]
        for kind in given.kinds
        if kind != "turned" or shape.c > 3  # of the images nobody wants gradients
    ]
    with_ratios = "vgg16" in given.models
    compilers = ProcessPoolExecutor(os.cpu_count(), get_context("spawn"))
    compiled = [compilers.submit(compile_all, *job) for job in wanted]
    ratios = first_ratio() if with_ratios else None  # compiles two models meanwhile
    wait(compiled, timeout=max(until - FOR_RATIOS_S - time.monotonic(), 1))
    for job, future in zip(wanted, compiled, strict=True):
        if future.done() and future.exception() is not None:
            say(f"{job}: compiling: {future.exception()!r:.200}")
    compilers.shutdown(wait=False, cancel_futures=True)
    rows: list[Row] = []
    for row in sweep_all(wanted, given.turns, until - (FOR_RATIOS_S if with_ratios else 0)):
        rows.append(row)
        if given.out is not None:
            write_text(given.out, json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}))
    for model in given.models:
        say_sums(model, [row for row in rows if row["model"] == model])
    if ratios is not None:
        best = {(row["kind"], Layer(*row["layer"])): Tile(*row["best"]) for row in rows if row["model"] == "vgg16"}
        for title, tile_for in (
            ("the fastest", lambda kind, layer: best.get((kind, layer)) or before(kind, layer)),
            ("as set", as_set),
        ):
            say(ratios.line(title, tile_for))
        ratios.say_kernels()


def first_ratio() -> Any:
    from conv_ratio import Ratios

    try:
        ratios = Ratios()
        say(ratios.line("as before", before))
        return ratios
    except Exception:  # the sweep is worth more
        traceback.print_exc()


# ---- in processes of their own --------------------------------------------------------------------------------------


def convolution(
    model: str, kind: str, shape: Shape, empty: Callable[..., Tensor]
) -> tuple[Callable[[Tile], Tensor], Layer]:
    n, b, c, q, size, stride = shape
    out = size // stride
    x, w, dy = empty(b, size, size, n * c), empty(n, 3, 3, c, q), empty(b, out, out, n * q)
    layer = layer_of(kind, shape, torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0))
    if kind == "images":
        return lambda tile: correlate(x, w, stride, 1, 1, out, out, False, tile), layer
    if kind == "turned":
        return lambda tile: correlate(dy, w, 1, stride, 1, size, size, True, tile), layer
    flat = torch.empty(n, max(PARAMETERS[model], 9 * c * q), device=x.device)
    columns = flat.narrow(1, 0, 9 * c * q)
    return lambda tile: weight_gradient(x, dy, n, 3, stride, 1, tile, columns), layer


def normal(*sizes: int) -> Tensor:
    return torch.randn(sizes, device="cuda").bfloat16()


def compile_all(model: str, kind: str, shape: Shape) -> None:
    with FakeTensorMode():
        convolve, layer = convolution(
            model, kind, shape, lambda *sizes: torch.empty(sizes, dtype=torch.bfloat16, device="cuda")
        )
        for tile in candidates(kind, layer):
            convolve(tile)
    wait(launch._ahead.values())


def sweep(model: str, kind: str, shape: Shape, turns: int, with_boxes: bool) -> Row:
    """The median time of every candidate that computes what the tile of before does."""
    torch.cuda.empty_cache()
    convolve, layer = convolution(model, kind, shape, normal)
    old, usual = before(kind, layer), as_set(kind, layer)
    expected = convolve(old).clone()
    times: dict[Tile, list[float]] = {}
    failed: dict[str, str] = {}

    def measure(tiles: list[Tile]) -> None:
        replays = {}
        for tile in tiles:
            if with_boxes or not tile.boxes:
                NOW.write_text(str(tuple(tile)))
                try:
                    check(convolve, tile, expected)
                    replays[tile] = recorded(lambda tile=tile: convolve(tile))
                except Exception as error:
                    failed[str(tuple(tile))] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        for _ in range(turns):
            for tile, replay in replays.items():
                times.setdefault(tile, []).append(seconds(replay, 2) / CALLS)

    measure(candidates(kind, layer))
    for tile in sorted(times, key=lambda tile: statistics.median(times[tile]))[:2]:
        measure([other for other in variants(kind, layer, tile) if other not in times])
    medians = {tile: 1e3 * statistics.median(of_tile) for tile, of_tile in times.items()}
    best = min(medians, key=medians.__getitem__)
    return {
        "model": model,
        "kind": kind,
        "shape": shape,
        "layer": layer,
        "layers": SHAPES[model][shape],
        "before_ms": medians[old],
        "set": usual,
        "set_ms": medians.get(usual, float("nan")),
        "best": best,
        "best_ms": medians[best],
        "all_ms": {str(tuple(tile)): medians[tile] for tile in sorted(medians, key=medians.__getitem__)},
        "failed": failed,
    }


def recorded(function: Callable[[], Tensor]) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            function()
    graph.replay()
    return graph.replay


def check(convolve: Callable[[Tile], Tensor], tile: Tile, expected: Tensor) -> None:
    """Every number is written, it is right, and the same once more."""
    torch.full_like(expected, torch.nan)  # freed: what a tile does not write of its result is then likely not a number
    if expected.dtype == torch.float32:
        convolve(tile).fill_(torch.nan)
    result = convolve(tile).clone()
    error = ((result.float() - expected.float()).abs().max() / expected.float().abs().max()).item()
    if not error < (1e-2 if expected.dtype == torch.bfloat16 else 1e-4):
        raise ValueError(f"wrong by {error:.2g}")
    if not torch.equal(convolve(tile), result):
        raise ValueError("not the same again")


# ---- in this one ----------------------------------------------------------------------------------------------------


def sweep_all(jobs: list[Job], turns: int, until: float) -> Iterator[Row]:
    deaths, sweeper = 0, one_process()
    for job in jobs:
        left = until - time.monotonic()
        if left < 5:
            say(f"{job}: no time left")
            continue
        future: Future[Row] = sweeper.submit(sweep, *job, turns, deaths < 2)
        try:
            row = future.result(timeout=min(left, TASK_LIMIT_S))
        except Exception as error:  # such as one of CUDA: they stay until the process ends
            say(f"{job}: {type(error).__name__} {str(error)[:150]}; last tried: {NOW.read_text()}")
            for process in list((sweeper._processes or {}).values()):
                process.kill()
            deaths, sweeper = deaths + 1, one_process()
            continue
        say_row(row)
        yield row
    sweeper.shutdown(wait=False, cancel_futures=True)


def one_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"))


def say_row(row: Row) -> None:
    n, b, c, q, size, stride = row["shape"]
    products = 2 * n * b * (size // stride) ** 2 * 9 * c * q / MOST_PRODUCTS_PER_S
    pixels, parts, filters, warps, stages, together, boxes, programs = row["best"]
    how = "boxes" if boxes else "plain"
    tile = f"{how} {pixels} x {parts} x {filters}"
    say(
        f"{row['kind']:<7} {c:>3} > {q:>3} @ {size:<2} / {stride} n {n:<4} {row['layers']} x  "
        f"before {row['before_ms']:.3f}  set {row['set_ms']:.3f}  best {row['best_ms']:.3f} ms  "
        f"{products / (row['best_ms'] / 1e3):.2f} of the most  "
        f"{tile}, {warps} w, {stages} s, {together} t, {programs}"
    )
    for tile, reason in list(row["failed"].items())[:3]:
        say(f"        {tile}: {reason}")


def say_sums(model: str, rows: list[Row]) -> None:
    for kind in KINDS:
        of_kind = [row for row in rows if row["kind"] == kind]
        sums = [sum(row["layers"] * row[key] for row in of_kind) for key in ("before_ms", "set_ms", "best_ms")]
        if of_kind:
            say(f"{model}, {kind}: before {sums[0]:.2f}  set {sums[1]:.2f}  best {sums[2]:.2f} ms")


if __name__ == "__main__":
    main()
