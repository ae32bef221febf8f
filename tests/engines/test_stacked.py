"""The stacked engine against N separate models, trained one by one."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gossamer.algorithms import DPSGD, AllReduce, LocalSGD, OverlappedDPSGD
from gossamer.engines import StackedEngine
from gossamer.engines.stacked_mix import StackedMix
from gossamer.topologies import build
from problems import OPTIMIZERS, network, network_batch, network_loss
from trajectories import perturbed, schedule


def engine_of(model: nn.Module, n: int = 4, optimizer: str = "sgd", **settings: object) -> StackedEngine:
    defaults = {"algorithm": DPSGD(), "schedule": build("ring", n), "loss": network_loss}
    return StackedEngine(model, OPTIMIZERS[optimizer], num_replicas=n, **(defaults | settings))


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_equals_separate_models_that_are_mixed_by_hand(optimizer: str) -> None:
    """Parameters, batch norm statistics and what the model says, all of them, to the last digits."""
    n, ring = 4, build("ring", 4)
    engine = engine_of(network(), n, optimizer)
    models = [network() for _ in range(n)]
    optimizers = [OPTIMIZERS[optimizer](model.parameters()) for model in models]
    weights = torch.from_numpy(ring(0).matrix())
    for step in range(10):
        inputs, targets = network_batch(step, n)
        losses = engine.step(inputs, targets)
        for i, (model, local) in enumerate(zip(models, optimizers, strict=True)):
            model.train()
            local.zero_grad()
            loss = network_loss(model(inputs[i]), targets[i])
            loss.backward()
            local.step()
            torch.testing.assert_close(losses[i], loss.detach(), rtol=0, atol=1e-12)
        for parameters in zip(*(model.parameters() for model in models), strict=True):
            mixed = torch.tensordot(weights, torch.stack([p.detach() for p in parameters]), dims=1)
            for parameter, values in zip(parameters, mixed, strict=True):
                parameter.data.copy_(values)
    inputs = network_batch(99, 1)[0][0]
    said = torch.stack([model.eval()(inputs) for model in models])
    torch.testing.assert_close(engine.outputs(inputs.expand(len(models), -1, -1)), said, rtol=0, atol=1e-12)
    for i, model in enumerate(models):
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(engine.buffers()[name][i], buffer, rtol=0, atol=1e-12)


def test_the_averaged_model() -> None:
    engine = engine_of(network())
    for step in range(5):
        engine.step(*network_batch(step, 4))
    average = network().eval()
    state = {
        name: tensor.mean(0)
        for name, tensor in {**engine.parameters, **engine.buffers()}.items()
        if tensor.is_floating_point()
    }
    average.load_state_dict(state, strict=False)
    inputs = network_batch(99, 1)[0][0]
    torch.testing.assert_close(engine.averaged_outputs(inputs), average(inputs), rtol=0, atol=1e-12)


def test_the_template_is_never_changed() -> None:
    model = network()
    before = copy.deepcopy(model.state_dict())
    engine = engine_of(model)
    engine.step(*network_batch(0, 4))
    engine.outputs(network_batch(0, 1)[0][0].expand(4, -1, -1))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_dropout_differs_from_replica_to_replica_and_repeats_with_the_seed() -> None:
    def losses() -> torch.Tensor:
        torch.manual_seed(3)
        engine = engine_of(nn.Sequential(nn.Linear(5, 64), nn.Dropout(), nn.Linear(64, 3)).double())
        inputs, targets = network_batch(0, 1)
        return engine.step(inputs.expand(4, -1, -1), targets.expand(4, -1))

    first = losses()
    assert first.unique().numel() == 4
    assert torch.equal(first, losses())


def test_frozen_and_tied_parameters() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into = nn.Linear(5, 3, bias=False)
            self.scale = nn.Parameter(torch.ones(3), requires_grad=False)
            self.out = nn.Linear(5, 3, bias=False)
            self.out.weight = self.into.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.into(x) + self.out(x)) * self.scale

    model = Tied().double()
    engine = engine_of(model)
    assert engine.tensor_names == ("into.weight",)
    inputs, targets = network_batch(0, 4)
    engine.step(inputs, targets)
    plain = copy.deepcopy(model)
    optimizer = OPTIMIZERS["sgd"](p for p in plain.parameters() if p.requires_grad)
    network_loss(plain(inputs[0]), targets[0]).backward()
    optimizer.step()
    alone = engine_of(model, algorithm=LocalSGD(every=9))
    alone.step(inputs, targets)
    torch.testing.assert_close(alone.parameters["into.weight"][0], plain.into.weight)


@pytest.mark.parametrize("algorithm", [DPSGD(), OverlappedDPSGD(), AllReduce()])
def test_a_saved_state_goes_on_bit_by_bit(algorithm: object) -> None:
    torus = schedule("one-peer-exponential", 4)
    whole = engine_of(network(), optimizer="adamw", algorithm=algorithm, schedule=torus)
    for step in range(6):
        whole.step(*network_batch(step, 4))
    saved = copy.deepcopy(whole.state_dict())
    resumed = engine_of(perturbed(network(), by=1.0), optimizer="adamw", algorithm=algorithm, schedule=torus)
    resumed.load_state_dict(saved)
    for step in range(6, 12):
        batch = network_batch(step, 4)
        assert torch.equal(whole.step(*batch), resumed.step(*batch))
    assert torch.equal(whole.flats()[0], resumed.flats()[0])
    assert whole.bytes_sent.tolist() == resumed.bytes_sent.tolist()
    assert whole.bytes_sent.min() > 0


def test_probes_see_replicas_before_mixing() -> None:
    apart: list[float] = []
    engine = engine_of(network(), schedule=build("complete", 4))
    engine.probes.append(lambda step: apart.append((engine.flats()[0] - engine.flats()[0][0]).abs().max().item()))
    engine.step(*network_batch(0, 4))
    assert apart[0] > 1e-4
    assert (engine.flats()[0] - engine.flats()[0][0]).abs().max() < 1e-12


@pytest.mark.parametrize(
    "spec", ["ring", "torus", "star", "exponential", "random-matching", "ring-lattice:k=150", "complete"]
)
@pytest.mark.parametrize("n", [20, 200])
def test_every_way_of_mixing_is_the_matrix_product(spec: str, n: int) -> None:
    """Mean, dense and sparse product, whichever the size and the fullness call for."""
    schedule = build(spec if n > 150 else spec.replace("150", "6"), n)
    mixing = schedule(0)
    values = torch.randn(n, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mixed = StackedMix(n).at(schedule, 0)(values)
    torch.testing.assert_close(mixed, torch.from_numpy(mixing.matrix()) @ values, rtol=0, atol=1e-13)


def test_several_dtypes_are_mixed_each_in_its_own() -> None:
    model = nn.Sequential(nn.Linear(5, 4).double(), _ToFloat(), nn.Linear(4, 3))
    engine = engine_of(model, schedule=build("complete", 4))
    engine.step(*network_batch(0, 4))
    assert [flat.dtype for flat in engine.flats()] == [torch.float64, torch.float32]
    for flat in engine.flats():
        assert (flat - flat[0]).abs().max() < 1e-6


class _ToFloat(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float()


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"for 5 workers, but there are 4"):
        engine_of(network(), 4, schedule=build("ring", 5))
    with pytest.raises(ValueError, match="LBFGS looks at whole tensors"):
        StackedEngine(
            network(),
            torch.optim.LBFGS,
            num_replicas=2,
            algorithm=DPSGD(),
            schedule=build("ring", 2),
            loss=F.cross_entropy,
        )


def test_a_buffer_that_the_model_replaces_is_kept() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(5, 3).double()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count = self.count + 1  # a new tensor, not a change in place
            return self.inner(x)

    engine = engine_of(Counting())
    for step in range(4):
        engine.step(*network_batch(step, 4))
    assert engine.buffers()["count"].tolist() == [4, 4, 4, 4]


def test_evaluating_leaves_every_module_in_its_mode() -> None:
    model = network()
    model[1].eval()  # a frozen batch norm
    engine = engine_of(model)
    before = engine.buffers()["1.running_mean"].clone()
    engine.step(*network_batch(0, 4))
    engine.outputs(network_batch(0, 1)[0][0].expand(4, -1, -1))
    engine.averaged_outputs(network_batch(0, 1)[0][0])
    assert [module.training for module in model] == [True, False, True, True]
    assert torch.equal(engine.buffers()["1.running_mean"], before)


def test_what_would_be_trained_but_not_mixed_is_refused() -> None:
    engine = engine_of(network())
    (stacked,) = engine.optimizer.param_groups[0]["params"]
    stacked.data = stacked.data.clone()
    with pytest.raises(ValueError, match=r"'all torch.float64' was moved after the engine was attached"):
        engine.step(*network_batch(0, 4))
    engine = engine_of(network())
    engine.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(4, 1))]})
    with pytest.raises(ValueError, match="steps 2 parameters, but had 1"):
        engine.step(*network_batch(0, 4))


def test_a_closure_is_refused() -> None:
    engine = engine_of(network())
    with pytest.raises(ValueError, match="without a closure"):
        engine.optimizer.step(lambda: torch.tensor(0.0))
