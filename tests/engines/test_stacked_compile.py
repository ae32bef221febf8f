"""What a compiler sees of the stacked engine, and what the model's owner sees of it: nothing."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.func import vmap
from torch.nn import functional as F

from gossamer import simulate
from gossamer.engines import CannotStack, StackedEngine
from gossamer.engines.stacked_compile import _with_code_of_its_own


def engine_of(model: nn.Module, **settings: object) -> StackedEngine:
    return simulate(
        model,
        num_replicas=3,
        topology="ring",
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=F.cross_entropy,
        device="cpu",
        **settings,
    )


def test_every_engine_of_a_process_is_compiled() -> None:
    """All functions that `vmap` makes have the same code, of which torch compiles eight versions and no more."""
    torch.compiler.reset()
    count = CompileCounter()
    for num in range(12):
        function = vmap(lambda x, num=num: x + num)
        compiled = torch.compile(_with_code_of_its_own(function), backend=count, dynamic=False)
        assert compiled(torch.zeros(2)).tolist() == [num, num]
    assert count.frame_count == 12


def test_the_gradient_is_one_graph_that_gets_every_parameter_by_itself() -> None:
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    engine = engine_of(model, precision="bfloat16")
    gradient = engine.gradient
    parameters = {name: torch.randn(3, *p.shape) for name, p in model.named_parameters()}
    arguments = (parameters, {}, dict(engine.buffers()), torch.randn(3, 5, 4), torch.randint(2, (3, 5)))
    stacked = vmap(gradient._gradient_of_one, in_dims=(0, None, 0, 0, 0), randomness="different")
    count = CompileCounter()
    compiled = torch.compile(_with_code_of_its_own(stacked), backend=count, dynamic=False, fullgraph=True)
    with torch.no_grad():
        (flat,), (losses, _) = compiled(*arguments)
        (expected,), (expected_losses, _) = stacked(*arguments)
    assert count.frame_count == 1
    assert flat.shape == (3, sum(p.numel() for p in model.parameters()))
    torch.testing.assert_close((flat, losses), (expected, expected_losses))


class WithAQuestion(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum().item() > 0 else -x


def test_a_layer_that_cannot_be_stacked_is_named() -> None:
    engine = engine_of(nn.Sequential(nn.Linear(4, 2), WithAQuestion()))
    with pytest.raises(CannotStack, match=r"the layer '1' \(WithAQuestion\) cannot be stacked: vmap"):
        engine.step(torch.randn(3, 5, 4), torch.randint(2, (3, 5)))


def test_errors_of_the_model_stay_its_own() -> None:
    with pytest.raises(RuntimeError, match="size") as error:
        engine_of(nn.Linear(4, 2)).step(torch.randn(3, 5, 7), torch.randint(2, (3, 5)))
    assert not isinstance(error.value, CannotStack)


def test_lower_precision_leaves_the_template_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).eval()
    inputs = torch.randn(5, 4)
    before = copy.deepcopy(model)(inputs)
    engine = engine_of(model, precision="bfloat16")
    engine.step(torch.randn(3, 5, 4), torch.randint(2, (3, 5)))
    torch.testing.assert_close(model(inputs), before, rtol=0, atol=0)
