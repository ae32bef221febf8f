"""The GPU kernels, run number by number on a CPU by Triton's interpreter."""

import os
from typing import Any

import pytest
import torch
from convolutions import check_convolution

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
