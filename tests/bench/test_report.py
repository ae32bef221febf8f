"""The report: what it says is what the numbers say, whatever the runs are."""

import json
import math
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from made_up_runs import result, results

from gossamer.bench import Experiment, RunResult
from gossamer.bench.report import write_report
from gossamer.bench.report._colours import lasting
from gossamer.bench.report._finding import finding
from gossamer.bench.report._groups import group
from gossamer.bench.report._measures import DISPERSIONS
from gossamer.bench.white_box import DISPERSION

THREE = Experiment(graphs=("complete", "torus", "ring"), workers=16, seeds=2, epochs=2)
ENDS = {"all-reduce": (0.98, 0.96), "complete": (0.97, 0.97), "torus": (0.96, 0.97), "ring": (0.90, 0.91)}


def report(tmp_path: Path, experiment: Experiment, runs: list[RunResult]) -> str:
    write_report(tmp_path / "report.html", experiment, runs)
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def figures(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert found
    refuse = lambda token: pytest.fail(f"{token} is not JSON")  # noqa: E731
    return json.loads(found[1], parse_constant=refuse)


def words(page: str) -> str:
    """The part that people read, without tags."""
    body = page[page.index("<body>") : page.index("<noscript>")]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", body))


def said(experiment: Experiment, accuracies: dict[str, Any]) -> str:
    return finding(group(results(experiment, accuracies))).replace("\u00a0", " ")


# The finding


def test_names_what_is_outside_and_what_is_within_the_spread():
    assert said(THREE, ENDS) == (
        "On 16 replicas, ring ends 6.5 ± 1.6 points below all-reduce (97.0 ± 1.4 %); complete and torus are within "
        "the spread over seeds. The better a graph mixes, the closer its replicas stay: consensus distance over the "
        "training is 7.5 × 10⁻⁴ on complete and 1.5 × 10⁻² on ring."
    )


def test_all_within_the_spread_is_said_so():
    even = dict.fromkeys(ENDS, (0.96, 0.98))
    assert said(THREE, even).startswith(
        "On 16 replicas, complete, torus and ring are within the spread over seeds of all-reduce (97.0 ± 1.4 %)."
    )


def test_a_collapsed_seed_does_not_hide_in_its_own_spread():
    collapsed = said(THREE, ENDS | {"torus": (0.95, 0.10)})
    assert "torus does not train reliably: its seeds end between 10.0 % and 95.0 %." in collapsed
    assert "torus are within" not in collapsed
    assert "complete is within the spread" in collapsed


def test_without_a_baseline_the_best_mixing_graph_is_the_yardstick():
    experiment = replace(THREE, centralized=False, graphs=("ring", "torus"))
    assert "ring ends 6.0 ± 1.0 points below torus" in said(experiment, ENDS)


def test_a_graph_may_end_above():
    assert "ring ends 2.0 ± 1.4 points above all-reduce" in said(THREE, ENDS | {"ring": (0.99, 0.99)})


def test_one_seed_has_no_spread():
    one = replace(THREE, seeds=1)
    sentence = said(one, ENDS)
    assert (
        "ring ends 8.0 points below all-reduce (98.0 %), torus 2.0 points below and complete 1.0 points below"
        in sentence
    )
    assert "with one seed there is no spread to judge this by" in sentence
    assert "±" not in sentence


def test_equal_numbers_of_one_seed_are_level():
    one = Experiment(graphs=("ring",), workers=4, seeds=1, epochs=1)
    assert "ring ends level with all-reduce (95.0 %)" in said(one, {"ring": [0.95], "all-reduce": [0.95]})


def test_a_single_graph_is_compared_with_nothing():
    alone = Experiment(graphs=("ring",), workers=4, seeds=2, epochs=2, centralized=False)
    assert said(alone, ENDS) == "On 4 replicas, ring ends at 90.5 ± 0.7 % (2 seeds)."


def test_no_law_is_claimed_where_the_order_is_broken():
    runs = [result(run, 0.9, drift={"complete": 1e-2, "torus": 1e-4}.get(run.graph, 1e-3)) for run in THREE.runs()]
    sentence = finding(group(runs))
    assert "The better a graph mixes" not in sentence
    assert "on torus and" in sentence
    assert sentence.endswith("on complete.")


def test_many_graphs_are_counted_not_listed():
    graphs = ("complete", *(f"ring-lattice:k={k}" for k in (2, 4, 6, 8, 10)))
    experiment = Experiment(graphs=graphs, workers=16, seeds=1, epochs=1)
    accuracies = {"all-reduce": [0.99]} | {graph: [0.9 - 0.01 * i] for i, graph in enumerate(graphs)}
    assert "3 others less far off" in said(experiment, accuracies)


def test_diverged_runs_are_counted_and_left_out():
    runs = [
        result(r.run, 0.1, num_epochs=1, reason="the loss became nan") if r.run.folder == "ring-n16-sqrt-seed0" else r
        for r in results(THREE, ENDS)
    ]
    sentence = finding(group(runs))
    assert sentence.endswith("Diverged: ring (1 of 2 runs).")
    assert "ring ends 6.0 points below all-reduce" in sentence


def test_when_everything_diverged_there_is_nothing_to_compare():
    runs = [result(run, 0.1, num_epochs=0, reason="the loss became nan") for run in THREE.runs()]
    assert finding(group(runs)) == "Every run diverged: there is nothing to compare."


# The page


def test_table_has_a_row_a_graph_in_the_experiments_order(tmp_path: Path):
    page = report(tmp_path, THREE, results(THREE, ENDS))
    rows = re.findall(r'<tr><th scope="row">(.*?)</tr>', page)
    assert [re.sub("<[^>]*>", "", row.split("</th>")[0]) for row in rows] == ["all-reduce", "complete", "torus", "ring"]
    assert "97.00 <small>± 1.41</small>" in rows[0]
    assert "90.50 <small>± 0.71</small>" in rows[3]
    assert "2 MB" in rows[3]


def test_every_graph_has_one_colour_everywhere(tmp_path: Path):
    page = report(tmp_path, THREE, results(THREE, ENDS))
    plots = figures(page)
    for name in ("accuracy", "consensus", "bytes"):
        colours = {t["name"]: t["line"]["color"] for t in plots[name]["views"][0]["data"] if "color" in t["line"]}
        assert colours["ring"] == "--lasting-2"
        assert colours["complete"] == "--lasting-0"
    assert page.count("--lasting-2:") == 2  # once a theme
    assert "--node: var(--lasting-2)" in page


@pytest.mark.parametrize("number", [2, 5, 6, 12])
def test_colours_of_graphs_are_far_apart(number: int):
    for theme in ("light", "dark"):
        shades = [lasting(place, number).shades[theme] for place in range(number)]
        assert min(math.dist(a, b) for a, b in combinations(shades, 2)) > 25


def test_band_runs_from_the_lowest_to_the_highest_seed(tmp_path: Path):
    plots = figures(report(tmp_path, THREE, results(THREE, ENDS)))
    traces = plots["accuracy"]["views"][0]["data"]
    (band,) = [trace for trace in traces if trace["name"] == "ring" and "fill" in trace]
    (line,) = [trace for trace in traces if trace["name"] == "ring" and "fill" not in trace]
    assert band["x"] == [1, 2, 2, 1]
    assert band["y"] == pytest.approx([0.455, 0.91, 0.90, 0.45])
    assert line["y"] == pytest.approx([0.4525, 0.905])


def test_zeros_are_kept_off_logarithmic_axes_and_said(tmp_path: Path):
    page = report(tmp_path, THREE, results(THREE, ENDS))
    shown = {trace["name"] for trace in figures(page)["consensus"]["views"][0]["data"]}
    assert shown == {"complete", "torus", "ring"}
    assert "Not shown: all-reduce" in words(page)


def test_correlation_is_of_decentralized_runs_only(tmp_path: Path):
    text = words(report(tmp_path, THREE, results(THREE, ENDS)))
    assert "over 6 decentralized runs: ρ = −0.89" in text  # by hand: −14 ∕ √(16 · 15.5)
    few = replace(THREE, graphs=("ring",))
    assert "Too few decentralized runs for a rank correlation: 2." in words(report(tmp_path, few, results(few, ENDS)))
    same = results(THREE, dict.fromkeys(ENDS, (0.9, 0.9)))
    assert "equal in one of the two" in words(report(tmp_path, THREE, same))


def test_heat_map_averages_probes_and_seeds(tmp_path: Path):
    plots = figures(report(tmp_path, THREE, results(THREE, ENDS)))
    complete, _, ring = plots["tensors"]["views"]
    assert complete["data"][0]["customdata"] == [[1e-3, 5e-4]] * 2
    assert complete["data"][0]["z"][0] == pytest.approx([-3, -3.301])
    assert ring["layout"]["coloraxis"] == complete["layout"]["coloraxis"]


def test_a_run_that_diverged_at_once_is_marked_with_its_reason(tmp_path: Path):
    reason = "the loss of replica 3 became nan at step 7: <take> a lower learning rate"
    runs = [
        result(r.run, 0.1, num_epochs=0, reason=reason) if r.run.label == "ring" else r for r in results(THREE, ENDS)
    ]
    page = report(tmp_path, THREE, runs)
    assert page.count("replica 3 became nan at step 7: &lt;take&gt; a lower learning rate") == 2  # two seeds
    assert "ring" not in {trace["name"] for trace in figures(page)["accuracy"]["views"][0]["data"]}


def test_a_run_that_diverged_later_is_dotted_to_its_end(tmp_path: Path):
    runs = results(THREE, ENDS)
    runs[-1] = result(runs[-1].run, 0.5, num_epochs=1, reason="the loss became inf")
    runs[-1].epochs[0]["consensus_distance"] = float("inf")
    plots = figures(report(tmp_path, THREE, runs))
    accuracy, consensus = (
        next(trace for trace in plots[name]["views"][0]["data"] if "diverged" in trace["name"])
        for name in ("accuracy", "consensus")
    )
    assert accuracy["y"] == [0.25]
    assert consensus["y"] == [None]


def test_names_are_escaped_and_cannot_end_the_script(tmp_path: Path):
    runs = results(THREE, ENDS)
    for run in runs:
        run.tensors["tensor"] = ["</script><b>" if name == "0.bias" else name for name in run.tensors["tensor"]]
        run.environment["command"] = ["gossamer", "<img src=x>"]
    page = report(tmp_path, THREE, runs)
    assert "</script><b>" not in page
    assert "<img src=x>" not in page
    assert "&lt;/script&gt;&lt;b&gt;" in figures(page)["tensors"]["views"][0]["data"][0]["y"]


def test_what_runs_have_in_common_is_said_once(tmp_path: Path):
    runs = results(THREE, ENDS)
    assert report(tmp_path, THREE, runs).count("3.11.7") == 1
    runs[0].environment["python"] = "3.12.0"
    page = report(tmp_path, THREE, runs)
    assert page.count("3.11.7") == 1
    assert page.count("3.12.0") == 1
    assert "<p>all-reduce-n16-sqrt-seed0</p>" in page


@pytest.mark.parametrize(
    "experiment",
    [
        Experiment(graphs=("ring",), workers=1, seeds=1, epochs=1),
        Experiment(graphs=("ring",), workers=4, seeds=1, epochs=1, centralized=False),
        Experiment(graphs=("ada", "random-matching", "one-peer-exponential"), workers=8, seeds=1, epochs=3),
        Experiment(graphs=tuple(f"ring-lattice:k={k}" for k in range(2, 26, 2)), workers=32, seeds=1, epochs=1),
        Experiment(graphs=("complete",), algorithm="all-reduce", workers=4, seeds=2, epochs=1),
    ],
    ids=["one worker", "one graph", "schedules", "twelve graphs", "no graph"],
)
def test_any_set_of_runs_makes_a_page(tmp_path: Path, experiment: Experiment):
    runs = [result(run, 0.9, drift=0.0 if run.workers == 1 else 1e-3) for run in experiment.runs()]
    page = report(tmp_path, experiment, runs)
    labels = dict.fromkeys(run.run.label for run in runs)
    assert page.count('<th scope="row">') == len(labels)
    assert all(view["data"] for view in figures(page)["accuracy"]["views"])
    drawn = page[page.index("<h2>The graphs</h2>") :]
    assert drawn.count('<figure class="graph') == len(labels.keys() - {"all-reduce"})


def test_no_run_yet_makes_a_page(tmp_path: Path):
    assert "No run is over yet." in words(report(tmp_path, THREE, []))


def test_degree_over_time_is_shown_for_graphs_that_change(tmp_path: Path):
    experiment = Experiment(graphs=("ada", "ring"), workers=8, seeds=1, epochs=4)
    plots = figures(report(tmp_path, experiment, [result(run, 0.9) for run in experiment.runs()]))
    assert [trace["name"] for trace in plots["degree"]["views"][0]["data"]] == ["ada"]


def test_a_large_experiment_stays_small(tmp_path: Path):
    graphs = ("complete", "exponential", "torus", "ring", "ada", *(f"ring-lattice:k={k}" for k in (4, 8, 16)))
    experiment = Experiment(graphs=graphs, workers=1008, seeds=1, epochs=100)
    names = [f"layers.{i}.weight" for i in range(100)]
    runs = []
    for run in experiment.runs():
        made = result(run, 0.9123456789, drift=1 / 3)
        made.tensors["tensor"] = names * 100
        made.tensors["step"] = [epoch for epoch in range(100) for _ in names]
        made.tensors["coefficient_of_variation"] = [1 / (3 + i) for i in range(10_000)]
        runs.append(made)
    report(tmp_path, experiment, runs)
    assert (tmp_path / "report.html").stat().st_size < 12e6


def test_every_measure_of_the_bench_has_a_name():
    assert {measure.key for measure in DISPERSIONS} == set(DISPERSION)


def test_nothing_is_fetched_from_elsewhere(tmp_path: Path):
    page = report(tmp_path, THREE, results(THREE, ENDS))
    assert "default-src 'none'" in page
    assert not re.search(r"<(?:link|img|iframe)\b|<script[^>]*\bsrc=", page[: page.index("<noscript>")])
