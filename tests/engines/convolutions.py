"""Convolutions of stacked replicas with channels innermost, beside torch's own."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F


def check_convolution(
    correlate: Callable[..., torch.Tensor],
    weight_gradient: Callable[..., torch.Tensor],
    *,
    n: int,
    batch: int,
    num_c: int,
    num_q: int,
    height: int,
    width: int,
    kernel: int,
    stride: int,
    padding: int,
    dtype: torch.dtype,
    draw: Callable[..., torch.Tensor] = torch.randn,
    **tolerance: Any,
) -> None:
    """The result and both gradients."""
    torch.manual_seed(0)
    x = draw(batch, n * num_c, height, width).to(dtype)
    w = draw(n * num_q, num_c, kernel, kernel).to(dtype)
    y = F.conv2d(x, w, stride=stride, padding=padding, groups=n)
    dy = draw(*y.shape).to(dtype)
    dx, dw, _ = torch.ops.aten.convolution_backward(
        dy, x, w, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], n, [True, True, False]
    )
    images, slopes = (t.permute(0, 2, 3, 1).contiguous() for t in (x, dy))
    filters = w.view(n, num_q, num_c, kernel, kernel)
    filters = filters.permute(0, 3, 4, 2, 1).contiguous()
    ours = correlate(images, filters, stride, 1, padding, *y.shape[2:], False)
    ours_dx = correlate(slopes, filters, 1, stride, kernel - 1 - padding, height, width, True)
    ours_dw = weight_gradient(images, slopes, n, kernel, stride, padding)
    torch.testing.assert_close(ours.permute(0, 3, 1, 2), y, **tolerance)
    torch.testing.assert_close(ours_dx.permute(0, 3, 1, 2), dx, **tolerance)
    torch.testing.assert_close(ours_dw.permute(0, 4, 3, 1, 2).reshape(w.shape), dw, **tolerance)


def check_product(
    product: Callable[..., torch.Tensor],
    product_dw: Callable[..., torch.Tensor],
    *,
    n: int,
    num_c: int,
    num_q: int,
    dtype: torch.dtype,
    batch: int = 2,
    height: int = 5,
    width: int = 7,
    **tolerance: Any,
) -> None:
    """A convolution of 1 x 1 pixel and both gradients."""
    torch.manual_seed(0)
    x = torch.randn(batch, n * num_c, height, width, dtype=dtype)
    w = torch.randn(n * num_q, num_c, 1, 1, dtype=dtype)
    y = F.conv2d(x, w, groups=n)
    dy = torch.randn_like(y)
    dx, dw, _ = torch.ops.aten.convolution_backward(
        dy, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], n, [True, True, False]
    )
    images, slopes = (t.permute(0, 2, 3, 1).contiguous() for t in (x, dy))
    matrices = w.view(n, num_q, num_c)
    torch.testing.assert_close(product(images, matrices, True).permute(0, 3, 1, 2), y, **tolerance)
    torch.testing.assert_close(product(slopes, matrices, False).permute(0, 3, 1, 2), dx, **tolerance)
    torch.testing.assert_close(product_dw(images, slopes, n).view(w.shape), dw, **tolerance)
