"""The white-box ranking: by hand, with ties, with what diverged, and where there is nothing to rank."""

from dataclasses import replace

import numpy as np
import pytest
from made_up_runs import result, results

from gossamer.bench import Experiment, RunResult
from gossamer.bench.rank_correlation import correlate
from gossamer.bench.ranks import METRICS, PHASES, Analysis, rank_analyses

GRAPHS = ("complete", "exponential", "torus", "ring")
FOUR = Experiment(graphs=GRAPHS, workers=16, seeds=2, epochs=3)
DRIFTS = {"complete": 1e-4, "exponential": 2e-4, "torus": 3e-4, "ring": 4e-4}
ENDS = {"complete": 0.97, "exponential": 0.96, "torus": 0.95, "ring": 0.90}


def made(experiment: Experiment = FOUR, drifts: dict[str, float] = DRIFTS) -> list[RunResult]:
    return [
        result(run, ENDS[run.graph], drift=0.0 if run.label == "all-reduce" else drifts[run.graph])
        for run in experiment.runs()
    ]


def only(runs: list[RunResult]) -> Analysis:
    (analysis,) = rank_analyses(runs)
    return analysis


def agreement(analysis: Analysis, metric: str, phase: str) -> float | None:
    (ranking,) = [r for r in analysis.rankings if (r.metric, r.phase) == (metric, phase)]
    return ranking.correlation.spearman


def test_least_dispersed_and_most_accurate_agree() -> None:
    analysis = only(made())
    assert analysis.graphs == GRAPHS
    assert len(analysis.rankings) == len(METRICS) * len(PHASES)
    for ranking in analysis.rankings:
        assert ranking.ranks == {"complete": 1, "exponential": 2, "torus": 3, "ring": 4}
        assert ranking.correlation.spearman == ranking.correlation.kendall == 1
        # Of the 24 orders of four graphs one agrees wholly, and one disagrees wholly.
        assert ranking.correlation.spearman_p == ranking.correlation.kendall_p == pytest.approx(2 / 24)


def test_phases_are_looked_at_apart() -> None:
    """In the last third the order is turned round."""
    runs = made()
    for member in runs:
        if member.run.label != "all-reduce":
            member.tensors["gini"][-2:] = [1 / DRIFTS[member.run.graph]] * 2
    analysis = only(runs)
    assert [agreement(analysis, "gini", phase) for phase in ("early", "middle", "late")] == [1, 1, -1]
    assert agreement(analysis, "gini", "all") == 1  # two thirds outvote one
    (over_all,) = [r for r in analysis.rankings if (r.metric, r.phase) == ("gini", "all")]
    assert over_all.ranks == pytest.approx({"complete": 2, "exponential": 7 / 3, "torus": 8 / 3, "ring": 3})


def test_ranks_are_averaged_over_tensors() -> None:
    """One of two tensors says the reverse, so every graph has the same mean rank, and no correlation is claimed."""
    runs = made()
    for member in runs:
        for cell in range(1, len(member.tensors["gini"]), 2):
            member.tensors["gini"][cell] = 1 - member.tensors["gini"][cell]
    (ranking,) = [r for r in only(runs).rankings if (r.metric, r.phase) == ("gini", "all")]
    assert set(ranking.ranks.values()) == {2.5}
    assert ranking.correlation.spearman is None
    assert "equal" in ranking.correlation.reason


def test_ties_share_their_mean_rank_and_rounding_is_no_difference() -> None:
    drifts = DRIFTS | {"complete": 1e-17, "exponential": 3e-18}
    ranking = only(made(drifts=drifts)).rankings[0]
    assert ranking.ranks == {"complete": 1.5, "exponential": 1.5, "torus": 3, "ring": 4}


def test_a_seed_that_diverged_on_one_graph_counts_on_none() -> None:
    runs = [
        result(r.run, 0.1, num_epochs=1, reason="the loss became nan") if r.run.folder == "ring-n16-sqrt-seed0" else r
        for r in made()
    ]
    analysis = only(runs)
    assert analysis.seeds == (1,)
    assert analysis.excluded == 4  # the diverged run, and seed 0 of the other three graphs
    assert analysis.graphs == GRAPHS
    assert analysis.accuracy["ring"] == 0.90


