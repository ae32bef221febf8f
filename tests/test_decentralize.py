"""The two lines around a loop of the user's own: whatever is in the loop, they do what a simple loop by hand does."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from gossamer import algorithms, decentralize, topologies
from gossamer.optim import AccumAdam, AccumAdamW
from loops import Loop, backward, by_hand, decentralized, everything, fixed, flat, sgd
from problems import network, network_batch, network_loss
from ranks import run_ranks

N, STEPS = 4, 6
PAIRS = topologies.build("one-peer-exponential", N)

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


def agree(trained: list[Tensor], expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(torch.stack(trained), expected, rtol=0, atol=tolerance)


# ---- optimizers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bucket_mib", [25.0, 1e-4], ids=["whole", "in-parts"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer(name: str, bucket_mib: float) -> None:
    loop = Loop(optimizer=lambda model: OPTIMIZERS[name](model.parameters()))
    agree(decentralized(loop, N, STEPS, topology=PAIRS, bucket_mib=bucket_mib), by_hand(loop, PAIRS, STEPS))


@pytest.mark.parametrize("bucket_mib", [25.0, 1e-4], ids=["whole", "in-parts"])
def test_parameter_groups_and_a_learning_rate_schedule(bucket_mib: float) -> None:
    def optimizer(model: nn.Module) -> Optimizer:
        first, *rest = model.parameters()
        return torch.optim.AdamW([{"params": rest}, {"params": [first], "lr": 0.1, "weight_decay": 0.0}], lr=0.01)

    loop = Loop(optimizer=optimizer, scheduler=lambda made: torch.optim.lr_scheduler.OneCycleLR(made, 0.1, STEPS + 1))
    agree(decentralized(loop, N, STEPS, topology=PAIRS, bucket_mib=bucket_mib), by_hand(loop, PAIRS, STEPS))


class CountsInItsGroup(torch.optim.Optimizer):
    """Keeps the number of its steps beside the learning rate, as some optimizers without a schedule do."""

    def __init__(self, params: object) -> None:
        super().__init__(params, {"lr": 0.1, "count": 0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            group["count"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"] / group["count"])


class StepsThroughItsParent(torch.optim.SGD):
    """A subclass that adds something to the step of its parent; torch runs step hooks in both."""

    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            group["lr"] *= 0.9
        super().step(closure)


@pytest.mark.parametrize("bucket_mib", [25.0, 1e-4], ids=["whole", "in-parts"])
@pytest.mark.parametrize(
    "make",
    [CountsInItsGroup, lambda params: StepsThroughItsParent(params, lr=0.1, momentum=0.9)],
    ids=["counts", "inherits"],
)
def test_optimizers_that_people_write_themselves(make: Callable[..., Optimizer], bucket_mib: float) -> None:
    loop = Loop(optimizer=lambda model: make(model.parameters()))
    agree(decentralized(loop, N, STEPS, topology=PAIRS, bucket_mib=bucket_mib), by_hand(loop, PAIRS, STEPS))


# ---- what is in a loop --------------------------------------------------------------------------------------


def test_gradient_accumulation_from_the_first_step_on() -> None:
    """Several backward() calls before each step, the first one too: each gradient counts."""

    def three_times(model: nn.Module, rank: int, step: int) -> None:
        for part in range(3):
            backward(model, rank, 3 * step + part)

    loop = Loop(backward=three_times)
    trained = decentralized(loop, N, STEPS, topology=PAIRS)
    agree(trained, by_hand(loop, PAIRS, STEPS))
    assert (trained[0] - flat(network())).abs().max() > 0.1, "it has learned"


def test_clipping_is_of_the_whole_model() -> None:
    norms: list[float] = []

    def clipped(model: nn.Module, rank: int, step: int) -> None:
        backward(model, rank, step)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        after = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()
        norms.append(float(norm))
        torch.testing.assert_close(after, torch.tensor(0.05, dtype=torch.float64), rtol=1e-4, atol=0)

    loop = Loop(backward=clipped)
    agree(decentralized(loop, N, STEPS, topology=PAIRS, bucket_mib=1e-4), by_hand(loop, PAIRS, STEPS))
    assert min(norms) > 0.05


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_before_forward_drops_no_gradient(set_to_none: bool) -> None:
    """Wherever the loop clears its gradients, the first step uses the first gradient."""

    def rank(group: ProcessGroup, in_front: bool) -> Tensor:
        model = network()
        optimizer = sgd(model)
        with decentralize(model, optimizer, group=group, topology=PAIRS, bucket_mib=1e-4):
            for step in range(STEPS):
                if in_front:
                    optimizer.zero_grad(set_to_none=set_to_none)
                backward(model, group.rank(), step)
                optimizer.step()
                if not in_front:
                    optimizer.zero_grad(set_to_none=set_to_none)
        return flat(model)

    expected = by_hand(Loop(), PAIRS, STEPS)
    for in_front in (True, False):
        agree(run_ranks(N, lambda group, in_front=in_front: rank(group, in_front)), expected)


class TwoHeads(nn.Module):
    """Which head is used depends on the step."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.early, self.late = (nn.Linear(5, size).double() for size in (5, 3, 3))

    def forward(self, inputs: Tensor, late: bool = True) -> Tensor:
        return (self.late if late else self.early)(self.body(inputs).tanh())


