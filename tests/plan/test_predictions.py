"""What is predicted and advised: bounds, waiting, links, Ada over a training, the map."""

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from gossamer.clock import Cluster, Computation, Link, Wires
from gossamer.plan import (
    AllReduce,
    Decentralized,
    Profile,
    Work,
    draw_map_svg,
    map_page,
    plan,
    predict,
    profile_of_figures,
    regimes,
)
from gossamer.topologies import build

PUBLISHED = profile_of_figures(
    workers=32, local_size=4, params="63M", compute="60ms", jitter="0.0134", inter="25gbit", intra="300gbit"
)
WORK = Work.of_figures(computation_s=1.0, model_bytes=1e8, num_buckets=4)


def profile(*, gbit: float = 80.0, **computation: str) -> Profile:
    link = Link(latency_s=0.0, bytes_per_s=gbit * 1e9 / 8)
    return Profile(work=WORK, cluster=Cluster(workers=8, computation=Computation(**computation), link=link))


def test_fast_links_and_equal_workers_are_bound_by_computation() -> None:
    for schedule in (None, build("ring", 8)):
        found = predict(profile(gbit=1000), schedule)
        assert found.bound == "computation"
        assert found.iteration_s == pytest.approx(1.0, rel=0.01)
        assert found.waiting_s < 0.01


def test_slow_links_bound_and_are_in_use_all_the_time() -> None:
    found = predict(profile(gbit=0.2), build("one-peer-exponential", 8))
    assert (found.bound, found.iteration_s) == ("links", pytest.approx(4.0))
    assert found.waiting_s == pytest.approx(3.0)
    assert found.link_use == pytest.approx(1.0)


@pytest.mark.parametrize("jitter", ["normal:spread=0.3", "lognormal:spread=0.3", "gamma:spread=0.3"])
def test_stragglers_bound_and_cost_all_reduce_more(jitter: str) -> None:
    centralized = predict(profile(jitter=jitter), None)
    pairs = predict(profile(jitter=jitter), build("one-peer-exponential", 8))
    assert centralized.bound == pairs.bound == "stragglers"
    longest = 1 + 0.3 * 1.4236  # the mean of the largest of eight normal variables
    assert centralized.iteration_s == pytest.approx(longest, rel=0.05)
    assert 1.05 < pairs.iteration_s < centralized.iteration_s - 0.1


def test_measured_times_count_as_they_were() -> None:
    two = Profile(
        work=WORK,
        cluster=Cluster(
            workers=2, computation=Computation(measured=(0.5, 1.5)), link=Link(latency_s=0.0, bytes_per_s=1e12)
        ),
    )
    assert predict(two, None).iteration_s == pytest.approx(0.25 * 0.5 + 0.75 * 1.5, rel=0.02)


def test_a_slow_worker_is_waited_for_by_all() -> None:
    found = predict(profile(slow="3=4"), build("ring", 8))
    assert (found.bound, found.iteration_s) == ("stragglers", pytest.approx(4.0, rel=0.01))
    assert found.computation_s == pytest.approx((7 + 4) / 8, rel=1e-6)


def test_ada_over_a_training_is_the_mean_over_its_epochs() -> None:
    slow = profile(gbit=0.2)
    schedule = build("ada", 8, steps_per_epoch=40, epochs=4)
    expected = [
        max(1.0, float(Wires(slow.cluster).exchange_s(schedule(40 * epoch), np.array(1e8)).max())) for epoch in range(4)
    ]
    assert predict(slow, schedule, steps=160).iteration_s == pytest.approx(np.mean(expected), rel=0.02)
    thin, dense = (plan(slow, [f"ada:k0=7:k_min={k}"], epochs=4).rows[1] for k in (2, 7))
    assert thin.prediction.iteration_s != pytest.approx(dense.prediction.iteration_s, rel=0.02)


def test_the_plan_of_the_published_cluster_takes_the_published_topology() -> None:
    found = plan(PUBLISHED)
    assert found.best.graph == "alternating-exponential-ring"
    assert 1.5 < found.best.speedup < 2.2
    assert found.all_reduce.prediction.bound == "links"
    assert {row.graph: round(row.consensus_variance, 2) for row in found.rows}["alternating-exponential-ring"] == 1.34
    assert "Take alternating-exponential-ring" in found.advice
    assert "backward does not hide" in found.advice
    by_node = plan(replace(PUBLISHED, cluster=replace(PUBLISHED.cluster, averages_by_node=True)))
    assert by_node.best.graph == found.best.graph
    assert by_node.best.speedup > 1.2 * found.best.speedup


