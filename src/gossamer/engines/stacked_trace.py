"""Compiling, on a CPU: the operations of a stacked function, noted once and repeated without `vmap`'s overhead."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten


class Traced:
    """A function of tensors (in lists and dicts), noted at its first call with each set of shapes and then repeated.

    The function must do the same whatever the values are; `vmap` asks that of it already.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._traces: dict[tuple[Any, ...], GraphModule] = {}

    def __call__(self, *arguments: Any) -> Any:
        kind = tuple((leaf.shape, leaf.dtype) for leaf in tree_leaves(arguments))
        if kind not in self._traces:
            self._traces[kind] = self._trace(arguments)
        return self._traces[kind](*arguments)

    def _trace(self, arguments: tuple[Any, ...]) -> GraphModule:
        random = torch.get_rng_state()
        # noting an operation carries it out: on copies, as layers write into their buffers
        noted = make_fx(torch.func.functionalize(lambda *given: self._function(*given)))(
            *tree_map(torch.clone, arguments)
        )
        torch.set_rng_state(random)
        _say_once(noted.graph)
        unfolded: dict[tuple[Any, ...], Node] = {}  # once for both passes
        for node in list(noted.graph.nodes):
            if node.target is aten.convolution.default and _is_slow(node.args[0], node.args[-1], node.args[6]):
                x, w, _, *sides, _, _, groups = node.args
                node.target = grouped_convolution
            elif node.target is aten.convolution_backward.default and _is_slow(
                node.args[1], node.args[9], node.args[7]
            ):
                _, x, w, _, *sides, _, _, groups, _ = node.args
                node.target = grouped_convolution_backward
            else:
                continue
            of = (x, w.meta["val"].shape, str(sides), groups)
            if of not in unfolded:
                with noted.graph.inserting_before(node):
                    unfolded[of] = noted.graph.call_function(unfold, (x, w, *sides, groups))
            node.args = (*node.args, unfolded[of])
        noted.recompile()
        return noted


def _say_once(graph: Graph) -> None:
    """Of operations that are noted twice, as `vmap` notes those of the backward pass again, keep the first.

    Not where anything is changed in place: what is noted again may then be something else; nor what is drawn, nor what
    is returned, which may be changed by whoever gets it.
    """
    nodes = [node for node in graph.nodes if isinstance(node.target, OpOverload)]
    if any(node.target._schema.is_mutable for node in nodes):
        return
    returned = set(graph.output_node().all_input_nodes)
    first: dict[str, Node] = {}
    for node in nodes:
        if torch.Tag.nondeterministic_seeded in node.target.tags or node in returned:
            continue
        before = first.setdefault(f"{node.target} {node.args} {node.kwargs}", node)
        if before is not node:
            node.replace_all_uses_with(before)
            graph.erase_node(node)


def _is_slow(x: Any, groups: int, transposed: bool) -> bool:
    """Whether torch would go group by group: it has fast kernels for float32 only."""
    value = x.meta["val"]
    return value.dtype == torch.float64 and value.ndim == 4 and groups > 1 and not transposed


def grouped_convolution(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    unfolded: Tensor,
) -> Tensor:
    """x [B, N·C, H, W] with w [N·O, C, K, K], as one product for each of the N groups, all at once.

    >>> x, w = torch.randn(2, 6, 5, 5).double(), torch.randn(12, 2, 3, 3).double()
    >>> unfolded = unfold(x, w, [2, 2], [1, 1], [1, 1], 3)
    >>> y = grouped_convolution(x, w, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 3, unfolded)
    >>> torch.testing.assert_close(y, F.conv2d(x, w, stride=2, padding=1, groups=3))
    """
    size = [
        (x.shape[2 + i] + 2 * padding[i] - dilation[i] * (w.shape[2 + i] - 1) - 1) // stride[i] + 1 for i in range(2)
    ]
    y = torch.bmm(w.reshape(groups, -1, unfolded.shape[1]), unfolded)  # [N, O, B·H·W]
    y = y.view(groups, -1, x.shape[0], *size).permute(2, 0, 1, 3, 4).flatten(1, 2)
    return (y if bias is None else y + bias.view(-1, 1, 1)).contiguous()  # as the operations that follow expect


def grouped_convolution_backward(
    dy: Tensor,
    x: Tensor,
    w: Tensor,
    bias_sizes: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    wanted: list[bool],
    unfolded: Tensor,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients for x, w and the bias, as far as wanted."""
    batch = x.shape[0]
    slope = dy.reshape(batch, groups, -1, dy.shape[2] * dy.shape[3]).permute(1, 2, 0, 3).reshape(groups, -1, _area(dy))
    dx = dw = db = None
    if wanted[0]:
        spread = torch.bmm(w.reshape(groups, slope.shape[1], -1).transpose(1, 2), slope)  # [N, C·K·K, B·H·W]
        spread = spread.view(groups, spread.shape[1], batch, -1).permute(2, 0, 1, 3).flatten(1, 2)
        dx = F.fold(spread, x.shape[2:], w.shape[2:], tuple(dilation), tuple(padding), tuple(stride))
    if wanted[1]:
        dw = torch.bmm(slope, unfolded.transpose(1, 2)).view(w.shape)
    if wanted[2]:
        db = dy.sum((0, 2, 3))
    return dx, dw, db


def unfold(x: Tensor, w: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int) -> Tensor:
    """Patches of x, [N, C·K·K, B·H·W]: what both passes multiply."""
    unfolded = F.unfold(x, w.shape[2:], tuple(dilation), tuple(padding), tuple(stride))
    return unfolded.view(x.shape[0], groups, w[0].numel(), -1).permute(1, 2, 0, 3).flatten(2)


def _area(images: Tensor) -> int:
    return images.shape[0] * images.shape[2] * images.shape[3]
