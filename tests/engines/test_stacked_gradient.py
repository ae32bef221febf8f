"""All replicas in one call, whatever the way: stacked, some at a time, one by one, in less precision."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gossamer.algorithms import DPSGD
from gossamer.engines import CannotStack, OutOfMemory, StackedEngine
from gossamer.engines.stacked_gradient import Layout
from gossamer.engines.stacked_mix import neighbour_table, places_around
from gossamer.topologies import build
from problems import network, network_batch, network_loss


def engine_of(model: nn.Module, **options: object) -> StackedEngine:
    settings = {"num_replicas": 8, "algorithm": DPSGD(), "schedule": build("ring", 8), "loss": network_loss, **options}
    return StackedEngine(model, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), **settings)  # type: ignore[arg-type]


def trained(engine: StackedEngine, num_steps: int = 5) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Parameters and buffers in the end, and what the replicas say."""
    for step in range(num_steps):
        losses = engine.step(*network_batch(step, 8))
        assert losses.shape == (8,)
    inputs = network_batch(99, 8)[0]
    return engine.flats()[0], dict(engine.buffers()), engine.outputs(inputs)


def assert_same(one: tuple[Tensor, dict[str, Tensor], Tensor], other: tuple[Tensor, dict[str, Tensor], Tensor]) -> None:
    torch.testing.assert_close(one[0], other[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(one[2], other[2], rtol=0, atol=1e-12)
    assert one[1]
    for name, buffer in one[1].items():
        torch.testing.assert_close(buffer, other[1][name], rtol=0, atol=1e-12)


def test_one_by_one_is_the_same_training() -> None:
    assert_same(trained(engine_of(network(), one_by_one=True)), trained(engine_of(network())))


def test_when_memory_runs_out_some_replicas_at_a_time_give_the_same_training() -> None:
    failures: Iterator[int] = iter(range(2))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if next(failures, None) is not None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return network_loss(outputs, targets)

    engine = engine_of(network(), loss=loss)
    assert_same(trained(engine), trained(engine_of(network())))
    assert engine.replicas_at_once == 2, "halved twice, from 8"


def test_some_at_a_time_need_not_divide_the_replicas() -> None:
    class Once(nn.Module):
        failed = False

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if not Once.failed:
            Once.failed = True
            raise torch.OutOfMemoryError("CUDA out of memory")
        return network_loss(outputs, targets)

    engine = engine_of(network(), num_replicas=5, schedule=build("ring", 5), loss=loss)
    whole = engine_of(network(), num_replicas=5, schedule=build("ring", 5))
    for step in range(3):
        losses = [each.step(*network_batch(step, 5)) for each in (engine, whole)]
        torch.testing.assert_close(*losses, rtol=0, atol=1e-12)
    assert engine.replicas_at_once == 3
    torch.testing.assert_close(engine.flats()[0], whole.flats()[0], rtol=0, atol=1e-12)


def test_more_replicas_than_memory_holds_are_refused_with_the_number_that_fits() -> None:
    with pytest.raises(OutOfMemory, match=r"1000000000 replicas need .* GiB .* about [1-9]\d+ would fit"):
        engine_of(network(), num_replicas=10**9, schedule=_fake_ring(10**9))


def _fake_ring(n: int) -> object:
    """A schedule of that size: a real ring of 10⁹ would not fit into memory itself."""

    class Ring:
        name = "ring"

    Ring.n = n  # type: ignore[attr-defined]
    return Ring()


class Reader(nn.Module):
    """A recurrent layer, whose weights torch also keeps in a list of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 4)
        self.rnn = nn.LSTM(4, 6, batch_first=True)
        self.out = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        said: Tensor = self.out(self.rnn(self.embed(inputs).unsqueeze(1))[0][:, -1])
        return said


def test_a_recurrent_layer_runs_one_by_one() -> None:
    torch.manual_seed(0)
    model = Reader().double()
    engine = engine_of(model, one_by_one=True)
    inputs, targets = network_batch(0, 8)
    losses = engine.step(inputs, targets)
    for i in range(8):
        torch.testing.assert_close(losses[i], network_loss(model(inputs[i]), targets[i]).detach())
    assert engine.outputs(inputs).shape == (8, 6, 3)
    assert not torch.equal(engine.parameters["rnn.weight_ih_l0"][0], engine.parameters["rnn.weight_ih_l0"][4])


class Looks(nn.Module):
    """A layer that decides by the values of its inputs."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if inputs.sum().item() > 0 else -inputs


def test_a_layer_that_cannot_be_stacked_is_named_and_runs_one_by_one() -> None:
    model = nn.Sequential(nn.Linear(5, 3), Looks()).double()
    with pytest.raises(CannotStack, match=r"the layer '1' \(Looks\) cannot be stacked: .* one_by_one=True"):
        engine_of(model).step(*network_batch(0, 8))
    inputs, targets = network_batch(0, 8)
    losses = engine_of(model, one_by_one=True).step(inputs, targets)
    torch.testing.assert_close(losses[3], network_loss(model(inputs[3]), targets[3]).detach())


def test_a_mistake_of_the_model_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="size") as error:
        engine_of(nn.Linear(4, 3).double()).step(*network_batch(0, 8))
    assert not isinstance(error.value, CannotStack)


def test_in_bfloat16_parameters_and_statistics_stay_as_they_are() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    batches = [(inputs.float(), targets) for inputs, targets in (network_batch(step, 8) for step in range(20))]
    losses = []
    for compute in (None, torch.bfloat16):
        engine = engine_of(model, compute=compute, loss=F.cross_entropy)
        losses.append(torch.stack([engine.step(*batch) for batch in batches]))
        assert engine.flats()[0].dtype == torch.float32
        assert engine.buffers()["1.running_mean"].dtype == torch.float32
        assert engine.outputs(batches[0][0]).dtype == torch.float32
    assert not torch.equal(*losses)
    torch.testing.assert_close(*losses, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", ["torus", "exponential", "star", "erdos-renyi"])
def test_the_table_of_neighbours_is_the_matrix(name: str) -> None:
    mixing = build(name, 12)(0)
    neighbours, weights = neighbour_table(mixing)
    matrix = torch.zeros(12, 12, dtype=torch.float64)
    matrix.scatter_add_(1, torch.from_numpy(neighbours).long(), torch.from_numpy(weights))
    torch.testing.assert_close(matrix, torch.as_tensor(mixing.matrix()), rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", ["star", "erdos-renyi"])
def test_where_places_differ_there_are_none_around(name: str) -> None:
    assert places_around(build(name, 12)(0)) is None


class Convolutions(nn.Module):
    """Strided, dilated and grouped convolutions, in float64, batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Unflatten(1, (1, 1, 5)),
            nn.ConstantPad2d((1, 2, 3, 4), 0.1),
            nn.Conv2d(1, 4, 3, stride=2, padding=1),
            nn.BatchNorm2d(4),
            nn.Conv2d(4, 4, (1, 2), padding=(0, 1), groups=2, bias=False),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Conv2d(4, 6, 2, dilation=2, padding=1),
            nn.Flatten(),
            nn.LazyLinear(3),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        said: Tensor = self.layers(inputs)
        return said


def test_traced_is_the_same_training() -> None:
    torch.manual_seed(0)
    model = Convolutions().double()
    model(network_batch(0, 1)[0][0])  # the last layer learns its size
    results = []
    for compiled in (True, False):
        torch.manual_seed(1)  # dropout
        results.append(trained(engine_of(model, compiled=compiled)))
    assert_same(*results)


def test_filters_lie_as_kernels_read_them_and_are_seen_as_the_model_has_them() -> None:
    parameters = {"conv": torch.randn(5, 3, 2, 4), "bias": torch.randn(5), "out": torch.randn(7, 6)}
    layout = Layout(tuple(parameters), tuple(p.shape for p in parameters.values()))
    flat = layout.flatten(parameters)
    assert torch.equal(flat[:120].view(2, 4, 3, 5), parameters["conv"].permute(2, 3, 1, 0))
    stacked = flat.expand(2, -1).clone()
    views = layout.views(stacked)
    for name, parameter in parameters.items():
        assert torch.equal(views[name], torch.stack([parameter, parameter]))
    views["conv"].zero_()
    assert not stacked[:, :120].any(), "a view, not a copy"
    assert stacked[:, 120:].all()
