"""Exchanges between ranks: right, and never a hang when a rank is silent or dead."""

import os
import signal
import time

import pytest
import torch
from torch.distributed import ProcessGroup

from gossamer.engines import NeighborLost, Transport
from gossamer.topologies import build, from_matrix, star
from ranks import run_ranks
from worlds import in_processes

SPECS = [
    "ring",
    "exponential",
    "complete",
    "star",
    "base-2",
    "alternating-exponential-ring:local_size=3",
    "random-matching",
]


@pytest.mark.parametrize("spec", SPECS)
def test_every_way_of_mixing_is_the_matrix_product(spec: str) -> None:
    """Point to point, pairs, group all-reduce, global all-reduce: all compute W @ X."""
    schedule = build(spec, 6)
    values = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def rank(group: ProcessGroup) -> list[torch.Tensor]:
        transport = Transport(group, timeout_s=20)
        return [transport.start(schedule(step), values[group.rank()]).wait() for step in range(6)]

    mixed = run_ranks(6, rank)
    for step in range(6):
        expected = torch.from_numpy(schedule(step).matrix()) @ values
        torch.testing.assert_close(torch.stack([by_rank[step] for by_rank in mixed]), expected, rtol=0, atol=1e-14)


def test_bytes_are_those_of_the_mixing() -> None:
    values = torch.zeros(1000)

    def rank(group: ProcessGroup) -> list[float]:
        transport = Transport(group, timeout_s=20)
        mixings = [build(spec, 6)(0) for spec in ("ring", "complete", "base-2")] + [star(6)]
        sent = []
        for mixing in mixings:
            exchange = transport.start(mixing, values)
            exchange.wait()
            sent.append(exchange.bytes_sent)
        return sent

    by_rank = run_ranks(6, rank)
    for i, mixing in enumerate([*(build(spec, 6)(0) for spec in ("ring", "complete", "base-2")), star(6)]):
        assert max(sent[i] for sent in by_rank) == pytest.approx(mixing.bytes_per_step(values.nbytes))


def test_several_exchanges_may_be_under_way_at_once() -> None:
    ring = build("ring", 4)(0)

    def rank(group: ProcessGroup) -> tuple[torch.Tensor, torch.Tensor]:
        transport = Transport(group, timeout_s=20)
        first = transport.start(ring, torch.full((3,), float(group.rank())))
        second = transport.start(ring, torch.full((3,), 10.0 * group.rank()))
        later, earlier = second.wait(), first.wait()
        return earlier, later

    for earlier, later in run_ranks(4, rank):
        torch.testing.assert_close(later, 10 * earlier)


def test_gather_and_mean() -> None:
    def rank(group: ProcessGroup) -> tuple[torch.Tensor, torch.Tensor]:
        transport = Transport(group, timeout_s=20)
        own = torch.tensor([float(group.rank()), 1.0])
        return transport.gather(own), transport.start_mean(own).wait()

    for everybody, mean in run_ranks(3, rank):
        assert everybody.tolist() == [[0, 1], [1, 1], [2, 1]]
        assert mean.tolist() == [1, 1]


@pytest.mark.parametrize("spec", ["ring", "complete", "alternating-exponential-ring:local_size=4"])
def test_a_silent_rank_is_named_by_everybody(spec: str) -> None:
    """Rank 2 goes silent. Nobody hangs, and even ranks that only see a neighbour give up know who is at fault."""
    mixing = build(spec, 4)(0)

    def exchange_until_lost(transport: Transport) -> None:
        for _ in range(5):
            transport.start(mixing, torch.zeros(10)).wait()

    def rank(group: ProcessGroup) -> tuple[int, str, float] | None:
        transport = Transport(group, timeout_s=1.0)
        transport.start(mixing, torch.zeros(10)).wait()
        if group.rank() == 2:
            time.sleep(7)
            return None
        started = time.monotonic()
        with pytest.raises(NeighborLost) as caught:
            exchange_until_lost(transport)
        return caught.value.rank, str(caught.value), time.monotonic() - started

    outcomes = [outcome for outcome in run_ranks(4, rank) if outcome is not None]
    assert [culprit for culprit, _, _ in outcomes] == [2, 2, 2]
    assert all("rank 2" in message for _, message, _ in outcomes)
    assert any("timeout of 1 s" in message for _, message, _ in outcomes)
    assert max(seconds for _, _, seconds in outcomes) < 7


def _die_at_step_3(group: ProcessGroup) -> str:
    transport = Transport(group, timeout_s=20)
    ring = build("ring", 4)(0)
    try:
        for step in range(100):
            if step == 3 and group.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            transport.start(ring, torch.zeros(1000)).wait()
    except NeighborLost as error:
        return f"{error.rank}: {error}"
    return "nothing happened"


def test_a_killed_process_is_named_by_everybody() -> None:
    started = time.monotonic()
    messages = in_processes(4, _die_at_step_3)
    assert set(messages) == {0, 2, 3}
    for message in messages.values():
        assert message.startswith("1: ")
    assert time.monotonic() - started < 20, "the death is seen at once, not at the timeout"


def test_refusals() -> None:
    def rank(group: ProcessGroup) -> None:
        transport = Transport(group)
        with pytest.raises(ValueError, match="5 replicas cannot run on 2 processes"):
            transport.start(build("ring", 5)(0), torch.zeros(1))
        with pytest.raises(ValueError, match="timeout_s=0"):
            Transport(group, timeout_s=0)

    run_ranks(2, rank)


def test_one_way_weights() -> None:
    """A mixing need not be symmetric: rank 0 only listens to 1, which listens to 2, and so on around."""
    cycle = from_matrix([[0.75, 0.25, 0], [0, 0.75, 0.25], [0.25, 0, 0.75]])

    def rank(group: ProcessGroup) -> float:
        return Transport(group, timeout_s=20).start(cycle, torch.tensor([float(group.rank())])).wait().item()

    assert run_ranks(3, rank) == pytest.approx([0.25, 1.25, 1.5])