def test_nodes_that_are_no_power_of_two_have_a_topology_that_spares_their_links() -> None:
    found = plan(PUBLISHED.resized(24, 4))
    graphs = [row.graph for row in found.rows]
    assert found.best.graph == "alternating-nodes"
    assert "alternating-exponential-ring" not in graphs
    assert "alternating-nodes" not in [row.graph for row in plan(PUBLISHED).rows], "the same, where there is the one"


def test_advice_stays_with_all_reduce_where_nothing_is_to_be_gained() -> None:
    found = plan(profile(gbit=4000))
    assert found.best is found.all_reduce
    assert found.advice.startswith("Stay with all-reduce")
    assert "computation bounds both" in found.advice


def test_advice_says_what_stragglers_cost() -> None:
    found = plan(profile(gbit=4000, jitter="lognormal:spread=0.5"))
    assert not found.best.is_all_reduce
    assert "waits for the slowest of 8" in found.advice


def test_a_fast_graph_whose_replicas_drift_is_passed_over() -> None:
    found = plan(PUBLISHED, ["ring", "alternating-ring"])
    assert found.best is found.all_reduce
    assert "above the 2.5" in found.advice
    still = plan(PUBLISHED, ["complete", "alternating-ring"])
    assert still.best.graph == "complete"
    assert "alternating-ring is faster still" in still.advice


def test_graphs_that_do_not_fit_are_left_out_unless_asked_for() -> None:
    twelve = PUBLISHED.resized(12)
    graphs = [row.graph for row in plan(twelve).rows]
    assert "base-2" in graphs
    assert "one-peer-exponential" not in graphs
    with pytest.raises(ValueError, match="power of two"):
        plan(twelve, ["one-peer-exponential"])


def test_one_worker_has_nothing_to_plan() -> None:
    with pytest.raises(ValueError, match="plan for 2 or more"):
        plan(PUBLISHED.resized(1))


def test_the_map_agrees_with_predictions_and_grows_with_links_and_jitter() -> None:
    even = replace(PUBLISHED, cluster=replace(PUBLISHED.cluster, computation=Computation()))
    found = regimes(plan(even))
    assert found.speedups[0, 0] == pytest.approx(1.0, abs=0.02)
    assert (np.diff(found.speedups[:, 0]) > 0).all()  # jitter, where links are fast
    assert (np.diff(found.speedups[0]) > -1e-9).all()  # slower links, without jitter
    slower = 2.0 * (
        even.work.computation_s / float(Wires(even.cluster).all_reduce_s(np.array(even.work.bucket_bytes)).sum())
    )
    schedule = build("alternating-exponential-ring", 32, local_size=4)
    ours, theirs = (
        Decentralized(even.work, even.cluster, schedule, slowed=slower),
        AllReduce(even.work, even.cluster, slowed=slower),
    )
    for _ in range(60):
        ours.advance(np.ones(32))
        theirs.advance(np.ones(32))
    column = found.ratios.index(2.0)
    assert found.graphs[0][column] == "alternating-exponential-ring"
    assert found.speedups[0, column] == pytest.approx(theirs.ready_s.mean() / ours.ready_s.mean(), rel=0.02)
    assert found.here == (pytest.approx(2.66, rel=0.05), 0.0)


def test_the_map_is_drawn_with_the_plan_framed() -> None:
    found = regimes(plan(PUBLISHED, ["complete", "one-peer-exponential"]))
    picture = ElementTree.fromstring(draw_map_svg(found))
    space = "{http://www.w3.org/2000/svg}"
    cells = picture.findall(f"{space}g")
    assert len(cells) == found.speedups.size
    assert {cell.findtext(f"{space}title") for cell in cells} <= {"complete", "one-peer-exponential"}
    assert len([rect for rect in picture.findall(f"{space}rect") if rect.get("fill") == "none"]) == 1
    assert draw_map_svg(found) in map_page(found)


def test_nodes_that_never_meet_are_not_recommended() -> None:
    found = plan(PUBLISHED, ["nodes"])
    assert found.best is found.all_reduce
    assert "nodes is" in found.advice
    assert "its replicas never come together" in found.advice