@pytest.mark.parametrize("algorithm", ["d-psgd-overlapped", "all-reduce"])
@pytest.mark.parametrize("bucket_mib", [25.0, 1e-5], ids=["whole", "in-parts"])
def test_parameters_unused_in_the_first_iteration_are_trained_later(algorithm: str, bucket_mib: float) -> None:
    def late_from_step_3(model: nn.Module, rank: int, step: int) -> None:
        inputs, targets = network_batch(step, 8)
        network_loss(model(inputs[rank], late=step >= 3), targets[rank]).backward()

    loop = Loop(
        model=fixed(TwoHeads),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        backward=late_from_step_3,
    )
    trained = decentralized(loop, N, STEPS, topology=PAIRS, algorithm=algorithm, bucket_mib=bucket_mib)
    if algorithm != "all-reduce":
        agree(trained, by_hand(loop, PAIRS, STEPS))
    moved = (trained[0] - flat(loop.model())).abs()
    assert moved[-18:].min() > 0, "the late head"
    assert moved[30:48].min() > 0, "the early one"


def test_frozen_and_tied_parameters() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.frozen = nn.Linear(5, 5, bias=False).double(), nn.Linear(5, 5).double()
            self.again = nn.Linear(5, 5).double()
            self.again.weight = self.embed.weight
            self.frozen.requires_grad_(False)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.again(self.frozen(self.embed(inputs)).tanh())

    for kept in (lambda p: True, lambda p: p.requires_grad):
        loop = Loop(
            model=fixed(Tied),
            optimizer=lambda model, kept=kept: torch.optim.AdamW([p for p in model.parameters() if kept(p)], lr=0.01),
        )
        trained = decentralized(loop, N, STEPS, lambda training: copy.deepcopy(training.model), topology=PAIRS)
        agree([flat(model) for model in trained], by_hand(loop, PAIRS, STEPS))
        for model in trained:
            assert model.again.weight is model.embed.weight or torch.equal(model.again.weight, model.embed.weight)
            assert torch.equal(model.frozen.weight, loop.model().frozen.weight)


