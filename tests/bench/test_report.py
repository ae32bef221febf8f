"""The report: what it says is what the numbers say, whatever the runs are."""

import base64
import json
import math
import re
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_up_runs import ENDS, SIZES, THREE, result, results

from gossamer.bench import Experiment, RunResult
from gossamer.bench.learning_rate import LR_RULES
from gossamer.bench.report import Subject, write_page, write_report
from gossamer.bench.report._colours import lasting
from gossamer.bench.report._labels import RULES
from gossamer.bench.report._measures import DISPERSIONS
from gossamer.bench.sharding import dealt_classes
from gossamer.bench.white_box import DISPERSION


def report(tmp_path: Path, experiment: Experiment, runs: list[RunResult]) -> str:
    write_report(tmp_path / "report.html", experiment, runs)
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def plots(page: str) -> dict[str, Any]:
    """All that the script reads, as it is in the page."""
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert found
    refuse = lambda token: pytest.fail(f"{token} is not JSON")  # noqa: E731
    return json.loads(found[1], parse_constant=refuse)["plots"]


def figures(page: str, setting: int = 0) -> dict[str, Any]:
    """The views of every plot in one setting, by what must be chosen for them."""
    shown = {}
    for name, plot in plots(page).items():
        if plot["of"][setting] is not None:
            panel = plot["panels"][plot["of"][setting]]
            views = zip(product(*plot["choices"]), panel["views"], strict=True)
            shown[name] = {" / ".join(choice): _whole(panel, view) for choice, view in views if view}
    return shown


def _whole(panel: dict[str, Any], view: dict[str, Any]) -> dict[str, Any]:
    """A view with what it shares with others."""
    return {"data": [panel["trace"] | trace for trace in view["data"]], "layout": panel["layout"] | view["layout"]}


def first(views: dict[str, Any]) -> dict[str, Any]:
    return next(iter(views.values()))


def words(page: str) -> str:
    """The part that people read, without tags."""
    body = page[page.index("<body>") : page.index("<noscript>")]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", body))


# The page


def test_table_has_a_row_a_graph_in_the_experiments_order(tmp_path: Path):
    page = report(tmp_path, THREE, results(THREE, ENDS))
    rows = re.findall(r'<tr><th scope="row">(.*?)</tr>', page[: page.index("</table>")])
    assert [re.sub("<[^>]*>", "", row.split("</th>")[0]) for row in rows] == ["all-reduce", "complete", "torus", "ring"]
    assert "97.00 <small>± 1.41</small>" in rows[0]
    assert "90.50 <small>± 0.71</small>" in rows[3]
    assert "2 MB" in rows[3]


def test_cells_carry_the_numbers_that_the_table_is_sorted_by(tmp_path: Path):
    """Only the script makes buttons of heads: without it, there is a plain table."""
    runs = results(THREE, ENDS)
    for run in runs:
        run.epochs[-1] |= {"perplexity": 54.6} if run.run.label == "ring" else {"perplexity": 54.6, "bleu": 31.5}
        run.epochs[-1]["consensus_distance"] *= 1e-16 if run.run.label == "torus" else 1
    page = report(tmp_path, THREE, runs)
    table = page[page.index('<table class="results">') : page.index("</table>")]
    assert "<button" not in table
    assert re.findall(r'<th data-best="(\w+)" scope="col">(.*?)</th>', table) == [
        *(("descending", name) for name in ("averaged model", "mean replica", "worst replica")),
        ("ascending", "perplexity"),
        ("descending", "bleu"),
        *(("ascending", name) for name in ("in training", "at the end", "Gini in training", "total", "× all-reduce")),
    ]
    _, complete, torus, ring = (re.findall("<td(.*?)>", row) for row in table.split('<th scope="row">')[1:])
    value = [float(cell.removeprefix(' data-value="').removesuffix('"')) for cell in complete]
    assert value == pytest.approx([0.97, 0.97, 0.873, 54.6, 31.5, 7.5e-4, 5e-4, 7.5e-4, 2e6, 1.0])
    assert torus[6] == ' data-value="0"', "only rounding, as it is written"
    assert [place for place, cell in enumerate(ring) if not cell] == [4], "it has no score"


