"""`bench --profile`: the clock of a training is the planner's, for the cluster that the profile describes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gossamer.bench import Experiment, Run, run
from gossamer.bench.report._subject import _clock
from gossamer.bench.train import make_engine, train
from gossamer.bench.virtual_time import make_clock
from gossamer.plan import Profile, plan, profile_of_figures

PROFILE = profile_of_figures(
    workers=8, local_size=4, params="63M", compute="60ms", update="3ms", inter="25gbit", intra="300gbit", latency="0s"
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    PROFILE.save(tmp_path / "cluster.json")
    return str(tmp_path / "cluster.json")


def experiment(path: str, **settings: object) -> Experiment:
    graphs = ("one-peer-exponential", "alternating-exponential-ring")
    usual = {"graphs": graphs, "workers": 8, "seeds": 1, "epochs": 2, "algorithm": "d-psgd-overlapped"}
    return Experiment(**(usual | settings), profile=path)


def test_an_epoch_takes_what_the_planner_says(path: str) -> None:
    foreseen = {row.graph: row.prediction.iteration_s for row in plan(PROFILE).rows}
    for each in experiment(path).runs():
        clock = make_clock(each, make_engine(each))
        clock.go_to(2)
        steps = 2 * each.steps_per_epoch
        assert clock.now_s == pytest.approx(steps * foreseen[each.label], rel=0.03), each.label


def test_without_overlap_the_exchange_comes_on_top(path: str) -> None:
    (only,) = experiment(path, graphs=("complete",), algorithm="d-psgd", centralized=False).runs()
    rows = train(only, make_engine(only), on_epoch=lambda run, row: None).epochs
    model_s = 252e6 / 3.125e9  # over the link between the two nodes, 2(n − 1)/n times
    assert rows[0]["virtual_s"] == pytest.approx(only.steps_per_epoch * (0.063 + 1.75 * model_s), rel=1e-4)


def seconds_of(run: Run, sent: list[list[float]]) -> float:
    """Of steps that have sent so many models each: with neighbours, in averages over all; before, and after."""
    engine = make_engine(run)
    model = sum(flat.nbytes for flat in engine.flats())  # of all workers
    steps = [[share * model for share in step] for step in sent]
    clock = make_clock(run, engine, steps)
    clock.go_to(1)
    return clock.now_s


def test_means_of_gradients_hide_behind_backward_and_those_of_models_do_not(path: str) -> None:
    all_reduce, listening = experiment(path, algorithm="listening-ada", graphs=("nodes",)).runs()
    steps, averaged = all_reduce.steps_per_epoch, 1.75
    clock = make_clock(all_reduce, make_engine(all_reduce))
    clock.go_to(1)
    dense_s = seconds_of(listening, [[0.0, averaged, 0.0, 0.0]] * steps)
    assert dense_s == pytest.approx(clock.now_s, rel=1e-9), "as all-reduce, while it averages all gradients"
    model_s, within_s = 252e6 / 3.125e9, 1.5 * 252e6 / 37.5e9
    alone_s = seconds_of(listening, [[0.0] * 4] * steps)
    assert alone_s == pytest.approx(steps * 0.063)
    of_models_s = seconds_of(listening, [[0.0, 0.0, 0.0, averaged]] * steps)
    assert of_models_s - alone_s == pytest.approx(steps * averaged * model_s, rel=1e-4)
    inside_s = seconds_of(listening, [[1.5, 0.0, 0.0, 0.0]] * steps)
    last_bucket_s = within_s / 10
    assert inside_s - alone_s == pytest.approx(steps * last_bucket_s, rel=1e-4), "nodes are fast: the last bucket shows"


def test_what_is_exchanged_holds_up_the_backward_beside_it(path: str) -> None:
    """By as much of it as is averaged: a tenth, nine of ten buckets of which have backward left after them."""
    held = replace(PROFILE, work=replace(PROFILE.work, held_up_s_per_byte=1e-9))
    held.save(Path(path))
    (listening,) = experiment(path, algorithm="listening-ada", graphs=("nodes",), centralized=False).runs()
    steps = listening.steps_per_epoch
    tenth_s, alone_s = (seconds_of(listening, [[0.0, share, 0.0, 0.0]] * steps) for share in (0.175, 0.0))
    last_bucket_s = 0.175 * 25.2e6 / 3.125e9
    assert tenth_s - alone_s == pytest.approx(steps * (0.1 * 0.9 * 252e6 * 1e-9 + last_bucket_s), rel=1e-3)


def test_a_half_at_every_step_takes_less_than_all_at_every_other(path: str) -> None:
    """More of it hides behind backward."""
    (listening,) = experiment(path, algorithm="listening-ada", graphs=("nodes",), centralized=False).runs()
    pairs = listening.steps_per_epoch // 2
    whole, half = [0.0, 1.75, 0.0, 0.0], [0.0, 0.875, 0.0, 0.0]
    in_turn_s, at_once_s = seconds_of(listening, [half] * 2 * pairs), seconds_of(listening, [[0.0] * 4, whole] * pairs)
    backward_s, model_s = 0.04, 1.75 * 252e6 / 3.125e9
    hidden_s = 0.9 * backward_s  # all but that of the first bucket, which has nothing to send before
    assert at_once_s - in_turn_s == pytest.approx(pairs * hidden_s, rel=1e-3)
    assert at_once_s == pytest.approx(pairs * (2 * 0.063 + model_s - hidden_s), rel=1e-3)


def test_the_report_tells_seconds_on_the_described_cluster(path: str, tmp_path: Path) -> None:
    results = run(experiment(path, graphs=("alternating-exponential-ring",)), tmp_path / "results")
    reduced, ring = results.summary
    assert ring["virtual_s"] < 0.8 * reduced["virtual_s"]
    page = results.report.read_text()
    assert "63 ms a gradient, 252 MB in 10 buckets, links of 0 µs, 25 Gbit/s, 300 inside nodes of 4" in page
    assert "by virtual time" in page
    told = json.loads((results.folder / results.runs[0].run.folder / "config.json").read_text())
    assert Profile.from_json(told["profile"]) == PROFILE
    Path(path).unlink()  # results say by themselves what their clock was
    assert _clock(results.runs[0].run).startswith("a profile")


def test_a_profile_is_a_setting_of_its_own(path: str) -> None:
    plain = replace(experiment(path), profile="")
    assert plain.folder != experiment(path).folder


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"compute_s": 0.5}, "compute_s=0.5 and a profile"),
        ({"slow": "1=2", "gbit_per_s": 3.0}, "slow=1=2, gbit_per_s=3.0 and a profile"),
        ({"engine": "processes", "device": "cpu"}, "take --engine stacked"),
        ({"workers": 6, "graphs": ("ring",)}, "6 workers do not fill nodes of 4"),
    ],
)
def test_what_does_not_fit_the_profile_is_refused(path: str, settings: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        experiment(path, **settings)


def test_no_profile_there() -> None:
    with pytest.raises(ValueError, match="cannot read the profile nowhere"):
        experiment("nowhere.json")
