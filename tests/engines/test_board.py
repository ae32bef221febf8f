"""Exchanges in shared memory: right, in step, without traces, and only among workers of one host."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from gossamer.engines import NeighborLost, Transport, Wire, board
from gossamer.engines.exchange import BoardExchange, ProcessExchange
from gossamer.engines.futex import IS_AVAILABLE, Counter
from gossamer.engines.shared_mean import SharedMean
from gossamer.topologies import build
from ranks import run_ranks
from worlds import in_processes

pytestmark = pytest.mark.skipif(not IS_AVAILABLE, reason="counters in shared memory need Linux on x86-64")
SPECS = ["ring", "exponential", "complete", "star", "base-2", "alternating-exponential-ring:local_size=3"]


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """A board has a name only while ranks meet: what other tests beside this one have there is gone in a moment."""
    before = set(Path("/dev/shm").glob("gossamer-*"))
    yield
    left = set(Path("/dev/shm").glob("gossamer-*")) - before
    deadline = time.monotonic() + 30
    while any(path.exists() for path in left) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [path for path in left if path.exists()]


def on_board(group: ProcessGroup, like: Tensor, wire: Wire | None = None, timeout_s: float = 20) -> Transport:
    transport = Transport(group, timeout_s=timeout_s, wire=wire)
    transport.open_boards([like])
    assert transport.boards is not None
    return transport


def test_a_part_is_summed_up_by_one_and_read_by_the_others(tmp_path: Path) -> None:
    mine = board.Board.create(tmp_path / "board", 64)
    other = board.Board(tmp_path / "board", 64)
    assert mine.claim(5)
    assert not other.claim(5)
    assert other.claim(6)
    assert not other.is_summed(5)
    mine.summed(5)
    assert other.is_summed(5)
    assert not other.claim(5)
    assert not mine.is_summed(5 + 1024)


def test_a_part_whose_maker_has_gone_is_not_taken_for_whole(tmp_path: Path) -> None:
    mine = board.Board.create(tmp_path / "board", 64)
    other = board.Board(tmp_path / "board", 64)
    assert other.claim(5)
    other.close()
    with pytest.raises(ConnectionError, match="exchange 5"):
        mine.claim(5)


def test_whoever_goes_while_it_sums_up_is_named_and_leaves_the_values_of_others_alone() -> None:
    mixing = build("complete", 4)(0)

    def rank(group: ProcessGroup) -> tuple[int, bool] | None:
        values = torch.full((100,), float(group.rank()))
        transport = on_board(group, values)
        exchange = transport.start(mixing, values)
        assert transport.boards is not None
        if group.rank() == 3:
            assert transport.boards.board(1).claim(exchange.number)
            transport.leave_boards()
            return None
        time.sleep(0.5)
        with pytest.raises(NeighborLost, match="exchange") as lost:
            exchange.wait(values)
        return lost.value.rank, bool((values == group.rank()).all())

    assert run_ranks(4, rank) == [(3, True)] * 3 + [None]


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_a_shared_mean_is_the_same_on_all_to_the_last_bit(size: int) -> None:
    """Also of fewer values than members; whoever is early or late."""
    mixing = build("complete", 5)(0)
    start = torch.randn(5, size, generator=torch.Generator().manual_seed(0))

    def rank(group: ProcessGroup) -> Tensor:
        values = start[group.rank()].clone()
        transport = on_board(group, values)
        for step in range(20):
            exchange = transport.start(mixing, values)
            assert isinstance(exchange, SharedMean)
            if step % 5 == group.rank():
                time.sleep(0.003)
            exchange.wait(values)
            values += step * group.rank()
        return values - step * group.rank()

    first, *others = run_ranks(5, rank)
    assert all(torch.equal(first, other) for other in others)
    expected = start.double().mean(0) + sum(range(19)) * 2
    torch.testing.assert_close(first.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", SPECS)
def test_every_way_of_mixing_is_the_matrix_product(spec: str) -> None:
    """In place, many steps in a row: whoever is early must not write over what others have not read."""
    schedule = build(spec, 6)
    start = torch.randn(6, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def rank(group: ProcessGroup) -> Tensor:
        values = start[group.rank()].clone()
        transport = on_board(group, values)
        for step in range(30):
            exchange = transport.start(schedule(step), values)
            assert len(schedule(step).row(group.rank())) == 1 or isinstance(exchange, BoardExchange)
            exchange.wait(values)
            values += step * group.rank()
        return values

    mixed = torch.stack(run_ranks(6, rank))
    expected = start
    for step in range(30):
        expected = torch.from_numpy(schedule(step).matrix()) @ expected + step * torch.arange(6.0)[:, None]
    torch.testing.assert_close(mixed, expected, rtol=1e-12, atol=0)


def test_members_of_a_group_get_the_same_to_the_last_bit() -> None:
    values = torch.randn(5, 200_000)

    def rank(group: ProcessGroup) -> Tensor:
        own = values[group.rank()]
        return on_board(group, own).start(build("complete", 5)(0), own).wait()

    means = run_ranks(5, rank)
    torch.testing.assert_close(means[0], values.mean(0))
    assert all(torch.equal(mean, means[0]) for mean in means)


def test_several_parts_are_under_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as fit; what does not is sent."""
    monkeypatch.setattr("gossamer.engines.transport._SMALL", 0)
    parts = [torch.full((size,), float(size)) for size in (3, 1000, 17)]

    def rank(group: ProcessGroup) -> list[type]:
        own = [part * group.rank() for part in parts]
        transport = Transport(group, timeout_s=20)
        transport.open_boards(own)
        ring = build("ring", 4)(0)
        kinds = []
        for _ in range(5):
            under_way = [transport.start(ring, part) for part in own] + [transport.start(ring, own[0])]
            kinds = [type(exchange) for exchange in under_way]
            for exchange, part in zip(under_way, [*own, own[0]], strict=True):
                expected = torch.full_like(part, sum((group.rank() + i) % 4 for i in (-1, 0, 1)) / 3 * part.numel())
                torch.testing.assert_close(exchange.wait(), expected)
        return kinds

    for kinds in run_ranks(4, rank):
        assert [kind is BoardExchange for kind in kinds] == [True, True, True, False]


