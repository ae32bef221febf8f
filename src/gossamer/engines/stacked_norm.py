"""Gradients of batch norm in a compiler's graph of stacked replicas."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node

from .stacked_graph import call

aten = torch.ops.aten

_SHAPED = (
    aten.reshape.default,
    aten.view.default,
    aten.permute.default,
    aten.unsqueeze.default,
    aten.squeeze.dims,
    aten.clone.default,
)
_IMAGES = [0, 2, 3]
"""What batch norm sums over in `[B, N·C, H, W]`."""


class _Backward(NamedTuple):
    """The backward pass of one batch norm, as `vmap` writes it: its slopes dy come as `[N, C, B, H, W]` for the
    gradients of the norm's own parameters, and times the weight as `[B, N·C, H, W]` for that of its images."""

    slopes: Node
    """dy, `[N, C, B, H, W]`"""
    weighted: Node
    """dy · weight, `[B, N·C, H, W]`"""
    weight: Node
    """`[N, C, 1, 1, 1]`"""
    away: Node
    """x - mean, `[B, N·C, H, W]`"""
    scale: Node
    """1 / deviation, `[N, C, 1, 1, 1]`"""
    sums: tuple[Node, Node]
    """Σ dy · weight and Σ dy · weight · (x - mean), `[N·C]`"""
    gradients: tuple[Node, Node]
    """Σ dy and Σ dy · (x - mean) · scale, `[N, C]`: of the bias and of the weight."""


def share_sums_of_norms(graph: Graph) -> None:
    """Batch norm's backward pass reads its images once for all its sums: those for the gradient of its images are those
    for its own parameters times the weight. `vmap` asks for both, in two orders, and the compiler reads for each."""
    sums = [node for node in graph.nodes if node.target is aten.sum.dim_IntList and list(node.args[1]) == _IMAGES]
    for norm in [_backward_that_sums(node) for node in sums]:
        if norm is not None:
            _share(graph, norm)


def _share(graph: Graph, norm: _Backward) -> None:
    shape = list(norm.gradients[0].meta["val"].shape)
    first = next(node for node in graph.nodes if node in (*norm.sums, *norm.gradients))
    for node in (norm.away, norm.scale):
        _move_before(first, node)
    with graph.inserting_before(first):
        num_b, channels, height, width = norm.weighted.meta["val"].shape
        turned = call(graph, aten.permute.default, (norm.slopes, [2, 0, 1, 3, 4]))
        slopes = call(graph, aten.reshape.default, (turned, [num_b, channels, height, width]))
        weight, scale = (call(graph, aten.reshape.default, (of, [channels])) for of in (norm.weight, norm.scale))
        plain = call(graph, aten.sum.dim_IntList, (slopes, _IMAGES))
        away = call(graph, aten.sum.dim_IntList, (call(graph, aten.mul.Tensor, (slopes, norm.away)), _IMAGES))
        scaled = call(graph, aten.mul.Tensor, (away, scale))
        replaced = {
            norm.sums[0]: call(graph, aten.mul.Tensor, (plain, weight)),
            norm.sums[1]: call(graph, aten.mul.Tensor, (away, weight)),
            norm.gradients[0]: call(graph, aten.reshape.default, (plain, shape)),
            norm.gradients[1]: call(graph, aten.reshape.default, (scaled, shape)),
        }
    for old, new in replaced.items():
        old.replace_all_uses_with(new)
        graph.erase_node(old)


def _move_before(first: Node, node: Node) -> None:
    """A node and what it needs, as far as they stand behind."""
    if first < node:
        for needed in node.all_input_nodes:
            _move_before(first, needed)
        first.prepend(node)


def _backward_that_sums(total: Node) -> _Backward | None:
    """Whose first sum over images this is, if it is one."""
    weighted: Any = total.args[0]
    product = _origin(weighted)
    if product.target is not aten.mul.Tensor:
        return None
    slopes, weight = _nodes(product)
    if slopes is None or slopes.meta["val"].ndim != 5 or not _is_of_channels(weight, slopes):
        return None
    if not _lie_alike(weighted, product, product):
        return None
    away, of_weighted = _summed_products(weighted, _IMAGES)
    scaled, of_weight = _summed_products(slopes, [2, 3, 4])
    of_bias = _summed(slopes, [2, 3, 4])
    if away is None or scaled is None or of_weighted is None or of_weight is None or of_bias is None:
        return None
    scale = _scale_of(scaled, away)
    if scale is None:
        return None
    return _Backward(slopes, weighted, weight, away, scale, (total, of_weighted), (of_bias, of_weight))


