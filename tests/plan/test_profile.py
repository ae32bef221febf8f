"""Profiles on disk, and figures as people write them: what is wrong is said in a sentence."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gossamer.clock import Cluster, Computation, Link
from gossamer.plan import Pair, Profile, Work, profile_of_figures

PROFILE = Profile(
    work=Work(
        forward_s=0.01,
        backward_s=(0.02, 0.01),
        update_s=(0.001, 0.002),
        bucket_bytes=(4e6, 8e6),
        mix_s_per_byte=1e-10,
        show_s_per_byte=3e-10,
        held_up_s_per_byte=2e-10,
    ),
    cluster=Cluster(
        workers=8,
        local_size=4,
        computation=Computation(measured=(1.0, 1.25, 0.75), slow="3=2"),
        link=Link(latency_s=1e-4, bytes_per_s=1e9, stream_bytes_per_s=5e8),
        inside=Link(latency_s=1e-5, bytes_per_s=1e10),
        averages_by_node=True,
    ),
    collective=1.4,
    pairs=(Pair(ends=(0, 1), latency_s=1e-5, bytes_per_s=1e10),),
    made={"gossamer": "0.1.0", "device": "cpu"},
)
FIGURES = {"workers": 8, "params": "63M", "compute": "60ms", "inter": "25gbit"}


def test_a_profile_comes_back_as_it_went(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    PROFILE.save(path)
    assert Profile.load(path) == PROFILE
    told = json.loads(path.read_text())
    assert told["gossamer_profile"] == 1
    assert told["buckets"][1] == {"bytes": 8e6, "backward_s": 0.01, "update_s": 0.002}


def test_a_profile_from_before_whole_nodes_averaged_by_node() -> None:
    told = json.loads(PROFILE.to_json())
    del told["averages_by_node"]
    assert Profile.from_json(json.dumps(told)).cluster == replace(PROFILE.cluster, averages_by_node=False)


def test_a_profile_from_before_backward_was_seen_to_be_held_up() -> None:
    told = json.loads(PROFILE.to_json())
    assert told.pop("held_up_s_per_byte") == 2e-10
    assert Profile.from_json(json.dumps(told)).work == replace(PROFILE.work, held_up_s_per_byte=0.0)


def test_a_profile_from_before_showing_was_measured_takes_it_for_one_more_model() -> None:
    told = json.loads(PROFILE.to_json())
    assert told.pop("show_s_per_byte") == 3e-10
    assert Profile.from_json(json.dumps(told)).work == replace(PROFILE.work, show_s_per_byte=1e-10)


def test_more_of_the_same_machines() -> None:
    more = PROFILE.resized(64)
    assert (more.cluster.workers, more.cluster.local_size, more.cluster.computation.slow) == (64, 4, "")
    assert more.cluster.computation.measured == PROFILE.cluster.computation.measured
    assert PROFILE.resized(8) is PROFILE
    assert PROFILE.resized(8, 2).cluster.computation.slow == "3=2"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda told: told.update(gossamer_profile=2), "version 2, and this is for version 1"),
        (lambda told: told.pop("gossamer_profile"), "no 'gossamer_profile'"),
        (lambda told: told.pop("links"), "'links' is missing"),
        (lambda told: told["buckets"][0].update(backward_s=-1.0), "-1 cannot be"),
        (lambda told: told.update(held_up_s_per_byte=-2.0), "held up: -2 cannot be"),
        (lambda told: told.update(show_s_per_byte=-3.0), "to show: -3 cannot be"),
        (lambda told: told.update(workers=9), "9 workers do not fill nodes of 4"),
        (lambda told: told["links"]["between_nodes"].update(speed=3), "speed"),
        (lambda told: told["buckets"].clear(), "give one of each"),
        (lambda told: told.update(collective=0), "collective=0"),
    ],
)
def test_a_profile_that_is_of_no_use_says_why(change, says: str, tmp_path: Path) -> None:
    told = json.loads(PROFILE.to_json())
    change(told)
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(told))
    with pytest.raises(ValueError, match=says) as refused:
        Profile.load(path)
    assert str(path) in str(refused.value)


def test_what_is_no_profile_at_all(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    for content, says in ((b"{", "not JSON"), (b"[1]", "no 'gossamer_profile'"), (b"\xff\xfe", "no text")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=says):
            Profile.load(path)
    with pytest.raises(ValueError, match="No such file"):
        Profile.load(tmp_path / "nothing.json")
    with pytest.raises(ValueError, match="cannot write the profile"):
        PROFILE.save(tmp_path / "nowhere" / "cluster.json")


def test_figures_mean_what_they_say() -> None:
    made = profile_of_figures(
        **{**FIGURES, "local_size": 4, "intra": "300 Gbit/s", "latency": "20us", "update": "2ms", "jitter": "0.0134"}
    )
    assert made.work.model_bytes == pytest.approx(252e6)
    assert made.work.computation_s == pytest.approx(0.06)
    assert sum(made.work.update_s) == pytest.approx(0.002)
    assert (made.cluster.link.latency_s, made.cluster.link.bytes_per_s) == pytest.approx((20e-6, 3.125e9))
    assert made.cluster.within.bytes_per_s == pytest.approx(37.5e9)
    assert made.cluster.computation.jitter == "lognormal:spread=0.115758"
    half = profile_of_figures(**FIGURES, param_bytes=2, buckets=3)
    assert (half.work.model_bytes, half.work.num_buckets) == (pytest.approx(126e6), 3)


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ({"inter": "25gbitt"}, "--inter 25gbitt: unknown unit 'gbitt', did you mean 'gbit'"),
        ({"inter": "25gb"}, "unknown unit 'gb'"),
        ({"inter": "25"}, "the unit is missing"),
        ({"inter": "0gbit"}, "above 0"),
        ({"inter": "-3gbit"}, "above 0"),
        ({"inter": "fast"}, "write it like 25gbit"),
        ({"intra": "1e999gbit"}, "write it like 25gbit"),
        ({"compute": "60"}, "the unit is missing"),
        ({"compute": "0ms"}, "more than 0"),
        ({"compute": "-5ms"}, "must not be negative"),
        ({"compute": "60mss"}, "unknown unit 'mss', did you mean 'ms'"),
        ({"update": "-1ms"}, "must not be negative"),
        ({"latency": "-1us"}, "must not be negative"),
        ({"params": "0"}, "1 or more"),
        ({"params": "1.5"}, "whole number"),
        ({"params": "63MM"}, "unknown unit 'MM'"),
        ({"workers": 0}, "--workers 0"),
        ({"workers": -4}, "--workers -4"),
        ({"local_size": 0}, "--local-size 0"),
        ({"local_size": 3}, "8 workers do not fill nodes of 3"),
        ({"param_bytes": 0}, "--param-bytes 0"),
        ({"buckets": 0}, "--buckets 0"),
        ({"jitter": "-0.1"}, "must be 0 or more"),
        ({"jitter": "nan"}, "must be 0 or more"),
        ({"jitter": "normal:spread=0.5"}, "makes computation times negative"),
        ({"jitter": "lognoral:spread=0.5"}, "did you mean 'lognormal'"),
        ({"slow": "9=2"}, "ranks go from 0 to 7"),
    ],
)
def test_a_figure_that_cannot_be_is_one_sentence(figures: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        profile_of_figures(**(FIGURES | figures))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"bucket_bytes": (1.0,)}, "2 backward times, 2 update times and 1 sizes"),
        ({"forward_s": float("nan")}, "forward: nan cannot be"),
        ({"forward_s": 0.0, "backward_s": (0.0, 0.0)}, "give the time of a gradient"),
    ],
)
def test_work_that_cannot_be_is_refused(given: dict[str, object], says: str) -> None:
    good = {"forward_s": 1.0, "backward_s": (1.0, 1.0), "update_s": (0.0, 0.0), "bucket_bytes": (1.0, 1.0)}
    with pytest.raises(ValueError, match=says):
        Work(**(good | given))
