"""Every kind of optimizer in a loop of the user's own, those that people write themselves, and scalers that skip."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from gossamer import decentralize, topologies
from gossamer.optim import AccumAdam, AccumAdamW
from loops import Loop, agree, backward, by_hand, decentralized, flat, sgd, take_steps
from problems import network, network_batch, network_loss
from ranks import run_ranks

N, STEPS = 4, 6
PAIRS = topologies.build("one-peer-exponential", N)
PARTS = pytest.mark.parametrize("bucket_mib", [25.0, 1e-4], ids=["whole", "in-parts"])

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "sgd-fused": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, fused=True),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01, amsgrad=True),
    "adam-foreach": lambda params: torch.optim.Adam(params, lr=0.01, foreach=True),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.1),
    "adamw-fused": lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.1, fused=True),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=0.01, momentum=0.9, centered=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.05),
    "nadam": lambda params: torch.optim.NAdam(params, lr=0.01),
    "accum-adam": lambda params: AccumAdam(params, lr=0.01, window=4),
    "accum-adamw": lambda params: AccumAdamW(params, lr=0.01, window=3),
}


@PARTS
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer(name: str, bucket_mib: float) -> None:
    loop = Loop(optimizer=lambda model: OPTIMIZERS[name](model.parameters()))
    agree(decentralized(loop, N, STEPS, topology=PAIRS, bucket_mib=bucket_mib), by_hand(loop, PAIRS, STEPS))


@PARTS
def test_parameter_groups_and_a_learning_rate_schedule(bucket_mib: float) -> None:
    def optimizer(model: nn.Module) -> Optimizer:
        first, *rest = model.parameters()
        return torch.optim.AdamW([{"params": rest}, {"params": [first], "lr": 0.1, "weight_decay": 0.0}], lr=0.01)

    loop = Loop(optimizer=optimizer, scheduler=lambda made: torch.optim.lr_scheduler.OneCycleLR(made, 0.1, STEPS + 1))
    agree(decentralized(loop, N, STEPS, topology=PAIRS, bucket_mib=bucket_mib), by_hand(loop, PAIRS, STEPS))


class CountsInItsGroup(torch.optim.Optimizer):
    """Keeps the number of its steps beside the learning rate, as optimizers without a schedule do."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1, "count": 0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            group["count"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"] / group["count"])


class StepsThroughItsParent(torch.optim.SGD):
    """Adds something to the step of its parent class; torch runs the step hooks of both."""

    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            group["lr"] *= 0.9
        super().step(closure)


@PARTS
@pytest.mark.parametrize(
    "make",
    [CountsInItsGroup, lambda params: StepsThroughItsParent(params, lr=0.1, momentum=0.9)],
    ids=["counts", "inherits"],
)
def test_optimizers_that_people_write_themselves(make: Callable[..., Optimizer], bucket_mib: float) -> None:
    loop = Loop(optimizer=lambda model: make(model.parameters()))
    agree(decentralized(loop, N, STEPS, topology=PAIRS, bucket_mib=bucket_mib), by_hand(loop, PAIRS, STEPS))


class RaisesOnce(torch.optim.SGD):
    def step(self, closure: None = None) -> None:
        self.num_calls = getattr(self, "num_calls", 0) + 1
        if self.num_calls == 3:
            raise ArithmeticError("a gradient is too large")
        super().step(closure)


def test_mixing_goes_on_after_a_step_that_raised() -> None:
    def rank(group: ProcessGroup) -> tuple[int, list[float]]:
        model = network()
        optimizer = RaisesOnce(model.parameters(), lr=0.05)
        sent = []
        with decentralize(model, optimizer, group=group, topology="ring", timeout_s=30) as training:
            for step in range(STEPS):
                backward(model, group.rank(), step)
                if step == 2:
                    with pytest.raises(ArithmeticError):
                        optimizer.step()
                else:
                    optimizer.step()
                sent.append(training.metrics()["bytes_sent"])
        return training.num_steps, sent

    for num_steps, sent in run_ranks(N, rank):
        assert num_steps == STEPS - 1
        assert [later > earlier for earlier, later in itertools.pairwise(sent)] == [True, False, True, True, True]