def _scale_of(scaled: Node, away: Node) -> Node | None:
    """What `scaled` `[N, C, B, H, W]` is times `away` `[B, N·C, H, W]`: one number for each channel."""
    if scaled.target is not aten.mul.Tensor or away.target is not aten.sub.Tensor:
        return None
    difference, scale = _nodes(scaled)
    if difference is None or difference.target is not aten.sub.Tensor or not _is_of_channels(scale, difference):
        return None
    (x, mean), (same_x, same_mean) = _nodes(away), _nodes(difference)
    if x is None or same_x is None or _origin(x) is not _origin(same_x):
        return None
    if mean is None or same_mean is None or _origin(mean) is not _origin(same_mean):
        return None
    are_same = _are_in_order(mean) and _are_in_order(same_mean) and _lie_alike(x, same_x, _origin(x))
    return scale if are_same else None


def _nodes(node: Node) -> tuple[Any, Any]:
    """Both arguments of a sum, difference or product, if they are nodes."""
    left, right = node.args[:2]
    return (left, right) if isinstance(left, Node) and isinstance(right, Node) else (None, None)


def _is_of_channels(node: Node, images: Node) -> bool:
    """Whether there is one number for each channel of images `[N, C, B, H, W]`."""
    return list(node.meta["val"].shape) == [*images.meta["val"].shape[:2], 1, 1, 1]


def _summed_products(factor: Node, over: list[int]) -> tuple[Any, Any]:
    """The other factor, and the sum over these dimensions, of a product that somebody sums; the only one."""
    found: list[tuple[Any, Node]] = []
    for user in factor.users:
        total = _summed(user, over) if user.target is aten.mul.Tensor else None
        if total is not None and factor in user.args:
            other = user.args[1] if user.args[0] is factor else user.args[0]
            found.append((other, total))
    return found[0] if len(found) == 1 else (None, None)


def _summed(node: Node, over: list[int]) -> Node | None:
    sums = [user for user in node.users if user.target is aten.sum.dim_IntList and user.args == (node, over)]
    return sums[0] if len(sums) == 1 else None


def _origin(node: Node) -> Node:
    """Where numbers come from that are but shaped or turned around on the way."""
    while node.target in _SHAPED:
        node = node.all_input_nodes[0]
    return node


def _through(node: Node, origin: Node) -> Tensor | None:
    """How the numbers of `origin` lie in `node`: a tensor without values; None if they would have to be moved."""
    way = []
    while node is not origin:
        way.append(node)
        node = node.all_input_nodes[0]
    value = torch.empty(origin.meta["val"].shape, device="meta")
    try:
        for step in reversed(way):
            if step.target in (aten.reshape.default, aten.view.default):
                value = value.view(step.args[1])  # type: ignore[arg-type]
            elif step.target is not aten.clone.default:
                value = step.target(value, *step.args[1:])  # type: ignore[operator]
    except RuntimeError:
        return None
    return value


def _lie_alike(images: Node, stacked: Node, origin: Node) -> bool:
    """Whether `[B, N·C, H, W]`, joined from `[B, N, C, H, W]`, and `[N, C, B, H, W]` are the same numbers."""
    if images.target not in (aten.reshape.default, aten.view.default) or images is origin:
        return False
    one, other = _through(images.all_input_nodes[0], origin), _through(stacked, origin)
    if one is None or other is None or other.ndim != 5:
        return False
    turned = other.permute(2, 0, 1, 3, 4)
    num_b, n, c, height, width = turned.shape
    is_joined = list(images.meta["val"].shape) == [num_b, n * c, height, width]
    return is_joined and one.shape == turned.shape and one.stride() == turned.stride()


def _are_in_order(node: Node) -> bool:
    value = _through(node, _origin(node))
    return value is not None and value.is_contiguous()
