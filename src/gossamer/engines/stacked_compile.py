"""Compiles stacked functions, with convolutions of our own on a GPU."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from . import stacked_conv, stacked_graph, stacked_norm, stacked_pool
from .stacked_graph import call, gather_in_place, merge_equal, written
from .stacked_norm import share_sums_of_norms
from .stacked_pool import spread_pooled

aten, ours = torch.ops.aten, torch.ops.gossamer


def compile_stacked(function: Callable[..., Any], *, tuned: bool = True) -> Callable[..., Any]:
    """`torch.compile` for fixed shapes. Deterministic: kernels that sum are not chosen by a race, which another run of
    the same training might decide the other way. The others are, if `tuned`: two of each are compiled and timed."""
    options: dict[str, Any] = {
        "deterministic": True,
        "graph_partition": False,  # for CUDA graphs of the compiler's; the engine records its own
        "post_grad_custom_pre_pass": _OurConvolutions(),
        "triton.autotune_pointwise": tuned,
    }
    compiled: Callable[..., Any] = torch.compile(_with_code_of_its_own(function), dynamic=False, options=options)
    return compiled


def _with_code_of_its_own(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function. The compiler gives up on a piece of code that it has compiled eight times, and all functions
    that `vmap` makes are one piece of code: the third engine of a process would run uncompiled."""

    def call(*arguments: Any) -> Any:
        return function(*arguments)

    return FunctionType(call.__code__.replace(), call.__globals__, call.__name__, None, call.__closure__)


class _OurConvolutions(CustomGraphPass):
    """Replaces the grouped convolutions that `vmap` makes, and their gradients, by those of `stacked_conv`, and spares
    copies around them."""

    def __call__(self, graph: Graph) -> None:
        if not any(node.target is aten.convolution.default for node in graph.nodes):
            return
        turn_concatenations(graph, _is_for_us)
        spread_pooled(graph)
        merge_equal(graph)
        share_sums_of_norms(graph)
        replace_convolutions(graph, _is_for_us)
        gather_in_place(graph)
        with suppress(Exception):  # it but saves time: what fails there fails again, and is reported, at the launch
            stacked_conv.compile_ahead(graph)

    def uuid(self) -> Any:
        files = (stacked_conv, stacked_graph, stacked_norm, stacked_pool)
        return get_hash_for_files((__file__, *(str(file.__file__) for file in files)))


def _is_for_us(images: Tensor) -> bool:
    return images.is_cuda and images.dtype == torch.bfloat16


def turn_concatenations(graph: Graph, wanted: Callable[[Tensor], bool]) -> None:
    """Concatenations of images `[N, B, C, H, W]` by channel with these innermost, as `stacked_conv` has its images.
    The compiler would write them as they are here: whatever reads them together with images would read one of the two
    number by number across memory."""
    for node in list(graph.nodes):
        if node.target is aten.cat.default and node.meta["val"].ndim == 5 and wanted(node.meta["val"]):
            parts, *rest = node.args
            if rest not in ([2], [-3]):
                continue
            with graph.inserting_before(node):
                turned = [call(graph, aten.permute.default, (part, [1, 3, 4, 0, 2])) for part in parts]
                joined = call(graph, aten.cat.default, (turned, 4))
                back = call(graph, aten.permute.default, (joined, [3, 0, 4, 1, 2]))
            node.replace_all_uses_with(back)
            graph.erase_node(node)


def replace_convolutions(graph: Graph, wanted: Callable[[Tensor], bool]) -> None:
    """Those of images for which `wanted` is true, as far as `stacked_conv` does their kind."""
    forms = _Forms(graph)
    for node in list(graph.nodes):
        if node.target is aten.convolution.default:
            x, w, bias, *how = node.args
            if _is_ours(x, w, *how, wanted=wanted):
                _replace_forward(graph, forms, node, x, w, bias, stride=how[0][0], padding=how[1][0], n=how[-1])
        elif node.target is aten.convolution_backward.default:
            dy, x, w, _, *how, _ = node.args
            if _is_ours(x, w, *how, wanted=wanted):
                _replace_backward(graph, forms, node, dy, x, w, stride=how[0][0], padding=how[1][0], n=how[-1])


