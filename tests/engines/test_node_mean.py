"""Averages over whole nodes: right, the same for all, whatever the sizes; and whoever is missing is named."""

import os
import signal
import threading
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from gossamer import decentralize
from gossamer.algorithms import DPSGD, OverlappedDPSGD
from gossamer.engines import NeighborLost, SynchronousEngine, Transport, Wire, board, futex
from gossamer.engines.exchange import GroupMean
from gossamer.engines.node_mean import BoardNodeMean, MessageNodeMean
from gossamer.engines.shared_mean import SharedMean
from gossamer.topologies import Mixing, build, from_groups
from problems import OPTIMIZERS, network, network_batch, network_loss
from ranks import run_ranks
from trajectories import stacked
from worlds import in_processes

HALF = torch.bfloat16
NODES = [(2, 2), (2, 3), (3, 2), (4, 2), (2, 4)]
"""(nodes, workers of each)"""
LENGTHS = [1, 2, 3, 7, 64, 1001]
"""Fewer values than workers, parts that are not as long as others, empty ones."""
_node = threading.local()


@pytest.fixture(params=["memory", "messages"])
def inside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the workers of a node reach each other. Those of other nodes see no memory of theirs either way."""
    way: str = request.param
    if way == "memory" and not futex.IS_AVAILABLE:
        pytest.skip("counters in shared memory need Linux on x86-64")
    monkeypatch.setattr(board, "host", lambda: _node.name if way == "memory" else f"thread {threading.get_ident()}")
    return way


def on_nodes(
    group: ProcessGroup, local_size: int | None, like: list[Tensor], wire: Wire | None = None, timeout_s: float = 20
) -> Transport:
    _node.name = f"node {group.rank() // (local_size or 1)}"
    transport = Transport(group, timeout_s=timeout_s, wire=wire)
    transport.know_nodes(local_size)
    transport.open_boards(like)
    return transport


def of_everybody(num_nodes: int, local_size: int) -> Mixing:
    return build("complete", num_nodes * local_size)(0)


def kind(inside: str) -> type:
    return BoardNodeMean if inside == "memory" else MessageNodeMean


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("num_nodes", "local_size"), NODES)
def test_the_mean_is_right_and_the_same_on_all(
    inside: str, num_nodes: int, local_size: int, dtype: torch.dtype
) -> None:
    n, mixing = num_nodes * local_size, of_everybody(num_nodes, local_size)
    values = [
        torch.randn(n, length, dtype=dtype, generator=torch.Generator().manual_seed(length)) for length in LENGTHS
    ]

    def rank(group: ProcessGroup) -> list[Tensor]:
        own = [each[group.rank()].clone() for each in values]
        transport = on_nodes(group, local_size, own * 3)
        under_way = [transport.start(mixing, each) for each in own]  # all at once
        assert {type(exchange) for exchange in under_way} == {kind(inside)}
        means = [exchange.wait() for exchange in reversed(under_way)][::-1]
        assert all(torch.equal(each, before[group.rank()]) for each, before in zip(own, values, strict=True))
        assert [exchange.bytes_sent for exchange in under_way] == [2 * (n - 1) / n * each.nbytes for each in own]
        for each, mean in zip(own, means, strict=True):
            assert torch.equal(transport.start(mixing, each).wait(each), mean), "in place"
        return means

    by_rank = run_ranks(n, rank)
    for number, each in enumerate(values):
        for means in by_rank:
            assert torch.equal(means[number], by_rank[0][number]), "to the last bit"
        tolerance = 1e-14 if dtype == torch.float64 else 1e-6
        torch.testing.assert_close(by_rank[0][number], each.mean(dim=0), rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_only_what_others_sent_is_rounded(inside: str, dtype: torch.dtype) -> None:
    """As on every other way of mixing; what is rounded beyond that are sums, of a node and of all."""
    values = torch.randn(6, 50, dtype=dtype, generator=torch.Generator().manual_seed(0))
    mixing = of_everybody(2, 3)

    def rank(group: ProcessGroup) -> tuple[Tensor, float]:
        transport = on_nodes(group, 3, [values[0]], Wire(HALF))
        exchange = transport.start(mixing, values[group.rank()])
        assert isinstance(exchange, kind(inside))
        return exchange.wait(), exchange.bytes_sent

    results = run_ranks(6, rank)
    rounded = values.to(HALF).double()
    expected = (rounded.sum(dim=0) + values.double() - rounded) / 6
    mixed = torch.stack([mean for mean, _ in results])
    assert mixed.dtype == dtype
    torch.testing.assert_close(mixed.double(), expected, rtol=0, atol=0.01)
    lost = (values.double() - rounded) / 6
    torch.testing.assert_close(mixed.double() - lost, (mixed.double() - lost)[:1].expand(6, 50), rtol=0, atol=1e-6)
    assert {sent for _, sent in results} == {2 * 5 / 6 * 50 * 2}


def test_only_whole_nodes_average_by_node(inside: str) -> None:
    """And all others, as these groups of eight workers in nodes of two, go the way that they went before."""
    values = torch.randn(8, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    groups = {
        "two nodes, two nodes": [(0, 1, 2, 3), (4, 5, 6, 7)],
        "far nodes; alone": [(0, 1, 6, 7), (2, 3), (4, 5)],
        "three nodes": [(0, 1, 4, 5, 6, 7), (2, 3)],
        "halves of nodes": [(0, 2, 4, 6), (1, 3, 5, 7)],
        "across nodes": [(1, 2, 3, 4), (5, 6, 7, 0)],
    }
    mixings = {name: from_groups(8, members, name) for name, members in groups.items()}

    def rank(group: ProcessGroup) -> dict[str, tuple[type, Tensor]]:
        own, found = values[group.rank()], {}
        transport = on_nodes(group, 2, [own])
        for name, mixing in mixings.items():
            exchange = transport.start(mixing, own)
            found[name] = type(exchange), exchange.wait()
        return found

    by_rank = run_ranks(8, rank)
    for name, mixing in mixings.items():
        mixed = torch.stack([found[name][1] for found in by_rank])
        torch.testing.assert_close(mixed, torch.from_numpy(mixing.matrix()) @ values, rtol=0, atol=1e-14)
    kinds = {name: [found[name][0] for found in by_rank] for name in mixings}
    assert set(kinds["two nodes, two nodes"]) == {kind(inside)}
    assert {kinds["far nodes; alone"][rank] for rank in (0, 1, 6, 7)} == {kind(inside)}
    assert kind(inside) not in {kinds["far nodes; alone"][rank] for rank in (2, 3, 4, 5)}
    assert {kinds["three nodes"][rank] for rank in (0, 1, 4, 5, 6, 7)} == {kind(inside)}
    assert set(kinds["halves of nodes"]) == set(kinds["across nodes"]) == {GroupMean}


def test_it_needs_nodes_that_all_agree_on(inside: str) -> None:
    """A launcher tells each rank of its own node: nodes of four and of two are nodes of two to some."""

    def rank(group: ProcessGroup, said: Callable[[int], int | None]) -> tuple[type, float]:
        transport = Transport(group, timeout_s=20)
        transport.know_nodes(said(group.rank()))
        exchange = transport.start(build("complete", 4)(0), torch.full((5,), float(group.rank())))
        return type(exchange), exchange.wait()[0].item()

    for said in (lambda rank: 2 if rank else 4, lambda rank: None, lambda rank: 4, lambda rank: 1):
        assert run_ranks(4, partial(rank, said=said)) == [(GroupMean, 1.5)] * 4


def test_on_one_host_nothing_goes_between_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    if not futex.IS_AVAILABLE:
        pytest.skip("counters in shared memory need Linux on x86-64")
    monkeypatch.setattr(board, "host", lambda: "one")

    def rank(group: ProcessGroup) -> bool:
        transport = on_nodes(group, 2, [torch.zeros(8)])
        exchange = transport.start(build("complete", 4)(0), torch.zeros(8))
        exchange.wait()
        return isinstance(exchange, SharedMean)

    assert run_ranks(4, rank) == [True] * 4


# ---- in training --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm",
    [DPSGD(), OverlappedDPSGD(), OverlappedDPSGD(behind=2)],
    ids=["in-turn", "overlapped", "two-steps-behind"],
)
@pytest.mark.parametrize(
    ("topology", "local_size"), [("alternating-exponential-ring", 2), ("alternating-nodes", 2), ("complete", 4)]
)
def test_trajectories_are_those_of_the_stacked_engine(
    inside: str, topology: str, local_size: int, algorithm: DPSGD | OverlappedDPSGD
) -> None:
    n = 12 if topology == "alternating-nodes" else 8
    schedule = build(topology, n, local_size=local_size)
    seen: set[type] = set()

    def rank(group: ProcessGroup) -> Tensor:
        _node.name = f"node {group.rank() // local_size}"
        model = network()
        engine = SynchronousEngine(
            model,
            OPTIMIZERS["sgd"](model.parameters()),
            algorithm=algorithm,
            schedule=schedule,
            group=group,
            local_size=local_size,
            loss=network_loss,
            bucket_mib=1e-4,  # several parts, under way at a time
        )
        with engine:
            start = engine.transport.start

            def watched(mixing: Mixing, values: Tensor) -> object:
                exchange = start(mixing, values)
                seen.add(type(exchange))
                return exchange

            engine.transport.start = watched  # type: ignore[method-assign,assignment]
            for step in range(12):
                inputs, targets = network_batch(step, n)
                engine.step(inputs[engine.local], targets[engine.local])
            return torch.cat([flat[0] for flat in engine.flats()])

    trained = torch.stack(run_ranks(n, rank))
    assert kind(inside) in seen
    torch.testing.assert_close(trained, stacked(algorithm, schedule, num_steps=12), rtol=0, atol=1e-10)


def test_decentralize_tells_its_transport_of_nodes(inside: str) -> None:
    def rank(group: ProcessGroup) -> int | None:
        _node.name = f"node {group.rank() // 2}"
        model = network()
        with decentralize(model, torch.optim.SGD(model.parameters()), group=group, local_size=2) as training:
            return training.transport.local_size

    assert run_ranks(4, rank) == [2] * 4


# ---- when somebody is missing -------------------------------------------------------------------------------


def test_a_silent_rank_is_named_by_everybody(inside: str) -> None:
    """Also by those of the other node who are no counterparts of it."""
    mixing, others_are_done = of_everybody(2, 2), threading.Barrier(4)

    def rank(group: ProcessGroup) -> NeighborLost | None:
        values = torch.ones(10)
        transport = on_nodes(group, 2, [values], timeout_s=1.0)
        transport.start(mixing, values).wait(values)
        if group.rank() == 2:
            others_are_done.wait()
            return None
        try:
            with pytest.raises(NeighborLost) as caught:
                transport.start(mixing, values).wait(values)
            assert values.tolist() == [1.0] * 10
        finally:
            others_are_done.wait()
        return caught.value

    lost = [error for error in run_ranks(4, rank) if error is not None]
    assert [error.rank for error in lost] == [2, 2, 2]
    assert any("timeout of 1 s" in str(error) for error in lost)


def _killed_at_its_third_exchange(group: ProcessGroup, inside: str, victim: int) -> tuple[int, str]:
    boot = f"node {group.rank() // 2}" if inside == "memory" else f"worker {group.rank()}"
    board.host = lambda: boot  # type: ignore[assignment] # a process of its own
    values = torch.ones(1000)
    transport = on_nodes(group, 2, [values], timeout_s=30)
    mixing = of_everybody(2, 2)
    try:
        for step in range(6):
            exchange = transport.start(mixing, values)
            assert isinstance(exchange, kind(inside))
            if group.rank() == victim and step == 3:
                os.kill(os.getpid(), signal.SIGKILL)  # its part is under way
            exchange.wait(values)
    except NeighborLost as lost:
        return lost.rank, str(lost)
    return -1, "nobody is missed"


def test_a_killed_process_is_named_by_everybody(inside: str) -> None:
    """Long before the timeout."""
    told = in_processes(4, partial(_killed_at_its_third_exchange, inside=inside, victim=3))
    assert told.keys() == {0, 1, 2}
    assert {rank for rank, _ in told.values()} == {3}
    assert not any("silent" in message for _, message in told.values())
