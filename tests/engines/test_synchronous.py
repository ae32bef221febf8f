"""The synchronous engine in a loop of the user's own, and its saved state."""

import copy

import pytest
import torch
from torch.distributed import ProcessGroup

from gossamer.algorithms import DPSGD, Algorithm, AllReduce, OverlappedDPSGD
from gossamer.engines import SynchronousEngine
from gossamer.engines.flat import flatten
from gossamer.topologies import build
from problems import OPTIMIZERS, network, network_batch, network_loss
from ranks import run_ranks
from trajectories import perturbed, processes, schedule

N = 4


def engine_of(group: ProcessGroup, algorithm: Algorithm, model: torch.nn.Module | None = None) -> SynchronousEngine:
    model = model or network()
    return SynchronousEngine(
        model,
        OPTIMIZERS["adamw"](model.parameters()),
        algorithm=algorithm,
        schedule=schedule("one-peer-exponential", N),
        group=group,
        loss=network_loss,
    )


def test_the_users_own_loop_is_all_it_needs() -> None:
    """Names and keys stay the user's, the hooks do the work, and they are gone afterwards."""
    ring = build("ring", N)

    def rank(group: ProcessGroup) -> torch.Tensor:
        model = network()
        keys = list(model.state_dict())
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        with SynchronousEngine(model, optimizer, algorithm=DPSGD(), schedule=ring, group=group) as engine:
            for step in range(20):
                inputs, targets = network_batch(step, N)
                optimizer.zero_grad()
                network_loss(model(inputs[group.rank()]), targets[group.rank()]).backward()
                optimizer.step()
        assert list(model.state_dict()) == keys
        assert engine.num_steps == 20
        trained = torch.cat([p.detach().flatten() for p in model.parameters()])
        optimizer.step()
        assert engine.num_steps == 20, "the hooks are off"
        return trained

    by_hand = torch.stack(run_ranks(N, rank))
    torch.testing.assert_close(by_hand, processes(DPSGD(), ring, num_steps=20), rtol=0, atol=1e-14)


def test_an_engine_without_a_loss_has_no_loop_of_its_own() -> None:
    def rank(group: ProcessGroup) -> None:
        model = network()
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        engine = SynchronousEngine(model, optimizer, algorithm=DPSGD(), schedule=build("ring", 1), group=group)
        with pytest.raises(ValueError, match="without a loss"):
            engine.step(*network_batch(0, 1))

    run_ranks(1, rank)


def test_all_replicas_begin_equal() -> None:
    """Parameters, buffers, and parameters that are not trained."""

    def rank(group: ProcessGroup) -> torch.Tensor:
        model = perturbed(network(), by=group.rank())
        model[3].bias.requires_grad_(False)
        for buffer in model.buffers():
            buffer += group.rank()
        optimizer = OPTIMIZERS["sgd"](p for p in model.parameters() if p.requires_grad)
        SynchronousEngine(model, optimizer, algorithm=DPSGD(), schedule=build("ring", N), group=group)
        return torch.cat([tensor.double().flatten() for tensor in model.state_dict().values()])

    states = run_ranks(N, rank)
    for state in states[1:]:
        assert torch.equal(state, states[0])


@pytest.mark.parametrize("algorithm", [DPSGD(), OverlappedDPSGD(), AllReduce()])
def test_a_saved_state_goes_on_bit_by_bit(algorithm: Algorithm) -> None:
    """Saved in the middle, even of an exchange, and loaded into a model that stands elsewhere."""

    def train(engine: SynchronousEngine, steps: range) -> torch.Tensor:
        for step in steps:
            inputs, targets = network_batch(step, N)
            engine.step(inputs[engine.local], targets[engine.local])
        return torch.cat([tensor.double().flatten() for tensor in engine.model.state_dict().values()])

    def rank(group: ProcessGroup) -> tuple[torch.Tensor, torch.Tensor]:
        with engine_of(group, algorithm) as whole:
            train(whole, range(7))
            saved = copy.deepcopy(whole.state_dict())
            end = train(whole, range(7, 12))
        with engine_of(group, algorithm, perturbed(network(), by=1.0)) as resumed:
            resumed.load_state_dict(saved)
            return end, train(resumed, range(7, 12))

    for whole, resumed in run_ranks(N, rank):
        assert torch.equal(whole, resumed)


def test_the_state_can_be_saved_after_the_end() -> None:
    """Leaving the block waits for the last exchange; saving then must not wait for it again."""

    def rank(group: ProcessGroup) -> tuple[torch.Tensor, torch.Tensor]:
        with engine_of(group, OverlappedDPSGD()) as engine:
            inputs, targets = network_batch(0, N)
            engine.step(inputs[engine.local], targets[engine.local])
        first, again = (engine.state_dict()["replicas"][0]["arrived"]["exchange"] for _ in range(2))
        return first, again

    for first, again in run_ranks(N, rank):
        assert torch.equal(first, again)