@pytest.mark.parametrize(("mebibytes", "models"), [(0.01, 4), (2.5, 3), (4, 2)])
def test_small_models_have_room_for_readers_that_are_late(mebibytes: float, models: int) -> None:
    """Others never more than two models."""

    def rank(group: ProcessGroup) -> int:
        like = torch.zeros(int(mebibytes * 2**18))
        transport = on_board(group, like)
        assert transport.boards is not None
        return transport.boards.capacity // board.aligned(like.nbytes)

    assert run_ranks(2, rank) == [models] * 2


def test_models_of_several_steps_are_under_way_at_once() -> None:
    """All on boards, as many as were announced."""
    ring = build("ring", 4)(0)

    def rank(group: ProcessGroup) -> None:
        values = torch.full((100,), float(group.rank()))
        transport = Transport(group, timeout_s=20)
        transport.open_boards([values], steps_under_way=3)
        expected = values.clone().fill_(sum((group.rank() + i) % 4 for i in (-1, 0, 1)) / 3)
        under_way: list[ProcessExchange] = []
        for step in range(20):
            exchange = transport.start(ring, values + step)
            assert isinstance(exchange, BoardExchange)
            under_way.append(exchange)
            if step >= 2:
                torch.testing.assert_close(under_way.pop(0).wait(), expected + step - 2)

    run_ranks(4, rank)


