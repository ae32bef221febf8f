"""Compiles stacked functions, with convolutions of our own on a GPU."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

aten = torch.ops.aten


def compile_stacked(function: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compile` for fixed shapes."""
    compiled: Callable[..., Any] = torch.compile(
        _with_code_of_its_own(function), dynamic=False, options={"post_grad_custom_pre_pass": _OurConvolutions()}
    )
    return compiled


def _with_code_of_its_own(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function. The compiler gives up on a piece of code that it has compiled eight times, and all functions
    that `vmap` makes are one piece of code: the third engine of a process would run uncompiled."""

    def call(*arguments: Any) -> Any:
        return function(*arguments)

    return FunctionType(call.__code__.replace(), call.__globals__, call.__name__, None, call.__closure__)


class _OurConvolutions(CustomGraphPass):
    """Replaces the grouped convolutions that `vmap` makes, and their gradients, by the kernels of `kernels.conv`."""

    def __call__(self, graph: Graph) -> None:
        for node in list(graph.nodes):
            if node.target is aten.convolution.default and _is_ours(*node.args[:2], *node.args[3:]):
                _replace_forward(graph, node)
            elif node.target is aten.convolution_backward.default and _is_ours(*node.args[1:3], *node.args[4:10]):
                _replace_backward(graph, node)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,))


def _is_ours(
    x: Node,
    w: Node,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> bool:
    value, weights = x.meta["val"], w.meta["val"]
    if not (value.is_cuda and value.dtype == weights.dtype == torch.bfloat16 and value.ndim == 4 and groups > 1):
        return False
    from .kernels.conv import takes

    return (
        weights.shape[0] // groups >= 8  # a depthwise convolution would be nearly all padding
        and len(set(stride)) == len(set(padding)) == 1
        and set(dilation) == {1}
        and not transposed
        and takes(value.shape[2], value.shape[3], (weights.shape[2], weights.shape[3]), stride[0], padding[0])
    )


def _replace_forward(graph: Graph, node: Node) -> None:
    from .kernels import conv  # noqa: F401 - registers the operators

    x, w, bias, stride, *_, groups = node.args
    with graph.inserting_before(node):
        y = _call(graph, torch.ops.gossamer.stacked_conv.default, (x, w, groups, stride[0]))  # type: ignore[index]
        if bias is not None:
            y = _call(graph, aten.add.Tensor, (y, _call(graph, aten.view.default, (bias, [1, -1, 1, 1]))))
    node.replace_all_uses_with(y)
    graph.erase_node(node)


def _replace_backward(graph: Graph, node: Node) -> None:
    from .kernels import conv  # noqa: F401 - registers the operators

    dy, x, w, _, stride, *_, groups, _ = node.args
    ops = torch.ops.gossamer
    for part in list(node.users):  # getitem nodes: the gradients for x, w and the bias, as far as asked for
        with graph.inserting_before(part):
            match part.args[1]:
                case 0:
                    new = _call(graph, ops.stacked_conv_dx.default, (dy, w, groups, stride[0]))  # type: ignore[index]
                case 1:
                    kernel = w.meta["val"].shape[-1]  # type: ignore[union-attr]
                    given = (dy, x, kernel, groups, stride[0])  # type: ignore[index]
                    new = _call(graph, ops.stacked_conv_dw.default, given)
                case _:
                    new = _call(graph, aten.sum.dim_IntList, (dy, [0, 2, 3]))
        part.replace_all_uses_with(new)
        graph.erase_node(part)
    graph.erase_node(node)


def _call(graph: Graph, operator: Callable[..., Any], arguments: tuple[Any, ...]) -> Node:
    node = graph.call_function(operator, arguments)
    values = [a.meta["val"] if isinstance(a, Node) else a for a in arguments]
    fake = next(value.fake_mode for value in values if isinstance(value, Tensor))  # type: ignore[attr-defined]
    with fake:
        node.meta["val"] = operator(*values)
    return node
