"""Convolutions of stacked replicas as operators that a compiler can put into its graph.

All tensors are contiguous: images `[B, H, W, N·C]`, weights `[N, K, K, C, Q]`, whatever the model calls its dimensions;
weights of 1 x 1 pixel `[N, Q, C]`, as the model has them.
On a GPU they run kernels of our own; elsewhere they say what these compute.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

ours = torch.ops.gossamer
_LAYOUT = (torch.Tag.needs_contiguous_strides,)
"""Without it, a compiler takes the liberty of handing over whatever layout its own kernels like best."""


@torch.library.custom_op("gossamer::stacked_conv", mutates_args=(), tags=_LAYOUT)
def stacked_conv(
    x: Tensor, w: Tensor, stride: int, spread: int, padding: int, height: int, width: int, turned: bool
) -> Tensor:
    """Images `[B, height, width, N·Q]`: each replica's, with `spread - 1` zeros put between the pixels and `padding`
    around them, correlated with its weights. These may be `turned`: from the last pixel to the first, Q for C."""
    if x.is_cuda:
        from .kernels.conv import correlate

        return correlate(x, w, stride, spread, padding, height, width, turned)
    if turned:
        w = w.flip(1, 2).transpose(3, 4)
    n, kernel, _, num_c, num_q = w.shape
    images = x.permute(0, 3, 1, 2)
    wide = images.new_zeros(*images.shape[:2], height * stride + kernel, width * stride + kernel)
    rows, columns = (min(spread * size, there) for size, there in zip(images.shape[2:], wide.shape[2:], strict=True))
    inner = wide[..., padding:, padding:]
    inner[..., :rows:spread, :columns:spread] = images
    filters = w.permute(0, 4, 3, 1, 2).reshape(n * num_q, num_c, kernel, kernel)
    y = torch.conv2d(wide, filters, stride=stride, groups=n)[..., :height, :width]
    return y.permute(0, 2, 3, 1).contiguous()


@stacked_conv.register_fake
def _(x: Tensor, w: Tensor, stride: int, spread: int, padding: int, height: int, width: int, turned: bool) -> Tensor:
    return x.new_empty(x.shape[0], height, width, w.shape[0] * w.shape[3 if turned else 4])


@torch.library.custom_op("gossamer::stacked_conv_dw", mutates_args=(), tags=_LAYOUT)
def stacked_conv_dw(x: Tensor, dy: Tensor, n: int, kernel: int, stride: int, padding: int) -> Tensor:
    """The gradient for the weights, `[N, K, K, C, Q]`."""
    if x.is_cuda:
        from .kernels.conv import weight_gradient

        return weight_gradient(x, dy, n, kernel, stride, padding)
    return _plain_dw(x, dy, n, kernel, stride, padding)


def _plain_dw(x: Tensor, dy: Tensor, n: int, kernel: int, stride: int, padding: int) -> Tensor:
    images, slopes = x.permute(0, 3, 1, 2), dy.permute(0, 3, 1, 2)
    num_c, num_q = images.shape[1] // n, slopes.shape[1] // n
    weights = x.new_empty(n * num_q, num_c, kernel, kernel)  # only its shape counts
    dw: Tensor
    _, dw, _ = torch.ops.aten.convolution_backward(
        slopes, images, weights, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], n, [False, True, False]
    )
    return dw.view(n, num_q, num_c, kernel, kernel).permute(0, 3, 4, 2, 1).contiguous()


@stacked_conv_dw.register_fake
def _(x: Tensor, dy: Tensor, n: int, kernel: int, stride: int, padding: int) -> Tensor:
    return x.new_empty(n, kernel, kernel, x.shape[3] // n, dy.shape[3] // n)


@torch.library.custom_op("gossamer::stacked_product", mutates_args=(), tags=_LAYOUT)
def stacked_product(x: Tensor, w: Tensor, by_q: bool) -> Tensor:
    """Images `[B, H, W, N·Q]`: each replica's pixels times its matrix, `[N, Q, C]` if `by_q`, else `[N, C, Q]`."""
    if x.is_cuda:
        from .kernels.pointwise import product

        return product(x, w, by_q)
    pixels = x.view(*x.shape[:3], len(w), -1)
    return torch.einsum("bhwnc,nqc->bhwnq" if by_q else "bhwnc,ncq->bhwnq", pixels, w).flatten(3).contiguous()


@stacked_product.register_fake
def _(x: Tensor, w: Tensor, by_q: bool) -> Tensor:
    return x.new_empty(*x.shape[:3], w.shape[0] * w.shape[1 if by_q else 2])


