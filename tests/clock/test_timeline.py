"""Timelines: what is drawn, of whom, up to when."""

from xml.etree import ElementTree

import pytest

from gossamer.clock import Cluster, Computation, Link, draw_timeline_svg, first_spans, timeline_end_s
from gossamer.topologies import build

SVG = "{http://www.w3.org/2000/svg}"
METHODS = {"ad-psgd": "bipartite-exponential", "all-reduce": "complete", "d-psgd": "ring", "parameter-server": "star"}
SLOW = Cluster(workers=16, computation=Computation(mean_s=0.01, slow="12=10000"), link=Link(latency_s=0.001))


def drawn(algorithm: str, cluster: Cluster = SLOW) -> ElementTree.Element:
    end_s = timeline_end_s(cluster)
    spans = first_spans(algorithm, cluster, build(METHODS[algorithm], cluster.workers), 1e6, end_s=end_s)
    return ElementTree.fromstring(draw_timeline_svg(spans, cluster, end_s=end_s, title=algorithm))


@pytest.mark.parametrize("algorithm", list(METHODS))
def test_lanes_of_the_first_workers_and_of_the_slow_one(algorithm: str) -> None:
    svg = drawn(algorithm)
    words = [text.text for text in svg.iter(f"{SVG}text")]
    assert words[:8] == ["0", "1", "2", "3", "4", "5", "6", "12 (10000×)"]
    assert words[8] == "0"
    assert words[-1] == "120 ms"


@pytest.mark.parametrize("algorithm", list(METHODS))
def test_nothing_is_drawn_outside(algorithm: str) -> None:
    svg = drawn(algorithm)
    width, height = map(float, svg.attrib["viewBox"].split()[2:])
    boxes = [
        {name: float(rect.attrib[name]) for name in ("x", "y", "width", "height")} for rect in svg.iter(f"{SVG}rect")
    ]
    assert len(boxes) > 8
    assert all(box["width"] >= 1 for box in boxes), "however short, it can be seen"
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
    assert all(box["y"] >= 0 and box["y"] + box["height"] <= height for box in boxes)


def test_pairs_are_joined_and_only_pairs() -> None:
    joints = {
        algorithm: sum("exchanging" in line.attrib["stroke"] for line in drawn(algorithm).iter(f"{SVG}line"))
        for algorithm in METHODS
    }
    assert joints.pop("ad-psgd") > 3
    assert set(joints.values()) == {0}


def test_what_is_under_way_at_the_end_is_shown_to_it() -> None:
    for algorithm, graph in METHODS.items():
        spans = first_spans(algorithm, SLOW, build(graph, 16), 1e6, end_s=0.12)
        slow = [span for span in spans if span.worker == 12 and span.doing == "compute"]
        assert [(span.start_s, span.end_s) for span in slow] == [(0.0, 100.0)]
        assert max(span.start_s for span in spans) < 0.12


def test_an_axis_of_seconds() -> None:
    svg = drawn("all-reduce", Cluster(workers=2, computation=Computation(mean_s=2.0)))
    assert [text.text for text in svg.iter(f"{SVG}text")] == ["0", "1", "0", "2", "4", "6", "8", "10 s"]
