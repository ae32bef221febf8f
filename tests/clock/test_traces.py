"""Every method's clock against a trace worked out by hand, and the laws that hold for any of them."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise, takewhile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.clock import Cluster, Computation, Event, Link, Rounds, Span, ad_psgd, epoch_s, parameter_server
from gossamer.topologies import Mixing, bipartite_exponential, build, halves, ring, star


def cluster(workers: int, mean_s: float, slow: str = "", *, exchange_s: float = 0.0, latency_s: float = 0.0) -> Cluster:
    """Constant times; a model of one byte takes latency + exchange."""
    link = Link(latency_s=latency_s, bytes_per_s=1 / exchange_s if exchange_s else float("inf"))
    return Cluster(workers=workers, computation=Computation(mean_s=mean_s, slow=slow), link=link)


def until(events: Iterator[Event], end_s: float) -> list[Event]:
    return list(takewhile(lambda event: event.time_s <= end_s, events))


def swaps(events: Iterator[Event], end_s: float) -> list[Event]:
    return [event for event in until(events, end_s) if event.kind in ("send", "average")]


# ---- AD-PSGD ---------------------------------------------------------------------------------------------------

TWO_WORKERS = [  # 0 is active and takes 4 s a gradient, 1 is passive and takes 6; an exchange takes 3
    Event(0.0, "read", 0),
    Event(0.0, "read", 1),
    Event(4.0, "gradient", 0, staleness=0),
    Event(4.0, "read", 0),
    Event(4.0, "send", 0, 1),
    Event(6.0, "gradient", 1, staleness=0),
    Event(6.0, "read", 1),  # and invites 0, which is busy
    Event(7.0, "average", 0, 1),
    Event(7.0, "send", 0, 1),  # as invited
    Event(8.0, "gradient", 0, staleness=1),
    Event(8.0, "read", 0),
    Event(10.0, "average", 0, 1),
    Event(10.0, "send", 0, 1),  # for the gradient of 8
    Event(12.0, "gradient", 0, staleness=1),
    Event(12.0, "read", 0),
    Event(12.0, "gradient", 1, staleness=2),
    Event(12.0, "read", 1),
    Event(13.0, "average", 0, 1),
    Event(13.0, "send", 0, 1),  # one's own gradient comes before the invitation
    Event(16.0, "average", 0, 1),  # at one moment first what arrives, then gradients, then what leaves
    Event(16.0, "gradient", 0, staleness=2),
    Event(16.0, "read", 0),
    Event(16.0, "send", 0, 1),  # the invitation of 12
    Event(18.0, "gradient", 1, staleness=2),
    Event(18.0, "read", 1),
    Event(19.0, "average", 0, 1),
    Event(19.0, "send", 0, 1),
]


def test_two_workers_by_hand() -> None:
    spans: list[Span] = []
    events = ad_psgd(cluster(2, 4.0, "1=1.5", exchange_s=3.0), ring(2), 1, on_span=spans.append)
    assert until(events, 19) == TWO_WORKERS
    assert spans[:5] == [
        Span(0, "compute", 0.0, 4.0),
        Span(1, "compute", 0.0, 6.0),
        Span(0, "compute", 4.0, 8.0),
        Span(0, "exchange", 4.0, 7.0, 1),
        Span(1, "exchange", 4.0, 7.0, 0),
    ]


def test_swaps_that_take_longer_than_gradients_become_fewer() -> None:
    """An exchange takes 9 s, gradients are there at 4, 8, 12: the swap begun at 4 ends at 13, the next follows."""
    assert swaps(ad_psgd(cluster(2, 4.0, exchange_s=9.0), ring(2), 1), 22) == [
        Event(4.0, "send", 0, 1),
        Event(13.0, "average", 0, 1),
        Event(13.0, "send", 0, 1),
        Event(22.0, "average", 0, 1),
        Event(22.0, "send", 0, 1),
    ]


def test_who_begins_while_a_worker_is_busy_waits_in_line() -> None:
    """On the line 0 - 1 - 2 both ends want the one in the middle."""
    line = Mixing("line", star(3).weights[[1, 0, 2]][:, [1, 0, 2]])
    assert halves(line) == ((0, 2), (1,))
    spans: list[Span] = []
    events = ad_psgd(cluster(3, 4.0, "1=100", exchange_s=1.0), line, 1, on_span=spans.append)
    assert swaps(events, 6) == [
        Event(4.0, "send", 0, 1),
        Event(5.0, "average", 0, 1),
        Event(5.0, "send", 2, 1),
        Event(6.0, "average", 2, 1),
    ]
    assert Span(2, "wait", 4.0, 5.0, 1) in spans


def test_a_slow_worker_is_invited() -> None:
    """Worker 0 is active and takes 1000 s a gradient: 1 invites it after each of its own, by a message of 0.25 s."""
    events = ad_psgd(cluster(2, 1.0, "0=1000", latency_s=0.25), ring(2), 1)
    assert swaps(events, 2.5) == [
        Event(1.25, "send", 0, 1),
        Event(1.5, "average", 0, 1),
        Event(2.25, "send", 0, 1),
        Event(2.5, "average", 0, 1),
    ]


def test_there_are_as_many_swaps_as_gradients() -> None:
    """Where links are fast; wherever the gradients are made."""
    for slow in ("", "0=50", "1=50"):
        events = until(ad_psgd(cluster(8, 1.0, slow, exchange_s=0.01), bipartite_exponential(8), 1), 200)
        num = Counter(event.kind for event in events)
        assert num["average"] == pytest.approx(num["gradient"], rel=0.02)
        mixed = Counter(w for e in events if e.kind == "average" for w in (e.worker, e.partner))
        assert min(mixed.values()) > 0.4 * max(mixed.values()), "a slow one picks nobody, but is picked as often"


@pytest.mark.parametrize("jitter", ["constant", "lognormal:spread=0.5", "exponential"])
def test_nobody_waits_to_compute(jitter: str) -> None:
    spans: list[Span] = []
    machines = Cluster(workers=8, computation=Computation(mean_s=1.0, jitter=jitter), link=Link(latency_s=0.7))
    list(islice(ad_psgd(machines, bipartite_exponential(8), 1e8, on_span=spans.append), 3000))
    for worker in range(8):
        computing = [span for span in spans if span.worker == worker and span.doing == "compute"]
        assert len(computing) > 10
        assert all(a.end_s == b.start_s for a, b in pairwise(computing))


@given(seed=st.integers(0, 99), exchange_s=st.sampled_from([0.0, 0.1, 1.0, 5.0]), n=st.sampled_from([1, 2, 4, 6, 16]))
@settings(max_examples=30, deadline=None)
def test_a_worker_is_in_one_exchange_at_a_time(seed: int, exchange_s: float, n: int) -> None:
    machines = Cluster(
        workers=n,
        computation=Computation(mean_s=1.0, jitter="gamma:spread=0.5"),
        link=Link(latency_s=exchange_s, bytes_per_s=float("inf")),
        seed=seed,
    )
    graph = bipartite_exponential(n)
    active, _ = halves(graph)
    under_way: set[int] = set()
    last_s = 0.0
    for event in islice(ad_psgd(machines, graph, 1.0), 2000):
        assert event.time_s >= last_s
        last_s = event.time_s
        if event.kind == "send":
            assert event.worker in active
            assert event.partner in graph.neighbors(event.worker)
            assert not {event.worker, event.partner} & under_way
            under_way |= {event.worker, event.partner}
        elif event.kind == "average":
            under_way -= {event.worker, event.partner}


def test_the_same_seed_makes_the_same_trace_and_another_another() -> None:
    def trace(seed: int) -> list[Event]:
        machines = Cluster(workers=8, computation=Computation(jitter="lognormal"), seed=seed)
        return list(islice(ad_psgd(machines, bipartite_exponential(8), 1e6), 500))

    assert trace(0) == trace(0) != trace(1)


def test_partners_are_picked_evenly() -> None:
    graph = bipartite_exponential(16)
    begun = (event for event in ad_psgd(cluster(16, 1.0, exchange_s=0.01), graph, 1) if event.kind == "send")
    picked = Counter(event.partner for event in islice(begun, 16 * 600) if event.worker == 0)
    assert picked.keys() == set(graph.neighbors(0))
    assert max(picked.values()) < 2 * min(picked.values())


# ---- the parameter server ---------------------------------------------------------------------------------------


def test_a_server_by_hand() -> None:
    """Two workers, 4 s a gradient; a message takes 2 s of the server's link, and 1 s to travel."""
    machines = Cluster(
        workers=2, computation=Computation(mean_s=4.0), server=Link(latency_s=1.0, bytes_per_s=1.0), link=Link()
    )
    spans: list[Span] = []
    events = until(parameter_server(machines, 2.0, on_span=spans.append), 19)
    assert events == [
        Event(0.0, "read", 0),
        Event(0.0, "read", 1),
        Event(7.0, "gradient", 0, staleness=0),  # 4 + 2 + 1
        Event(7.0, "read", 0),
        Event(9.0, "gradient", 1, staleness=1),  # waits for the link until 6
        Event(9.0, "read", 1),
        Event(17.0, "gradient", 0, staleness=1),  # received at 10, computed at 14
        Event(17.0, "read", 0),
        Event(19.0, "gradient", 1, staleness=1),  # received at 12, computed at 16
        Event(19.0, "read", 1),
    ]
    assert Span(1, "wait", 4.0, 6.0) in spans
    assert not [span for span in spans if span.worker == 0 and span.doing == "wait"]


