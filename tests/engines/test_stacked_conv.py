"""Convolutions of stacked replicas: against torch's, on their own and in a compiler's graph."""

from collections import Counter
from concurrent.futures import wait

import pytest
import torch
from convolutions import check_convolution, check_product
from torch import Tensor, nn
from torch._functorch.compile_utils import fx_graph_cse
from torch.func import functional_call, grad, vmap
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from gossamer.engines.stacked_compile import replace_convolutions, turn_concatenations
from gossamer.engines.stacked_conv import (
    compile_ahead,
    put_columns,
    stacked_conv,
    stacked_conv_dw,
    stacked_conv_dw_into,
    stacked_product,
    stacked_product_dw,
    stacked_product_dw_into,
)

SHAPES = [
    # n, batch, channels, filters, height, width, kernel, stride, padding
    (3, 2, 3, 16, 8, 6, 3, 1, 1),
    (2, 3, 16, 8, 8, 8, 3, 2, 1),
    (2, 2, 12, 20, 5, 7, 3, 2, 1),  # a row and a column that no filter reaches
    (2, 2, 12, 20, 6, 6, 1, 2, 0),
    (1, 2, 4, 9, 9, 9, 5, 3, 2),
    (2, 1, 5, 8, 6, 6, 3, 1, 0),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_convolution_and_its_gradients(shape: tuple[int, ...]) -> None:
    names = ("n", "batch", "num_c", "num_q", "height", "width", "kernel", "stride", "padding")
    sizes = dict(zip(names, shape, strict=True))
    check_convolution(stacked_conv, stacked_conv_dw, **sizes, dtype=torch.float64)


def test_a_product_and_its_gradients() -> None:
    check_product(stacked_product, stacked_product_dw, n=3, num_c=5, num_q=4, dtype=torch.float64)


def test_gradients_into_columns_of_a_buffer() -> None:
    torch.manual_seed(0)
    x, dy = (torch.randn(2, 5, 5, 3 * num, dtype=torch.bfloat16) for num in (4, 8))
    flat = torch.full((3, 1 + 9 * 32 + 2 + 32 + 3), torch.nan)
    stacked_conv_dw_into(flat, 1, x, dy, 3, 1, 1)
    stacked_product_dw_into(flat, 1 + 9 * 32 + 2, x, dy)
    others = torch.randn(3, 6)
    put_columns(flat, others, [0, 1 + 9 * 32, flat.shape[1] - 3], [1, 2, 3])
    gaps = others.split([1, 2, 3], 1)
    dw, matrices = stacked_conv_dw(x.float(), dy.float(), 3, 3, 1, 1), stacked_product_dw(x.float(), dy.float(), 3)
    torch.testing.assert_close(flat, torch.cat([gaps[0], dw.flatten(1), gaps[1], matrices.flatten(1), gaps[2]], 1))


class Residual(nn.Module):
    """Every kind of convolution: of the input, with a bias, with a stride, of a sum that others read too; and one that
    is left to torch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.strided = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False)
        self.pointwise = nn.Conv2d(8, 16, 1, stride=2, bias=False)
        self.product = nn.Conv2d(16, 16, 1)
        self.per_channel = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.norm = nn.BatchNorm2d(8, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        x = (x + self.norm(self.second(x))).relu()
        x = self.strided(x) + self.pointwise(x)
        return (self.product(x).relu() + self.per_channel(x)).mean((2, 3))


def gradient_graph() -> tuple[GraphModule, tuple[dict[str, Tensor], Tensor, Tensor]]:
    torch.manual_seed(0)
    model = Residual().double()
    stacked = {name: torch.randn(3, *p.shape, dtype=torch.float64) for name, p in model.named_parameters()}
    inputs, targets = torch.randn(3, 2, 3, 8, 8, dtype=torch.float64), torch.randint(16, (3, 2))

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, parameters, (x,)), y)

    arguments = (stacked, inputs, targets)
    graph = make_fx(lambda p, x, y: vmap(grad(loss))(p, x, y), tracing_mode="fake")(*arguments)
    return graph, arguments


def count(graph: GraphModule) -> Counter[str]:
    ours = ("convolution", "gossamer")
    return Counter(str(node.target) for node in graph.graph.nodes if any(word in str(node.target) for word in ours))


def test_a_graph_with_our_convolutions_computes_the_same() -> None:
    graph, arguments = gradient_graph()
    assert count(graph) == {"aten.convolution.default": 6, "aten.convolution_backward.default": 6}
    expected = graph(*arguments)
    replace_convolutions(graph.graph, lambda images: True)
    graph.graph.lint()
    graph.recompile()
    assert count(graph) == {
        "gossamer.stacked_conv.default": 4 + 3,  # forward, and the gradients of all inputs but the images
        "gossamer.stacked_conv_dw.default": 4,
        "gossamer.stacked_product.default": 2,
        "gossamer.stacked_product_dw.default": 1,
        "aten.convolution.default": 1,  # one filter a channel
        "aten.convolution_backward.default": 1,
    }
    torch.testing.assert_close(graph(*arguments), expected)


def test_an_image_is_laid_out_anew_once() -> None:
    """Also one that two convolutions, their gradients and a sum read."""
    traced, _ = gradient_graph()
    graph = fx_graph_cse(traced.graph)  # as the compiler does before
    replace_convolutions(graph, lambda images: True)
    forms = [node for node in graph.nodes if "force_stride_order" in str(node.target) and node.meta["val"].ndim == 4]
    assert len(forms) == 4 + 4, "the inputs and the slopes of four places"
    convolutions = [node for node in graph.nodes if "stacked_conv.default" in str(node.target)]
    first, second, strided, pointwise = (node.args[0] for node in convolutions[:4])
    assert strided is pointwise
    assert len({first, second, strided}) == 3


def test_images_are_joined_with_channels_innermost() -> None:
    """Those that a model joins by channel; what it joins otherwise stays."""
    torch.manual_seed(0)
    first, second = torch.randn(3, 2, 4, 5, 6), torch.randn(3, 2, 7, 5, 6)

    def join(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([a, b], 1), torch.cat([a, a], -1)

    graph = make_fx(vmap(join), tracing_mode="fake")(first, second)
    expected = graph(first, second)
    turn_concatenations(graph.graph, lambda images: True)
    graph.graph.lint()
    graph.recompile()
    by_channel, by_column = graph(first, second)
    torch.testing.assert_close((by_channel, by_column), expected)
    assert by_channel.permute(1, 3, 4, 0, 2).is_contiguous()
    assert by_column.is_contiguous()


def test_only_what_is_wanted_is_replaced() -> None:
    graph, _ = gradient_graph()
    before = count(graph)
    replace_convolutions(graph.graph, lambda images: images.dtype == torch.bfloat16)
    assert count(graph) == before


def test_kernels_are_compiled_ahead_once_each_and_without_a_gpu_in_vain() -> None:
    pytest.importorskip("triton", reason="Triton is for Linux")
    from gossamer.engines.kernels import launch

    traced, _ = gradient_graph()
    replace_convolutions(traced.graph, lambda images: True)
    before = set(launch._ahead)
    for _ in range(2):
        compile_ahead(traced.graph)
    compiled = [launch._ahead[key] for key in set(launch._ahead) - before]
    assert len(compiled) == 4 + 3 + 4 + 2 + 1
    wait(compiled)
