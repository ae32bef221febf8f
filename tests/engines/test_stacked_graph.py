"""What is rewritten in a compiler's graph so that numbers are read and written once."""

import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.decomposition import select_decomp_table
from torch.func import vmap
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from gossamer.engines import stacked_compile
from gossamer.engines.stacked_compile import compile_stacked, replace_convolutions
from gossamer.engines.stacked_gradient import Layout, StackedGradient
from gossamer.engines.stacked_graph import gather_in_place, merge_equal
from gossamer.engines.stacked_norm import share_sums_of_norms
from gossamer.engines.stacked_pool import spread_pooled

N, BATCH = 3, 2


def net(pool: nn.Module | None = None) -> nn.Module:
    """Convolutions of both kinds with and without a bias, norms in float32, pooling."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        pool or nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 1),
        nn.ReLU(),
        nn.Conv2d(16, 8, 3, padding=1),
        nn.Flatten(),
        nn.LazyLinear(5),
    )


def gradient_of(
    model: nn.Module, compute: torch.dtype | None, dtype: torch.dtype, device: str = "cpu"
) -> tuple[StackedGradient, Callable[..., Tensor], list[Tensor]]:
    """Gradients of three replicas, stacked, and their arguments: the flat parameters, inputs, targets."""
    torch.manual_seed(0)
    model(torch.zeros(BATCH, 3, 8, 8))
    model = model.to(dtype=dtype, device=device)
    layout = Layout(tuple(n for n, _ in model.named_parameters()), tuple(p.shape for p in model.parameters()))
    gradient = StackedGradient(model, F.cross_entropy, [layout], compute=compute)
    flat = torch.randn(N, sum(p.numel() for p in model.parameters()), dtype=dtype, device=device) / 3
    buffers = {n: b.expand(N, *b.shape).clone() for n, b in model.named_buffers()}
    inputs = torch.randn(N, BATCH, 3, 8, 8, dtype=dtype, device=device)
    targets = torch.randint(5, (N, BATCH), device=device)

    def of_all(stacked: Callable[..., Any], flat: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        mine = {name: buffer.clone() for name, buffer in buffers.items()}
        (found,), _ = stacked(layout.views(flat), {}, mine, inputs, targets)
        return found

    return gradient, of_all, [flat, inputs, targets]


def stacked(gradient: StackedGradient) -> Callable[..., Any]:
    return vmap(gradient._gradient_of_one, in_dims=(0, None, 0, 0, 0))


def gradient_graph(
    model: nn.Module, compute: torch.dtype | None, dtype: torch.dtype = torch.float32, *, whole: tuple[Any, ...] = ()
) -> tuple[GraphModule, list[Tensor]]:
    """With the operations that the compiler's passes get to see; `whole` are some that it does not take apart."""
    import_module("torch._inductor.lowering")  # decompositions ask it; not earlier, as it imports Triton
    gradient, of_all, arguments = gradient_of(model, compute, dtype)
    table = {operator: parts for operator, parts in select_decomp_table().items() if operator not in whole}
    traced = make_fx(partial(of_all, stacked(gradient)), table, "fake", _allow_non_fake_inputs=True)
    graph = traced(*arguments)
    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
        if node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph, arguments


def rewritten(graph: GraphModule) -> GraphModule:
    spread_pooled(graph.graph)
    merge_equal(graph.graph)
    share_sums_of_norms(graph.graph)
    replace_convolutions(graph.graph, lambda images: True)
    gather_in_place(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.graph.lint()
    graph.recompile()
    return graph


def count(graph: GraphModule) -> Counter[str]:
    return Counter(str(node.target) for node in graph.graph.nodes)


def test_a_rewritten_graph_computes_the_same() -> None:
    graph, arguments = gradient_graph(net(), None, torch.float64)
    expected = graph(*arguments)
    torch.testing.assert_close(rewritten(graph)(*arguments), expected)


def sums_over_images(graph: GraphModule) -> int:
    """Of five dimensions as `vmap` has them, or of four."""
    sums = [node for node in graph.graph.nodes if node.target is torch.ops.aten.sum.dim_IntList]
    return sum(len(node.args[1]) == 3 for node in sums)


@pytest.mark.parametrize(("compute", "dtype"), [(None, torch.float64), (torch.bfloat16, torch.float32)])
def test_a_norm_sums_twice_over_its_images_and_not_four_times(compute: torch.dtype | None, dtype: torch.dtype) -> None:
    two = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5),
    )  # fmt: skip
    graph, arguments = gradient_graph(two, compute, dtype)
    expected, before = graph(*arguments), sums_over_images(graph)
    merge_equal(graph.graph)
    share_sums_of_norms(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.graph.lint()
    graph.recompile()
    assert before - sums_over_images(graph) == 4
    exact = compute is None  # a sum that is rounded otherwise may turn a number of 16 bits to the next one
    torch.testing.assert_close(
        graph(*arguments), expected, rtol=1e-10 if exact else 0.05, atol=1e-12 if exact else 0.05
    )


def test_a_norm_without_parameters_of_its_own_is_left_as_it_is() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False), nn.Flatten(), nn.LazyLinear(5))
    graph, _ = gradient_graph(plain, None)
    before = count(graph)
    share_sums_of_norms(graph.graph)
    assert count(graph) == before


