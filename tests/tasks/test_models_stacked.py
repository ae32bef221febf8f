"""Every model as the stacked engine runs it: replicas in one `vmap` are what they would be alone."""

import pytest
import torch
from small_models import SMALL, N, batch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from gossamer.engines.stacked_gradient import Gradient, Layout, StackedGradient
from gossamer.tasks import TASKS


def gradient(name: str, dtype: torch.dtype, *, compute: torch.dtype | None = None, one_by_one: bool) -> Gradient:
    """Of N models from different starts, in training but without dropout, whose random numbers could not agree."""
    flats, buffers = [], []
    for seed in range(N):
        torch.manual_seed(seed)
        model = SMALL[name]().to(dtype)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if isinstance(module, _BatchNorm):
                nn.init.normal_(module.weight)  # none zero: every layer takes part
        flats.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        buffers.append(dict(model.named_buffers()))
    layout = Layout(*zip(*((name, p.shape) for name, p in model.named_parameters()), strict=True))
    inputs, targets = batch(name)
    found = StackedGradient(model, TASKS[name].loss, [layout], compute=compute, one_by_one=one_by_one)
    return found(
        [torch.stack(flats)],
        {},
        {key: torch.stack([of_one[key] for of_one in buffers]) for key in buffers[0]},
        inputs.to(dtype) if inputs.is_floating_point() else inputs,
        targets,
    )


def test_every_task_is_here() -> None:
    assert set(SMALL) == set(TASKS)


@pytest.mark.parametrize("name", SMALL)
def test_stacked_gradients_and_buffers_are_those_of_separate_models(name: str) -> None:
    alone, stacked = (gradient(name, torch.float64, one_by_one=way) for way in (True, False))
    assert (alone.flats[0] != 0).any(1).all()
    torch.testing.assert_close(stacked.flats[0], alone.flats[0], rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(stacked.losses, alone.losses, rtol=1e-12, atol=0)
    assert set(stacked.buffers) == set(alone.buffers)
    for key, buffer in alone.buffers.items():
        torch.testing.assert_close(stacked.buffers[key], buffer, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.half])
def test_in_bfloat16_gradients_are_those_of_separate_models_and_near_the_exact_ones(name: str) -> None:
    alone, stacked = (
        gradient(name, torch.float32, compute=torch.bfloat16, one_by_one=way).flats[0] for way in (True, False)
    )
    exact = gradient(name, torch.float32, one_by_one=False)
    assert stacked.dtype == torch.float32
    apart, rounding = (1 - torch.cosine_similarity(a, b, dim=1) for a, b in ((stacked, alone), (alone, exact.flats[0])))
    assert (apart < 1e-3 + rounding / 2).all(), "processors round sums in other orders, but no further than this"
    assert torch.cosine_similarity(stacked, exact.flats[0], dim=1).min() > 0.85
    assert all(buffer.dtype != torch.bfloat16 for buffer in exact.buffers.values())


@pytest.mark.parametrize("name", list(TASKS))
def test_the_model_itself_stacks(name: str) -> None:
    task = TASKS[name]
    model = task.model().eval()
    state = {
        key: torch.stack([value, value])
        for key, value in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items()
    }
    if task.is_language:
        inputs = torch.randint(4, 100, (2, 1, 64 if name == "translation" else 4))
    else:
        side, channels = (8, 1) if name == "digits" else (32, 3)
        inputs = torch.randn(2, 1, channels, side, side, dtype=next(model.parameters()).dtype)
    with torch.no_grad():
        together = vmap(lambda s, x: functional_call(model, s, (x,)))(state, inputs)
        torch.testing.assert_close(together[1], model(inputs[1]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["lstm", "translation"])
def test_dropout_differs_from_replica_to_replica(name: str) -> None:
    torch.manual_seed(0)
    model = SMALL[name]()
    state = {key: torch.stack([value] * 2) for key, value in model.named_parameters()}
    inputs = batch(name)[0][:1].expand(2, -1, -1)
    one, other = vmap(lambda s, x: functional_call(model, s, (x,)), randomness="different")(state, inputs)
    assert not torch.equal(one, other)