def test_a_server_is_a_bottleneck() -> None:
    """However many workers, its link takes a gradient every second."""
    machines = Cluster(workers=64, computation=Computation(mean_s=4.0), link=Link(latency_s=0.0, bytes_per_s=1.0))
    taken = epoch_s("parameter-server", machines, build("ring", 64), num_gradients=1000, model_bytes=1)
    assert taken == pytest.approx(1000, rel=0.01)


# ---- rounds -----------------------------------------------------------------------------------------------------


def test_an_all_reduce_waits_for_the_slowest_by_hand() -> None:
    """Four workers, the slowest takes 5 s; 6 messages of a quarter of the model, 1 + 8/4/2 = 2 s each."""
    machines = Cluster(
        workers=4, computation=Computation(mean_s=1.0, slow="2=5"), link=Link(latency_s=1.0, bytes_per_s=2)
    )
    clock = Rounds(machines, None, 8.0)
    clock.advance()
    assert clock.ready_s.tolist() == [17.0] * 4
    clock.advance()
    assert clock.now_s == 34.0


def test_neighbours_wait_for_neighbours_by_hand() -> None:
    """A ring of 6 with worker 0 at 5 s, and 1 s an exchange: each step the delay reaches one neighbour further."""
    spans: list[Span] = []
    clock = Rounds(cluster(6, 1.0, "0=5", latency_s=1.0), build("ring", 6), 0.0, on_span=spans.append)
    clock.advance()
    assert clock.ready_s.tolist() == [6.0, 6.0, 2.0, 2.0, 2.0, 6.0]
    assert Span(1, "wait", 1.0, 5.0) in spans
    clock.advance()
    assert clock.ready_s.tolist() == [12.0, 12.0, 8.0, 4.0, 8.0, 12.0]
    clock.advance()
    assert clock.ready_s.tolist() == [18.0, 18.0, 14.0, 10.0, 14.0, 18.0]


