"""What the report says in words: no more than the numbers say."""

from dataclasses import replace
from typing import Any

from made_up_runs import ENDS, SIZES, THREE, result, results

from gossamer.bench import Experiment
from gossamer.bench.report._finding import finding
from gossamer.bench.report._finding_across import on_rules, on_scale
from gossamer.bench.report._groups import Group, group
from gossamer.bench.report._labels import Setting


def said(experiment: Experiment, accuracies: dict[str, Any]) -> str:
    return finding(group(results(experiment, accuracies))).replace("\u00a0", " ")


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


def test_what_learns_nothing_is_said_to_and_compared_with_nothing():
    sentence = said(THREE, ENDS | {"ring": (0.10, 0.11)})
    assert "ring does not learn: it ends at 10.5 %, where a trained model reaches 95.0 %." in sentence
    assert "ring ends" not in sentence
    assert said(THREE, dict.fromkeys(ENDS, (0.10, 0.11))).startswith(
        "Nothing learns: no run ends above 11.0 %, where a trained model reaches 95.0 %."
    )


def test_replicas_that_are_better_than_their_average_are_named():
    runs = results(THREE, ENDS | {"ring": (0.60, 0.62)})
    for run in runs:
        if run.run.label == "ring":
            run.epochs[-1]["replica_accuracy_mean"] = 0.80
    sentence = finding(group(runs)).replace("\u00a0", " ")
    assert "Replicas are too far apart to be averaged on ring (61.0 % averaged, 80.0 % the mean replica)." in sentence
    assert sentence.count("too far apart") == 1


def groups_of(ends: dict[str, Any], experiment: Experiment = SIZES) -> list[Group]:
    return group(results(experiment, ends))


def test_what_growing_costs_is_said_with_its_spread():
    """Made up so that four times the workers cost three points everywhere."""
    sentence = on_scale(groups_of(ENDS), Setting("digits", 4, "sqrt")).replace("\u00a0", " ")
    assert sentence == (
        "From 4 to 16 workers, complete loses 3.0 ± 0.0 points, ring loses 3.0 ± 1.0 points and torus loses 3.0 ± 1.0 "
        "points; all-reduce loses 3.0 ± 2.0 points."
    )
    wide = ENDS | {"torus": (0.90, 0.99), "all-reduce": (0.92, 0.98)}
    assert on_scale(groups_of(wide), Setting("digits", 4, "sqrt")).endswith(
        "torus stays within the spread over seeds; all-reduce stays within it too."
    )
    one_size = replace(THREE, workers=16)
    assert on_scale(groups_of(ENDS, one_size), Setting("digits", 16, "sqrt")) == ""


def test_the_better_rule_is_named_where_seeds_agree():
    sentence = on_rules(groups_of(ENDS), Setting("digits", 4, "sqrt"))
    assert sentence == "With 4 workers, the square-root rule ends highest on all-reduce, complete, torus and ring."
    # At 16 workers the global batch is the one that the rate is for, so every rule gives the same.
    assert on_rules(groups_of(ENDS), Setting("digits", 16, "sqrt")) == (
        "With 16 workers, all rules give the same learning rate."
    )
    wide = dict.fromkeys(ENDS, (0.95, 0.85))
    assert "on every graph no rule is outside the spread of another" in on_rules(
        groups_of(wide), Setting("digits", 4, "sqrt")
    )
