"""What can be asked of a training: the average, figures, a pause for changes, two models at once."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from gossamer import decentralize, topologies
from gossamer.engines import Decentralized
from loops import Loop, backward, by_hand, decentralized, everything, flat, mix_by_hand, sgd, take_steps
from problems import network, network_batch
from ranks import run_ranks
from trajectories import perturbed

N, STEPS = 4, 6
OVERLAPPED_AND_NOT = pytest.mark.parametrize(
    "algorithm", ["d-psgd-overlapped", "d-psgd-overlapped:behind=2", "d-psgd", "all-reduce"]
)


def in_ranks(work: Callable[[Decentralized], Any], size: int = N, **settings: Any) -> list[Any]:
    """What `work` returns on every rank, inside the training."""

    def rank(group: ProcessGroup) -> Any:
        model = network()
        with decentralize(model, sgd(model), group=group, **({"topology": "ring"} | settings)) as training:
            return work(training)

    return run_ranks(size, rank)


# ---- the start ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bucket_mib", [25.0, 1e-4])
def test_replicas_that_begin_different_become_those_of_rank_0(bucket_mib: float) -> None:
    """Parameters, frozen ones that the optimizer has and has not, and buffers, whatever their type."""

    def rank(group: ProcessGroup) -> tuple[Tensor, Tensor]:
        model = perturbed(network(), by=1.0 + group.rank())
        model[1].bias.requires_grad_(False)
        model[3].bias.requires_grad_(False)
        model.register_buffer("mask", torch.tensor([True, group.rank() == 0]))
        model.register_buffer("scalar", torch.tensor(float(group.rank())))
        model.register_buffer("transposed", torch.full((2, 3), group.rank()).T)
        before = everything(model)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p is not model[3].bias], lr=0.1)
        decentralize(model, optimizer, group=group, topology="ring", bucket_mib=bucket_mib).close()
        return before, everything(model)

    results = run_ranks(3, rank)
    for before, after in results:
        assert torch.equal(after, results[0][0])
        assert before is results[0][0] or not torch.equal(before, after)


# ---- the average --------------------------------------------------------------------------------------------


@OVERLAPPED_AND_NOT
@pytest.mark.parametrize("num_steps", [0, 1, 3], ids=["before-any-step", "before-the-second-step", "later"])
def test_the_average_of_all_replicas_and_then_on_as_if_nothing_had_been(num_steps: int, algorithm: str) -> None:
    """Twice in a row; parameters and the statistics of batch norm; bit by bit the training of one that never asked."""

    def asked(training: Decentralized) -> tuple[Tensor, list[Tensor], Tensor]:
        own = take_steps(training, range(num_steps))
        averages = []
        for _ in range(2):
            with training.averaged() as model:
                averages.append(everything(model))
            assert torch.equal(everything(training.model), own)
        return own, averages, take_steps(training, range(num_steps, STEPS))

    never = in_ranks(lambda training: take_steps(training, range(STEPS)), algorithm=algorithm)
    results = in_ranks(asked, algorithm=algorithm)
    mean = torch.stack([own for own, _, _ in results]).mean(0)
    for (_, averages, end), expected in zip(results, never, strict=True):
        for average in averages:
            torch.testing.assert_close(average, mean, rtol=0, atol=1e-14)
        assert torch.equal(end, expected)
    if num_steps > 1 and algorithm != "all-reduce":
        assert (results[0][0] - mean).abs().max() > 1e-4


def test_the_average_is_exact_whatever_is_sent() -> None:
    """Training sends bfloat16; the average is of the full numbers, and that of bfloat16 parameters is not made of
    rounded sums."""

    def average(training: Decentralized) -> tuple[Tensor, Tensor]:
        own = take_steps(training, range(3))
        with training.averaged() as model:
            return own, everything(model)

    results = in_ranks(average, wire_dtype=torch.bfloat16)
    mean = torch.stack([own for own, _ in results]).mean(0)
    for _, said in results:
        torch.testing.assert_close(said, mean, rtol=0, atol=1e-14)

    values = torch.randn(8, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()

    def half(group: ProcessGroup) -> Tensor:
        model = nn.ParameterList([values[group.rank()].clone()])
        with decentralize(model, torch.optim.SGD(model.parameters()), group=group, topology="ring") as training:
            with torch.no_grad():
                model[0].copy_(values[group.rank()])
            with training.averaged():
                return model[0].detach().clone()

    for said in run_ranks(8, half):
        assert torch.equal(said, values.double().mean(0).bfloat16())


def test_inside_the_average_gradients_can_be_taken_but_no_step() -> None:
    def work(training: Decentralized) -> tuple[Tensor, Tensor]:
        take_steps(training, range(2))
        own = flat(training.model)
        with training.averaged() as model:
            backward(model, 0, 5)
            assert all(p.grad is not None for p in model.parameters())
            with pytest.raises(ValueError, match=r"optimizer.step\(\) inside averaged\(\).*train outside"):
                training.optimizer.step()
            with training.averaged():
                pass
            with pytest.raises(ValueError, match="train outside"):
                training.optimizer.step()
        assert torch.equal(flat(training.model), own)
        return own, take_steps(training, range(2, 4))

    plain = in_ranks(lambda training: take_steps(training, range(4)), 2)
    for (_, after), expected in zip(in_ranks(work, 2), plain, strict=True):
        assert torch.equal(after, expected)


def test_an_error_inside_the_average_gives_the_parameters_back() -> None:
    def work(training: Decentralized) -> None:
        take_steps(training, range(2))
        own = everything(training.model)
        with pytest.raises(KeyError, match="mistake"), training.averaged():
            raise KeyError("mistake")
        assert torch.equal(everything(training.model), own)

    in_ranks(work, 2)


def test_after_the_end_too() -> None:
    def rank(group: ProcessGroup) -> tuple[Tensor, Tensor, float]:
        model = network()
        with decentralize(model, sgd(model), group=group, topology="ring") as training:
            take_steps(training, range(3))
        own, distance = flat(model), training.consensus_distance()
        with training.averaged():
            return own, flat(model), distance

    results = run_ranks(5, rank)
    mean = torch.stack([own for own, _, _ in results]).mean(0)
    for _, average, distance in results:
        torch.testing.assert_close(average, mean, rtol=0, atol=1e-14)
        assert distance == results[0][2] > 0


# ---- changes by the user ------------------------------------------------------------------------------------


def test_averaging_without_reverting_is_not_overwritten_by_a_stale_exchange() -> None:
    """Somebody puts the average into the model for good and goes on from there: the exchange that was under way must
    not undo it."""
    pairs = topologies.build("one-peer-exponential", N)

    def work(training: Decentralized) -> Tensor:
        take_steps(training, range(3))
        with training.averaged() as model:
            average = copy.deepcopy(model.state_dict())
        training.settle()
        training.model.load_state_dict(average)
        take_steps(training, range(3, 5))
        return flat(training.model)

    models = [network() for _ in range(N)]
    optimizers = [sgd(model) for model in models]
    for step in range(5):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            backward(model, rank, step)
        if step not in (0, 3):
            mix_by_hand(models, pairs(step - 1))
        for optimizer in optimizers:
            optimizer.step()
        if step == 2:
            states = [model.state_dict() for model in models]
            average = {name: torch.stack([state[name] for state in states]).double().mean(0) for name in states[0]}
            for model in models:
                model.load_state_dict(average)
    expected = torch.stack([flat(model) for model in models])
    torch.testing.assert_close(torch.stack(in_ranks(work, topology=pairs)), expected, rtol=0, atol=1e-12)


def test_parameters_changed_while_an_exchange_is_under_way_are_refused() -> None:
    def work(training: Decentralized) -> None:
        take_steps(training, range(2))
        with torch.no_grad():
            training.model[3].bias += 1
        with pytest.raises(ValueError, match=r"'3.bias' was changed after the last step.*call settle\(\) before"):
            training.optimizer.step()

    in_ranks(work, 2)


def test_what_is_several_steps_behind_is_all_taken_in_before_a_change() -> None:
    """Nothing that set out before the change may pull replicas apart after it."""

    def work(training: Decentralized) -> tuple[Tensor, Tensor, Tensor]:
        before = take_steps(training, range(4))
        training.settle()
        settled = everything(training.model)
        for parameter in training.model.parameters():
            nn.init.constant_(parameter, 3.0)
        training.optimizer.param_groups[0]["lr"] = 0.0
        take_steps(training, range(4, 8))
        return before, settled, flat(training.model)

    results = in_ranks(work, algorithm="d-psgd-overlapped:behind=3")
    before, settled, after = (torch.stack(values) for values in zip(*results, strict=True))
    torch.testing.assert_close(settled.mean(0), before.mean(0), rtol=0, atol=1e-12)
    assert not torch.equal(settled, before)
    torch.testing.assert_close(after, torch.full_like(after, 3.0), rtol=0, atol=1e-12)


def test_a_method_that_does_not_overlap_takes_changes_as_they_come() -> None:
    def work(training: Decentralized) -> float:
        take_steps(training, range(2))
        for parameter in training.model.parameters():
            nn.init.constant_(parameter, 3.0)
        training.optimizer.param_groups[0]["lr"] = 0.0
        take_steps(training, range(2, 3))
        return float(flat(training.model).mean())

    assert in_ranks(work, 2, algorithm="d-psgd") == [3.0, 3.0]


# ---- figures ------------------------------------------------------------------------------------------------


def test_the_consensus_distance_is_that_of_its_definition() -> None:
    def work(training: Decentralized) -> tuple[Tensor, float]:
        take_steps(training, range(3))
        return flat(training.model), training.consensus_distance()

    results = in_ranks(work, 5, bucket_mib=1e-4)
    x = np.stack([parameters.numpy() for parameters, _ in results])
    mean = x.mean(0)
    expected = ((x - mean) ** 2).sum(1).mean() / (mean**2).sum()
    assert expected > 1e-6
    for _, said in results:
        assert said == pytest.approx(expected, rel=1e-12)


def test_metrics() -> None:
    def work(training: Decentralized) -> dict[str, float]:
        take_steps(training, range(3))
        return training.metrics()

    for metrics in in_ranks(work, 5, timeout_s=17):
        assert set(metrics) == {"steps", "seconds", "waited_s", "bytes_sent", "timeout_s"}
        assert (metrics["steps"], metrics["timeout_s"]) == (3, 17)
        assert metrics["bytes_sent"] == 3 * 2 * 8 * flat(network()).numel(), "to two neighbours, three times"
        assert 0 < metrics["waited_s"] < metrics["seconds"]


class Written(list[tuple[str, float, int]]):
    """What a writer of TensorBoard's kind was told."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.append((tag, scalar_value, global_step))