def test_an_overlapped_exchange_hides_behind_the_next_gradient() -> None:
    """2 s a gradient, an exchange of 1 s costs nothing, one of 5 s costs 3."""
    for exchange_s, ends in ((1.0, [2.0, 4.0, 6.0]), (5.0, [2.0, 7.0, 12.0])):
        clock = Rounds(cluster(4, 2.0, latency_s=exchange_s), build("ring", 4), 0.0, steps_under_way=1)
        done = []
        for _ in range(3):
            clock.advance()
            done.append(clock.now_s)
        assert done == ends


def test_an_exchange_that_is_under_way_for_two_steps_hides_behind_two_gradients() -> None:
    """2 s a gradient, an exchange of 5 s: every other step waits for 1 s."""
    clock = Rounds(cluster(4, 2.0, latency_s=5.0), build("ring", 4), 0.0, steps_under_way=2)
    done = []
    for _ in range(5):
        clock.advance()
        done.append(clock.now_s)
    assert done == [2.0, 4.0, 7.0, 9.0, 12.0]


def test_local_steps_wait_for_nobody() -> None:
    clock = Rounds(cluster(4, 1.0, "0=2", latency_s=1.0), build("ring", 4), 0.0, every=3)
    ready = []
    for _ in range(3):
        clock.advance()
        ready.append(clock.ready_s.tolist())
    assert ready == [[2.0, 1.0, 1.0, 1.0], [4.0, 2.0, 2.0, 2.0], [7.0, 7.0, 4.0, 7.0]]