@torch.library.custom_op("gossamer::stacked_product_dw", mutates_args=(), tags=_LAYOUT)
def stacked_product_dw(x: Tensor, dy: Tensor, n: int) -> Tensor:
    """The gradient for the matrices, `[N, Q, C]`."""
    if x.is_cuda:
        from .kernels.pointwise import product_dw

        return product_dw(x, dy, n)
    return _plain_product_dw(x, dy, n)


def _plain_product_dw(x: Tensor, dy: Tensor, n: int) -> Tensor:
    pixels, slopes = (t.view(*t.shape[:3], n, -1) for t in (x, dy))
    return torch.einsum("bhwnc,bhwnq->nqc", pixels, slopes).contiguous()


@stacked_product_dw.register_fake
def _(x: Tensor, dy: Tensor, n: int) -> Tensor:
    return x.new_empty(n, dy.shape[3] // n, x.shape[3] // n)


@torch.library.custom_op("gossamer::stacked_conv_dw_into", mutates_args=("flat",), tags=_LAYOUT)
def stacked_conv_dw_into(
    flat: Tensor, start: int, x: Tensor, dy: Tensor, kernel: int, stride: int, padding: int
) -> None:
    """The gradient for the weights into columns of `flat` [N, P] from `start` on, as `[K, K, C, Q]`."""
    if x.is_cuda:
        _conv_dw_into(flat, start, x, dy, kernel, stride, padding)
    else:
        dw = _plain_dw(x.to(flat.dtype), dy.to(flat.dtype), len(flat), kernel, stride, padding)
        _columns(flat, start, x, dy, kernel).copy_(dw.flatten(1))


def _conv_dw_into(flat: Tensor, start: int, x: Tensor, dy: Tensor, kernel: int, stride: int, padding: int) -> None:
    from .kernels.conv import weight_gradient

    weight_gradient(x, dy, len(flat), kernel, stride, padding, into=_columns(flat, start, x, dy, kernel))


@torch.library.custom_op("gossamer::stacked_product_dw_into", mutates_args=("flat",), tags=_LAYOUT)
def stacked_product_dw_into(flat: Tensor, start: int, x: Tensor, dy: Tensor) -> None:
    """The gradient for the matrices into columns of `flat` [N, P] from `start` on, as `[Q, C]`."""
    if x.is_cuda:
        _product_dw_into(flat, start, x, dy)
    else:
        dw = _plain_product_dw(x.to(flat.dtype), dy.to(flat.dtype), len(flat))
        _columns(flat, start, x, dy, 1).copy_(dw.flatten(1))


def _product_dw_into(flat: Tensor, start: int, x: Tensor, dy: Tensor) -> None:
    from .kernels.pointwise import product_dw

    product_dw(x, dy, len(flat), into=_columns(flat, start, x, dy, 1))


def _columns(flat: Tensor, start: int, x: Tensor, dy: Tensor, kernel: int) -> Tensor:
    n = len(flat)
    return flat[:, start : start + kernel**2 * (x.shape[3] // n) * (dy.shape[3] // n)]


@torch.library.custom_op("gossamer::put_columns", mutates_args=("flat",), tags=_LAYOUT)
def put_columns(flat: Tensor, values: Tensor, starts: list[int], sizes: list[int]) -> None:
    """`values` [N, ...], cut into so many columns each, into `flat` [N, P] from each of `starts` on."""
    for start, part in zip(starts, torch.split(values, sizes, 1), strict=True):
        flat[:, start : start + part.shape[1]] = part


for written in (stacked_conv_dw_into, stacked_product_dw_into, put_columns):
    written.register_fake(lambda *_: None)


def compile_ahead(graph: Graph) -> None:
    """Compile the kernels of these operators in a graph for a GPU, in threads, while its compiler works on the rest."""
    from .kernels import conv, pointwise

    kernels: dict[Any, Callable[..., Any]] = {
        ours.stacked_conv.default: conv.correlate,
        ours.stacked_conv_dw.default: conv.weight_gradient,
        ours.stacked_product.default: pointwise.product,
        ours.stacked_product_dw.default: pointwise.product_dw,
        ours.stacked_conv_dw_into.default: _conv_dw_into,
        ours.stacked_product_dw_into.default: _product_dw_into,
    }
    for node in graph.nodes:
        if node.target in kernels:
            values = [argument.meta["val"] if isinstance(argument, Node) else argument for argument in node.args]
            with values[0].fake_mode:
                kernels[node.target](*values)