def test_gradients_of_weights_are_written_into_the_buffer_as_they_are() -> None:
    """In float32: they are neither rounded to the 16 bits of images nor cast, and nothing joins them afterwards."""
    graph, arguments = gradient_graph(net(), torch.bfloat16)
    expected = graph(*arguments)
    found = count(rewritten(graph))
    assert found["gossamer.stacked_conv_dw_into.default"] == 2
    assert found["gossamer.stacked_product_dw_into.default"] == 1
    assert found["gossamer.put_columns.default"] == 1
    assert not found["gossamer.stacked_conv_dw.default"]
    assert not found["gossamer.stacked_product_dw.default"]
    gradient = graph(*arguments)
    torch.testing.assert_close(gradient, expected, rtol=0.05, atol=0.05)
    filters = gradient[:, : 9 * 3 * 8]
    assert not torch.equal(filters, filters.bfloat16().float())
    assert torch.equal(gradient, graph(*arguments))


def test_a_gradient_that_someone_else_reads_is_left_alone() -> None:
    graph, _ = gradient_graph(net(), torch.bfloat16)
    replace_convolutions(graph.graph, lambda images: True)
    gradients = [node for node in graph.graph.nodes if "dw" in str(node.target)]
    *_, output = graph.graph.nodes
    output.args = ((output.args[0], *gradients),)
    before = count(graph)
    gather_in_place(graph.graph)
    assert count(graph) == before


def test_weights_are_cast_once_for_both_passes() -> None:
    graph, _ = gradient_graph(net(), torch.bfloat16)
    weights = [
        node
        for node in rewritten(graph).graph.nodes
        if "force_stride_order" in str(node.target) and node.meta["val"].ndim in (3, 5)
    ]
    assert len(weights) == 3, "one for each convolution"
    images = [node for node in graph.graph.nodes if str(node.target) == "gossamer.stacked_conv.default"]
    assert {node.args[1] for node in images} <= set(weights)


@pytest.mark.parametrize(
    ("pool", "is_spread"),
    [
        (nn.MaxPool2d(2), True),
        (nn.MaxPool2d((4, 2)), True),
        (nn.MaxPool2d(3), False),  # leaves pixels out
        (nn.MaxPool2d(3, 2, 1), False),  # windows overlap
    ],
)
@pytest.mark.parametrize("backward", ["scatter_add", "max_pool2d_with_indices_backward"])  # torch 2.13's and 2.11's
def test_pixels_ask_their_window(pool: nn.Module, is_spread: bool, backward: str) -> None:
    whole = torch.ops.aten.max_pool2d_with_indices_backward.default
    graph, arguments = gradient_graph(net(pool), None, torch.float64, whole=(whole,) if backward in str(whole) else ())
    expected = graph(*arguments)
    if not count(graph)[f"aten.{backward}.default"]:
        pytest.skip(f"this version of torch has no {backward} here")
    spread_pooled(graph.graph)
    graph.graph.lint()
    graph.recompile()
    assert count(graph)[f"aten.{backward}.default"] == (0 if is_spread else 1)
    masks = [node for node in graph.graph.nodes if node.target is torch.ops.aten.le.Scalar and node.users]
    sizes = [node.meta["val"].shape[-1] for node in masks]
    assert sizes.count(8) == (0 if is_spread else 1), "the rectified images are not read again"
    assert torch.equal(graph(*arguments), expected)


needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or "TRITON_INTERPRET" in os.environ, reason="needs a GPU, and kernels compiled for it"
)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of the compiler's own imports
@pytest.mark.filterwarnings("ignore:\\s*Online softmax is disabled:UserWarning")  # of the compiler, on a GPU
@pytest.mark.parametrize(
    ("device", "compute", "tolerance"),
    [("cpu", None, 1e-5), pytest.param("cuda", torch.bfloat16, 0.05, marks=needs_gpu)],
)
def test_the_compiler_takes_what_is_rewritten(
    device: str, compute: torch.dtype | None, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacked_compile, "_is_for_us", lambda images: True)
    torch.compiler.reset()
    gradient, of_all, arguments = gradient_of(net(), compute, torch.float32, device)
    compiled = compile_stacked(stacked(gradient), tuned=False)
    with torch.no_grad():
        expected = of_all(stacked(gradient), *arguments)
        found = of_all(compiled, *arguments)
        assert torch.equal(found, of_all(compiled, *arguments))
    assert (found - expected).norm() < tolerance * expected.norm()