def test_more_parts_than_a_board_has_places_for_are_sent() -> None:
    def rank(group: ProcessGroup) -> list[bool]:
        parts = [torch.zeros(1)] * (board.PLACES // 4)
        there = []
        for steps_under_way in (2, 3):
            transport = Transport(group, timeout_s=20)
            transport.open_boards(parts, steps_under_way=steps_under_way)
            there.append(transport.boards is not None)
            transport.close()
        return there

    assert run_ranks(2, rank) == [[True, False]] * 2


def test_in_a_smaller_type_others_are_rounded_and_oneself_is_not() -> None:
    values = torch.linspace(1, 2, 4 * 7).view(4, 7)

    def rank(group: ProcessGroup) -> tuple[Tensor, float]:
        own = values[group.rank()]
        exchange = on_board(group, own, Wire(torch.bfloat16)).start(build("ring", 4)(0), own)
        return exchange.wait(), exchange.bytes_sent

    rounded = values.bfloat16().float()
    for i, (mixed, bytes_sent) in enumerate(run_ranks(4, rank)):
        expected = (values[i] + rounded[(i - 1) % 4] + rounded[(i + 1) % 4]) / 3
        torch.testing.assert_close(mixed, expected, rtol=0, atol=1e-6)
        assert bytes_sent == 2 * 7 * 2


def test_what_a_late_listener_has_not_read_stays_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 comes late to the first exchange; rank 0 is two exchanges on by then, and waits with the third."""
    monkeypatch.setattr("gossamer.engines.transport._SMALL", 0)  # room for two
    listens = build("star", 2)  # with one other it is a pair
    may_read, shown = threading.Event(), []

    def rank(group: ProcessGroup) -> list[float]:
        values = torch.zeros(16)
        transport = on_board(group, values)
        read = []
        if group.rank() == 0:
            pending: list[ProcessExchange] = []
            for step in range(3):
                exchange = transport.start(listens(0), values + step)
                assert isinstance(exchange, BoardExchange)
                transport.under_way.clear()  # as if it were awaited already
                pending.append(exchange)
                shown.append(step)
                if step == 1:
                    may_read.set()
            return [exchange.wait()[0].item() for exchange in pending]
        may_read.wait(10)
        assert shown == [0, 1]
        for step in range(3):
            read.append(transport.start(listens(0), values - step).wait()[0].item())
        return read

    assert run_ranks(2, rank) == [[0, 0, 0], [0, 0, 0]]


def test_other_hosts_are_reached_by_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes of two: inside a node by memory, between nodes not."""
    schedule = build("alternating-exponential-ring:local_size=2", 4)
    values = torch.randn(4, 5, dtype=torch.float64)
    node = threading.local()
    monkeypatch.setattr(board, "host", lambda: node.name)

    def rank(group: ProcessGroup) -> list[tuple[Tensor, bool, int]]:
        node.name = f"node {group.rank() // 2}"
        own = values[group.rank()]
        transport = on_board(group, own)
        results = []
        for step in range(2):
            exchange, size = transport.start(schedule(step), own), len(schedule(step).row(group.rank()))
            results.append((exchange.wait(), isinstance(exchange, BoardExchange), size))
        return results

    by_rank = run_ranks(4, rank)
    for step in range(2):
        mixed = torch.stack([results[step][0] for results in by_rank])
        torch.testing.assert_close(mixed, torch.from_numpy(schedule(step).matrix()) @ values, rtol=0, atol=1e-14)
    ways = {(results[step][1], results[step][2]) for results in by_rank for step in range(2)}
    assert ways == {(True, 2), (False, 4)}


def test_too_little_shared_memory_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    create = board.Board.create

    def rank(group: ProcessGroup) -> tuple[bool, Tensor]:
        values = torch.full((4,), float(group.rank()))
        transport = Transport(group, timeout_s=20)
        transport.open_boards([values])
        return transport.boards is None, transport.start(build("complete", 3)(0), values).wait()

    def full(path: Path, capacity: int) -> board.Board:
        return create(path, 2**60)

    monkeypatch.setattr(board.Board, "create", full)
    for has_none, mean in run_ranks(3, rank):
        assert has_none
        torch.testing.assert_close(mean, torch.ones(4))


def dies_at_its_third_exchange(group: ProcessGroup) -> tuple[int, str]:
    values = torch.ones(8)
    transport = on_board(group, values, timeout_s=30)
    try:
        for step in range(6):
            if group.rank() == 2 and step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            transport.start(build("complete", 4)(0), values).wait(values)
    except NeighborLost as lost:
        return lost.rank, str(lost)
    return -1, "nobody is missed"


def test_a_killed_process_is_named_by_everybody() -> None:
    """Long before the timeout: its lock has gone with it."""
    told = in_processes(4, dies_at_its_third_exchange)
    assert told.keys() == {0, 1, 3}
    assert {rank for rank, _ in told.values()} == {2}
    assert not any("silent" in message for _, message in told.values())


def test_a_counter_wakes_whoever_waits_for_it() -> None:
    counter = Counter(np.zeros(1, dtype=np.int32))
    reached: list[bool] = []
    thread = threading.Thread(target=lambda: reached.append(counter.reaches(2, within_s=30)))
    thread.start()
    counter.advance(1)
    assert not counter.reaches(2, within_s=0.05)
    counter.advance(2)
    thread.join(10)
    assert reached == [True]
