"""What exchanges send and what they hold: smaller types on the wire, own values in full, two models at most."""

import ctypes
import gc
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from gossamer import decentralize, topologies
from gossamer.engines import Decentralized, Transport, Wire, board, futex
from loops import Loop, decentralized, flat, take_steps
from problems import network
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
    "star": 2,
}
"""Beside parameters and gradients, at any moment of a step of the default algorithm, where models are sent."""


def _memory(which: str) -> int:
    """Of this process, in bytes; pages that several share count in part for each as `Pss`."""
    file = Path("/proc/self/smaps_rollup" if which == "Pss" else "/proc/self/status")
    lines = file.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{which}:"))


def _models_held(group: ProcessGroup, topology: str, *, in_shared_memory: bool) -> float:
    """How many models more than in training alone the memory holds, or has held at its fullest."""
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
    alone = _memory("Pss" if in_shared_memory else "VmRSS")
    with decentralize(model, optimizer, group=group, topology=topology, bucket_mib=5) as training:
        assert len(training.replicas) == 2
        assert (training.transport.boards is not None) == in_shared_memory
        Path("/proc/self/clear_refs").write_text("5")  # the highest so far is that of now
        for _ in range(4):
            step()
        training.transport.gather(torch.zeros(1))  # all have come this far, and hold what they hold
        held = _memory("Pss" if in_shared_memory else "VmHWM") - alone
        training.transport.gather(torch.zeros(1))
    return held / (2 * PART)


def _held_on_all(group: ProcessGroup, *, in_shared_memory: bool) -> dict[str, float]:
    if not in_shared_memory:
        board.host = lambda: f"host of rank {group.rank()}"
    held = partial(_models_held, group, in_shared_memory=in_shared_memory)
    held("ring")  # what is loaded and set up once does not count
    return {topology: held(topology) for topology in MOST_MODELS_HELD}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="asks Linux for the highest resident memory")
def test_no_more_than_two_models_are_held_beside_parameters_and_gradients() -> None:
    results = in_processes(N, partial(_held_on_all, in_shared_memory=False))
    assert set(results) == set(range(N))
    for topology, most in MOST_MODELS_HELD.items():
        assert 0.5 < max(held[topology] for held in results.values()) < most + 0.5, topology  # gloo holds parts of sums


@pytest.mark.skipif(not futex.IS_AVAILABLE, reason="counters in shared memory need Linux on x86-64")
def test_in_shared_memory_two_models_are_held_whatever_the_graph() -> None:
    results = in_processes(N, partial(_held_on_all, in_shared_memory=True))
    for topology in MOST_MODELS_HELD:
        assert 1.0 < sum(held[topology] for held in results.values()) / N < 2.3, topology


def test_buffers_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second exchange of the same size takes the memory of the first."""
    monkeypatch.setattr(board, "host", lambda: f"host of thread {threading.get_ident()}")

    def rank(group: ProcessGroup) -> bool:
        model = network()
        with decentralize(model, torch.optim.SGD(model.parameters()), group=group, topology="ring") as training:
            take_steps(training, range(2))
            first = {buffer.data_ptr() for spare in training.transport.wire._spare.values() for buffer in spare}
            take_steps(training, range(2, 5))
            training.settle()
            later = {buffer.data_ptr() for spare in training.transport.wire._spare.values() for buffer in spare}
        return first <= later and len(later) == 2

    assert run_ranks(5, rank) == [True] * 5
