"""What exchanges send and what they hold: smaller types on the wire, own values in full, two models at most."""

import ctypes
import gc
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from gossamer import decentralize, topologies
from gossamer.engines import Decentralized, Transport, Wire
from loops import Loop, decentralized, flat
from ranks import run_ranks
from worlds import in_processes

N, STEPS = 4, 6
HALF = torch.bfloat16

# ---- smaller types on the wire ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "topology", ["one-peer-exponential", "ring", "exponential", "ring-lattice:k=4", "complete", "base-3"]
)
def test_only_what_others_sent_is_rounded(topology: str, dtype: torch.dtype) -> None:
    """By every way of mixing: a replica's own values count in full, those of the others in bfloat16."""
    schedule = topologies.build(topology, 6 if topology != "one-peer-exponential" else 4)
    values = torch.randn(schedule.n, 50, dtype=dtype, generator=torch.Generator().manual_seed(0))

    def rank(group: ProcessGroup) -> tuple[Tensor, Tensor, Tensor, float]:
        transport = Transport(group, timeout_s=20, wire=Wire(HALF))
        own = values[group.rank()].clone()
        exchange = transport.start(schedule(0), own)
        mixed = exchange.wait()
        return mixed, own, transport.start(schedule(0), own).wait(own), exchange.bytes_sent

    results = run_ranks(schedule.n, rank)
    weights = torch.from_numpy(schedule(0).matrix())
    rounded = values.to(HALF).double()
    expected = weights @ rounded + weights.diagonal()[:, None] * (values.double() - rounded)
    mixed = torch.stack([result for result, *_ in results])
    assert mixed.dtype == dtype
    groups = schedule(0).groups
    sums_are_rounded = groups is not None and max(map(len, groups)) > 2
    tolerance = 0.02 if sums_are_rounded else 1e-6
    torch.testing.assert_close(mixed.double(), expected, rtol=0, atol=tolerance)
    for in_new_memory, own, in_place, bytes_sent in results:
        assert torch.equal(in_new_memory, in_place)
        assert own.data_ptr() == in_place.data_ptr()
        assert bytes_sent <= schedule(0).degree * 2 * values.shape[1]


@pytest.mark.parametrize("topology", ["one-peer-exponential", "ring", "complete"])
def test_training_in_bfloat16_on_the_wire_is_close_and_sends_less(topology: str) -> None:
    def seen(training: Decentralized) -> tuple[Tensor, float]:
        return flat(training.model), training.metrics()["bytes_sent"]

    full = decentralized(Loop(), N, STEPS, seen, topology=topology)
    half = decentralized(Loop(), N, STEPS, seen, topology=topology, wire_dtype=HALF)
    for (expected, all_bytes), (trained, bytes_sent) in zip(full, half, strict=True):
        assert bytes_sent == all_bytes / 4, "of float64"
        assert 0 < (trained - expected).abs().max() < 0.02


def test_replicas_that_average_gradients_stay_equal_whatever_is_sent() -> None:
    trained = decentralized(Loop(), N, STEPS, algorithm="all-reduce", wire_dtype=HALF)
    full = decentralized(Loop(), N, STEPS, algorithm="all-reduce")
    for other in trained:
        assert torch.equal(other, trained[0])
    assert 0 < (trained[0] - full[0]).abs().max() < 0.01


def test_whole_numbers_are_not_rounded() -> None:
    wire = Wire(HALF)
    counts = torch.tensor([1_000_001])
    assert wire.pack(counts) is counts


def test_a_half_type_goes_as_it_is_where_nothing_is_asked() -> None:
    def rank(group: ProcessGroup) -> tuple[torch.dtype, float]:
        transport = Transport(group, timeout_s=20)
        exchange = transport.start(topologies.build("ring", 2)(0), torch.ones(10, dtype=HALF) * group.rank())
        return exchange.wait().dtype, exchange.bytes_sent

    assert run_ranks(2, rank) == [(HALF, 20.0)] * 2


# ---- memory -------------------------------------------------------------------------------------------------

PART = 4 * 2**20

MOST_MODELS_HELD = {
    "one-peer-exponential": 1,
    "alternating-exponential-ring:local_size=2": 1,
    "complete": 1,
    "ring": 2,
}
"""Beside parameters and gradients, at any moment of a step of the default algorithm."""


def _resident(which: str) -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(f"{which}:"))


def _models_held(group: ProcessGroup, topology: str) -> float:
    """How many models more than in training alone the memory has held at its fullest."""
    ctypes.CDLL(None).mallopt(-3, PART // 4)  # what is large is mapped from the system, and goes back to it when freed
    model = nn.ParameterList([torch.zeros(PART // 4) for _ in range(2)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.fill_(1.0)
        optimizer.step()

    step()
    gc.collect()
    alone = _resident("VmRSS")
    with decentralize(model, optimizer, group=group, topology=topology, bucket_mib=5) as training:
        assert len(training.replicas) == 2
        Path("/proc/self/clear_refs").write_text("5")  # the highest so far is that of now
        for _ in range(4):
            step()
        return (_resident("VmHWM") - alone) / (2 * PART)


def _held_on_all(group: ProcessGroup) -> dict[str, float]:
    _models_held(group, "ring")  # what is loaded and set up once does not count
    return {topology: _models_held(group, topology) for topology in MOST_MODELS_HELD}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="asks Linux for the highest resident memory")
def test_no_more_than_two_models_are_held_beside_parameters_and_gradients() -> None:
    results = in_processes(N, _held_on_all)
    assert set(results) == set(range(N))
    for held in results.values():
        for topology, most in MOST_MODELS_HELD.items():
            assert 0.5 < held[topology] < most + 0.5, topology  # gloo holds parts of what it sums