def test_a_graph_that_never_finished_is_left_out() -> None:
    runs = [result(r.run, 0.1, num_epochs=0, reason="nan") if r.run.graph == "ring" else r for r in made()]
    analysis = only(runs)
    assert analysis.graphs == GRAPHS[:3]
    assert analysis.seeds == (0, 1)
    assert analysis.excluded == 2
    correlation = analysis.rankings[0].correlation
    assert (correlation.n, correlation.spearman, correlation.spearman_p) == (3, 1, None)
    assert correlation.reason == "3 graphs are too few for a p-value"


def test_one_graph_or_none_cannot_be_ranked() -> None:
    alone = only(made(replace(FOUR, graphs=("ring",))))
    assert alone.rankings == ()
    assert alone.reason == "Only one graph (ring) came to its end: a ranking needs at least two."
    none = only([result(run, 0.1, num_epochs=0, reason="nan") for run in FOUR.runs()])
    assert none.reason.startswith("No decentralized run came to its end")
    assert rank_analyses([r for r in made() if r.run.label == "all-reduce"]) == []


def test_only_equal_settings_are_compared() -> None:
    several = replace(FOUR, workers=(8, 16), lr_rules=("sqrt", "linear"), seeds=1)
    analyses = rank_analyses(results(several, dict.fromkeys(("all-reduce", *GRAPHS), (0.9,))))
    assert [(a.run.workers, a.run.lr_rule) for a in analyses] == [
        (8, "sqrt"),
        (8, "linear"),
        (16, "sqrt"),
        (16, "linear"),
    ]
    assert all(analysis.graphs == GRAPHS for analysis in analyses)


def test_connections_go_with_accuracy() -> None:
    connections = only(made()).connections
    # Degrees 15, 4, 4, 2 and gaps 1, 0.4, 0.4, 0.05 against accuracies in that order: the middle two tie.
    assert connections["degree"].spearman == pytest.approx(4.5 / np.sqrt(4.5 * 5))
    assert connections["spectral_gap"].spearman == connections["degree"].spearman
    assert connections["degree"].kendall == pytest.approx(5 / np.sqrt(5 * 6))


def test_variance_peaks_where_it_is_largest() -> None:
    runs = made()
    for member in runs:
        if member.run.folder == "ring-n16-sqrt-seed1":
            member.probes[1]["gini"] = 1.0  # the second of three epochs
    peaks = {(peak.graph, peak.metric): peak for peak in only(runs).peaks}
    ring = peaks["ring", "gini"]
    assert (ring.low, ring.mean, ring.high) == pytest.approx((1 / 3, 1 / 2, 2 / 3))
    assert peaks["complete", "gini"].high == pytest.approx(1 / 3)


def test_the_consensus_distance_peaks_where_that_of_the_whole_model_does() -> None:
    """And not where that of a tensor does which begins at zero."""
    runs = made()
    for member in runs:
        member.tensors["consensus_distance"][0] = 100.0
        member.probes[2]["consensus_distance"] = 1.0
    peaks = {(peak.graph, peak.metric): peak for peak in only(runs).peaks}
    assert peaks["ring", "consensus_distance"].low == pytest.approx(1.0)


def test_replicas_that_never_differ_have_no_peak() -> None:
    assert only(made(drifts=dict.fromkeys(DRIFTS, 0.0))).peaks == ()


def test_values_that_are_no_numbers_are_left_out() -> None:
    runs = made()
    runs[-1].tensors["gini"][0] = float("nan")
    (ranking,) = [r for r in only(runs).rankings if (r.metric, r.phase) == ("gini", "early")]
    assert ranking.ranks["ring"] == 4


def test_rows_are_plain() -> None:
    rows = only(made()).rows()
    assert rows[0]["against"] == "consensus_distance"
    assert {row["phase"] for row in rows} == set(PHASES)
    assert rows[-1] | {"against": "spectral_gap", "phase": "all", "n": 4} == rows[-1]


@pytest.mark.parametrize("n", [4, 6, 9])
def test_p_values_follow_from_all_orders(n: int) -> None:
    """Against SciPy: its own p-value of tau is exact without ties; that of rho only for many things."""
    from scipy.stats import kendalltau, spearmanr

    one, other = np.random.default_rng(n).random((2, n))
    ours = correlate(one, other)
    rho, tau = spearmanr(one, other), kendalltau(one, other)
    assert ours.spearman == pytest.approx(rho.statistic)
    assert ours.kendall_p == pytest.approx(tau.pvalue)
    assert ours.spearman_p == pytest.approx(rho.pvalue, abs=0.1 if n < 9 else 1e-9)
