"""The white-box ranking on the page: a table, a small plot and a sentence."""

from collections.abc import Sequence
from html import escape
from statistics import fmean

from ..rank_correlation import Correlation
from ..ranks import PHASES, Analysis, rank_analyses
from ._groups import Group
from ._measures import AVERAGED, DIFFERENCES, GINI, NAMES, Measure
from ._numbers import MISSING, counted, finite, listed
from ._plots import Figure, Json, Views, all_y, axis, beside, plot_text, trace

_CONNECTIONS = {"degree": "number of neighbours", "spectral_gap": "spectral gap"}
_HEAD = (
    '<thead><tr><th rowspan="2" scope="col">Ranked by</th>'
    + "".join(f'<th colspan="3" scope="colgroup">{phase}</th>' for phase in ("early", "middle", "late", "all of it"))
    + "</tr><tr>"
    + '<th scope="col">ρ</th><th scope="col">τ</th><th scope="col">p</th>' * len(PHASES)
    + "</tr></thead>"
)
_MOST_NAMED = 6
_TOGETHER = 0.05
"""Graphs whose peaks are no further apart than this share of the training peak together, to the reader."""


def analyses_of(groups: Sequence[Group]) -> list[Analysis]:
    """The rankings of the runs of one setting: one, unless runs differ in more than graph and seed."""
    return rank_analyses([run for group in groups for run in group.runs])


def rank_table(groups: Sequence[Group], analyses: Sequence[Analysis]) -> str:
    """Agreement of the rankings by dispersion and by accuracy."""
    if not analyses:
        return '<p class="note">An all-reduce keeps replicas equal: there is nothing to rank.</p>'
    return "".join(_of_one(analysis, groups, is_only=len(analyses) == 1) for analysis in analyses)


def _of_one(analysis: Analysis, groups: Sequence[Group], *, is_only: bool) -> str:
    title = "" if is_only else f'<h3 class="later">{escape(_name(analysis, groups))}</h3>'
    if analysis.reason:
        return f'{title}<p class="note">{escape(analysis.reason)}</p>'
    rows = []
    for metric in dict.fromkeys(ranking.metric for ranking in analysis.rankings):
        by_phase = {r.phase: r.correlation for r in analysis.rankings if r.metric == metric}
        cells = "".join(_cells(by_phase.get(phase)) for phase in PHASES)
        rows.append(f'<tr><th scope="row">{NAMES[metric]}</th>{cells}</tr>')
    blank = f'<td colspan="{3 * (len(PHASES) - 1)}"></td>'
    rows += [
        f'<tr class="other"><th scope="row">{_CONNECTIONS[name]}</th>{blank}{_cells(correlation)}</tr>'
        for name, correlation in analysis.connections.items()
    ]
    table = f'<table class="results ranks">{_HEAD}<tbody>{"".join(rows)}</tbody></table>'
    return f'{title}<div class="scroll">{table}</div><p class="note">{escape(_counted(analysis))}</p>'


def _name(analysis: Analysis, groups: Sequence[Group]) -> str:
    """What sets these runs apart from the others of the setting: what follows the graph in their labels."""
    graph, group = next(iter(_members(analysis, groups).items()))
    return group.label.removeprefix(graph).removeprefix(" · ")


def _members(analysis: Analysis, groups: Sequence[Group]) -> dict[str, Group]:
    """The group of every graph that is ranked."""
    runs = set(analysis.runs)
    return {group.runs[0].run.graph: group for group in groups if group.runs[0].run in runs}


def _cells(correlation: Correlation | None) -> str:
    if correlation is None or correlation.spearman is None or correlation.kendall is None:
        return f"<td>{MISSING}</td>" * 3
    p = correlation.spearman_p
    written = MISSING if p is None else "&lt; 0.001" if p < 0.001 else f"{p:.2g}"
    signed = (f"{value:+.2f}".replace("-", "−") for value in (correlation.spearman, correlation.kendall))
    return "".join(f"<td>{value}</td>" for value in signed) + f"<td><small>{written}</small></td>"


def _counted(analysis: Analysis) -> str:
    n = len(analysis.graphs)
    said = [f"{counted(n, 'graph')}, {counted(len(analysis.seeds), 'seed')}."]
    if n < 4:
        said.append(f"With {n} graphs no order is unlikely, so there is no p-value.")
    elif n < 6:
        least = {4: "0.083", 5: "0.017"}[n]
        said.append(f"With {n} graphs, p cannot be lower than {least}, however well the two agree.")
    if analysis.excluded:
        runs = counted(analysis.excluded, "run")
        said.append(f"Left out: {runs}, diverged or without a finished partner of the same seed on every graph.")
    return " ".join(said)


def rank_plot(groups: Sequence[Group], analyses: Sequence[Analysis]) -> Figure | None:
    """Mean accuracy against mean rank, a point a graph; None where there is no ranking."""
    views: Views = {}
    for measure in DIFFERENCES:
        points = [point for analysis in analyses for point in _points(analysis, groups, measure)]
        if points:
            x_axis = {"title": {"text": f"mean rank by {measure.label}"}, "nticks": 8}
            x_axis["range"] = [0.6, max(point["x"][0] for point in points) + 0.4]
            y_axis = {"title": {"text": "final accuracy"}, **axis(AVERAGED, all_y(points))}
            views[measure.label,] = (points, {"xaxis": x_axis, "yaxis": y_axis})
    return Figure(height=340, views=views) if views else None


def _points(analysis: Analysis, groups: Sequence[Group], measure: Measure) -> list[Json]:
    members = _members(analysis, groups)
    return [
        trace(
            members[graph],
            x=[finite(rank)],
            y=[finite(analysis.accuracy[graph])],
            mode="markers+text",
            marker={"size": 12, "color": members[graph].colour.variable},
            text=[plot_text(members[graph].label) if beside(groups) else ""],
            textposition="top center",
            textfont={"size": 11, "color": members[graph].colour.variable},
            cliponaxis=False,
            hovertemplate="%{y:.2%}, mean rank %{x:.2f}<extra>%{fullData.name}</extra>",
        )
        for ranking in analysis.rankings
        if (ranking.metric, ranking.phase) == (measure.key, "all")
        for graph, rank in ranking.ranks.items()
    ]


def on_peaks(groups: Sequence[Group], measure: Measure = GINI) -> str:
    """When replicas are furthest apart, in a sentence; empty where they never are."""
    peaks = {group.label: group.peaks[measure.key] for group in groups if measure.key in group.peaks}
    if not peaks:
        return ""
    shares = [peak.mean for peak in peaks.values()]
    low, high = (f"{100 * share:.0f}\u00a0%" for share in (min(shares), max(shares)))
    if len(peaks) == 1:
        where = f"at {low} of the training on {next(iter(peaks))}"
    elif max(shares) - min(shares) <= _TOGETHER:
        where = f"at {100 * fmean(shares):.0f}\u00a0% of the training on all graphs"
    elif len(peaks) > _MOST_NAMED:
        where = f"between {low} and {high} of the training, depending on the graph"
    else:
        in_order = sorted(peaks.items(), key=lambda item: item[1].mean)
        each = [f"at {100 * peak.mean:.0f}\u00a0% on {label}" for label, peak in in_order]
        where = f"{listed(each)}, counted from the start of the training"
    return f"The {measure.label} is largest {where} (diamonds; mean over tensors and seeds)."
