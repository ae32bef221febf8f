"""Gradients of pooling in a compiler's graph of stacked replicas."""

from math import prod
from typing import Any

import torch
from torch.fx import Graph, Node

from .stacked_graph import call, chain_of, in_order, make, written

aten, prims = torch.ops.aten, torch.ops.prims


def spread_pooled(graph: Graph) -> None:
    """The gradient of a maximum over windows that do not overlap: every pixel asks its window whether it was the
    largest there, wherever its gradient is wanted. The compiler adds to pixels found by their number instead, in a
    buffer of float32 and in another order than that of the images around it."""
    for node in list(graph.nodes):
        places = _numbers_and_slopes(node)
        if places is not None:
            numbers, slopes = places
            *_, indices = chain = chain_of(numbers)
            if _are_apart(indices) and in_order(chain):
                offsets, kernel = indices.args[:2]
                rectifier = _rectifier(node, offsets)
                kept = _kept(graph, offsets, rectifier is not None)
                with graph.inserting_before(node):
                    spread = _spread(graph, kept, kernel, slopes)
                    new = call(graph, aten.reshape.default, (spread, list(node.meta["val"].shape)))
                if rectifier is not None:
                    rectifier.replace_all_uses_with(rectifier.all_input_nodes[2])
                    graph.erase_node(rectifier)
                node.replace_all_uses_with(new)
                graph.erase_node(node)


def _numbers_and_slopes(node: Node) -> tuple[Node, Node] | None:
    """Of a node that adds slopes to pixels by their number, as one version of the compiler or another writes it."""
    arguments: Any = node.args
    if node.target is aten.scatter_add.default:
        zeros, _, numbers, slopes = arguments
        return (numbers, slopes) if _is_zero(zeros) else None
    if node.target is aten.max_pool2d_with_indices_backward.default:
        slopes, *_, numbers = arguments
        return numbers, slopes
    return None


def _rectifier(scattered: Node, offsets: Any) -> Node | None:
    """What sets the gradient to zero where the pooled images, rectified before, are: all that is made of it."""
    images = chain_of(offsets.args[0].args[0])[-1]
    node = scattered
    while len(node.users) == 1:
        before, (node,) = node, node.users
        if node.target is aten.where.self and node.args[2] is before:
            arguments: Any = node.args
            is_zero, zero, _ = arguments
            rectified = is_zero.target is aten.le.Scalar and is_zero.args == (images, 0)
            return node if rectified and _is_zero(zero) and images.target is aten.relu.default else None
        if chain_of(node)[1:2] != [before]:  # computes something else
            break
    return None


def _is_zero(node: Node) -> bool:
    return node.target in (aten.full.default, aten.scalar_tensor.default) and bool(node.args[-1] == 0)


def _are_apart(indices: Node) -> bool:
    """Whether these are the pixels that were largest in windows that do not overlap and leave none out."""
    if indices.target is not prims._low_memory_max_pool_offsets_to_indices.default:
        return False
    arguments: Any = indices.args
    offsets, kernel, size, stride, padding, dilation = arguments
    wide = [sides * num for sides, num in zip(kernel, offsets.meta["val"].shape[-2:], strict=False)]
    is_tiled = len(kernel) == 2 and list(kernel) == list(stride) and list(size) == wide
    return is_tiled and set(padding) == {0} and set(dilation) == {1}


def _kept(graph: Graph, offsets: Any, are_rectified: bool) -> Node:
    """Which pixel of its window was largest, kept from the forward pass with channels innermost; else every kernel
    would find it anew from the images. None, -1, in windows of zeros that were rectified: no gradient passes there."""
    largest = offsets.meta["val"]
    strides = torch.empty(largest.shape, device="meta").to(memory_format=torch.channels_last).stride()
    maxima = next(part for part in offsets.args[0].users if part.args[1] == 0)
    with graph.inserting_before(max(offsets, maxima).next):
        if are_rectified:
            none = make(
                graph, largest, aten.full.default, [], -1, dtype=largest.dtype, layout=torch.strided, pin_memory=False
            )
            offsets = call(graph, aten.where.self, (call(graph, aten.le.Scalar, (maxima, 0)), none, offsets))
        return written(graph, offsets, strides)


def _spread(graph: Graph, offsets: Node, kernel: Any, slopes: Node) -> Node:
    """Images [A, C, H, W] with slopes [A, C, H/k, W/k] at the pixel of each window that `offsets` names."""
    largest, slope = offsets.meta["val"], slopes.meta["val"]
    num_a, num_c, height, width = largest.shape
    windows = [num_a, num_c, height, 1, width, 1]
    places = make(
        graph, largest, prims.iota.default, prod(kernel), start=0, step=1, dtype=torch.int64, requires_grad=False
    )
    in_window = call(graph, aten.reshape.default, (places, [1, 1, 1, kernel[0], 1, kernel[1]]))
    is_largest = call(graph, aten.eq.Tensor, (call(graph, aten.reshape.default, (offsets, windows)), in_window))
    zero = make(graph, slope, aten.full.default, [], 0.0, dtype=slope.dtype, layout=torch.strided, pin_memory=False)
    spread = call(graph, aten.where.self, (is_largest, call(graph, aten.reshape.default, (slopes, windows)), zero))
    return call(graph, aten.reshape.default, (spread, [num_a, num_c, height * kernel[0], width * kernel[1]]))
