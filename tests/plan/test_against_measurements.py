"""The scripts that put the planner against real runs and published times: they calibrate, and add up honestly."""

import json
import os

import pytest

from gossamer.plan import Profile
from plan_published import CLUSTERS, TOPOLOGIES, Fit
from plan_real import summaries
from side_by_side.cases import Case
from side_by_side.launch import rows_of
from side_by_side.quiet import share_of_others


def test_a_round_begins_with_a_profile_of_its_workers() -> None:
    case = Case(workers=2, model="tiny", jitter_ms=5.0)
    (told,) = rows_of(case, [], rounds=1, iterations=4, calibrates=True, most_disturbed=1.0)
    assert 0 <= told["others"] <= 1
    profile = Profile.from_json(json.dumps(told["profile"]))
    assert (profile.cluster.workers, profile.cluster.local_size) == (2, 2)
    assert profile.work.forward_s > 0.0005  # the sleeps are part of it
    assert profile.cluster.inside is not None


def test_others_are_whoever_else_kept_the_cores_busy() -> None:
    cores = os.cpu_count() or 1
    assert share_of_others(busy=3.0, own=1.0, wall=4.0) == pytest.approx(0.5 / cores)
    assert share_of_others(busy=1.0, own=1.5, wall=4.0) == 0  # the system counts in ticks


def test_errors_are_those_of_medians() -> None:
    row = {"case": "4 workers", "name": "gossamer", "topology": "ring"}
    rows = [row | {"measured_ms": m, "predicted_ms": p} for m, p in ((10.0, 11.0), (20.0, 24.0), (90.0, 30.0))]
    (said,) = summaries(rows)
    assert (said["method"], said["measured_ms"], said["predicted_ms"]) == ("ring", 20.0, 24.0)
    assert said["error"] == pytest.approx(0.2)


def test_the_fit_of_the_a40_cluster_explains_its_smallest_size() -> None:
    """With the figures that the script found; it takes minutes to find them."""
    fit = Fit(computation_s=0.1197, stream_bytes_per_s=252e6 / 0.0613, node_bytes_per_s=252e6 / 0.04)
    published = CLUSTERS["4 x A40, 25 Gbit/s"].times_ms[8]
    for topology, time_ms in zip(TOPOLOGIES, published, strict=True):
        assert fit.predicted_ms(8, 4, topology) == pytest.approx(time_ms, rel=0.01)