def test_every_graph_has_one_colour_everywhere(tmp_path: Path):
    page = report(tmp_path, THREE, results(THREE, ENDS))
    shown = figures(page)
    for views in (shown["accuracy"], shown["consensus"], shown["bytes"]):
        drawn = list(views.values())[-1]["data"]
        colours = {t["name"]: t["line"]["color"] for t in drawn if "color" in t.get("line", {})}
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
    traces = first(figures(report(tmp_path, THREE, results(THREE, ENDS)))["accuracy"])["data"]
    (band,) = [trace for trace in traces if trace["name"] == "ring" and "fill" in trace]
    (line,) = [trace for trace in traces if trace["name"] == "ring" and "fill" not in trace]
    assert band["x"] == [1, 2, 2, 1]
    assert band["y"] == pytest.approx([0.455, 0.91, 0.90, 0.45])
    assert line["y"] == pytest.approx([0.4525, 0.905])


def test_zeros_are_kept_off_logarithmic_axes_and_said(tmp_path: Path):
    page = report(tmp_path, THREE, results(THREE, ENDS))
    shown = {trace["name"] for trace in first(figures(page)["consensus"])["data"]}
    assert shown == {"complete", "torus", "ring"}
    assert "Not shown: all-reduce" in words(page)


def test_correlation_is_of_decentralized_runs_only(tmp_path: Path):
    text = words(report(tmp_path, THREE, results(THREE, ENDS)))
    assert "over 6 decentralized runs: ρ = −0.89" in text  # by hand: −14 ∕ √(16 · 15.5)
    few = replace(THREE, graphs=("ring",))
    assert "Too few decentralized runs for a rank correlation: 2." in words(report(tmp_path, few, results(few, ENDS)))
    same = results(THREE, dict.fromkeys(ENDS, (0.9, 0.9)))
    assert "equal in one of the two" in words(report(tmp_path, THREE, same))


def heat(view: dict[str, Any]) -> np.ndarray:
    """The powers of ten of a heat map, as the page's script unpacks them."""
    (trace,) = view["data"]
    cells = np.frombuffer(base64.b64decode(trace["packed"]), dtype="<i2").astype(float)
    return np.where(cells == -32768, np.nan, cells / 1000).reshape(len(trace["y"]), len(trace["x"]))


def test_heat_map_averages_probes_and_seeds(tmp_path: Path):
    runs = results(THREE, ENDS)
    of_complete = [run for run in runs if run.run.label == "complete"]
    of_complete[0].tensors["gini"][0] = 3e-3  # the other seed has 1e-3
    views = figures(report(tmp_path, THREE, runs))["tensors"]
    assert views["complete / Gini coefficient"]["data"][0]["x"] == [1, 2]
    gini = heat(views["complete / Gini coefficient"])
    np.testing.assert_allclose(gini, np.log10([[2e-3, 5e-4], [1e-3, 5e-4]]), atol=6e-4)
    np.testing.assert_allclose(heat(views["complete / consensus distance"])[0], np.log10([1e-3, 5e-4]), atol=6e-4)
    scales = {label: view["layout"]["coloraxis"] for label, view in views.items() if "Gini" in label}
    assert scales["ring / Gini coefficient"] == scales["complete / Gini coefficient"]


def test_heat_map_of_many_tensors_and_probes_is_readable(tmp_path: Path):
    experiment = Experiment(graphs=("ring",), workers=4, seeds=1, epochs=150, centralized=False)
    names = [f"layers.{i}.weight" for i in range(300)]
    runs = [result(run, 0.9, tensors=names) for run in experiment.runs()]
    view = figures(report(tmp_path, experiment, runs))["tensors"]["ring / coefficient of variation"]
    assert heat(view).shape == (300, 60)
    assert view["data"][0]["x"] == sorted(view["data"][0]["x"])
    assert view["layout"]["height"] < 1100
    assert 20 < len(view["layout"]["yaxis"]["ticktext"]) <= 75
    np.testing.assert_allclose(
        heat(view)[7, :2], np.log10([1e-3 * (1 + 1 / 2 + 1 / 3) / 3, 1e-3 * (1 / 4 + 1 / 5) / 2]), atol=6e-4
    )


