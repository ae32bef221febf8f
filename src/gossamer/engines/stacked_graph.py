"""What is rewritten in a compiler's graph of stacked replicas so that numbers are read and written once."""

from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from typing import Any

import torch
from torch._inductor import inductor_prims
from torch.fx import Graph, Node

from . import stacked_conv  # noqa: F401  its operators

aten, prims, ours = torch.ops.aten, torch.ops.prims, torch.ops.gossamer

_CAST = prims.convert_element_type.default
_SAME_NUMBERS = (aten.reshape.default, aten.view.default, aten.permute.default, aten.clone.default, _CAST)
_INTO: dict[Any, Any] = {
    ours.stacked_conv_dw.default: ours.stacked_conv_dw_into.default,
    ours.stacked_product_dw.default: ours.stacked_product_dw_into.default,
}


def call(graph: Graph, operator: Callable[..., Any], arguments: tuple[Any, ...]) -> Node:
    """A new node, where the graph inserts at the moment. At least one of the arguments is a node too."""
    node = graph.call_function(operator, arguments)
    values = torch.fx.node.map_arg(arguments, lambda argument: argument.meta["val"])
    with next(argument.meta["val"] for argument in node.all_input_nodes).fake_mode:
        node.meta["val"] = operator(*values)
    return node


def make(graph: Graph, like: torch.Tensor, operator: Callable[..., Any], *arguments: Any, **about: Any) -> Node:
    """A node that comes from nothing, on the device of `like`."""
    about["device"] = like.device
    node = graph.call_function(operator, arguments, about)
    with like.fake_mode:  # type: ignore[attr-defined]
        node.meta["val"] = operator(*arguments, **about)
    return node


def written(graph: Graph, node: Node, strides: Sequence[int]) -> Node:
    """Written down once, and not computed anew for each that uses it, as the compiler may do with a clone."""
    return call(graph, inductor_prims.force_stride_order, (node, list(strides)))


def merge_equal(graph: Graph) -> None:
    """Casts and layouts that several ask for, as one. The forward pass and the backward pass ask for the same weights
    and images; the compiler would write them down for each."""
    found: dict[tuple[Any, str, str], Node] = {}
    for node in list(graph.nodes):
        if node.target in _SAME_NUMBERS:
            first = found.setdefault((node.target, str(node.args), str(node.kwargs)), node)
            if first is not node and all(user.op != "output" for user in node.users):
                node.replace_all_uses_with(first)
                graph.erase_node(node)


def gather_in_place(graph: Graph) -> None:
    """Gradients of weights, `[N, P]` of all parameters: each kernel writes its own into that buffer, in its dtype,
    where they would be joined (and cast) afterwards, which reads and writes all of them once more."""
    for joined in list(graph.nodes):
        if joined.target is aten.cat.default and joined.meta["val"].ndim == 2 and joined.args[1:] in ((1,), (-1,)):
            gradients = [_gradient(part) for part in joined.args[0]]
            written_by_us = sum(gradient.meta["val"].numel() for gradient in gradients if gradient is not None)
            if 2 * written_by_us > joined.meta["val"].numel():  # the others are copied once more than before
                _gather(graph, joined, gradients)


def _gather(graph: Graph, joined: Node, gradients: list[Node | None]) -> None:
    parts: list[Node] = joined.args[0]  # type: ignore[assignment]
    starts = [0, *accumulate(part.meta["val"].shape[1] for part in parts)]
    flat = joined.meta["val"]
    with graph.inserting_before(next(node for node in graph.nodes if node in gradients)):
        buffer = make(graph, flat, aten.empty.memory_format, list(flat.shape), dtype=flat.dtype, pin_memory=False)
    for gradient, start in zip(gradients, starts[:-1], strict=True):
        if gradient is not None:
            x, dy, _, *how = gradient.args
            with graph.inserting_before(gradient):
                call(graph, _INTO[gradient.target], (buffer, start, x, dy, *how))
    with graph.inserting_before(joined):
        _put_the_others(graph, buffer, parts, [gradient is not None for gradient in gradients], starts)
    joined.replace_all_uses_with(buffer)
    graph.erase_node(joined)
    for part, gradient in zip(parts, gradients, strict=True):
        if gradient is not None:
            for node in chain_of(part):
                graph.erase_node(node)


def _put_the_others(graph: Graph, buffer: Node, parts: list[Node], are_there: list[bool], starts: list[int]) -> None:
    """Small ones (of norms, biases): joined, and from there into the gaps."""
    others = [part for part, is_there in zip(parts, are_there, strict=True) if not is_there]
    if not others:
        return
    values = call(graph, aten.cat.default, (others, 1)) if len(others) > 1 else others[0]
    gaps = [
        [i for i, _ in run] for is_there, run in groupby(enumerate(are_there), lambda each: each[1]) if not is_there
    ]
    firsts = [starts[gap[0]] for gap in gaps]
    sizes = [starts[gap[-1] + 1] - starts[gap[0]] for gap in gaps]
    call(graph, ours.put_columns.default, (buffer, values, firsts, sizes))


def _gradient(part: Node) -> Node | None:
    """The operator of ours that makes these numbers in this order, if nobody else wants them."""
    chain = chain_of(part)
    source = chain[-1]
    if source.target not in _INTO or any(len(node.users) > 1 for node in chain):
        return None
    return source if in_order(chain) else None


def chain_of(node: Node) -> list[Node]:
    """A node and those before it that have the same numbers, back to where they come from."""
    chain = [node]
    while chain[-1].target in _SAME_NUMBERS:
        chain.append(chain[-1].all_input_nodes[0])
    return chain


def in_order(chain: list[Node]) -> bool:
    """Whether numbers that are turned around on the way are in their old order at its end."""
    value = torch.empty(chain[-1].meta["val"].shape, device="meta")
    shape: Any = value.shape
    try:
        for node in reversed(chain[:-1]):
            if node.target is aten.permute.default:
                value = value.view(shape).permute(node.args[1])  # type: ignore[arg-type]
                shape = value.shape
            else:
                shape = node.meta["val"].shape  # of several in a row, the last one counts
        return value.view(shape).is_contiguous()
    except RuntimeError:  # numbers would have to be moved
        return False
