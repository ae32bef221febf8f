"""Every model as the stacked engine runs it: replicas in one `vmap` are what they would be alone."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from small_models import SMALL, N, batch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from gossamer.tasks import TASKS


def replicas(name: str, dtype: torch.dtype) -> list[nn.Module]:
    """N models from different starts, in training but without dropout, whose random numbers could not agree."""
    models = []
    for seed in range(N):
        torch.manual_seed(seed)
        model = SMALL[name]().to(dtype)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if isinstance(module, _BatchNorm):
                nn.init.normal_(module.weight)  # none zero: every layer takes part
        models.append(model)
    return models


State = dict[str, Tensor]


def loss_of_one(
    name: str,
    model: nn.Module,
    dtype: torch.dtype | None,
    trained: State,
    buffers: State,
    inputs: Tensor,
    targets: Tensor,
) -> tuple[Tensor, State]:
    """The loss and the new buffers; with `dtype`, computed in it, but for batch norm."""
    kept = {
        f"{prefix}.{parameter}"
        for prefix, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        for parameter in ("weight", "bias")
    }
    if dtype is not None:
        trained = {key: value if key in kept else value.to(dtype) for key, value in trained.items()}
        inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
    everything = {**trained, **buffers}
    said = functional_call(model, everything, (inputs,))
    if dtype is not None:
        said = said.float()
    return TASKS[name].loss(said, targets), {key: everything[key] for key in buffers}


def alone(name: str, models: list[nn.Module], inputs: Tensor, targets: Tensor, dtype: torch.dtype | None) -> State:
    """Stacked gradients and buffers of models that are trained one by one."""
    found: list[State] = []
    for model, x, y in zip(models, inputs, targets, strict=True):
        trained, buffers = dict(model.named_parameters()), {key: value.clone() for key, value in model.named_buffers()}
        loss, buffers = loss_of_one(name, model, dtype, trained, buffers, x, y)
        gradients = torch.autograd.grad(loss, list(trained.values()))
        found.append({**dict(zip(trained, gradients, strict=True)), **buffers})
    return {key: torch.stack([state[key] for state in found]) for key in found[0]}


def stacked(name: str, models: list[nn.Module], inputs: Tensor, targets: Tensor, dtype: torch.dtype | None) -> State:
    """The same with all replicas in one call, backward outside of it."""
    trained, buffers = stack_module_state(models)
    losses, after = vmap(partial(loss_of_one, name, models[0], dtype))(trained, buffers, inputs, targets)
    gradients = torch.autograd.grad(losses.sum(), list(trained.values()))
    return {**dict(zip(trained, gradients, strict=True)), **after}


def stacked_gradients(
    name: str, models: list[nn.Module], inputs: Tensor, targets: Tensor, dtype: torch.dtype | None
) -> State:
    """The same with the gradient taken inside."""
    trained, buffers = stack_module_state(models)
    trained = {key: value.detach() for key, value in trained.items()}
    gradients, after = vmap(grad(partial(loss_of_one, name, models[0], dtype), has_aux=True))(
        trained, buffers, inputs, targets
    )
    return {**gradients, **after}


def test_every_task_is_here() -> None:
    assert set(SMALL) == set(TASKS)


@pytest.mark.parametrize("way", [stacked, stacked_gradients])
@pytest.mark.parametrize("name", SMALL)
def test_stacked_gradients_and_buffers_are_those_of_separate_models(name: str, way: Callable[..., State]) -> None:
    models = replicas(name, torch.float64)
    inputs, targets = batch(name)
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    expected, found = alone(name, models, inputs, targets, None), way(name, models, inputs, targets, None)
    assert set(found) == set(expected)
    assert all(expected[key].abs().sum() > 0 for key, _ in models[0].named_parameters() if "key.bias" not in key)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-8, atol=1e-10, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("way", [stacked, stacked_gradients])
@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.half])
def test_in_bfloat16_gradients_are_those_of_separate_models_and_near_the_exact_ones(
    name: str, way: Callable[..., State]
) -> None:
    models = replicas(name, torch.float32)
    inputs, targets = batch(name)
    exact, half = (alone(name, models, inputs, targets, dtype) for dtype in (None, torch.bfloat16))
    found = way(name, models, inputs, targets, torch.bfloat16)
    trained = [key for key, _ in models[0].named_parameters()]
    assert all(found[key].dtype == torch.float32 for key in found if "num_batches" not in key)
    for replica in range(N):
        ours, alike, near = (
            torch.cat([state[key][replica].flatten() for key in trained]) for state in (found, half, exact)
        )
        assert torch.cosine_similarity(ours, alike, dim=0) > 0.999
        assert torch.cosine_similarity(ours, near, dim=0) > 0.9


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