def test_the_averaged_model() -> None:
    def rank(group: ProcessGroup) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
        inputs = network_batch(99, 1)[0][0]
        with engine_of(group, DPSGD()) as engine:
            for step in range(5):
                batch, targets = network_batch(step, N)
                engine.step(batch[engine.local], targets[engine.local])
            state = [tensor.clone() for tensor in engine.model.state_dict().values()]
            return engine.averaged_outputs(inputs), state, engine.outputs(inputs[None])[0]

    results = run_ranks(N, rank)
    average = network().eval()
    for tensor, *of_ranks in zip(average.state_dict().values(), *(state for _, state, _ in results), strict=True):
        tensor.copy_(torch.stack(of_ranks).double().mean(0))
    expected = average(network_batch(99, 1)[0][0])
    for said, _, own in results:
        torch.testing.assert_close(said, expected, rtol=0, atol=1e-12)
        assert (own - expected).abs().max() > 1e-6


def test_a_parameter_without_gradient_counts_as_zero_for_all_reduce() -> None:
    """Rank 1 does not use the last layer in this step; the others' mean must still reach it."""

    def rank(group: ProcessGroup) -> list[torch.Tensor]:
        model = torch.nn.ModuleList([torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)]).double()
        for parameter in model.parameters():
            torch.nn.init.ones_(parameter)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with SynchronousEngine(model, optimizer, algorithm=AllReduce(), schedule=build("complete", 2), group=group):
            x = torch.ones(2, dtype=torch.float64)
            (model[1](model[0](x)) if group.rank() == 0 else model[0](x)).sum().backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    for first, last in run_ranks(2, rank):
        # gradients of the first layer: 2 on rank 0, 1 on rank 1; of the last: 2 and none
        torch.testing.assert_close(first, torch.full((2, 2), 1 - 1.5, dtype=torch.float64))
        torch.testing.assert_close(last, torch.full((2, 2), 1 - 1.0, dtype=torch.float64))


def test_a_schedule_of_another_size_is_refused() -> None:
    def rank(group: ProcessGroup) -> None:
        model = network()
        with pytest.raises(ValueError, match="ring is for 3 workers, but the process group has 2"):
            SynchronousEngine(
                model,
                OPTIMIZERS["sgd"](model.parameters()),
                algorithm=DPSGD(),
                schedule=build("ring", 3),
                group=group,
            )

    run_ranks(2, rank)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_model_in_parts_trains_the_same(name: str) -> None:
    """Parts are stepped and sent one after the other; the user sees one step, and the gradients it was made with."""
    one_peer = schedule("one-peer-exponential", N)

    def rank(group: ProcessGroup, bucket_mib: float | None) -> tuple[torch.Tensor, int, int]:
        model = network()
        optimizer = OPTIMIZERS[name](model.parameters())
        calls: list[int] = []
        optimizer.register_step_post_hook(lambda *_: calls.append(1))
        settings = {"algorithm": OverlappedDPSGD(), "schedule": one_peer, "group": group, "bucket_mib": bucket_mib}
        with SynchronousEngine(model, optimizer, **settings) as engine:
            for step in range(7):
                inputs, targets = network_batch(step, N)
                optimizer.zero_grad()
                network_loss(model(inputs[group.rank()]), targets[group.rank()]).backward()
                grads = [parameter.grad for parameter in model.parameters()]
                optimizer.step()
                assert all(p.grad is grad for p, grad in zip(model.parameters(), grads, strict=True))
            num_parts = len(engine.replicas)
        return torch.cat([p.detach().flatten() for p in model.parameters()]), num_parts, len(calls)

    whole = run_ranks(N, lambda group: rank(group, None))
    parts = run_ranks(N, lambda group: rank(group, 1e-4))
    for (expected, one, _), (trained, several, calls) in zip(whole, parts, strict=True):
        assert (one, several > 1, calls) == (1, True, 7)
        assert torch.equal(trained, expected)


def test_parts_are_no_larger_than_asked_for_unless_a_parameter_is() -> None:
    parameters = {f"p{i}": torch.nn.Parameter(torch.zeros(size)) for i, size in enumerate((10, 10, 30, 5, 5, 5))}
    parts = flatten(parameters, bucket_bytes=80)
    assert [list(part.parameters) for part in parts] == [["p0", "p1"], ["p2"], ["p3", "p4", "p5"]]


def test_a_bias_goes_with_its_weight() -> None:
    parameters = {f"p{i}": torch.nn.Parameter(torch.zeros(size)) for i, size in enumerate((100, 5, 100, 7, 100))}
    parts = flatten(parameters, bucket_bytes=400)
    assert [list(part.parameters) for part in parts] == [["p0", "p1"], ["p2"], ["p3"], ["p4"]], "5 of 100 are few"


@pytest.mark.parametrize("bucket_mib", [0, -1, float("nan")])
def test_parts_of_no_size_are_refused(bucket_mib: float) -> None:
    def rank(group: ProcessGroup) -> None:
        model = network()
        with pytest.raises(ValueError, match="bucket_mib"):
            SynchronousEngine(
                model,
                OPTIMIZERS["sgd"](model.parameters()),
                algorithm=OverlappedDPSGD(),
                schedule=build("ring", 1),
                group=group,
                bucket_mib=bucket_mib,
            )

    run_ranks(1, rank)