def _is_ours(
    x: Node,
    w: Node,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *,
    wanted: Callable[[Tensor], bool],
) -> bool:
    images, filters = x.meta["val"], w.meta["val"]
    return (
        images.ndim == 4
        and wanted(images)
        and groups > 1
        and filters.shape[0] // groups >= 8  # a depthwise convolution would be nearly all padding
        and filters.shape[2] == filters.shape[3]
        and len(set(stride)) == len(set(padding)) == 1
        and padding[0] < filters.shape[2]
        and set(dilation) == {1}
        and not transposed
        and max(images.numel(), images.numel() // images.shape[1] * filters.shape[0], filters.numel()) < 2**31
    )


class _Forms:
    """Gives nodes the form that our operators read, once for all of these."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._forms: dict[Node, Node] = {}

    def innermost(self, node: Node) -> Node:
        """`[B, C, H, W]` as `[B, H, W, C]` that lies in memory like that. Whoever else uses the node from then on reads
        that form: there is no second copy."""
        if node not in self._forms:
            with self._graph.inserting_after(node):
                turned = call(self._graph, aten.permute.default, (node, [0, 2, 3, 1]))
            with self._graph.inserting_after(turned):
                form = _contiguous(self._graph, turned)
            with self._graph.inserting_after(form):
                back = call(self._graph, aten.permute.default, (form, [0, 3, 1, 2]))
            node.replace_all_uses_with(back, delete_user_cb=lambda user: user is not turned)
            self._forms[node] = self._forms[back] = form
        return self._forms[node]

    def matrices(self, w: Node, n: int) -> Node:
        """Weights `[N·Q, C, 1, 1]` as `[N, Q, C]`."""
        if w not in self._forms:
            filters, num_c, _, _ = w.meta["val"].shape
            with self._graph.inserting_after(w):
                turned = call(self._graph, aten.reshape.default, (w, [n, filters // n, num_c]))
            with self._graph.inserting_after(turned):
                self._forms[w] = _contiguous(self._graph, turned)
        return self._forms[w]

    def filters(self, w: Node, n: int) -> Node:
        """Weights `[N·Q, C, K, K]` as `[N, K, K, C, Q]`."""
        if w not in self._forms:
            filters, num_c, kernel, _ = w.meta["val"].shape
            with self._graph.inserting_after(w):
                split = call(self._graph, aten.reshape.default, (w, [n, filters // n, num_c, kernel, kernel]))
            with self._graph.inserting_after(split):
                turned = call(self._graph, aten.permute.default, (split, [0, 3, 4, 2, 1]))
            with self._graph.inserting_after(turned):
                self._forms[w] = _contiguous(self._graph, turned)
        return self._forms[w]


def _replace_forward(
    graph: Graph,
    forms: _Forms,
    node: Node,
    x: Node,
    w: Node,
    bias: Node | None,
    *,
    stride: int,
    padding: int,
    n: int,
) -> None:
    images = forms.innermost(x)
    height, width = node.meta["val"].shape[2:]
    with graph.inserting_before(node):
        if _is_product(w, stride, padding):
            y = call(graph, ours.stacked_product.default, (images, forms.matrices(w, n), True))
        else:
            arguments = (images, forms.filters(w, n), stride, 1, padding, height, width, False)
            y = call(graph, ours.stacked_conv.default, arguments)
        result = call(graph, aten.permute.default, (y, [0, 3, 1, 2]))
        if bias is not None:
            result = call(graph, aten.add.Tensor, (result, call(graph, aten.view.default, (bias, [1, -1, 1, 1]))))
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _replace_backward(
    graph: Graph,
    forms: _Forms,
    node: Node,
    dy: Node,
    x: Node,
    w: Node,
    *,
    stride: int,
    padding: int,
    n: int,
) -> None:
    images, slopes = forms.innermost(x), forms.innermost(dy)
    height, width = x.meta["val"].shape[2:]
    kernel = w.meta["val"].shape[2]
    for part in [part for part in node.users if part.users]:  # getitem nodes: the gradients for x, w and the bias
        with graph.inserting_before(part):
            match part.args[1]:
                case 0 if _is_product(w, stride, padding):
                    dx = call(graph, ours.stacked_product.default, (slopes, forms.matrices(w, n), False))
                    new = call(graph, aten.permute.default, (dx, [0, 3, 1, 2]))
                case 1 if _is_product(w, stride, padding):
                    dw = call(graph, ours.stacked_product_dw.default, (images, slopes, n))
                    new = call(graph, aten.reshape.default, (dw, list(w.meta["val"].shape)))
                case 0:  # slopes correlated with the weights turned around
                    arguments = (slopes, forms.filters(w, n), 1, stride, kernel - 1 - padding, height, width, True)
                    dx = call(graph, ours.stacked_conv.default, arguments)
                    new = call(graph, aten.permute.default, (dx, [0, 3, 1, 2]))
                case 1:
                    dw = call(graph, ours.stacked_conv_dw.default, (images, slopes, n, kernel, stride, padding))
                    turned = call(graph, aten.permute.default, (dw, [0, 4, 3, 1, 2]))
                    new = call(graph, aten.reshape.default, (turned, list(w.meta["val"].shape)))
                case _:
                    new = call(graph, aten.sum.dim_IntList, (slopes, [0, 1, 2]))
        part.replace_all_uses_with(new)
    for part in list(node.users):
        graph.erase_node(part)
    graph.erase_node(node)


def _is_product(w: Node, stride: int, padding: int) -> bool:
    """Whether the convolution is a product of matrices, pixel by pixel."""
    return bool(w.meta["val"].shape[2] == stride == 1 and padding == 0)


def _contiguous(graph: Graph, node: Node) -> Node:
    return written(graph, node, torch.empty(node.meta["val"].shape, device="meta").stride())