@pytest.mark.parametrize("bucket_mib", [25.0, 1e-4])
def test_reports_every_so_many_steps_even_of_ranks_with_less_data(bucket_mib: float) -> None:
    """Rank 0 writes. Rank 1 ends early, and still takes part in what is measured."""

    def work(training: Decentralized) -> tuple[Written, Tensor]:
        written = Written()
        training.report_to(written if training.rank == 0 else None, every=2)
        take_steps(training, range(7 if training.rank == 0 else 3))
        training.close()
        return written, flat(training.model)

    (written, _), (nothing, _) = in_ranks(work, 2, bucket_mib=bucket_mib)
    names = ["gossamer/consensus_distance", "gossamer/waited_s", "gossamer/bytes_sent"]
    assert [(tag, step) for tag, _, step in written] == [(name, step) for step in (2, 4, 6) for name in names]
    assert nothing == []
    figures = {(tag, step): value for tag, value, step in written}
    assert figures["gossamer/consensus_distance", 2] > 0
    sent = 8 * flat(network()).numel()
    before_the_mixing = 5 if bucket_mib == 25 else 6  # parts set out during the step
    assert figures["gossamer/bytes_sent", 6] == before_the_mixing * sent


def test_reporting_changes_nothing() -> None:
    def work(training: Decentralized) -> Tensor:
        training.report_to(Written(), every=1)
        return take_steps(training, range(STEPS))

    plain = in_ranks(lambda training: take_steps(training, range(STEPS)), 3)
    for reported, expected in zip(in_ranks(work, 3), plain, strict=True):
        assert torch.equal(reported, expected)


