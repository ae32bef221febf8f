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
        if node.target is aten.scatter_add.default:
            zeros, _, numbers, slopes = node.args
            *_, indices = chain = chain_of(numbers)
            if zeros.target is aten.full.default and zeros.args[1] == 0 and _are_apart(indices) and in_order(chain):
                with graph.inserting_before(node):
                    spread = _spread(graph, indices.args[0], indices.args[1], slopes)
                    new = call(graph, aten.reshape.default, (spread, list(node.meta["val"].shape)))
                node.replace_all_uses_with(new)
                graph.erase_node(node)


def _are_apart(indices: Node) -> bool:
    """Whether these are the pixels that were largest in windows that do not overlap and leave none out."""
    if indices.target is not prims._low_memory_max_pool_offsets_to_indices.default:
        return False
    arguments: Any = indices.args
    offsets, kernel, size, stride, padding, dilation = arguments
    wide = [sides * num for sides, num in zip(kernel, offsets.meta["val"].shape[-2:], strict=False)]
    is_tiled = len(kernel) == 2 and list(kernel) == list(stride) and list(size) == wide
    return is_tiled and set(padding) == {0} and set(dilation) == {1}


def _spread(graph: Graph, offsets: Any, kernel: Any, slopes: Node) -> Node:
    """Images [A, C, H, W] with slopes [A, C, H/k, W/k] at the pixel of each window that `offsets` names."""
    largest, slope = offsets.meta["val"], slopes.meta["val"]
    num_a, num_c, height, width = largest.shape
    # kept from the forward pass, channels innermost; else every kernel would find it anew from the images
    strides = torch.empty(largest.shape, device="meta").to(memory_format=torch.channels_last).stride()
    with graph.inserting_after(offsets):
        kept = written(graph, offsets, strides)
    windows = [num_a, num_c, height, 1, width, 1]
    places = make(
        graph, largest, prims.iota.default, prod(kernel), start=0, step=1, dtype=torch.int64, requires_grad=False
    )
    in_window = call(graph, aten.reshape.default, (places, [1, 1, 1, kernel[0], 1, kernel[1]]))
    is_largest = call(graph, aten.eq.Tensor, (call(graph, aten.reshape.default, (kept, windows)), in_window))
    zero = make(graph, slope, aten.full.default, [], 0.0, dtype=slope.dtype, layout=torch.strided, pin_memory=False)
    spread = call(graph, aten.where.self, (is_largest, call(graph, aten.reshape.default, (slopes, windows)), zero))
    return call(graph, aten.reshape.default, (spread, [num_a, num_c, height * kernel[0], width * kernel[1]]))
