"""The recurrences: against events on a heap, against closed forms where there are any, and against the clock."""

from dataclasses import replace

import happenings
import numpy as np
import pytest

from gossamer.clock import Cluster, Computation, Link, Rounds, Wires
from gossamer.plan import AllReduce, Decentralized, Work
from gossamer.topologies import build

SCHEDULES = (
    "complete",
    "ring",
    "alternating-ring",
    "one-peer-exponential",
    "alternating-exponential-ring",
    "exponential",
    "base-2",
    "random-matching",
    "ada:epochs=4",
    "ring-lattice:k=4",
    "star",
)
UNEVEN = Work(
    forward_s=0.3,
    backward_s=(0.1, 0.25, 0.05, 0.2),
    update_s=(0.05, 0.02, 0.08, 0.01),
    bucket_bytes=(4e6, 1e6, 6e6, 2e6),
)
MIXING = replace(UNEVEN, mix_s_per_byte=3e-9, show_s_per_byte=5e-9)
"""The same, where it takes time to take in a neighbour's parameters, and to put up one's own."""


def nodes(workers: int = 8, seconds_a_model: float = 0.9, jitter: str = "lognormal:spread=0.5") -> Cluster:
    """Nodes of two, whose workers have fast links; a model takes so long over the slow one."""
    return Cluster(
        workers=workers,
        local_size=2,
        computation=Computation(mean_s=1.0, jitter=jitter, slow="1=1.5"),
        link=Link(latency_s=0.01, bytes_per_s=UNEVEN.model_bytes / seconds_a_model),
        inside=Link(latency_s=0.002, bytes_per_s=10 * UNEVEN.model_bytes / seconds_a_model),
    )


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("seconds_a_model", [0.1, 1.2])
@pytest.mark.parametrize("name", SCHEDULES)
def test_decentralized_training_is_what_events_on_a_heap_say(
    name: str, seconds_a_model: float, in_backward: bool
) -> None:
    cluster, steps = nodes(seconds_a_model=seconds_a_model), 12
    schedule, wires = build(name, 8, local_size=2, steps_per_epoch=3), Wires(cluster)
    factors = cluster.times().ahead(steps)
    timeline, ends = Decentralized(MIXING, cluster, schedule, in_backward=in_backward), []
    for step in range(steps):
        timeline.advance(factors[step])
        ends.append(timeline.ready_s)
    sizes = np.array(UNEVEN.bucket_bytes)
    costs = [wires.exchange_s(schedule(step), sizes, UNEVEN.num_buckets) for step in range(steps)]
    by_events = happenings.decentralized(
        MIXING,
        factors,
        lambda step, i: set(schedule(step).neighbors(i)),
        lambda step, bucket, i: float(costs[step][bucket, i]),
        lambda step, bucket, i: 3e-9 * MIXING.bucket_bytes[bucket] * taken_in(schedule(step).neighbors(i), i),
        lambda step, bucket, i: 5e-9 * MIXING.bucket_bytes[bucket] * bool(schedule(step).neighbors(i)),
        in_backward=in_backward,
    )
    np.testing.assert_allclose(np.array(ends), by_events, rtol=0, atol=1e-9)


