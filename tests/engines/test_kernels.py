"""The GPU kernels, run number by number on a CPU by Triton's interpreter."""

import os
from functools import partial
from typing import Any

import pytest
import torch
from convolutions import check_convolution, check_product

from gossamer import topologies
from gossamer.engines.stacked_mix import _gpu_operator, neighbour_table, places_around

os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
pytest.importorskip("triton", reason="Triton is for Linux")

import triton.language as tl

from gossamer.engines.kernels import mix, mix_tiles, pointwise
from gossamer.engines.kernels.conv import correlate, weight_gradient
from gossamer.engines.kernels.conv_tiles import Layer, Tile, fits_boxes, tile_for_images, tile_for_weights


@pytest.mark.parametrize(
    ("n", "batch", "num_c", "num_q", "size", "kernel", "stride"),
    [
        (2, 3, 3, 16, 8, 3, 1),
        (2, 2, 16, 32, 8, 3, 2),
        (2, 3, 12, 20, 6, 1, 2),
        (1, 2, 20, 12, 5, 3, 1),
        (1, 2, 8, 130, 7, 3, 2),
        (2, 2, 32, 64, 4, 3, 1),  # channels in whole blocks
    ],
)
def test_convolutions(n: int, batch: int, num_c: int, num_q: int, size: int, kernel: int, stride: int) -> None:
    check_convolution(
        correlate,
        weight_gradient,
        n=n,
        batch=batch,
        num_c=num_c,
        num_q=num_q,
        height=size,
        width=size,
        kernel=kernel,
        stride=stride,
        padding=kernel // 2,
        dtype=torch.float32,
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("together", [1, 2, 5])
def test_replicas_in_any_order(together: int) -> None:
    tile = Tile(16, 16, 16, num_warps=4, together=together)
    check_convolution(
        partial(correlate, tile=tile),
        partial(weight_gradient, tile=tile),
        n=5,
        batch=1,
        num_c=3,
        num_q=18,
        height=6,
        width=5,
        kernel=3,
        stride=2,
        padding=1,
        dtype=torch.float32,
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize(
    ("n", "batch", "num_c", "num_q", "height", "width", "kernel", "tile"),
    [
        (2, 2, 16, 16, 8, 8, 3, (16, 16, 16)),  # two rows at a time
        (3, 3, 32, 48, 4, 8, 3, (64, 32, 32)),  # two images at a time, and one that is alone
        (3, 5, 16, 32, 2, 2, 3, (16, 48, 16)),  # three places at a time; several images
        (1, 2, 32, 16, 4, 4, 3, (16, 64, 16)),  # two places at a time, of nine
        (2, 1, 16, 32, 4, 4, 5, (16, 80, 32)),
        (2, 3, 16, 16, 4, 4, 1, (32, 16, 16)),
        (1, 4, 16, 16, 16, 16, 3, (16, 16, 16)),  # in splits
    ],
)
def test_convolutions_in_boxes(
    n: int, batch: int, num_c: int, num_q: int, height: int, width: int, kernel: int, tile: tuple[int, int, int]
) -> None:
    in_boxes = Tile(*tile, num_warps=4, together=2, boxes=True)
    check_convolution(
        partial(correlate, tile=in_boxes),
        partial(weight_gradient, tile=in_boxes),
        n=n,
        batch=batch,
        num_c=num_c,
        num_q=num_q,
        height=height,
        width=width,
        kernel=kernel,
        stride=1,
        padding=kernel // 2,
        dtype=torch.float32,
        rtol=1e-4,
        atol=1e-4,
    )


def test_which_layers_go_by_boxes() -> None:
    layer = Layer(96, 32, 8, 8, 256, 512, kernel=3, even=True, copies_boxes=True)
    for other in (layer, layer._replace(height=1, width=2, c=64), layer._replace(turned=True, kernel=1)):
        assert fits_boxes(other)
        assert tile_for_images(other).boxes
        assert tile_for_weights(other).boxes
    for change in ({"copies_boxes": False}, {"even": False}, {"width": 7}, {"width": 512}, {"c": 3}, {"q": 10}):
        other = layer._replace(**change)
        assert not fits_boxes(other)
        assert not tile_for_images(other).boxes
        assert not tile_for_weights(other).boxes


class WithConstant:
    """A kernel as the interpreter can run it: that cannot count up to an argument that is not a constant."""

    def __init__(self, kernel: Any, place: int) -> None:
        self._kernel = kernel
        self._place = place

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **options: Any) -> None:
            before, constant, after = arguments[: self._place], arguments[self._place], arguments[self._place + 1 :]
            self._kernel[grid](*before, tl.constexpr(constant), *after, **options)

        return launch


@pytest.mark.parametrize(
    ("n", "num_c", "num_q", "height"),
    [(2, 24, 48, 5), (1, 7, 130, 3), (3, 150, 20, 2), (1, 16, 16, 40)],
)
def test_products(n: int, num_c: int, num_q: int, height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pointwise, "_product", WithConstant(pointwise._product, 5))
    monkeypatch.setattr(pointwise, "_product_dw", WithConstant(pointwise._product_dw, 7))
    check_product(
        pointwise.product,
        pointwise.product_dw,
        n=n,
        num_c=num_c,
        num_q=num_q,
        height=height,
        width=23,
        dtype=torch.float32,
        rtol=1e-4,
        atol=1e-4,
    )


BOXES = Tile(32, 48, 16, num_warps=4, boxes=True)
MANY_SPLITS = BOXES._replace(programs=4096)


@pytest.mark.parametrize(
    ("batch", "num_c", "size", "tile"),
    [
        (2, 12, 5, None),
        (8, 8, 16, None),
        (2, 16, 4, BOXES),
        (5, 16, 8, BOXES),
        (8, 16, 16, BOXES),
        (5, 16, 8, MANY_SPLITS),
    ],
    ids=["at once", "in splits", "in boxes", "in boxes and a piece", "in boxes and splits", "in many splits"],
)
def test_gradients_of_weights_into_columns(
    batch: int, num_c: int, size: int, tile: Tile | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a buffer with other parameters on both sides: in its dtype, and nothing else is touched."""
    monkeypatch.setattr(pointwise, "_product_dw", WithConstant(pointwise._product_dw, 7))
    torch.manual_seed(0)
    n, num_q = 2, 16
    x, dy = (torch.randn(batch, size, size, n * num).half() for num in (num_c, num_q))  # no bfloat16 here
    for gradient, size_of_one in (
        (lambda *given, **into: weight_gradient(*given, n, 3, 1, 1, tile=tile, **into), 9 * num_c * num_q),
        (lambda *given, **into: pointwise.product_dw(*given, n, **into), num_c * num_q),
    ):
        flat = torch.full((n, 5 + size_of_one + 3), torch.nan)
        columns = flat[:, 5:-3]
        gradient(x, dy, into=columns)
        torch.testing.assert_close(columns, gradient(x.float(), dy.float()).flatten(1), rtol=1e-4, atol=1e-4)
        assert flat[:, :5].isnan().all()
        assert flat[:, -3:].isnan().all()


def whole_numbers(n: int, p: int) -> torch.Tensor:
    """Sums of them are exact in whatever order."""
    return torch.randint(-1000, 1000, (n, p)).double()


@pytest.mark.parametrize(
    ("graph", "n", "p"), [("ring-lattice:k=6", 32, 514), ("ring-lattice:k=22", 41, 257), ("ring-lattice:k=30", 37, 16)]
)
def test_mixing_over_a_window(graph: str, n: int, p: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mix, "_window", WithConstant(mix._window, 6))
    mixing = topologies.build(graph, n)(0)
    values = whole_numbers(n, p)
    assert mixing.window is not None
    mixed = mix.mix_lattice(values, mixing.window.half)
    torch.testing.assert_close(mixed, torch.as_tensor(mixing.matrix()) @ values)


@pytest.mark.parametrize(("graph", "p"), [("torus", 700), ("star", 513), ("star", 1)])
def test_mixing_with_few_neighbours(graph: str, p: int) -> None:
    mixing = topologies.build(graph, 12)(0)
    neighbours, weights = (torch.from_numpy(table) for table in neighbour_table(mixing))
    values = torch.randn(12, p, dtype=torch.float64)
    mixed = mix.mix_few(values, neighbours, weights)
    torch.testing.assert_close(mixed, torch.as_tensor(mixing.matrix()) @ values)


@pytest.mark.parametrize(
    ("graph", "n", "p"),
    [
        ("ring", 4, 600),  # less than a tile
        ("ring", 32, 3),
        ("ring", 8, 1),  # a number each
        ("ring", 45, 514),  # tiles and a piece; blocks of columns and a piece
        ("ring-lattice:k=4", 37, 257),
        ("torus", 24, 256),
        ("torus", 35, 258),
        ("torus:rows=2", 10, 260),
        ("exponential", 40, 5),
    ],
)
def test_mixing_in_tiles(graph: str, n: int, p: int) -> None:
    mixing = topologies.build(graph, n)(0)
    places = places_around(mixing)
    assert places is not None
    tile, _ = mix_tiles.best_tile(*places)
    assert tile is not None
    values = whole_numbers(n, p)
    mixed = mix_tiles.mean_of_places(values, *places, tile)
    torch.testing.assert_close(mixed, torch.as_tensor(mixing.matrix()) @ values)


@pytest.mark.parametrize("graph", ["ring", "torus", "exponential", "star", "ring-lattice:k=8", "erdos-renyi:p=0.9"])
def test_whatever_kernel_a_gpu_takes_for_a_graph(graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mix, "_window", WithConstant(mix._window, 6))
    mixing = topologies.build(graph, 12)(0)
    values = whole_numbers(12, 20)
    mixed = _gpu_operator(mixing, torch.float64, torch.device("cpu"))(values)
    torch.testing.assert_close(mixed, torch.as_tensor(mixing.matrix()) @ values)


@pytest.mark.parametrize("tile", [(1, 16, 2), (4, 8, 1)])
def test_the_tile_changes_no_bit(tile: tuple[int, int, int]) -> None:
    places = places_around(topologies.build("torus", 24)(0))
    assert places is not None
    values = torch.randn(24, 600)
    best, _ = mix_tiles.best_tile(*places)
    assert best is not None
    results = [mix_tiles.mean_of_places(values, *places, each) for each in (best, mix_tiles.Tile(*tile))]
    assert torch.equal(*results)


def test_a_tile_reads_a_row_about_once() -> None:
    read = {}
    for graph in ("ring", "torus", "exponential"):
        places = places_around(topologies.build(graph, 1008)(0))
        assert places is not None
        _, read[graph] = mix_tiles.best_tile(*places)
    assert read == pytest.approx({"ring": 18 / 16, "torus": 1960 / 1008, "exponential": 8.0})