@PARTS
def test_hooks_of_the_user_see_all_gradients_whenever_they_were_registered(bucket_mib: float) -> None:
    def rank(group: ProcessGroup) -> tuple[list[int], Tensor]:
        model = network()
        optimizer = sgd(model)
        seen: list[int] = []

        def look(*_: Any) -> None:
            seen.append(sum(parameter.grad is not None for parameter in model.parameters()))

        optimizer.register_step_pre_hook(look)
        with decentralize(model, optimizer, group=group, topology=PAIRS, bucket_mib=bucket_mib) as training:
            optimizer.register_step_pre_hook(look)
            take_steps(training, range(STEPS))
        return seen, flat(model)

    results = run_ranks(N, rank)
    assert all(seen == [len([*network().parameters()])] * 2 * STEPS for seen, _ in results)
    torch.testing.assert_close(torch.stack([trained for _, trained in results]), by_hand(Loop(), PAIRS, STEPS))


# ---- mixed precision with a scaler --------------------------------------------------------------------------


def scaled_step(
    model: nn.Module, optimizer: Optimizer, scaler: torch.amp.GradScaler, batch: Any, factor: float
) -> None:
    inputs, targets = batch
    optimizer.zero_grad()
    scaler.scale(factor * network_loss(model(inputs), targets)).backward()
    scaler.step(optimizer)
    scaler.update()


@PARTS
@pytest.mark.parametrize(
    ("algorithm", "fused"),
    [
        ("d-psgd-overlapped", False),
        ("d-psgd-overlapped", True),
        ("d-psgd", False),
        ("d-psgd", True),
        ("all-reduce", False),
    ],
)
def test_a_scaler_that_skips_a_step_of_one_rank_keeps_nobody_waiting(
    algorithm: str, fused: bool, bucket_mib: float
) -> None:
    """Rank 1 has an infinite gradient in its second step, and its scaler does not step, or has the fused optimizer do
    nothing. In the middle and at the end all come together, after as many steps: rank 1 takes part in one more than it
    makes."""

    def rank(group: ProcessGroup) -> tuple[Tensor, Tensor, int, float]:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
        settings = {"group": group, "topology": "ring", "algorithm": algorithm, "timeout_s": 30}
        with decentralize(model, optimizer, bucket_mib=bucket_mib, **settings) as training:
            for step in range(STEPS):
                inputs, targets = network_batch(step, N)
                factor = float("inf") if (group.rank(), step) == (1, 1) else 1.0
                scaled_step(model, optimizer, scaler, (inputs[group.rank()], targets[group.rank()]), factor)
                if step == 3:
                    with training.averaged():
                        average = flat(model)
        return flat(model), average, training.num_steps, scaler.get_scale()

    trained, averages, num_steps, scales = (list(results) for results in zip(*run_ranks(N, rank), strict=True))
    assert num_steps == [STEPS] * N
    assert scales == [8.0, 4.0, 8.0, 8.0]
    assert all(torch.equal(average, averages[0]) for average in averages)
    assert torch.stack(trained).isfinite().all()
    assert (trained[1] - flat(network())).abs().max() > 0.01
    if algorithm == "all-reduce":
        agree(trained, trained[0].expand(N, -1))


def test_a_scaler_that_leaves_it_to_the_optimizer_is_refused_where_gradients_are_averaged() -> None:
    def rank(group: ProcessGroup) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
        scaler = torch.amp.GradScaler("cpu")
        inputs, targets = network_batch(0, 1)
        training = decentralize(model, optimizer, group=group, algorithm="all-reduce")
        with pytest.raises(ValueError, match="fused=False"):
            scaled_step(model, optimizer, scaler, (inputs[0], targets[0]), 1.0)
        training.close()

    run_ranks(1, rank)
