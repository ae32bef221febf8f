"""Exchanges between ranks: right, and never a hang when a rank is silent or dead."""

import os
import signal
import threading
import time

import pytest
import torch
from torch.distributed import ProcessGroup

from gossamer.engines import NeighborLost, Transport
from gossamer.topologies import Mixing, build, from_matrix, star
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


def test_ring_lattices_by_doubling_too() -> None:
    """Direct, by doubling, and as the complement of what is missing; two of them under way at once."""
    ways = set()
    for n in (7, 12):
        mixings = [build(f"ring-lattice:k={k}", n)(0) for k in range(2, n - 1, 2)]
        values = torch.randn(n, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(n))

        def rank(
            group: ProcessGroup, mixings: list[Mixing] = mixings, values: torch.Tensor = values
        ) -> list[tuple[torch.Tensor, float]]:
            transport, own = Transport(group, timeout_s=20), values[group.rank()]
            under_way = [transport.start(mixing, own) for mixing in mixings]
            return [(exchange.wait(), exchange.bytes_sent) for exchange in reversed(under_way)][::-1]

        by_rank = run_ranks(n, rank)
        for i, mixing in enumerate(mixings):
            assert mixing.window is not None
            ways.add((mixing.window.is_by_doubling, mixing.window.is_complement))
            mixed = torch.stack([results[i][0] for results in by_rank])
            torch.testing.assert_close(mixed, torch.from_numpy(mixing.matrix()) @ values, rtol=0, atol=1e-14)
            assert {results[i][1] for results in by_rank} == {mixing.bytes_per_step(values[0].nbytes)}
    assert ways == {(False, False), (True, False), (True, True)}


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

    others_are_done = threading.Barrier(4)

    def rank(group: ProcessGroup) -> NeighborLost | None:
        transport = Transport(group, timeout_s=1.0)
        transport.start(mixing, torch.zeros(10)).wait()
        if group.rank() == 2:
            others_are_done.wait()  # alive and connected, but silent
            return None
        try:
            with pytest.raises(NeighborLost) as caught:
                exchange_until_lost(transport)
        finally:
            others_are_done.wait()
        return caught.value

    lost = [error for error in run_ranks(4, rank) if error is not None]
    assert [error.rank for error in lost] == [2, 2, 2]
    assert all("rank 2" in str(error) for error in lost)
    assert any("timeout of 1 s" in str(error) for error in lost)


def test_a_rank_that_is_only_late_is_not_blamed() -> None:
    """Rank 2 dies while rank 1 is still computing: rank 0 must wait until it knows which of the two is lost."""

    def rank(group: ProcessGroup) -> int | None:
        transport = Transport(group, timeout_s=4)
        transport.start_mean(torch.zeros(10)).wait()
        if group.rank() == 2:
            group.abort()
            return None
        if group.rank() == 1:
            time.sleep(2)
        with pytest.raises(NeighborLost) as caught:
            transport.start_mean(torch.zeros(10)).wait()
        return caught.value.rank

    assert run_ranks(3, rank) == [2, 2, None]


def test_a_mistake_of_the_caller_is_not_blamed_on_a_neighbour() -> None:
    def rank(group: ProcessGroup) -> None:
        with pytest.raises(RuntimeError) as caught:
            Transport(group, timeout_s=20).start_mean(torch.zeros(10, dtype=torch.float8_e4m3fn)).wait()
        assert not isinstance(caught.value, NeighborLost)

    run_ranks(2, rank)


def test_transports_in_turn_on_one_group() -> None:
    """Each makes its subgroups anew, and none meets what an earlier one has left in the store."""
    in_threes = build("alternating-exponential-ring:local_size=3", 6)

    def rank(group: ProcessGroup) -> list[float]:
        values = []
        for _ in range(3):
            transport = Transport(group, timeout_s=10)
            values += [
                transport.start(in_threes(step), torch.tensor([float(group.rank())])).wait().item() for step in (0, 1)
            ]
            transport.close()
        return values

    for values in run_ranks(6, rank):
        assert values[:2] == values[2:4] == values[4:]


def _die_at_step_3(group: ProcessGroup) -> tuple[str, float]:
    """What is said to those who live on, and after how many seconds."""
    started = time.monotonic()
    transport = Transport(group, timeout_s=20)
    ring = build("ring", 4)(0)
    try:
        for step in range(100):
            if step == 3 and group.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            transport.start(ring, torch.zeros(1000)).wait()
    except NeighborLost as error:
        return f"{error.rank}: {error}", time.monotonic() - started
    return "nothing happened", 0.0


def test_a_killed_process_is_named_by_everybody() -> None:
    messages = in_processes(4, _die_at_step_3)
    assert set(messages) == {0, 2, 3}
    for message, after_s in messages.values():
        assert message.startswith("1: ")
        assert after_s < 20, "the death is seen at once, not at the timeout"


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
