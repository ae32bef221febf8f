"""What a method sees of the optimizer beside its gradients: learning rates and moments, in flat buffers."""

import torch
from torch import nn

from gossamer.engines.flat import FlatReplica


def replica_of(optimizer: str, **settings: float) -> tuple[FlatReplica, torch.optim.Optimizer, list[nn.Parameter]]:
    parameters = [nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.zeros(4))]
    made = getattr(torch.optim, optimizer)([{"params": [p]} for p in parameters], lr=0.1, **settings)
    replica = FlatReplica({"weight": parameters[0], "bias": parameters[1]})
    replica.stepped_by(made)
    return replica, made, parameters


def step(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
    for number, parameter in enumerate(parameters, 1):
        parameter.grad = torch.full_like(parameter, float(number))
    optimizer.step()


def test_one_rate_is_a_number_and_several_are_a_vector() -> None:
    replica, optimizer, _ = replica_of("SGD")
    assert replica.lr == 0.1
    optimizer.param_groups[1]["lr"] = 0.5
    lr = replica.lr
    assert isinstance(lr, torch.Tensor)
    torch.testing.assert_close(lr, torch.tensor([0.1] * 6 + [0.5] * 4))


def test_moments_are_those_of_the_optimizer() -> None:
    replica, optimizer, parameters = replica_of("Adam")
    assert replica.moments == {}
    step(optimizer, parameters)
    assert set(replica.moments) == {"exp_avg", "exp_avg_sq"}
    torch.testing.assert_close(replica.moments["exp_avg"], torch.tensor([0.1] * 6 + [0.2] * 4))


def test_plain_sgd_has_none() -> None:
    replica, optimizer, parameters = replica_of("SGD")
    step(optimizer, parameters)
    assert replica.moments == {}


def test_what_is_written_into_moments_the_next_step_uses() -> None:
    replica, optimizer, parameters = replica_of("SGD", momentum=0.5)
    step(optimizer, parameters)
    replica.moments["momentum_buffer"].fill_(10.0)
    before = replica.params.clone()
    step(optimizer, parameters)
    torch.testing.assert_close(before - replica.params, 0.1 * torch.tensor([6.0] * 6 + [7.0] * 4))
    torch.testing.assert_close(replica.moments["momentum_buffer"], torch.tensor([6.0] * 6 + [7.0] * 4))


def test_moments_that_were_loaded_are_taken_over() -> None:
    replica, optimizer, parameters = replica_of("SGD", momentum=0.5)
    step(optimizer, parameters)
    saved = dict(optimizer.state_dict())
    replica.moments["momentum_buffer"].fill_(10.0)
    kept = {number: {"momentum_buffer": torch.full_like(p, 3.0)} for number, p in enumerate(parameters)}
    optimizer.load_state_dict(saved | {"state": kept})
    torch.testing.assert_close(replica.moments["momentum_buffer"], torch.full((10,), 3.0))


def test_a_parameter_that_never_had_a_gradient_has_no_moments_of_its_own() -> None:
    replica, optimizer, parameters = replica_of("SGD", momentum=0.5)
    parameters[0].grad = torch.ones_like(parameters[0])
    optimizer.step()
    torch.testing.assert_close(replica.moments["momentum_buffer"], torch.tensor([1.0] * 6 + [0.0] * 4))
    assert parameters[1] not in optimizer.state


def test_matrices_are_what_has_two_dimensions_and_all_where_nothing_has() -> None:
    replica, _, _ = replica_of("SGD")
    assert replica.matrices == [slice(0, 6)]
    assert FlatReplica({"a": nn.Parameter(torch.ones(2)), "b": nn.Parameter(torch.ones(3))}).matrices == [
        slice(0, 2),
        slice(2, 5),
    ]
    stacked = nn.Parameter(torch.ones(7, 10))
    shapes = {"weight": torch.Size((2, 3)), "bias": torch.Size((4,))}
    replica = FlatReplica({"all": stacked}, (7,), shapes)
    assert (replica.names, replica.spans, replica.matrices) == (
        tuple(shapes),
        [slice(0, 6), slice(6, 10)],
        [slice(0, 6)],
    )