def test_a_run_that_diverged_at_once_is_marked_with_its_reason(tmp_path: Path):
    reason = "the loss of replica 3 became nan at step 7: <take> a lower learning rate"
    runs = [
        result(r.run, 0.1, num_epochs=0, reason=reason) if r.run.label == "ring" else r for r in results(THREE, ENDS)
    ]
    page = report(tmp_path, THREE, runs)
    assert page.count("replica 3 became nan at step 7: &lt;take&gt; a lower learning rate") == 2  # two seeds
    assert "ring" not in {trace["name"] for trace in first(figures(page)["accuracy"])["data"]}


def test_a_run_that_diverged_later_is_dotted_to_its_end(tmp_path: Path):
    runs = results(THREE, ENDS)
    runs[-1] = result(runs[-1].run, 0.5, num_epochs=1, reason="the loss became inf")
    runs[-1].epochs[0]["consensus_distance"] = float("inf")
    shown = figures(report(tmp_path, THREE, runs))
    accuracy, consensus = (
        next(trace for trace in first(shown[name])["data"] if "diverged" in trace["name"])
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
    assert "&lt;/script&gt;&lt;b&gt;" in first(figures(page)["tensors"])["data"][0]["y"]


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
    table = page[page.index('<table class="results">') : page.index("</table>")]
    assert table.count('<th scope="row">') == len(labels)
    assert len(figures(page)["accuracy"]) == 3
    drawn = page[page.index("<h2>The graphs</h2>") :]
    assert drawn.count('<figure class="graph') == len(labels.keys() - {"all-reduce"})


def test_no_run_yet_makes_a_page(tmp_path: Path):
    assert "No run is over yet." in words(report(tmp_path, THREE, []))


def test_degree_over_time_is_shown_for_graphs_that_change(tmp_path: Path):
    experiment = Experiment(graphs=("ada", "ring"), workers=8, seeds=1, epochs=4)
    shown = figures(report(tmp_path, experiment, [result(run, 0.9) for run in experiment.runs()]))
    assert [trace["name"] for trace in first(shown["degree"])["data"]] == ["ada"]


def test_a_large_experiment_stays_small(tmp_path: Path):
    graphs = ("complete", "exponential", "torus", "ring", "ada", *(f"ring-lattice:k={k}" for k in (4, 8, 16)))
    experiment = Experiment(graphs=graphs, workers=1008, seeds=1, epochs=150)
    names = [f"layers.{i}.weight" for i in range(65)]
    runs = [result(run, 0.9123456789, drift=1 / 3, tensors=names) for run in experiment.runs()]
    report(tmp_path, experiment, runs)
    assert (tmp_path / "report.html").stat().st_size < 10e6


def test_every_measure_of_the_bench_has_a_name():
    assert {measure.key for measure in DISPERSIONS} == set(DISPERSION)


# Several settings on one page


def test_sizes_and_rules_have_plots_of_their_own(tmp_path: Path):
    page = report(tmp_path, SIZES, results(SIZES, ENDS))
    data = plots(page)
    assert len(data["accuracy"]["panels"]) == 6
    assert len(data["scale"]["panels"]) == 2, "one a rule"
    assert len(data["rules"]["panels"]) == 3, "one a size"
    shown = figures(page, setting=0)  # 4 workers, square root
    (ring,) = [trace for trace in first(shown["scale"])["data"] if trace["name"] == "ring"]
    assert ring["y"] == pytest.approx([0.905, 0.895, 0.875])
    assert ring["x"] == pytest.approx([4, 8, 16], rel=0.1)
    assert ring["error_y"]["array"] == pytest.approx([0.005 * math.sqrt(2)] * 3, rel=1e-4)
    (ring,) = [trace for trace in first(shown["rules"])["data"] if trace["name"] == "ring"]
    assert ring["y"] == pytest.approx([0.905, 0.88])
    assert first(shown["rules"])["layout"]["xaxis"]["ticktext"] == ["square-root", "linear"]


def test_the_largest_size_is_shown_first_and_texts_follow(tmp_path: Path):
    page = report(tmp_path, SIZES, results(SIZES, ENDS))
    assert '<option value="4" selected>16 workers · square-root rule</option>' in page
    shown = re.search(r'<p class="finding">(.*?)</p>', page, re.DOTALL)
    assert shown
    texts = re.findall(r'<span data-settings="([\d ]+)"( hidden)?>', shown[1])
    assert len(texts) == 6
    assert [places for places, is_hidden in texts if not is_hidden] == ["4"]


def test_the_table_says_which_setting_a_row_is_of(tmp_path: Path):
    page = report(tmp_path, SIZES, results(SIZES, ENDS))
    table = page[page.index('<table class="results">') : page.index("</table>")]
    assert table.count("<tbody data-setting=") == 6
    assert re.findall(r'<td class="apart">(.*?)</td>', table)[:2] == ["4", "square-root"]
    alone = report(tmp_path, THREE, results(THREE, ENDS))
    assert 'class="apart"' not in alone
    assert 'id="scale"' not in alone
    assert 'id="setting"' not in alone


def test_a_graph_has_one_colour_in_all_settings(tmp_path: Path):
    page = report(tmp_path, SIZES, results(SIZES, ENDS))
    colours = {
        trace["line"]["color"]
        for setting in range(6)
        for trace in first(figures(page, setting)["accuracy"])["data"]
        if trace["name"] == "ring" and "color" in trace["line"]
    }
    assert colours == {"--lasting-2"}


def test_rules_are_called_alike_everywhere():
    assert RULES.keys() == LR_RULES.keys()


def test_tasks_are_apart(tmp_path: Path):
    """Runs of another task, whose own figures this version does not know."""
    runs = results(THREE, ENDS)
    runs += [replace(run, run=replace(run.run, task="cifar10", workers=8)) for run in results(THREE, ENDS)]
    subject = Subject(runs=[run.run for run in runs], origin="Joined folders", settings=["here"], notes=("A note.",))
    write_page(tmp_path / "joined.html", subject, runs)
    page = (tmp_path / "joined.html").read_text(encoding="utf-8")
    assert re.findall(r'<option value="\d"(?: selected)?>(\w+ · \d+ workers)</option>', page) == [
        "digits · 16 workers",
        "cifar10 · 8 workers",
    ]
    assert "<h1>Digits and cifar10 on 8 to 16 replicas</h1>" in page
    assert 'id="scale"' not in page, "sizes of different tasks do not compare"
    assert '<p class="note">A note.</p>' in page


# Fewer rows, more columns


def test_rows_may_be_sparser_than_epochs(tmp_path: Path):
    sparse = Experiment(graphs=("ring",), workers=4, seeds=2, epochs=150)
    runs = [result(run, 0.9, every=5) for run in sparse.runs()]
    traces = first(figures(report(tmp_path, sparse, runs))["accuracy"])["data"]
    (line,) = [trace for trace in traces if trace["name"] == "ring" and "fill" not in trace]
    assert line["x"] == list(range(5, 151, 5))


def test_long_curves_are_thinned(tmp_path: Path):
    long = Experiment(graphs=("ring",), workers=4, seeds=1, epochs=1000, centralized=False)
    traces = first(figures(report(tmp_path, long, [result(run, 0.9) for run in long.runs()]))["accuracy"])["data"]
    assert len(traces[0]["x"]) == 200
    assert (traces[0]["x"][0], traces[0]["x"][-1]) == (1, 1000)


def test_language_tasks_show_perplexity_and_scores(tmp_path: Path):
    runs = results(THREE, ENDS)
    for run in runs:
        for row in run.epochs:
            row |= {"test_loss": 4.0, "perplexity": 54.6, "replica_samples": 64}
        run.epochs[-1]["bleu"] = 31.5
    page = report(tmp_path, THREE, runs)
    shown = figures(page)
    assert list(shown["accuracy"]) == ["averaged model", "mean replica", "worst replica", "perplexity", "test loss"]
    assert shown["accuracy"]["perplexity"]["layout"]["yaxis"]["type"] == "log"
    assert list(shown["bytes"]) == [
        f"{when} / {what}" for when in ("at the end", "on the way") for what in ("averaged model", "perplexity")
    ]
    table = page[page.index('<table class="results">') : page.index("</table>")]
    assert "bleu" in table
    assert "31.50 <small>± 0.00</small>" in table
    assert "replica samples" not in page
    assert "exp( loss(x̄) )" in page
    assert "exp( loss(x̄) )" not in report(tmp_path, THREE, results(THREE, ENDS))


def test_a_perplexity_beyond_all_bounds_is_told_and_not_drawn(tmp_path: Path):
    runs = results(THREE, ENDS)
    for run in runs:
        for row in run.epochs:
            row["perplexity"] = math.inf if run.run.label == "ring" else 54.6
    page = report(tmp_path, THREE, runs)
    assert "∞" in page[page.index('<table class="results">') : page.index("</table>")]
    drawn = figures(page)["accuracy"]["perplexity"]["data"]
    heights = [value for trace in drawn for value in trace["y"]]
    assert 54.6 in heights
    assert set(heights) <= {54.6, None}


def test_cost_has_a_point_a_graph_and_the_baseline(tmp_path: Path):
    view = figures(report(tmp_path, THREE, results(THREE, ENDS)))["bytes"]["at the end / averaged model"]
    assert [trace["name"] for trace in view["data"]] == ["all-reduce", "complete", "torus", "ring"]
    assert view["layout"]["xaxis"]["type"] == "log"
    ring = view["data"][-1]
    assert (ring["x"], ring["y"]) == ([2e6], [0.905])
    assert ring["error_y"]["array"] == pytest.approx([0.005 * math.sqrt(2)], rel=1e-4)


# Who sees which data


def dealt(counts: list[list[int]]) -> dict[str, list[int]]:
    """Shards `[workers, classes]` as a run keeps them."""
    worker, place = np.nonzero(counts)
    return {"worker": worker.tolist(), "class": place.tolist(), "samples": np.array(counts)[worker, place].tolist()}


def test_how_unlike_workers_are_is_said(tmp_path: Path):
    experiment = Experiment(graphs=("ring",), workers=4, seeds=1, epochs=2, alpha=0.1)
    counts = [[10, 0, 0], [9, 1, 0], [4, 3, 3], [0, 1, 9]]
    runs = [replace(result(run, 0.9), shards=dealt(counts)) for run in experiment.runs()]
    page = report(tmp_path, experiment, runs)
    assert (
        "With α = 0.1, half of the workers have nine tenths of their samples from a single one of the 3 classes (1 at "
        "the least, 3 at the most); the largest class of a worker makes up 90 % of its samples in the median, from 40 "
        "to 100 %."
    ) in words(page)
    alike = [replace(run, run=replace(run.run, alpha=7.0), shards=dealt([[4, 3, 3]] * 4)) for run in runs]
    assert "With α = 7 it is 3 or fewer, and 40 %, from 40 to 40 %." in words(
        report(tmp_path, experiment, runs + alike)
    )
    view = figures(page)["shards"]["α = 0.1 / seed 0"]
    (trace,) = view["data"]
    assert (trace["x"], trace["y"], trace["z"]) == ([0, 1, 2, 3], ["0", "1", "2"], np.transpose(counts).tolist())
    assert (view["layout"]["coloraxis"]["cmin"], view["layout"]["coloraxis"]["cmax"]) == (0, 10)


def test_graphs_share_their_shards_and_rules_too(tmp_path: Path):
    experiment = replace(SIZES, alpha=0.5)
    runs = [
        replace(run, shards=dealt([[run.run.workers, run.run.seed + 1]] * run.run.workers))
        for run in results(experiment, ENDS)
    ]
    plot = plots(report(tmp_path, experiment, runs))["shards"]
    assert plot["of"] == [0, 0, 1, 1, 2, 2], "a picture a size, whatever the rule"
    assert plot["choices"] == [["α = 0.5"], ["seed 0", "seed 1"]]


def test_a_thousand_workers_are_put_in_order_and_stay_small(tmp_path: Path):
    experiment = Experiment(graphs=("ring", "torus"), workers=1008, seeds=2, epochs=2, alpha=0.1)
    kept = [dealt_classes(torch.arange(50_000) % 10, workers=1008, seed=seed, alpha=0.1) for seed in range(2)]
    runs = [replace(result(run, 0.9), shards=kept[run.seed]) for run in experiment.runs()]
    page = report(tmp_path, experiment, runs)
    assert len(json.dumps(plots(page)["shards"])) < 100e3
    view = figures(page)["shards"]["α = 0.1 / seed 1"]
    (trace,) = view["data"]
    largest = np.argmax(trace["z"], axis=0)
    assert largest.tolist() == sorted(largest)
    assert sorted(map(int, trace["x"])) == list(range(1008))
    at = trace["x"].index("17")
    own = {c: n for w, c, n in zip(*kept[1].values(), strict=True) if w == 17}
    assert [row[at] for row in trace["z"]] == [own.get(c, 0) for c in range(10)]


def test_many_classes_share_rows_and_more_workers_than_fit_are_thinned(tmp_path: Path):
    experiment = Experiment(graphs=("ring",), workers=1400, seeds=1, epochs=2, alpha=0.1, centralized=False)
    kept = dealt_classes(torch.arange(300_000) % 1000, workers=1400, seed=0, alpha=0.1)
    page = report(tmp_path, experiment, [replace(result(run, 0.9), shards=kept) for run in experiment.runs()])
    view = first(figures(page)["shards"])
    (trace,) = view["data"]
    assert np.shape(trace["z"]) == (50, 1200)
    assert trace["y"][:2] == ["0–19", "20–39"]
    assert {sum(column) for column in zip(*trace["z"], strict=True)} == {300_000 // 1400}
    assert view["layout"]["xaxis"]["title"]["text"].startswith("1200 of 1400 workers")
    assert view["layout"]["coloraxis"]["cmax"] == np.max(trace["z"]) > max(kept["samples"])
    assert view["layout"]["height"] < 700


# The ranking


def test_the_ranking_is_a_table_with_what_it_cannot_say(tmp_path: Path):
    text = words(report(tmp_path, THREE, results(THREE, ENDS)))
    assert "3 graphs, 2 seeds. With 3 graphs no order is unlikely, so there is no p-value." in text
    assert "consensus distance – – – +1.00 +1.00 – +1.00 +1.00 – +1.00 +1.00 –" in text  # no probe early
    alone = replace(THREE, graphs=("ring",))
    assert "Only one graph (ring) came to its end" in words(report(tmp_path, alone, results(alone, ENDS)))


def test_where_replicas_are_furthest_apart_is_said_and_marked(tmp_path: Path):
    page = report(tmp_path, THREE, results(THREE, ENDS))
    assert "The Gini coefficient is largest at 50 % of the training on all graphs" in words(page)
    marks = [t for t in first(figures(page)["consensus"])["data"] if t.get("marker", {}).get("symbol") == "diamond"]
    assert [mark["x"] for mark in marks] == [[1]] * 3


def test_nothing_is_fetched_from_elsewhere(tmp_path: Path):
    page = report(tmp_path, THREE, results(THREE, ENDS))
    assert "default-src 'none'" in page
    assert not re.search(r"<(?:link|img|iframe)\b|<script[^>]*\bsrc=", page[: page.index("<noscript>")])