def test_parameters_of_several_types() -> None:
    """Each type travels as it is; the model's layers stand for the user's own mixture."""

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Linear(5, 5, dtype=dtype) for dtype in (torch.float32, torch.bfloat16, torch.float64)
            )

        def forward(self, inputs: Tensor) -> Tensor:
            for layer in self.layers:
                inputs = layer(inputs.to(layer.weight.dtype)).tanh()
            return inputs

    loop = Loop(model=fixed(Mixture), optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    trained = decentralized(loop, N, STEPS, lambda training: copy.deepcopy(training.model), topology=PAIRS)
    assert [p.dtype for p in trained[0].parameters()] == [p.dtype for p in loop.model().parameters()]
    expected = by_hand(loop, PAIRS, STEPS)
    agree([flat(model) for model in trained], expected, tolerance=0.02)  # of bfloat16
    assert (expected - flat(loop.model())).abs().max() > 0.05


def test_autocast() -> None:
    """The forward pass in bfloat16, the parameters and what is sent in float32."""

    def in_bfloat16(model: nn.Module, rank: int, step: int) -> None:
        inputs, targets = network_batch(step, 8)
        with torch.autocast("cpu", torch.bfloat16):
            loss = network_loss(model(inputs[rank].float()), targets[rank])
        loss.backward()

    loop = Loop(model=lambda: network().float(), backward=in_bfloat16)
    agree(decentralized(loop, N, STEPS, topology=PAIRS), by_hand(loop, PAIRS, STEPS), tolerance=1e-3)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models(backend: str) -> None:
    loop = Loop(model=lambda: torch.compile(network(), backend=backend))
    agree(decentralized(loop, 2, 3, topology="ring"), by_hand(Loop(), topologies.build("ring", 2), 3))


def test_a_model_that_is_compiled_to_machine_code() -> None:
    """One rank, so that nothing hides whether the code reads the parameters where they lie now."""
    make = fixed(lambda: nn.Linear(5, 3, dtype=torch.float64))
    loop = Loop(model=lambda: torch.compile(make()))
    compiled = torch.compile(make())
    compiled(torch.zeros(2, 5, dtype=torch.float64))  # compiled before the parameters move
    trained = decentralized(Loop(model=lambda: compiled), 1, 3)
    agree(trained, by_hand(Loop(model=make), topologies.build("ring", 1), 3))
    assert loop.model is not make


# ---- mixed precision with a scaler --------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True], ids=["skips-the-step", "skips-inside-the-step"])
@pytest.mark.parametrize("algorithm", ["d-psgd-overlapped", "d-psgd", "all-reduce"])
def test_a_scaler_that_skips_a_step_of_one_rank_makes_nobody_wait_for_ever(algorithm: str, fused: bool) -> None:
    """Rank 1 finds an infinity in its second gradient. All take part in as many steps as the others at the end."""

    def rank(group: ProcessGroup) -> tuple[Tensor, int, float]:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
        settings = {"group": group, "topology": "ring", "algorithm": algorithm, "timeout_s": 30}
        with decentralize(model, optimizer, **settings) as training:
            for step in range(STEPS):
                inputs, targets = network_batch(step, N)
                loss = network_loss(model(inputs[group.rank()]), targets[group.rank()])
                if group.rank() == 1 and step == 1:
                    loss = loss * float("inf")
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        return flat(model), training.num_steps, scaler.get_scale()

    results = run_ranks(N, rank)
    assert {num_steps for _, num_steps, _ in results} == {STEPS}
    assert [scale for _, _, scale in results] == [8.0, 4.0, 8.0, 8.0]
    trained = torch.stack([parameters for parameters, _, _ in results])
    assert trained.isfinite().all()
    assert (trained[0] - flat(network())).abs().max() > 0.01
    if algorithm == "all-reduce":
        torch.testing.assert_close(trained, trained[:1].expand_as(trained), rtol=0, atol=1e-12)


# ---- topologies and algorithms ------------------------------------------------------------------------------

SIZES = dict.fromkeys(topologies.names(), 4) | {"ring": 5, "base-2": 3, "random-matching": 5, "torus": 6}
"""One size for each family, odd ones too."""


@pytest.mark.parametrize("name", SIZES)
def test_every_topology_by_name(name: str) -> None:
    size = SIZES[name]
    schedule = topologies.build(name, size, steps_per_epoch=2, epochs=3, local_size=2 if size % 2 == 0 else 1)
    settings = {"steps_per_epoch": 2, "epochs": 3, "local_size": 2 if size % 2 == 0 else 1}
    agree(decentralized(Loop(), size, STEPS, topology=name, **settings), by_hand(Loop(), schedule, STEPS))


def test_ada_follows_the_epochs() -> None:
    """Dense at first, thin at the end: the bytes of a step show it."""
    sent: dict[int, list[float]] = {}

    def count(training: object) -> None:
        return None

    def rank(group: ProcessGroup) -> list[float]:
        model = network()
        optimizer = sgd(model)
        with decentralize(model, optimizer, group=group, topology="ada", steps_per_epoch=2, epochs=4) as training:
            seen = []
            for step in range(8):
                before = training.metrics()["bytes_sent"]
                backward(model, group.rank(), step)
                optimizer.step()
                seen.append(training.metrics()["bytes_sent"] - before)
        return seen

    schedule = topologies.build("ada", 7, steps_per_epoch=2, epochs=4)
    model_bytes = 8 * flat(network()).numel()
    for seen in run_ranks(7, rank):
        assert seen == pytest.approx([schedule(step).bytes_per_step(model_bytes) for step in range(8)])
        assert len(set(seen)) > 1
    assert count is not None
    assert sent == {}


@pytest.mark.parametrize("algorithm", [*algorithms.ALGORITHMS, "local-sgd:every=2"])
@pytest.mark.parametrize("size", [1, 3])
def test_every_algorithm_is_what_the_engine_of_all_replicas_on_one_device_does(algorithm: str, size: int) -> None:
    from trajectories import schedule, stacked

    ring = schedule("ring", size)
    expected = stacked(algorithms.build(algorithm), ring, num_steps=STEPS)
    names = [name for name, _ in network().named_parameters()]

    def of_own_batches(model: nn.Module, rank: int, step: int) -> None:
        inputs, targets = network_batch(step, size)
        network_loss(model(inputs[rank]), targets[rank]).backward()

    trained = decentralized(Loop(backward=of_own_batches), size, STEPS, topology=ring, algorithm=algorithm)
    agree(trained, expected, tolerance=1e-11)
    assert names


def test_everything_else() -> None:
    assert everything(network()).ndim == 1
