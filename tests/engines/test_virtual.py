"""The engine of virtual time: parameters against a trace worked out by hand, laws, and going on from a checkpoint."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import pytest
import torch
from torch import Tensor

from gossamer.algorithms import ADPSGD, ParameterServer
from gossamer.clock import Cluster, Computation, Event, Link, ad_psgd, parameter_server
from gossamer.engines import Ticket, VirtualEngine, VirtualPairs, VirtualServer
from gossamer.engines.flat import flatten
from gossamer.engines.live import LiveReplica
from gossamer.engines.parcel import Parcel
from gossamer.topologies import bipartite_exponential, constant, ring
from problems import OPTIMIZERS, Point, half_square, network, network_batch, network_loss

OPTIMA = torch.tensor([[[0.0]], [[16.0]]], dtype=torch.float64)  # [N, 1, P]


def bowls(tickets: Sequence[Ticket | None]) -> tuple[Tensor, Tensor]:
    return OPTIMA, torch.zeros(2, 1)


def sgd(lr: float = 0.5) -> Callable[..., torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, lr=lr)


def stopping(events: Iterator[Event], seen: list[Event]) -> Iterator[Event]:
    for event in events:
        seen.append(event)
        yield event


def two_workers() -> Iterator[Event]:
    """Worker 0 is active and takes 4 s a gradient, 1 is passive and takes 6 s; an exchange takes 3 s."""
    link = Link(latency_s=0.0, bytes_per_s=1 / 3)
    return ad_psgd(Cluster(workers=2, computation=Computation(mean_s=4.0, slow="1=1.5"), link=link), ring(2), 1)


def make_two(kind: type[VirtualEngine], events: Iterator[Event], lr: float = 0.5) -> VirtualEngine:
    point = Point(1)
    torch.nn.init.constant_(point.x, 8.0)
    return kind(
        point,
        sgd(lr),
        num_replicas=2,
        algorithm=ADPSGD() if kind is VirtualPairs else ParameterServer(),
        events=events,
        schedule=constant(ring(2)),
        loss=half_square,
    )


def test_two_workers_by_hand() -> None:
    """Both start at 8; the loss of 0 has its bottom at 0, that of 1 at 16; steps of half the gradient.

    time  what           computed with   gradient   x_0     x_1    half of the difference that was sent
       4  gradient of 0  8               8          4       8
          send                                                     2
       6  gradient of 1  8               -8         4       12
       7  average                                   6       10     (keeps what 1 did meanwhile)
          send                                                     2
       8  gradient of 0  4               4          4       10
      10  average                                   6       8
          send                                                     1
      12  gradient of 0  4               4          4       8
          gradient of 1  12              -4         4       10
      13  average                                   5       9
          send                                                     2
      16  average                                   7       7
          gradient of 0  4               4          5       7
          send                                                     1
      18  gradient of 1  10              -6         5       10
      19  average                                   6       9
          send                                                     1.5
      20  gradient of 0  5               5          3.5     9
    """
    engine = make_two(VirtualPairs, two_workers())
    losses = []
    for num_gradients, replicas, now_s in ((2, [4, 12], 6), (4, [4, 8], 12), (6, [5, 7], 16), (8, [3.5, 9], 20)):
        found, workers = engine.advance(num_gradients, bowls, lambda step: 0.5)
        losses += list(zip(workers, found.tolist(), strict=True))
        assert engine.flats()[0].flatten().tolist() == replicas
        assert engine.now_s == now_s
    # (x - 0)² / 2 and (x - 16)² / 2 at the parameters as they were read
    assert losses == [(0, 32), (1, 32), (0, 8), (0, 8), (1, 8), (0, 8), (1, 18), (0, 12.5)]
    assert dict(engine.staleness) == {0: 2, 1: 3, 2: 3}
    assert engine.bytes_sent.tolist() == [8 * 6] * 2  # six swaps of one number


def test_a_server_by_hand() -> None:
    """Steps of a quarter of the gradient, as two workers share the rate of a half; both start at 8.

    time  what           computed with   gradient   x
       4  gradient of 0  8               8          6      read by 0
       6  gradient of 1  8               -8         8      read by 1
       8  gradient of 0  6               6          6.5
      12  gradient of 0  6.5             6.5        4.875
          gradient of 1  8               -8         6.875
    """
    link = Link(latency_s=0.0, bytes_per_s=float("inf"))
    machines = Cluster(workers=2, computation=Computation(mean_s=4.0, slow="1=1.5"), link=link)
    engine = make_two(VirtualServer, parameter_server(machines, 0))
    engine.advance(2, bowls, lambda step: 0.5)
    assert engine.averaged_outputs(torch.zeros(1, 1)).item() == 8.0
    engine.advance(4, bowls, lambda step: 0.5)
    assert engine.averaged_outputs(torch.zeros(1, 1)).item() == 4.875
    assert dict(engine.staleness) == {0: 2, 1: 2}
    engine.advance(6, bowls, lambda step: 0.5)
    assert engine.now_s == 16.0


# ---- laws -------------------------------------------------------------------------------------------------------

N = 6


def batches(tickets: Sequence[Ticket | None]) -> tuple[Tensor, Tensor]:
    """The batch of a ticket is the same whenever it is asked for."""
    picked = [network_batch(0 if ticket is None else ticket[0], 1) for ticket in tickets]
    return torch.cat([inputs for inputs, _ in picked]), torch.cat([targets for _, targets in picked])


def make(
    events: str = "pairs", *, jitter: str = "gamma:spread=0.5", slow: str = "2=7", optimizer: str = "sgd", seed: int = 0
) -> VirtualEngine:
    machines = Cluster(
        workers=N,
        computation=Computation(mean_s=1.0, jitter=jitter, slow=slow),
        link=Link(latency_s=0.3, bytes_per_s=1e4),
        seed=seed,
    )
    graph = bipartite_exponential(N)
    kind = VirtualPairs if events == "pairs" else VirtualServer
    follows = ad_psgd(machines, graph, 500.0) if events == "pairs" else parameter_server(machines, 500.0)
    return kind(
        network(),
        OPTIMIZERS[optimizer],
        num_replicas=N,
        algorithm=ADPSGD() if kind is VirtualPairs else ParameterServer(),
        events=follows,
        schedule=constant(graph),
        loss=network_loss,
    )


def falling(step: int) -> float:
    return 0.05 / (1 + step)


def one_by_one(events: Iterator[Event], num_gradients: int, lr: Callable[[int], float]) -> list[Tensor]:
    """AD-PSGD written out with N separate models and optimizers, a gradient at a time."""
    replicas, copies = [network() for _ in range(N)], [network() for _ in range(N)]
    optimizers = [OPTIMIZERS["sgd"](copy.parameters()) for copy in copies]
    tickets, under_way, applied, num_read = [0] * N, {}, 0, 0
    with torch.no_grad():
        while applied < num_gradients:
            event = next(events)
            i, j = event.worker, event.partner
            if event.kind == "read":
                for mine, its in zip(replicas[i].parameters(), copies[i].parameters(), strict=True):
                    its.copy_(mine)
                tickets[i], num_read = num_read, num_read + 1
            elif event.kind == "gradient":
                before = [its.clone() for its in copies[i].parameters()]
                inputs, targets = network_batch(tickets[i], 1)
                with torch.enable_grad():
                    optimizers[i].zero_grad()
                    network_loss(copies[i](inputs[0]), targets[0]).backward()
                for group in optimizers[i].param_groups:
                    group["lr"] = lr(applied // N)
                optimizers[i].step()
                for mine, its, was in zip(replicas[i].parameters(), copies[i].parameters(), before, strict=True):
                    mine += its - was
                applied += 1
            elif event.kind == "send":
                pairs = zip(replicas[i].parameters(), replicas[j].parameters(), strict=True)
                under_way[i] = [(b - a) / 2 for a, b in pairs]
            else:
                for half, mine, other in zip(
                    under_way.pop(i), replicas[i].parameters(), replicas[j].parameters(), strict=True
                ):
                    mine += half
                    other -= half
    return [torch.cat([p.flatten() for p in replica.parameters()]) for replica in replicas]


def test_stacked_is_what_separate_models_would_do() -> None:
    engine = make()
    engine.advance(20 * N, batches, falling)
    apart = one_by_one(make()._events, 20 * N, falling)
    torch.testing.assert_close(engine.flats()[0], torch.stack(apart), rtol=0, atol=1e-10)


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_replicas_of_processes_do_the_same(optimizer: str) -> None:
    """What a worker of its own does with its replica, when everything happens in the order of the clock."""
    engine = make(optimizer=optimizer)
    engine.advance(20 * N, batches, falling)
    events, models = make()._events, [network() for _ in range(N)]
    flats = [flatten(dict(model.named_parameters())) for model in models]
    optimizers = [OPTIMIZERS[optimizer](model.parameters()) for model in models]
    replicas = [LiveReplica(flat) for flat in flats]
    sent = [Parcel(replica.values) for replica in replicas]
    tickets, applied, num_read = [0] * N, 0, 0
    while applied < 20 * N:
        event = next(events)
        i, j = event.worker, event.partner
        if event.kind == "read":
            tickets[i], num_read = num_read, num_read + 1
        elif event.kind == "gradient":
            inputs, targets = network_batch(tickets[i], 1)
            optimizers[i].zero_grad()
            network_loss(models[i](inputs[0]), targets[0]).backward()
            for group in optimizers[i].param_groups:
                group["lr"] = falling(applied // N)
            optimizers[i].step()
            assert replicas[i].take_in() == event.staleness  # and reads again, as the next event says
            applied += 1
        elif event.kind == "send":
            replicas[i].copy_to(sent[i])
            replicas[j].copy_to(sent[j])
        else:
            for one, other in ((i, j), (j, i)):
                received = Parcel(replicas[one].values)
                received.fill(sent[other].tensors)
                replicas[one].mix(sent[one], received)
    apart = torch.stack([replica.values[0] for replica in replicas])
    torch.testing.assert_close(engine.flats()[0], apart, rtol=0, atol=1e-10)


@pytest.mark.parametrize("events", ["pairs", "server"])
def test_stopping_and_measuring_changes_nothing(events: str) -> None:
    through, halting = make(events), make(events)
    through.advance(12 * N, batches, falling)
    looks = []
    halting.probes.append(looks.append)
    for step in range(1, 13):
        halting.advance(step * N, batches, falling)
        halting.averaged_outputs(torch.zeros(3, 5, dtype=torch.float64))
    assert torch.equal(through.flats()[0], halting.flats()[0])
    assert looks == list(range(12))
    assert (through.num_steps, through.now_s, through.staleness) == (12, halting.now_s, halting.staleness)


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("events", ["pairs", "server"])
def test_a_checkpoint_goes_on_bit_by_bit(events: str, optimizer: str, tmp_path) -> None:
    through, first, second = (make(events, optimizer=optimizer) for _ in range(3))
    through.advance(9 * N, batches, falling)
    first.advance(4 * N, batches, falling)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    second.advance(9 * N, batches, falling)
    assert torch.equal(through.flats()[0], second.flats()[0])
    assert all(torch.equal(a, second._buffers[name]) for name, a in through._buffers.items())
    assert (through.bytes_sent == second.bytes_sent).all()
    assert (through.now_s, through.staleness) == (second.now_s, second.staleness)


def test_swaps_keep_the_mean() -> None:
    engine = make()
    engine.advance(5 * N, batches, falling)
    engine.set_lr(0.0)
    mean = engine.flats()[0].mean(0)
    engine.advance(40 * N, batches, lambda step: 0.0)
    torch.testing.assert_close(engine.flats()[0].mean(0), mean, rtol=0, atol=1e-12)
    assert engine.flats()[0].std(0).max() < 1e-3, "and bring replicas together"


def test_a_slow_worker_does_less() -> None:
    engine = make(jitter="constant", slow="2=10")
    _, workers = engine.advance(30 * N, batches, falling)
    num = [workers.count(worker) for worker in range(N)]
    assert num[2] == min(num) == 3
    assert sum(num) == 30 * N
    assert set(num[:2] + num[3:]) <= {35, 36}


def test_pending_gradients_share_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, calls = make(jitter="constant", slow=""), []
    compute = engine._compute_pending
    monkeypatch.setattr(engine, "_compute_pending", lambda batches: (calls.append(1), compute(batches)))
    engine.advance(10 * N, batches, falling)
    assert len(calls) == 10


def test_every_batch_is_taken_once() -> None:
    taken: list[int] = []

    def noting(tickets: Sequence[Ticket | None]) -> tuple[Tensor, Tensor]:
        taken.extend(ticket[0] for ticket in tickets if ticket is not None)
        return batches(tickets)

    engine = make()
    engine.advance(20 * N, noting, falling)
    assert sorted(taken) == list(range(len(taken)))
    assert 20 * N <= len(taken) <= 21 * N


def test_it_learns_with_a_slow_worker() -> None:
    """Different optima: the mean of all replicas comes near the mean of the optima."""
    optima = torch.randn(N, 1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    machines = Cluster(workers=N, computation=Computation(mean_s=1.0, slow="1=3"), link=Link(latency_s=0.1))
    engine = VirtualPairs(
        Point(),
        sgd(),
        num_replicas=N,
        algorithm=ADPSGD(),
        events=ad_psgd(machines, bipartite_exponential(N), 0),
        schedule=constant(bipartite_exponential(N)),
        loss=half_square,
    )
    engine.advance(400 * N, lambda tickets: (optima, torch.zeros(N, 1)), lambda step: 0.2 / (1 + step / 20))
    mean = engine.flats()[0].mean(0)
    num = torch.tensor([1, 1 / 3, 1, 1, 1, 1], dtype=torch.float64)  # what each contributes
    assert (mean - (num[:, None] * optima[:, 0]).sum(0) / num.sum()).norm() < 0.05


def test_steps_in_common_are_refused() -> None:
    with pytest.raises(ValueError, match="no step in common"):
        make().step(*network_batch(0, N))
    with pytest.raises(ValueError, match="no whole number of steps"):
        make().advance(N + 1, batches, falling)


def test_events_are_only_taken_as_needed() -> None:
    seen: list[Event] = []
    engine = make_two(VirtualPairs, stopping(two_workers(), seen))
    engine.advance(2, bowls, lambda step: 0.5)
    assert seen == list(islice(two_workers(), len(seen)))
    assert seen[-1].time_s == 6.0
