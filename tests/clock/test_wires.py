"""What exchanges take where workers of a node share a wire, and who waits for whom."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from gossamer.clock import Cluster, Computation, Link, Rounds, Wires, last_of
from gossamer.topologies import Mixing, build, from_groups, names
from side_by_side.cases import Links
from side_by_side.wire_time import step_ms

SLOW, FAST = Link(latency_s=0.0, bytes_per_s=1e6), Link(latency_s=0.0, bytes_per_s=1e7)


def model_s(wires: Wires, mixing: Mixing) -> np.ndarray:
    """Seconds of an exchange of a megabyte, by worker."""
    return wires.exchange_s(mixing, np.array(1e6))


def test_what_crosses_a_node_shares_its_wire() -> None:
    wires = Wires(Cluster(workers=16, local_size=4, link=SLOW, inside=FAST, averages_by_node=True))
    pairs = build("one-peer-exponential", 16)
    assert model_s(wires, pairs(0)).tolist() == pytest.approx([0.1] * 16)  # inside the node, each on its own wire
    assert model_s(wires, pairs(2)).tolist() == pytest.approx([4.0] * 16)  # four pairs over the wire of a node
    nodes = build("alternating-exponential-ring", 16, local_size=4)(0)
    assert nodes.groups is not None
    expected = {8: 0.15 + 1.0, 4: 0.15}  # inside, three messages of a quarter, twice; jointly, a model between them too
    for group in nodes.groups:
        assert model_s(wires, nodes)[list(group)].tolist() == pytest.approx([expected[len(group)]] * len(group))
    assert model_s(wires, build("complete", 16)(0)).tolist() == pytest.approx([0.15 + 2 * 3 / 4] * 16)
    assert wires.all_reduce_s(np.array([1e6, 2e6]), "ring") == pytest.approx([1.875, 3.75])


def test_whole_nodes_average_by_node_where_the_cluster_does() -> None:
    link, within = Link(latency_s=0.01, bytes_per_s=1e6), Link(latency_s=0.001, bytes_per_s=1e7)
    by_node = Cluster(workers=12, local_size=4, link=link, inside=within, averages_by_node=True)
    around = replace(by_node, averages_by_node=False)
    three, six = (from_groups(12, groups, "groups") for groups in ([range(12)], [range(6), range(6, 12)]))
    inside, between = 2 * 3 / 4 / 10, 2 * 2 / 3
    assert model_s(Wires(by_node), three).tolist() == pytest.approx([0.002 + inside + 4 * 0.01 + between] * 12)
    assert Wires(by_node).busy_s(three, 1e6).tolist() == pytest.approx([between] * 12)  # inside they wait for it
    in_a_row = 4 * Wires(by_node).exchange_s(three, np.array(1e6), 4)[0]
    assert in_a_row == pytest.approx(4 * 0.042 + inside + 4 * between)  # hidden but for the first and the last
    tiny = Wires(by_node).exchange_s(three, np.array(1.0))
    assert tiny.tolist() == pytest.approx([0.042] * 12, abs=1e-5)  # a tree of three nodes is no shorter than a ring
    assert model_s(Wires(around), three).tolist() == pytest.approx([2 * (2 * 0.01 + 2 * 0.001) + 2.0] * 12)  # by a tree
    # Halves of nodes go around: both groups over the wires of the node in the middle, there and back.
    assert (model_s(Wires(by_node), six) == model_s(Wires(around), six)).all()
    assert Wires(by_node).all_reduce_s(np.array(1e6)) == Wires(around).all_reduce_s(np.array(1e6))


def test_counterparts_of_a_node_are_several_streams() -> None:
    link = Link(latency_s=0.0, bytes_per_s=4e6, stream_bytes_per_s=1e6)
    wires = Wires(Cluster(workers=4, local_size=2, link=link, inside=FAST, averages_by_node=True))
    assert model_s(wires, build("complete", 4)(0)).tolist() == pytest.approx([0.1 + 0.5] * 4)  # half a model a stream


@pytest.mark.parametrize(
    "name", ["complete", "alternating-ring", "one-peer-exponential", "alternating-exponential-ring"]
)
def test_two_nodes_are_two_switches_and_a_trunk(name: str) -> None:
    """Against the least time that links allow, as the measurements of iteration times know it: all of them at once.

    By node, what goes on inside comes before and after what goes on between the nodes.
    """
    cluster = Cluster(workers=8, local_size=4, link=SLOW, inside=FAST, averages_by_node=True)
    links = Links(switches=((0, 1, 2, 3), (4, 5, 6, 7)), host_mbit=80, trunk_mbit=8)
    schedule = build(name, 8, local_size=4)
    for step in range(schedule.period or 1):
        ours, groups = model_s(Wires(cluster), schedule(step)).max(), schedule(step).groups
        assert groups is not None
        inside = 2 * 3 / 4 / 10 if max(map(len, groups)) == 8 else 0.0
        assert ours == pytest.approx(inside + step_ms(links, schedule(step), 1_000_000) / 1e3)


@pytest.mark.parametrize("name", ["ring", "exponential", "star", "ring-lattice:k=2", "torus", "random-regular"])
def test_a_model_to_each_listener_loads_the_wires_in_between(name: str) -> None:
    cluster = Cluster(workers=12, local_size=3, link=SLOW, inside=FAST)
    mixing = build(name, 12)(0)
    load: Counter[tuple[str, int]] = Counter()
    for receiver in range(12):
        for sender in mixing.neighbors(receiver):
            for wire in wires_between(sender, receiver):
                load[wire] += 1.0 if wire[0] in ("up", "down") else 0.1  # ten times as fast inside
    expected = [
        max(
            load[wire]
            for other in {*mixing.neighbors(i), *mixing.listeners(i)}
            for ends in ((i, other), (other, i))
            if ends[0] in mixing.neighbors(ends[1])
            for wire in wires_between(*ends)
        )
        for i in range(12)
    ]
    assert model_s(Wires(cluster), mixing).tolist() == pytest.approx(expected)


def wires_between(sender: int, receiver: int) -> list[tuple[str, int]]:
    if sender // 3 == receiver // 3:
        return [("out", sender), ("in", receiver)]
    return [("up", sender // 3), ("down", receiver // 3)]


def test_a_tree_is_shorter_where_latency_counts_and_a_ring_where_bytes_do() -> None:
    link = Link(latency_s=0.01, bytes_per_s=1e6)
    wires = Wires(Cluster(workers=64, link=link))
    few, many = np.array(1e3), np.array(1e9)
    assert wires.all_reduce_s(few, "ring") == pytest.approx(126 * 0.01 + 2 * 63 / 64 * 1e-3)
    assert wires.all_reduce_s(few, "tree") == pytest.approx(12 * 0.01 + 2e-3)
    assert wires.all_reduce_s(few) == wires.all_reduce_s(few, "tree")
    assert wires.all_reduce_s(many) == wires.all_reduce_s(many, "ring") < wires.all_reduce_s(many, "tree")


def test_a_dense_lattice_sends_sums_of_neighbours() -> None:
    link = Link(latency_s=1.0, bytes_per_s=1e6)
    wires = Wires(Cluster(workers=96, link=link))
    mixing = build("ring-lattice:k=32", 96)(0)
    assert mixing.window is not None
    rounds = sum(bool(each.num_messages) for each in mixing.window.rounds)
    assert model_s(wires, mixing).tolist() == pytest.approx([rounds + 7.0] * 96)
    assert wires.busy_s(mixing, 1e6).tolist() == pytest.approx([7.0] * 96)


def test_a_stream_may_not_fill_a_link() -> None:
    link = Link(latency_s=0.0, bytes_per_s=4e6, stream_bytes_per_s=1e6)
    wires = Wires(Cluster(workers=16, local_size=8, link=link, inside=FAST))
    assert model_s(wires, build("one-peer-exponential", 16)(3)).tolist() == pytest.approx([2.0] * 16)  # eight streams
    assert wires.all_reduce_s(np.array(1e6), "ring") == pytest.approx(2 * 15 / 16)  # one
    assert link.seconds(3e6) == pytest.approx(3.0)


@pytest.mark.parametrize("name", names())
def test_the_last_of_a_neighbourhood(name: str) -> None:
    schedule = build(name, 16, local_size=4)
    moments = np.random.default_rng(0).random((3, 16))
    for step in range(4):
        last = last_of(schedule(step))(moments)
        for i in range(16):
            mine = [i, *schedule(step).neighbors(i)]
            np.testing.assert_array_equal(last[:, i], moments[:, mine].max(axis=1))


def test_rounds_know_of_nodes() -> None:
    cluster = Cluster(
        workers=8, local_size=4, computation=Computation(mean_s=1.0), link=SLOW, inside=FAST, averages_by_node=True
    )
    pairs = Rounds(cluster, build("one-peer-exponential", 8), 1e6)
    times = []
    for _ in range(3):
        pairs.advance()
        times.append(pairs.now_s)
    assert np.diff([0.0, *times]).tolist() == pytest.approx([1.1, 1.1, 5.0])
    everybody = Rounds(cluster, None, 1e6)
    everybody.advance()
    assert everybody.now_s == pytest.approx(1 + 2 * 7 / 8)
    complete = Rounds(cluster, build("complete", 8), 1e6)
    complete.advance()
    assert complete.now_s == pytest.approx(1 + 0.15 + 1.0)


def test_nodes_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="a stream of 0"):
        Link(stream_bytes_per_s=0)
    with pytest.raises(ValueError, match="10 workers do not fill nodes of 4"):
        Cluster(workers=10, local_size=4)
    with pytest.raises(ValueError, match="not both"):
        Cluster(workers=8, local_size=4, links={(0, 1): SLOW})


def test_whoever_sums_up_together_takes_in_as_much_as_three_neighbours() -> None:
    on_one_host = Wires(Cluster(workers=8, local_size=8))
    taken_in = {name: on_one_host.taken_in(build(name, 8)(0)).tolist() for name in ("complete", "ring", "star")}
    assert taken_in == {"complete": [3.0] * 8, "ring": [2.0] * 8, "star": [7.0] + [1.0] * 7}
    of_two = Wires(Cluster(workers=8, local_size=4)).taken_in(build("complete", 8)(0))
    assert of_two.tolist() == [4.0] * 8  # three of its own node, and a sum of the other