def taken_in(neighbours: tuple[int, ...], i: int) -> int:
    """Models of the same node of two one by one; and one sum from elsewhere."""
    near = [j for j in neighbours if j // 2 == i // 2]
    return len(near) + (len(near) < len(neighbours))


@pytest.mark.parametrize("held_up_s_per_byte", [0.0, 3e-8])
@pytest.mark.parametrize("how", ["ring", "tree", "best"])
def test_all_reduce_is_what_events_on_a_heap_say(how: str, held_up_s_per_byte: float) -> None:
    cluster, steps = nodes(), 12
    work = replace(UNEVEN, held_up_s_per_byte=held_up_s_per_byte)
    factors = cluster.times().ahead(steps)
    timeline, ends = AllReduce(work, cluster, how=how), []
    for step in range(steps):
        timeline.advance(factors[step])
        ends.append(timeline.ready_s)
    costs = Wires(cluster).all_reduce_s(np.array(UNEVEN.bucket_bytes), how)
    by_events = happenings.all_reduce(work, factors, lambda bucket: float(costs[bucket]))
    np.testing.assert_allclose(np.array(ends), np.repeat(by_events[:, None], 8, axis=1), rtol=0, atol=1e-9)


@pytest.mark.parametrize("seconds_a_model", [0.01, 0.2, 0.7, 3.0])
@pytest.mark.parametrize("in_backward", [False, True])
def test_without_jitter_an_iteration_is_the_longer_of_computation_and_exchange(
    seconds_a_model: float, in_backward: bool
) -> None:
    cluster = Cluster(workers=8, link=Link(latency_s=0.001, bytes_per_s=UNEVEN.model_bytes / seconds_a_model))
    timeline = Decentralized(UNEVEN, cluster, build("one-peer-exponential", 8), in_backward=in_backward)
    before = timeline.ready_s
    for step in range(40):
        before = timeline.ready_s if step == 30 else before
        timeline.advance(np.ones(8))
    computation_s = UNEVEN.computation_s + sum(UNEVEN.update_s)
    exchange_s = seconds_a_model + UNEVEN.num_buckets * 0.001
    # What one bucket's exchange adds to its own update and the next gradient cannot hide either.
    links = [0.001 + size / UNEVEN.model_bytes * seconds_a_model for size in UNEVEN.bucket_bytes]
    around = max(cost + update for cost, update in zip(links, UNEVEN.update_s, strict=True))
    expected = max(computation_s, exchange_s, around)
    np.testing.assert_allclose((timeline.ready_s - before) / 10, expected, rtol=1e-12)


@pytest.mark.parametrize("seconds_a_model", [0.01, 0.2, 0.7, 3.0])
def test_without_jitter_an_all_reduce_hides_behind_backward_but_for_its_end(seconds_a_model: float) -> None:
    work = Work.of_figures(computation_s=0.9, model_bytes=1e8, update_s=0.1, num_buckets=5)
    cluster = Cluster(workers=4, link=Link(latency_s=0.0, bytes_per_s=1e8 / seconds_a_model))
    timeline = AllReduce(work, cluster, how="ring")
    for _ in range(3):
        timeline.advance(np.ones(4))
    one = 1.5 * seconds_a_model / 5  # 2(n − 1)/n models
    expected = 0.3 + max(0.6 + one, 0.12 + 5 * one) + 0.1
    np.testing.assert_allclose(timeline.ready_s / 3, expected, rtol=1e-12)


@pytest.mark.parametrize("seconds_a_model", [0.01, 0.2, 0.7, 3.0])
def test_an_all_reduce_on_the_cores_of_backward_hides_behind_nothing(seconds_a_model: float) -> None:
    cluster = Cluster(workers=4, link=Link(latency_s=0.0, bytes_per_s=1e8 / seconds_a_model))
    work = replace(
        Work.of_figures(computation_s=0.9, model_bytes=1e8, update_s=0.1, num_buckets=5),
        held_up_s_per_byte=1.5 * seconds_a_model / 1e8,
    )
    timeline = AllReduce(work, cluster, how="ring")
    for _ in range(3):
        timeline.advance(np.ones(4))
    np.testing.assert_allclose(timeline.ready_s / 3, 0.9 + 1.5 * seconds_a_model + 0.1, rtol=1e-12)


@pytest.mark.parametrize("name", ["ring", "one-peer-exponential", "complete"])
def test_one_bucket_is_what_the_clock_of_rounds_says(name: str) -> None:
    work = Work(forward_s=0.4, backward_s=(0.6,), update_s=(0.0,), bucket_bytes=(1e8,))
    link = Link(latency_s=0.0, bytes_per_s=1.5e8)
    cluster = Cluster(workers=8, computation=Computation(mean_s=1.0, jitter="gamma:spread=0.4"), link=link)
    schedule, factors = build(name, 8), cluster.times().ahead(20)
    rounds, timeline = Rounds(cluster, schedule, 1e8, steps_under_way=1), Decentralized(work, cluster, schedule)
    for step in range(20):
        rounds.advance()
        timeline.advance(factors[step])
        np.testing.assert_allclose(timeline.ready_s, rounds.ready_s, rtol=1e-12)


def test_trainings_side_by_side_are_those_one_by_one() -> None:
    cluster, steps = nodes(), 10
    schedule = build("alternating-exponential-ring", 8, local_size=2)
    factors = np.stack([cluster.times().ahead(steps), np.ones((steps, 8))], axis=1)
    slowed = np.array([[1.0], [2.5]])
    for make in (
        lambda slowed: Decentralized(UNEVEN, cluster, schedule, slowed=slowed),
        lambda slowed: AllReduce(UNEVEN, cluster, slowed=slowed),
    ):
        together, alone = make(slowed), [make(1.0), make(2.5)]
        for step in range(steps):
            together.advance(factors[step])
            for number, timeline in enumerate(alone):
                timeline.advance(factors[step, number])
        np.testing.assert_array_equal(together.ready_s, np.stack([timeline.ready_s for timeline in alone]))


def test_a_schedule_for_another_number_of_workers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'ring' is for 4 workers, but there are 8"):
        Decentralized(UNEVEN, nodes(), build("ring", 4))


@pytest.mark.parametrize(
    ("name", "ratio"),
    [
        ("complete", 0.745),
        ("alternating-ring", 0.709),
        ("one-peer-exponential", 0.708),
        ("alternating-exponential-ring", 0.725),
    ],
)
def test_exponential_sleeps_cost_what_an_earlier_calculation_says(name: str, ratio: float) -> None:
    """Four workers, 20 ms of sleep on average and 8 ms of computation; measured ratios to DDP were .66 to .73."""
    times = 0.008 + np.random.default_rng(0).exponential(0.02, (10_000, 4))
    second = Work(forward_s=1.0, backward_s=(0.0,), update_s=(0.0,), bucket_bytes=(0.0,))
    cluster = Cluster(workers=4, link=Link(latency_s=0.0))
    centralized, decentralized = (
        AllReduce(second, cluster),
        Decentralized(second, cluster, build(name, 4, local_size=2)),
    )
    for each in times:
        centralized.advance(each)
        decentralized.advance(each)
    assert centralized.ready_s.mean() / len(times) == pytest.approx(0.0496, rel=0.01)
    assert decentralized.ready_s.mean() / centralized.ready_s.mean() == pytest.approx(ratio, abs=0.01)
