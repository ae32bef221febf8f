"""The plots of a page."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from ..store import RunResult
from ..summary import summarize
from ._groups import Group, Series
from ._heat_map import heat_map
from ._measures import ACCURACIES, AVERAGED, CONSENSUS, DISPERSIONS, GINI, SENT, Measure
from ._numbers import byte_unit, finite, size
from ._plots import LOG, SHARE, Figure, Json, View, line, name_ticks, padded, per_epoch, plot_text, trace


def figures(groups: Sequence[Group]) -> dict[str, Figure]:
    """All plots, by the id of their place in the page."""
    made = {
        "accuracy": Figure(height=420, views={m.label: _over_epochs(groups, m, _share(groups, m)) for m in ACCURACIES}),
        "final": Figure(height=420, views={m.label: _final(groups, m) for m in ACCURACIES}),
        "consensus": Figure(height=360, views={CONSENSUS.label: _over_epochs(groups, CONSENSUS, LOG)}),
        "dispersion": Figure(height=360, views={m.label: _over_epochs(groups, m, LOG) for m in DISPERSIONS}),
        "scatter": Figure(height=400, views={GINI.label: _scatter(groups)}),
        "tensors": heat_map(groups),
        "bytes": Figure(height=360, views={AVERAGED.label: _against_bytes(groups)}),
    }
    if changing := [group for group in groups if group.changes]:
        made["degree"] = Figure(height=220, views={"degree": _degree(changing)})
    return made


def _over_epochs(groups: Sequence[Group], measure: Measure, y_axis: Json) -> View:
    """For each graph a band over seeds, their mean as a line, and every diverged run dotted up to its end."""
    bands, lines, broken = [], [], []
    for group in groups:
        curve = group.curve(measure, is_log=measure not in ACCURACIES)
        if any(curve.mean):
            lines.append(line(group, curve.epochs, curve.mean))
            if len(group.finished) > 1:
                bands.append(_band(group, curve.epochs, curve.low, curve.high))
        broken += [_broken(group, run, measure) for run in group.diverged if run.epochs]
    return [*bands, *lines, *broken], per_epoch(groups, y_axis)


def _share(groups: Sequence[Group], measure: Measure) -> Json:
    """An axis of accuracies without the steep first tenth of the training, so that later differences show."""
    curves = [group.curve(measure) for group in groups]
    series = [values[len(values) // 10 :] for curve in curves for values in (curve.low, curve.high)]
    late = [value for values in series for value in values if value is not None]
    return SHARE | ({"range": padded(late, 0.03)} if late else {})


def _band(group: Group, epochs: list[int], low: Series, high: Series) -> Json:
    """One outline: along the highest seeds, and back along the lowest."""
    known = [(x, a, b) for x, a, b in zip(epochs, low, high, strict=True) if a is not None and b is not None]
    return trace(
        group,
        x=[x for x, _, _ in known] + [x for x, _, _ in reversed(known)],
        y=[b for _, _, b in known] + [a for _, a, _ in reversed(known)],
        mode="lines",
        line={"width": 0},
        fill="toself",
        fillcolor=group.colour.band,
        hoverinfo="skip",
    )


def _broken(group: Group, run: RunResult, measure: Measure) -> Json:
    return trace(
        group,
        x=[row["epoch"] for row in run.epochs],
        y=[finite(row[measure.key]) for row in run.epochs],
        mode="lines+markers",
        line={"color": group.colour.variable, "width": 1.2, "dash": "dot"},
        marker={"symbol": "x", "size": [0] * (len(run.epochs) - 1) + [10]},
        name=plot_text(f"{group.label}, seed {run.run.seed} (diverged)"),
    )


def _final(groups: Sequence[Group], measure: Measure) -> View:
    """Where every run ended: a dot a seed, a stroke at their mean. Last differences need an axis of their own."""
    traces: list[Json] = []
    ends: list[float] = []
    for place, group in enumerate(groups):
        values = [run.final[measure.key] for run in group.finished]
        if not values:
            continue
        ends += values
        colour = group.colour.variable
        dots = {"size": 9, "color": colour, "opacity": 0.55}
        stroke = {"symbol": "line-ns", "size": 11, "line": {"width": 3, "color": colour}}
        for shown, marker in ((values, dots), ([fmean(values)], stroke)):
            traces.append(
                trace(
                    group,
                    x=[finite(value) for value in shown],
                    y=[place] * len(shown),
                    mode="markers",
                    marker=marker,
                    hovertemplate="%{x:.2%}<extra>%{fullData.name}</extra>",
                )
            )
    labels = name_ticks([group.label for group in groups])
    y_axis = {**labels, "range": [len(groups) - 0.5, -0.5], "showgrid": False, "zeroline": False}
    x_axis = {"title": {"text": "after the last epoch"}, "nticks": 6, "showgrid": True, **SHARE}
    return traces, {"xaxis": x_axis | ({"range": padded(ends, 0.08)} if ends else {}), "yaxis": y_axis}


def dispersed(groups: Sequence[Group]) -> list[tuple[Group, RunResult, float]]:
    """Finished decentralized runs with their mean dispersion over the training, where there is any."""
    return [
        (group, run, dispersion)
        for group in groups
        if not group.is_centralized
        for run in group.finished
        if (dispersion := size(summarize([run])[0][f"{GINI.key}_over_training"]))
    ]


def _scatter(groups: Sequence[Group]) -> View:
    """A point for each decentralized run; the centralized mean, which has no dispersion, as a level."""
    traces = [
        trace(
            group,
            x=[dispersion],
            y=[finite(run.final[AVERAGED.key])],
            mode="markers",
            marker={"size": 12, "color": group.colour.variable, "line": {"width": 1.5, "color": "--paper"}},
            name=plot_text(f"{group.label}, seed {run.run.seed}"),
            hovertemplate="%{y:.2%} at %{x:.2e}<extra>%{fullData.name}</extra>",
        )
        for group, run, dispersion in dispersed(groups)
    ]
    x_axis = {"title": {"text": f"{GINI.label}, mean over the training"}, **LOG}
    layout = {"xaxis": x_axis, "yaxis": {"title": {"text": "final accuracy"}, **SHARE}}
    baseline = [group for group in groups if group.is_centralized and group.finished]
    return traces, layout | (_level(baseline[0]) if baseline and traces else {})


def _level(group: Group) -> Json:
    """The mean final accuracy of a graph, as a line across the plot."""
    level = finite(group.summary[AVERAGED.key])
    colour = group.colour.variable
    across: dict[str, Any] = {"xref": "paper", "type": "line", "x0": 0, "x1": 1, "y0": level, "y1": level}
    return {
        "shapes": [across | {"line": {"color": colour, "width": 1.5, "dash": "6px,3px"}}],
        "annotations": [
            {
                "text": plot_text(group.label),
                "xref": "paper",
                "x": 1,
                "xanchor": "right",
                "y": level,
                "yanchor": "bottom",
                "showarrow": False,
                "font": {"color": colour},
            }
        ],
    }


def _against_bytes(groups: Sequence[Group]) -> View:
    """What accuracy costs: the averaged model against all that a worker has sent by then."""
    costs = {group: group.curve(SENT).mean for group in groups}
    scale, unit = byte_unit(max((cost or 0.0 for series in costs.values() for cost in series), default=0.0))
    traces = [
        line(
            group,
            [finite(value / scale) if value is not None else None for value in cost],
            group.curve(AVERAGED).mean,
            hovertemplate=f"%{{y:.2%}} after %{{x:.3~g}} {unit}<extra>%{{fullData.name}}</extra>",
        )
        for group, cost in costs.items()
        if cost
    ]
    x_axis = {"title": {"text": f"sent per worker ({unit})"}, "rangemode": "tozero"}
    return traces, {"xaxis": x_axis, "yaxis": _share(groups, AVERAGED)}


def _degree(groups: Sequence[Group]) -> View:
    """How many neighbours a worker has in each epoch, as the longest run saw it."""
    traces = []
    for group in groups:
        rows = max((run.epochs for run in group.runs), key=len)
        steps = line(group, [row["epoch"] for row in rows], [row["degree"] for row in rows])
        traces.append(steps | {"mode": "lines+markers", "line": steps["line"] | {"shape": "hvh"}})
    return traces, per_epoch(groups, {"title": {"text": "degree"}, "rangemode": "tozero"})
