"""A replica that is averaged while its worker computes loses nothing of either."""

import threading

import pytest
import torch
from torch import Tensor

from gossamer.engines.flat import FlatReplica
from gossamer.engines.live import LiveReplica
from gossamer.engines.parcel import Parcel
from gossamer.engines.wire import Wire


def replica(values: Tensor) -> tuple[FlatReplica, LiveReplica]:
    model = FlatReplica({"x": torch.nn.Parameter(values.clone())})
    return model, LiveReplica([model])


def swap(one: LiveReplica, other: LiveReplica, parcels: list[Parcel]) -> None:
    """By hand: what each has sent, then what each makes of it."""
    one.copy_to(parcels[0])
    other.copy_to(parcels[1])
    received = [Parcel(one.values), Parcel(other.values)]
    for parcel, source in zip(received, reversed(parcels), strict=True):
        parcel.fill([tensor.to(values.dtype) for tensor, values in zip(source.tensors, one.values, strict=True)])
    one.mix(parcels[0], received[0])
    other.mix(parcels[1], received[1])


def test_steps_and_swaps_in_parallel_keep_the_sum() -> None:
    """Two workers that step as fast as they can, a third thread that swaps them meanwhile."""
    made = [replica(torch.full((50,), start, dtype=torch.float64)) for start in (1.0, -3.0)]
    parcels = [Parcel(live.values) for _, live in made]
    begun = threading.Barrier(3)

    def train(worker: int) -> None:
        model, live = made[worker]
        generator = torch.Generator().manual_seed(worker)
        begun.wait()
        for _ in range(500):
            model.params += 1e-3 * torch.randn(50, generator=generator, dtype=torch.float64)
            live.take_in()

    threads = [threading.Thread(target=train, args=(worker,)) for worker in range(2)]
    for thread in threads:
        thread.start()
    begun.wait()
    for _ in range(300):
        swap(made[0][1], made[1][1], parcels)
    for thread in threads:
        thread.join()
    expected = torch.full((50,), -2.0, dtype=torch.float64)
    for worker in range(2):
        generator = torch.Generator().manual_seed(worker)
        for _ in range(500):
            expected += 1e-3 * torch.randn(50, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(made[0][1].values[0] + made[1][1].values[0], expected, rtol=0, atol=1e-12)


def test_a_swap_at_rest_leaves_both_with_the_mean() -> None:
    (_, one), (_, other) = replica(torch.tensor([1.0, 2.0])), replica(torch.tensor([3.0, 8.0]))
    swap(one, other, [Parcel(one.values), Parcel(other.values)])
    assert one.values[0].tolist() == other.values[0].tolist() == [2.0, 5.0]


def test_without_mixing_the_replica_is_bit_by_bit_what_the_optimizer_made() -> None:
    model, live = replica(torch.rand(5))
    for _ in range(20):
        model.params.mul_(0.9).add_(0.1)
        assert live.take_in() == 0
        assert torch.equal(live.values[0], model.params)


def test_a_change_lands_on_what_partners_have_made_meanwhile_and_its_staleness_is_told() -> None:
    model, live = replica(torch.zeros(2))
    _, partner = replica(torch.full((2,), 8.0))
    for _ in range(3):
        swap(live, partner, [Parcel(live.values), Parcel(partner.values)])
    assert model.params.tolist() == [0.0, 0.0]  # the worker computes on what it has read
    model.params += 1
    assert live.take_in() == 3
    assert live.values[0].tolist() == model.params.tolist() == [5.0, 5.0]
    assert live.take_in() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_smaller_type_on_the_wire_keeps_the_sum_too(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, 100, generator=generator, dtype=torch.float64)
    (_, one), (_, other) = replica(values[0]), replica(values[1])
    sent = [Parcel(live.values, Wire(dtype)) for live in (one, other)]
    one.copy_to(sent[0])
    other.copy_to(sent[1])
    received = [Parcel(live.values, Wire(dtype)) for live in (one, other)]
    received[0].fill(sent[1].tensors)
    received[1].fill(sent[0].tensors)
    one.mix(sent[0], received[0])
    other.mix(sent[1], received[1])
    torch.testing.assert_close(one.values[0] + other.values[0], values.sum(0), rtol=0, atol=1e-14)
    assert (one.values[0] - other.values[0]).abs().max() < 0.05


def test_loaded_parameters_become_the_replica() -> None:
    model, live = replica(torch.zeros(2))
    model.params += 7
    live.restart()
    assert live.values[0].tolist() == [7.0, 7.0]
    assert live.take_in() == 0
