"""The GPU kernels, run number by number on a CPU by Triton's interpreter."""

import os
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from gossamer import topologies
from gossamer.engines.stacked_mix import neighbour_table

os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
pytest.importorskip("triton", reason="Triton is for Linux")

import triton.language as tl

from gossamer.engines.kernels import mix
from gossamer.engines.kernels.conv import correlate, weight_gradient


@pytest.mark.parametrize(
    ("n", "batch", "num_c", "num_q", "size", "kernel", "stride"),
    [
        (2, 3, 3, 16, 8, 3, 1),
        (2, 2, 16, 32, 8, 3, 2),
        (2, 3, 12, 20, 6, 1, 2),
        (1, 2, 20, 12, 5, 3, 1),
        (1, 2, 8, 130, 7, 3, 2),
    ],
)
def test_convolutions(n: int, batch: int, num_c: int, num_q: int, size: int, kernel: int, stride: int) -> None:
    torch.manual_seed(0)
    padding = kernel // 2
    x = torch.randn(batch, n * num_c, size, size)
    w = torch.randn(n * num_q, num_c, kernel, kernel)
    y = F.conv2d(x, w, stride=stride, padding=padding, groups=n)
    dy = torch.randn_like(y)
    dx, dw, _ = torch.ops.aten.convolution_backward(
        dy, x, w, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], n, [True, True, False]
    )
    images, slopes = (t.permute(0, 2, 3, 1).contiguous() for t in (x, dy))
    filters = w.view(n, num_q, num_c, kernel, kernel)
    ours = correlate(images, filters.permute(0, 3, 4, 2, 1).contiguous(), stride, 1, padding, *y.shape[2:])
    turned = filters.flip(3, 4).permute(0, 3, 4, 1, 2).contiguous()
    ours_dx = correlate(slopes, turned, 1, stride, kernel - 1 - padding, size, size)
    ours_dw = weight_gradient(images, slopes, n, kernel, stride, padding)
    torch.testing.assert_close(ours.permute(0, 3, 1, 2), y, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours_dx.permute(0, 3, 1, 2), dx, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours_dw.permute(0, 4, 3, 1, 2).reshape(w.shape), dw, rtol=1e-4, atol=1e-4)


class WithConstantLength:
    """The sliding window as its interpreter can run it: that cannot count up to an argument that is not a constant."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **options: Any) -> None:
            self._kernel[grid](*arguments[:6], tl.constexpr(arguments[6]), *arguments[7:], **options)

        return launch


@pytest.mark.parametrize("graph", ["ring", "torus", "exponential", "ring-lattice:k=6", "ring-lattice:k=22"])
def test_mixing(graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mix, "_window", WithConstantLength(mix._window))
    mixing = topologies.build(graph, 24)(0)
    values = torch.randn(24, 700, dtype=torch.float64)
    if mixing.window is None:
        neighbours, weights = (torch.from_numpy(table) for table in neighbour_table(mixing))
        mixed = mix.mix_few(values, neighbours, weights)
    else:
        mixed = mix.mix_lattice(values, mixing.window.half)
    torch.testing.assert_close(mixed, torch.as_tensor(mixing.matrix()) @ values)