def test_a_slow_link_slows_those_on_it() -> None:
    slow = {(1, 2): Link(latency_s=0.0, bytes_per_s=0.5)}
    machines = Cluster(
        workers=4, computation=Computation(mean_s=1.0), link=Link(latency_s=0.0, bytes_per_s=4.0), links=slow
    )
    clock = Rounds(machines, build("ring", 4), 1.0)
    clock.advance()
    assert clock.ready_s.tolist() == [1.5, 5.0, 5.0, 1.5]
    reduced = Rounds(machines, None, 1.0)
    reduced.advance()
    assert reduced.ready_s.tolist() == [4.0] * 4  # 6 messages of a quarter over the slowest link


def test_time_goes_by_what_a_method_sends() -> None:
    """A ring of 4, 1 s a gradient, 1 s a message, 2 s for the bytes of two models. Half the bytes are as many messages;
    twice the bytes are twice the rounds."""
    machines = Cluster(workers=4, computation=Computation(mean_s=1.0), link=Link(latency_s=1.0, bytes_per_s=1.0))
    clock = Rounds(machines, build("ring", 4), 1.0, every=2)
    assert [clock.bytes_of(step) for step in range(4)] == [0.0, 8.0, 0.0, 8.0]
    for volume, took in ((1.0, 3.0), (0.5, 2.0), (2.0, 6.0)):
        before = clock.now_s
        clock.advance(volume)
        clock.advance(volume)
        assert clock.now_s - before == 2.0 + took
    assert Rounds(machines, None, 1.0).bytes_of(0) == 4 * 1.5


def test_a_complete_graph_costs_an_all_reduce() -> None:
    machines = Cluster(workers=8)
    clocks = [Rounds(machines, graph, 1e6) for graph in (None, build("complete", 8))]
    for clock in clocks:
        clock.advance()
    np.testing.assert_array_equal(clocks[0].ready_s, clocks[1].ready_s)


# ---- epochs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1, 2, 10, 100, 1000, 10000])
def test_one_slow_worker_of_sixteen(factor: int) -> None:
    """The bar: asynchronous pairs lose at most a tenth at any factor; in rounds everybody takes that factor longer."""
    taken = {
        (name, f): epoch_s(
            name,
            Cluster(workers=16, computation=Computation(mean_s=0.01, slow=f"0={f}")),
            build("ring" if name == "d-psgd" else "bipartite-exponential", 16),
            num_gradients=1600,
            model_bytes=1e6,
        )
        for name in ("ad-psgd", "all-reduce", "d-psgd", "parameter-server")
        for f in (1, factor)
    }
    for name in ("ad-psgd", "parameter-server"):
        assert taken[name, factor] <= 1.10 * taken[name, 1]
    for name in ("all-reduce", "d-psgd"):
        assert factor <= taken[name, factor] < factor + 0.5  # 100 steps of 0.01 s, and the exchanges


def test_a_method_that_is_unknown() -> None:
    with pytest.raises(ValueError, match="did you mean 'ad-psgd'"):
        epoch_s("adpsgd", Cluster(workers=2), build("ring", 2), num_gradients=1, model_bytes=0)


def test_a_graph_that_changes_means_nothing_to_pairs() -> None:
    with pytest.raises(ValueError, match="changes from step to step"):
        epoch_s("ad-psgd", Cluster(workers=4), build("one-peer-exponential", 4), num_gradients=1, model_bytes=0)


def test_a_star_serves_everybody_by_its_centre() -> None:
    active, passive = halves(star(5))
    assert (active, len(passive)) == ((0,), 4)
    seen = swaps(ad_psgd(cluster(5, 1.0, exchange_s=0.1), star(5), 1), 50)
    assert {event.partner for event in seen} == set(passive)