def test_reports_of_no_steps_are_refused() -> None:
    def work(training: Decentralized) -> None:
        with pytest.raises(ValueError, match="every=0: give a number of steps"):
            training.report_to(None, every=0)

    in_ranks(work, 1)


# ---- parts, several models ----------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["ring", "one-peer-exponential", "complete", "alternating-exponential-ring"])
@pytest.mark.parametrize(
    "algorithm", ["d-psgd-overlapped", "d-psgd-overlapped:behind=2", "d-psgd", "d-psgd-cta", "local-sgd:every=2"]
)
def test_many_parts_are_bit_by_bit_one(topology: str, algorithm: str) -> None:
    loop = Loop(optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.01))

    def seen(training: Decentralized) -> tuple[Tensor, int]:
        return everything(training.model), len(training.replicas)

    settings = {"topology": topology, "algorithm": algorithm, "local_size": 2}
    whole = decentralized(loop, N, STEPS, seen, **settings)
    parts = decentralized(loop, N, STEPS, seen, bucket_mib=1e-5, **settings)
    for (expected, one), (trained, several) in zip(whole, parts, strict=True):
        assert (one, several) == (1, len(list(network().parameters())))
        if topology in ("complete", "alternating-exponential-ring"):  # adds in an order that depends on the length
            torch.testing.assert_close(trained, expected, rtol=0, atol=1e-14)
        else:
            assert torch.equal(trained, expected)


