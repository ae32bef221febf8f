"""Convolutions on a GPU, in boxes where it copies boxes, beside torch's own."""

import os
from collections.abc import Callable

import pytest
import torch
from convolutions import check_convolution
from torch import Tensor

pytest.importorskip("triton", reason="Triton is for Linux")

from gossamer.engines.kernels.conv import correlate, weight_gradient

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or "TRITON_INTERPRET" in os.environ, reason="needs a GPU, and kernels compiled for it"
)


def twice_on_a_gpu(kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """As the kernel, for images in memory of the CPU, whose sums must repeat bit by bit."""

    def on_a_gpu(*arguments: object) -> Tensor:
        there = [a.to("cuda", torch.bfloat16) if isinstance(a, Tensor) else a for a in arguments]
        first, second = kernel(*there), kernel(*there)
        assert torch.equal(first, second)
        return first.cpu().float()

    return on_a_gpu


@pytest.mark.parametrize(
    ("n", "batch", "num_c", "num_q", "size", "stride"),
    [
        (3, 32, 512, 512, 2, 1),
        (3, 32, 256, 512, 4, 1),
        (3, 32, 256, 256, 8, 1),
        (3, 8, 128, 128, 16, 1),
        (5, 32, 64, 64, 8, 1),
        (3, 8, 64, 64, 32, 1),
        (3, 5, 64, 128, 8, 1),  # images that do not fill a box
        (3, 8, 64, 128, 16, 2),
        (3, 8, 3, 64, 32, 1),
        (3, 8, 16, 32, 16, 2),
    ],
)
def test_convolutions_of_bfloat16(n: int, batch: int, num_c: int, num_q: int, size: int, stride: int) -> None:
    """Products and sums of small whole numbers are exact in float32; only results are rounded."""
    check_convolution(
        twice_on_a_gpu(correlate),
        twice_on_a_gpu(weight_gradient),
        n=n,
        batch=batch,
        num_c=num_c,
        num_q=num_q,
        height=size,
        width=size,
        kernel=3,
        stride=stride,
        padding=1,
        dtype=torch.float32,
        draw=lambda *shape: torch.randint(-2, 3, shape),
        rtol=0.005,
        atol=1e-3,
    )
