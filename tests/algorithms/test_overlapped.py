"""Exchanges that are awaited one step after they set out, or more."""

import threading
from math import inf

import numpy as np
import pytest
import torch
from bowls import REPLICAS, bowls, optima, roll
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from gossamer import decentralize
from gossamer.algorithms import OverlappedDPSGD, build
from gossamer.engines import StackedEngine, board
from gossamer.topologies import build as build_graph
from loops import backward, sgd
from problems import network
from ranks import run_ranks
from trajectories import schedule, stacked

GRAPHS = ("complete", "ring", "torus", "star", "alternating-ring", "one-peer-exponential", "directed-exponential")


@pytest.mark.parametrize(("behind", "theta"), [(1, None), (1, 0.7), (2, None), (2, 0.3), (3, None)])
@pytest.mark.parametrize("graph", ["ring", "one-peer-exponential"])
def test_it_is_its_equation(graph: str, behind: int, theta: float | None) -> None:
    lr, steps, mixings = 0.1, 12, build_graph(graph, REPLICAS)
    trained = roll(bowls(OverlappedDPSGD(behind=behind, theta=theta), graph), steps, lr)
    share = {1: 1.0, 2: 0.5, 3: np.sin(np.pi / 10)}[behind] if theta is None else theta
    places = optima()[:, 0].numpy()
    x = [np.zeros_like(places)]
    for t in range(steps):
        s = t + 1 - behind
        pull = mixings(s - 1).matrix() @ x[s] - x[s] if s > 0 else 0.0
        x.append(x[t] + share * pull - lr * (x[t] - places))
    torch.testing.assert_close(trained, torch.from_numpy(x[-1]), rtol=0, atol=1e-12)


def test_one_step_behind_needs_no_copy() -> None:
    """What sets out is the model itself, and what arrives takes its place."""
    engine = bowls(OverlappedDPSGD())
    replica = engine.replicas[0]
    given: list[Tensor] = []

    class Watched:
        def start(self, values: Tensor) -> None:
            given.append(values)

    OverlappedDPSGD().after_step(replica, Watched())  # type: ignore[arg-type]
    assert given[0] is replica.params
    ring = schedule("ring", 8)
    assert torch.equal(stacked(OverlappedDPSGD(), ring), stacked(OverlappedDPSGD(behind=1, theta=1.0), ring))


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("behind", [1, 2, 3, 4])
def test_replicas_come_together_on_every_graph(graph: str, behind: int) -> None:
    """By the usual share of the way. From where they are after a few steps, with a rate of 0."""
    engine = bowls(OverlappedDPSGD(behind=behind), graph)
    apart = spread(engine, 10, lr=0.1)
    assert spread(engine, 400, lr=0.0) < 1e-3 * apart


def test_twice_the_usual_share_does_not_settle() -> None:
    """Which is why it is refused: the roots are on the unit circle then."""
    engine = bowls(OverlappedDPSGD(behind=2, theta=0.999), "complete")
    apart = spread(engine, 10, lr=0.1)
    assert spread(engine, 100, lr=0.0) > 0.5 * apart


def spread(engine: StackedEngine, num_steps: int, lr: float) -> float:
    replicas = roll(engine, num_steps, lr)
    return float((replicas - replicas.mean(0)).norm())


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("behind=0", "awaited 0 steps behind: give 1 or more, or take d-psgd"),
        ("behind=2:theta=1", r"theta=1: .* 2 steps behind .* less than 1; take 0.5, the default"),
        ("behind=3:theta=0.7", r"theta=0.7: .* less than 0.618; take 0.309"),
        ("theta=0", r"theta=0: .* more than 0 and less than 2; take 1"),
        (f"theta={inf}", "theta=inf"),
        ("theta=nan", "theta=nan"),
    ],
)
def test_what_cannot_work_is_refused(spec: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build(f"d-psgd-overlapped:{spec}")


# ---- who waits for whom -------------------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [1, 2, 3])
@pytest.mark.parametrize("bucket_mib", [25.0, 1e-4], ids=["whole", "parts"])
@pytest.mark.parametrize("way", ["boards", "gloo"])
def test_a_worker_waits_for_an_older_step_of_its_neighbour_and_no_more(
    monkeypatch: pytest.MonkeyPatch, way: str, bucket_mib: float, behind: int
) -> None:
    """Rank 1 stops after a step, until rank 0 has taken those that it can: one more for each step behind."""
    if way == "gloo":
        monkeypatch.setattr(board, "host", lambda: f"of {threading.get_ident()}")
    is_ahead, order = threading.Event(), []

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, number: int) -> None:
        optimizer.zero_grad()
        backward(model, rank, number)
        optimizer.step()

    def work(group: ProcessGroup) -> bool:
        model, rank = network(), group.rank()
        optimizer = sgd(model)
        settings = {"algorithm": f"d-psgd-overlapped:behind={behind}", "topology": "complete"}
        with decentralize(model, optimizer, group=group, bucket_mib=bucket_mib, **settings) as training:
            for number in range(behind + 4):
                if rank == 1 and number == 1:
                    assert is_ahead.wait(20), "rank 0 has waited for a later step than it should"
                    order.append("rank 1 goes on")
                step(model, optimizer, rank, number)
                if rank == 0 and number == behind:
                    is_ahead.set()
                if rank == 0 and number == behind + 1:
                    order.append("rank 0 has heard of it")
            return training.transport.boards is not None

    assert run_ranks(2, work) == [way == "boards"] * 2
    assert order == ["rank 1 goes on", "rank 0 has heard of it"]