def test_two_models_with_an_optimizer_each() -> None:
    """As in adversarial training: exchanges of both are under way at once, between the same ranks."""
    pairs = topologies.build("one-peer-exponential", N)

    def rank(group: ProcessGroup) -> tuple[Tensor, Tensor]:
        one, other = network(), perturbed(network(), by=0.1)
        with (
            decentralize(one, sgd(one), group=group, topology=pairs) as first,
            decentralize(other, sgd(other), group=group, topology=pairs, bucket_mib=1e-4) as second,
        ):
            for step in range(STEPS):
                take_steps(first, range(step, step + 1))
                take_steps(second, range(step, step + 1))
            return flat(one), flat(other)

    ones, others = (torch.stack(trained) for trained in zip(*run_ranks(N, rank), strict=True))
    torch.testing.assert_close(ones, by_hand(Loop(), pairs, STEPS), rtol=0, atol=1e-12)
    shifted = Loop(model=lambda: perturbed(network(), by=0.1))
    torch.testing.assert_close(others, by_hand(shifted, pairs, STEPS), rtol=0, atol=1e-12)


def test_the_loop_runs_without_hooks_afterwards() -> None:
    def rank(group: ProcessGroup) -> None:
        model = network()
        optimizer = sgd(model)
        with decentralize(model, optimizer, group=group, topology="ring") as training:
            take_steps(training, range(2))
        inputs, _ = network_batch(0, 1)
        model(inputs[0]).sum().backward()
        if group.rank() == 0:  # alone: nobody is asked any more
            optimizer.step()
        training.close()  # once more does nothing
        assert training.num_steps == 2

    run_ranks(2, rank)
